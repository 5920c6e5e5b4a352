"""Runs over sources in a store give what runs over the same files give, whatever the store does, and read each once."""

import asyncio
import json
import os
import re
import signal
import subprocess
import tarfile
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from reelscribe._track_specs import ModelSpec
from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.cluster.session import RemoteNodes
from reelscribe.decode.sampling import Sampling
from reelscribe.run.driver import Run
from reelscribe.run.single_file import caption_file
from reelscribe.run.tracks.captions import CaptionOptions
from reelscribe.server.server_discovery import FoundServer
from reelscribe.storage import objects
from reelscribe.storage.spool import SpoolOptions
from reelscribe.thumbnails.store import ThumbnailStore
from reelscribe.viewer.index.source_row import read_line
from support.buckets import SCHEMES, SECRET, bucket_server
from support.commands import reelscribe
from support.fake_torchserve import FakeTorchServe
from support.local_cluster import LocalCluster
from support.odd_library import make_library
from support.patience import PATIENCE
from support.stores import cut, every_third, s3_server, stalled, status, web_server
from support.videos import write_noise

OPTIONS = CaptionOptions(Sampling(frames=4), decode_workers=2)
FOREVER = ["gone.mp4", "secret.mp4", "changed.mp4"]
"""Those that cannot be read."""


@pytest.fixture(scope="module")
def library(media, tmp_path_factory) -> Path:
    """Good and damaged files, as far as stores can hold them, and those that are to fail."""
    folder = tmp_path_factory.mktemp("library") / "odd"
    make_library(folder, media)
    for path in folder.iterdir():
        is_utf8 = path.name.isprintable()
        if path.is_symlink() or not path.is_file() or not os.access(path, os.R_OK) or not is_utf8:
            path.unlink()
    (folder / "forbidden.mp4").unlink(missing_ok=True)
    for number, name in enumerate(FOREVER):
        (folder / name).write_bytes(bytes(100 + number))
    return folder


@pytest.fixture
def scheme():
    """Where the bucket is, unless a test says otherwise."""
    return "s3"


@pytest.fixture
def bucket(scheme, library, monkeypatch):
    monkeypatch.setattr(objects, "FIRST_PAUSE", 0.01)
    with bucket_server(scheme, monkeypatch, library) as server:
        yield server


@pytest.fixture(scope="module")
def expected(library, tmp_path_factory) -> dict[str, dict]:
    return asyncio.run(annotate(library, tmp_path_factory.mktemp("local")))


async def annotate(
    name, out: Path, *, elsewhere: bool = False, stall_seconds: float = PATIENCE, options: CaptionOptions = OPTIONS
) -> dict[str, dict]:
    """Caption all sources in a run; return what its records say, by the names of the files."""
    async with FakeTorchServe() as server, AsyncExitStack() as stack:
        spec = ModelSpec(options, [FoundServer(Server(server.url))], "captioner", 8)
        tracks = RemoteNodes([spec], LocalCluster("a")) if elsewhere else [await spec.open(stack)]
        run = Run(tracks, out, spool=SpoolOptions(None, None, stall_seconds))
        await asyncio.wait_for(run.run([str(name)]), PATIENCE)
    return records_in(out)


def records_in(out: Path) -> dict[str, dict]:
    records = {}
    for line in (out / "annotations.jsonl").read_text().splitlines():
        record = json.loads(line)
        source = record["source"]
        for field in ("absolute_path", "version"):
            source.pop(field)
        records[source.pop("path").rpartition("/")[2]] = record
    return records


def fail(bucket, library: Path) -> None:
    """Make the store fail for nearly every object in some way."""
    for number, path in enumerate(sorted(library.iterdir())):
        bucket.faults[path.name] = [every_third(503), cut(number), every_third(500)][number % 3]
    large = [path.name for path in sorted(library.iterdir()) if path.stat().st_size > 2**16][:3]
    bucket.faults |= dict.fromkeys(large, stalled)
    bucket.faults["gone.mp4"], bucket.faults["secret.mp4"] = status(404), status(403)

    def change(sending):
        if sending.number > 1:  # it was asked for its version before
            bucket.put("changed.mp4", b"other content")

    bucket.faults["changed.mp4"] = change


@pytest.mark.parametrize(("scheme", "elsewhere"), [("s3", False), ("s3", True), ("gs", True), ("az", False)])
async def test_records_are_those_of_local_files_whatever_the_store_does(
    scheme, library, bucket, expected, tmp_path, elsewhere
):
    fail(bucket, library)
    records = await annotate(f"{scheme}://bucket/", tmp_path, elsewhere=elsewhere, stall_seconds=5.0)
    reasons = [records.pop(name)["error"] for name in FOREVER]
    assert records == {name: record for name, record in expected.items() if name not in FOREVER}
    assert [error["type"] for error in reasons] == ["NoSuchObject", "MediaError", "SourceChanged"]
    assert "permission denied by the store" in reasons[1]["message"]
    text = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    assert not SECRET.search(text)
    assert "/proc/" not in text


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_each_object_is_fetched_once_and_never_again(scheme, library, bucket, expected, tmp_path):
    assert await annotate(f"{scheme}://bucket/", tmp_path) == expected
    sizes = {path.name: path.stat().st_size for path in library.iterdir()}
    fetched = {name: sent / sizes[name] for name, sent in bucket.sent.items() if sizes.get(name)}
    print(f"bytes fetched: {max(fetched.values()):.3f} of a source at most")
    assert max(fetched.values()) <= 1.05
    bucket.requests.clear()
    assert await annotate(f"{scheme}://bucket/", tmp_path) == expected
    assert set(bucket.requests) == {"bucket"}  # its list alone


async def test_an_object_that_has_changed_is_done_anew(library, bucket, tmp_path):
    before = await annotate("s3://bucket/same-640x360.webm", tmp_path)
    content = (library / "old.avi").read_bytes()
    bucket.put("same-640x360.webm", content)
    after = await annotate("s3://bucket/same-640x360.webm", tmp_path)
    assert after["same-640x360.webm"]["source"]["bytes"] == len(content)
    assert before != after


async def test_files_of_a_web_server_are_sources_too(library, expected, tmp_path):
    with web_server(library) as (server, address):
        records = await annotate(f"{address}/old.avi?version=2", tmp_path)
    assert records == {"old.avi?version=2": expected["old.avi"]}
    assert server.sent["old.avi"] <= 1.05 * (library / "old.avi").stat().st_size


async def test_a_glob_in_a_bucket_stands_for_its_matches(bucket, tmp_path):
    records = await annotate("s3://bucket/truncated-[0-3].av?", tmp_path)
    assert sorted(records) == [f"truncated-{k}.avi" for k in range(4)]


async def test_members_of_archives_have_the_records_of_files(library, expected, monkeypatch, tmp_path):
    (shards := tmp_path / "shards").mkdir()
    names = [name for name in expected if name not in FOREVER]
    for number, some in enumerate((names[::2], names[1::2])):
        with tarfile.open(shards / f"{number}.tar", "w") as shard:
            for name in some:
                shard.add(library / name, name)
            (link := tarfile.TarInfo(f"{number}.mp4")).type = tarfile.SYMTYPE
            link.linkname = "/etc/passwd"
            shard.addfile(link)
    (shards / "2.tar").write_bytes(b"no archive" * 100)
    with s3_server(monkeypatch, shards):
        for number, place in enumerate((f"{shards}/*.tar", "s3://bucket/*.tar")):
            for _ in range(2):
                records = await annotate(place, tmp_path / str(number))
            assert "expected a .tar archive" in records.pop("2.tar")["error"]["message"]
            for shard in "01":
                assert "leads out of the archive" in records.pop(f"{shard}.tar::{shard}.mp4")["error"]["message"]
            assert {name.rpartition("::")[2]: record for name, record in records.items()} == {
                name: expected[name] for name in names
            }


async def test_one_object_is_captioned_without_a_run(library, bucket):
    async with FakeTorchServe() as server, CaptionClient([Server(server.url)], "captioner") as client:
        of_file, of_object = [
            [each async for each in caption_file(client, name, OPTIONS)]
            for name in (str(library / "old.avi"), "s3://bucket/old.avi")
        ]
    assert of_file == of_object != []


def test_a_run_that_is_killed_goes_on_where_it_was_and_leaves_nothing(library, bucket, tmp_path):
    """Shots need no server. The store stands still until the run is killed, and room for copies comes by done ones."""
    (spools := tmp_path / "spool").mkdir()
    room = max(path.stat().st_size for path in library.iterdir()) / 1e9
    command = reelscribe("shots", "--stall-seconds", PATIENCE, "--spool", spools, "--spool-gb", room, "--out")
    local = subprocess.run([*command, tmp_path / "local", library], capture_output=True, text=True, timeout=PATIENCE)
    assert local.returncode == 3, local.stderr
    out = tmp_path / "out"
    names = sorted(path.name for path in library.iterdir())
    for stop in (20, 32):
        bucket.faults = dict.fromkeys(names[stop:], stalled_always)
        with subprocess.Popen([*command, out, "s3://bucket/"], stderr=subprocess.DEVNULL) as run:
            wait_for_requests(bucket, names[stop])
            run.send_signal(signal.SIGKILL)
        assert list(spools.iterdir()) == []
    bucket.faults = {}
    bucket.requests.clear()
    last = subprocess.run([*command, out, "s3://bucket/"], capture_output=True, text=True, timeout=PATIENCE)
    assert last.returncode == 3, last.stderr
    assert records_in(out) == records_in(tmp_path / "local")
    assert list(spools.iterdir()) == []
    assert "secret-of-the-store" not in last.stderr + last.stdout
    assert len(set(names) - set(bucket.requests)) > 10
    assert not re.search(r"/proc/\d+/fd", (out / "annotations.jsonl").read_text())


def stalled_always(sending):
    sending.released.wait()
    return iter(())


def wait_for_requests(bucket, name: str) -> None:
    with bucket.asked:
        assert bucket.asked.wait_for(lambda: bucket.requests[name], PATIENCE)


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """A folder with one video that has more than 8 MB for each of two frames."""
    folder = tmp_path_factory.mktemp("large")
    assert write_noise(folder / "large.mp4", 720, 120, 160).stat().st_size > 16_000_000
    return folder


async def test_for_few_frames_of_a_large_video_only_ranges_are_fetched(large, monkeypatch, tmp_path):
    few, more = CaptionOptions(Sampling(frames=2)), CaptionOptions(Sampling(fps=1))
    (local,) = (await annotate(large, tmp_path / "local", options=few)).values()
    with s3_server(monkeypatch, large) as bucket:
        (first,) = (await annotate("s3://bucket/", tmp_path / "out", options=few)).values()
        print(f"bytes fetched: {bucket.sent['large.mp4'] / local['source']['bytes']:.3f} of the source")
        assert bucket.sent["large.mp4"] < 0.25 * local["source"]["bytes"]
        assert first == local | {"source": local["source"] | {"sha256": None}}
        row = read_line((tmp_path / "out" / "annotations.jsonl").read_bytes(), doc=0, file=0, start=0).row
        assert ThumbnailStore(tmp_path / "out").times(row.content) != []
        bucket.requests.clear()
        assert await annotate("s3://bucket/", tmp_path / "out", options=few) == {"large.mp4": first}
        assert set(bucket.requests) == {"bucket"}  # its list alone
        (whole,) = (await annotate("s3://bucket/", tmp_path / "out", options=more)).values()
        assert whole["source"] == first["source"]  # so that what was made before stays its
        bucket.requests.clear()
        assert (await annotate("s3://bucket/", tmp_path / "out", options=few))["large.mp4"] == first
        assert set(bucket.requests) == {"bucket"}


@pytest.mark.parametrize("fault", [every_third(503), cut(2), stalled])
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_ranges_are_fetched_whatever_the_store_does(large, monkeypatch, tmp_path, fault, elsewhere):
    options = CaptionOptions(Sampling(frames=2))
    (local,) = (await annotate(large, tmp_path / "local", options=options)).values()
    with s3_server(monkeypatch, large) as bucket:
        bucket.faults["large.mp4"] = fault
        out = tmp_path / "out"
        (record,) = (
            await annotate("s3://bucket/", out, elsewhere=elsewhere, stall_seconds=1.0, options=options)
        ).values()
    assert record["captions"] == local["captions"] != []
    assert record["error"] is None


@pytest.mark.parametrize(
    ("fault", "type_of_error"),
    [
        (status(404), "NoSuchObject"),
        (status(403), "MediaError"),
        (None, "SourceChanged"),
        (status(500), "StoreUnavailable"),
    ],
)
async def test_a_range_that_cannot_be_fetched_is_the_error_of_the_source(
    large, monkeypatch, tmp_path, fault, type_of_error
):
    options = CaptionOptions(Sampling(frames=2))
    monkeypatch.setattr(objects, "FIRST_PAUSE", 0.01)
    with s3_server(monkeypatch, large) as bucket:

        def change(sending):
            bucket.put("large.mp4", (large / "large.mp4").read_bytes()[::-1])

        late = fault or change
        bucket.faults["large.mp4"] = lambda sending: late(sending) if sending.number > 3 else None
        (failed,) = (await annotate("s3://bucket/", tmp_path / "out", options=options)).values()
        assert failed["error"]["type"] == type_of_error
        assert failed["captions"] == []
        bucket.faults = {}
        bucket.put("large.mp4", (large / "large.mp4").read_bytes())
        (again,) = (await annotate("s3://bucket/", tmp_path / "out", options=options)).values()
    assert (again["error"], len(again["captions"])) == (None, 2)
