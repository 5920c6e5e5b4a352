"""A run whose results are copied to a bucket: what is there, who may go on, and what may fail."""

import asyncio
import shutil
import sqlite3
import sys
import threading
from contextlib import AsyncExitStack, closing
from pathlib import Path

import boto3
import pytest
from typer.testing import CliRunner
from werkzeug.wrappers import Response

from reelscribe._track_specs import ModelSpec
from reelscribe.cli import app
from reelscribe.client.endpoint import Server
from reelscribe.cluster.session import RemoteNodes
from reelscribe.decode.sampling import Sampling
from reelscribe.errors import OutputError, UsageError
from reelscribe.export import bucket_copy
from reelscribe.results.annotations import NAME
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionOptions
from reelscribe.server.server_discovery import FoundServer
from reelscribe.storage import objects
from support.buckets import SECRET, bucket_server
from support.commands import reelscribe
from support.fake_torchserve import FakeTorchServe, Gate, captions
from support.local_cluster import LocalCluster
from support.patience import PATIENCE
from support.stores import every_third, lost_answer, refusal, status

OUT = "s3://bucket/results/"
OPTIONS = CaptionOptions(Sampling(frames=4), decode_workers=1)
LEDGER = "results/ledger.sqlite"
SOON = 0.05
"""Seconds between two times that something is sent, in place of minutes."""

SHORT_PAUSES = f"""
import sys
from reelscribe.cli import app
from reelscribe.export import bucket_copy
bucket_copy.SEND_SECONDS = {SOON}
app(sys.argv[1:])
"""
"""The command `reelscribe`, which sends often."""


@pytest.fixture
def scheme():
    """Where the bucket is, unless a test says otherwise."""
    return "s3"


@pytest.fixture
def bucket(scheme, monkeypatch):
    monkeypatch.setattr(objects, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(objects, "MOST_PAUSE", 0.001)
    with bucket_server(scheme, monkeypatch) as server:
        yield server


@pytest.fixture
def often(monkeypatch):
    """What is new is sent all the time."""
    monkeypatch.setattr(bucket_copy, "SEND_SECONDS", SOON)


@pytest.fixture(scope="module")
def library(media, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    for name in ("old.avi", "full-chroma.mkv", "variable-rate.mp4", "same-480x270.mp4"):
        (folder / name).write_bytes((media / name).read_bytes())
    (folder / "text.mp4").write_text("this is text\n" * 100)
    return folder


async def annotate(library, server, out, work_dir=None, *, elsewhere=False, started=lambda run: None):
    """Caption the library in a run."""
    async with AsyncExitStack() as stack:
        spec = ModelSpec(OPTIONS, [FoundServer(Server(server.url))], "captioner", 8)
        tracks = RemoteNodes([spec], LocalCluster("a")) if elsewhere else [await spec.open(stack)]
        run = Run(tracks, out, work_dir=work_dir)
        started(run)
        return await asyncio.wait_for(run.run([str(library)]), PATIENCE)


@pytest.fixture(scope="module")
def local(library, tmp_path_factory) -> dict[str, bytes]:
    """The files of a run into a folder."""
    out = tmp_path_factory.mktemp("local")

    async def run():
        async with FakeTorchServe() as server:
            await annotate(library, server, out)

    asyncio.run(run())
    return files(out)


def files(folder: Path) -> dict[str, bytes]:
    """The files of a run's folder that have the same bytes wherever it was."""
    paths = [path for path in folder.rglob("*") if path.is_file() and ".sqlite" not in path.name]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.name != ".lock"}


@pytest.mark.parametrize(("scheme", "elsewhere"), [("s3", False), ("s3", True), ("gs", True), ("az", False)])
async def test_the_bucket_has_what_a_folder_would_have(scheme, bucket, library, local, tmp_path, elsewhere):
    async with FakeTorchServe() as server:
        await annotate(library, server, f"{scheme}://bucket/results", tmp_path / "work", elsewhere=elsewhere)
    found = {key.removeprefix("results/"): content for key, content in bucket.contents().items()}
    assert found.pop("ledger.sqlite")
    assert found == local
    assert {"annotations.jsonl", "failures.txt", "run.json"} < found.keys()
    assert any(name.startswith("thumbnails/") for name in found)
    assert not any(SECRET.search(path.read_bytes().decode("latin1")) for path in tmp_path.rglob("*") if path.is_file())


async def test_what_has_not_changed_is_not_sent_again_and_what_is_gone_is_deleted(bucket, library, tmp_path):
    library = shutil.copytree(library, tmp_path / "library")
    async with FakeTorchServe() as server:
        await annotate(library, server, OUT, tmp_path / "work")
        bucket.written.clear()
        (tmp_path / "work" / "annotations.jsonl.ordered").touch()  # of an earlier version that was killed
        await annotate(library, server, OUT, tmp_path / "work")
        assert +bucket.written == {"ledger.sqlite": 1}
        assert "results/failures.txt" in bucket.contents()
        (library / "text.mp4").write_bytes((library / "old.avi").read_bytes())
        await annotate(library, server, OUT, tmp_path / "other")  # which has the list of failures from the bucket
    assert "results/failures.txt" not in bucket.contents()


async def test_after_a_kill_another_machine_asks_for_nothing_that_is_in_the_copy(bucket, library, tmp_path):
    gate = Gate()
    async with FakeTorchServe() as server:
        await annotate(library, server, tmp_path / "local")
        wanted, server.received = frames(server), []

        async def answer_two(request):
            return await (captions if len(server.received) <= 2 else gate)(request)

        server.answer = answer_two
        words = (
            *("caption", library, "--out", OUT, "--work-dir", tmp_path / "work", "--server", server.url),
            *("--model", "captioner", "--frames", 4, "--frames-per-request", 4, "--decode-workers", 1),
        )
        command = [sys.executable, "-c", SHORT_PAUSES, *map(str, words)]
        killed = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
        await asyncio.wait_for(gate.wait_for(1), PATIENCE)
        answered = sum(len(request.names()) for request in server.received[:2])
        await asyncio.wait_for(asyncio.to_thread(wait_for_frames, bucket, tmp_path, answered), PATIENCE)
        killed.kill()
        await killed.wait()
        server.answer, server.received = captions, []
        await annotate(library, server, OUT, tmp_path / "other")
        assert frames(server) == wanted - answered
    assert (tmp_path / "other" / NAME).read_bytes() == (tmp_path / "local" / NAME).read_bytes()
    assert bucket.contents()[f"results/{NAME}"] == (tmp_path / "local" / NAME).read_bytes()


def frames(server) -> int:
    """The number of frames that a server was sent."""
    return sum(len(request.names()) for request in server.received)


def frames_in(ledger: bytes, tmp_path) -> int:
    """The number of frames in the saved batches of a ledger."""
    if not ledger:
        return 0
    (tmp_path / "copy.sqlite").write_bytes(ledger)
    with closing(sqlite3.connect(tmp_path / "copy.sqlite")) as database:
        return database.execute("SELECT coalesce(sum(stop - first), 0) FROM batches").fetchone()[0]


def wait_for_frames(bucket, tmp_path, wanted: int) -> None:
    """Wait until the ledger in the bucket has so many frames."""
    written = 0
    while not written or frames_in(bucket.contents().get(LEDGER, b""), tmp_path) < wanted:
        with bucket.asked:
            assert bucket.asked.wait_for(lambda least=written: bucket.written["ledger.sqlite"] > least, PATIENCE)
            written = bucket.written["ledger.sqlite"]


async def started_at(gate, bucket, library, server, work_dir):
    """Start a run, and wait until it waits for its server; return the task that runs, and a copy is in the bucket."""
    running = asyncio.create_task(annotate(library, server, OUT, work_dir))
    await asyncio.wait_for(gate.wait_for(1), PATIENCE)
    await asyncio.wait_for(asyncio.to_thread(wait_for_frames, bucket, work_dir, 0), PATIENCE)
    return running


async def test_a_ledger_that_arrived_when_the_run_was_killed_is_known(bucket, library, tmp_path):
    arrived = threading.Event()

    def hang_after(sending):
        list(sending.pieces)
        arrived.set()
        sending.released.wait()
        return Response(status=503)

    bucket.fault_of_writes = hang_after
    words = ("shots", library / "old.avi", "--out", OUT, "--work-dir", tmp_path / "work")
    killed = await asyncio.create_subprocess_exec(*reelscribe(*words), stderr=asyncio.subprocess.DEVNULL)
    assert await asyncio.to_thread(arrived.wait, PATIENCE)
    killed.kill()
    await killed.wait()
    bucket.fault_of_writes = None
    async with FakeTorchServe() as server:
        await annotate(library, server, OUT, tmp_path / "work")
    assert f"results/{NAME}" in bucket.contents()


async def test_of_two_machines_that_go_on_one_ends(bucket, often, library, tmp_path):
    gate = Gate()
    async with FakeTorchServe(gate) as server:
        first = await started_at(gate, bucket, library, server, tmp_path / "one")
        second = asyncio.create_task(annotate(library, server, OUT, tmp_path / "two"))
        await asyncio.wait((first, second), return_when=asyncio.FIRST_COMPLETED)
        ended, lasting = (first, second) if first.done() else (second, first)
        with pytest.raises(
            OutputError, match="another machine or folder has gone on from it; to take over from there, "
        ):
            ended.result()
        gate.open.set()
        await lasting
        records, server.received = bucket.contents()[f"results/{NAME}"], []
        loser = tmp_path / ("one" if ended is first else "two")
        with pytest.raises(OutputError, match="run the command with an empty --work-dir"):
            await annotate(library, server, OUT, loser)
        await annotate(library, server, OUT, tmp_path / "three")
    assert server.received == []
    assert bucket.contents()[f"results/{NAME}"] == records


@pytest.mark.parametrize("fault", [every_third(503), every_third(500), lost_answer])
async def test_what_the_store_does_costs_nothing(bucket, often, library, local, tmp_path, fault):
    bucket.fault_of_writes = fault
    async with FakeTorchServe() as server:
        await annotate(library, server, OUT, tmp_path / "work")
        await annotate(library, server, OUT, tmp_path / "work")
    found = {key.removeprefix("results/"): content for key, content in bucket.contents().items()}
    assert found.pop("ledger.sqlite")
    assert found == local


async def test_credentials_that_expire_end_the_run_which_goes_on_with_others(bucket, often, library, tmp_path):
    gate = Gate()
    async with FakeTorchServe(gate) as server:
        running = await started_at(gate, bucket, library, server, tmp_path / "work")
        bucket.fault_of_writes = refusal("ExpiredToken", 400)
        with pytest.raises(
            OutputError, match=r"the store does not take the credentials \('ExpiredToken'\); set AWS_PROFI"
        ):
            await running
        bucket.fault_of_writes = None
        gate.open.set()
        await annotate(library, server, OUT, tmp_path / "work")
    assert bucket.contents()[f"results/{NAME}"] == (tmp_path / "work" / NAME).read_bytes()


@pytest.mark.parametrize(
    ("out", "reason"),
    [
        (OUT, "permission denied by the store to nobody, as no credentials were found; set AWS_PROFILE or"),
        ("s3://none/results", "the store has no bucket 'none'; check the name"),
    ],
)
async def test_what_cannot_be_written_to_ends_the_run_at_once(bucket, library, tmp_path, monkeypatch, out, reason):
    if out == OUT:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        bucket.fault_of_all = status(403)
    async with FakeTorchServe(Gate()) as server:
        with pytest.raises(OutputError, match=reason):
            await annotate(library, server, out, tmp_path / "work")


async def test_a_store_that_stays_away_ends_the_run(bucket, often, library, tmp_path, caplog):
    gate = Gate()
    async with FakeTorchServe(gate) as server:
        running = await started_at(gate, bucket, library, server, tmp_path / "work")
        bucket.fault_of_writes = status(503)
        with pytest.raises(OutputError, match="the store failed with 503"):
            await running
    told = [message for message in caplog.messages if "what is new cannot be sent" in message]
    assert len(told) == bucket_copy.MOST_FAILURES - 1


async def test_a_run_that_is_stopped_sends_what_it_has(bucket, library, tmp_path):
    async def answer(request):
        run.stop()
        return await captions(request)

    def keep(started):
        nonlocal run
        run = started

    run = None
    async with FakeTorchServe(answer) as server:
        assert (await annotate(library, server, OUT, tmp_path / "work", started=keep)).interrupted
    assert frames_in(bucket.contents()[LEDGER], tmp_path) == frames(server) > 0
    assert bucket.contents()[f"results/{NAME}"] == (tmp_path / "work" / NAME).read_bytes()


async def test_a_copy_that_was_deleted_is_made_anew(bucket, library, tmp_path):
    async with FakeTorchServe() as server:
        await annotate(library, server, OUT, tmp_path / "work")
        before = bucket.contents()
        with closing(boto3.client("s3")) as client:
            for key in before:
                client.delete_object(Bucket="bucket", Key=key)
        await annotate(library, server, OUT, tmp_path / "work")
    assert bucket.contents().keys() == before.keys()


@pytest.mark.parametrize(
    ("out", "work_dir", "reason"),
    [
        ("https://example.org/a/", "work", "--out: expected a folder, or one of a bucket, .* got https://..., where"),
        (OUT, None, "--out s3://bucket/results/: expected --work-dir with a folder of this machine, .* got none"),
        (OUT, "s3://bucket/work", "--out s3://bucket/results/: expected --work-dir .* got an address"),
        ("out", "work", "--work-dir: expected it only with an --out in a bucket, got the folder out"),
        ("s3:///results", "work", "expected a bucket"),
        (Path(OUT), "work", "out: expected an address as text, got the path s3:/bucket/results"),
        (Path("gs://bucket/results"), "work", "out: expected an address as text, got the path gs:/bucket/results"),
    ],
)
def test_folders_that_do_not_fit_are_refused(out, work_dir, reason):
    with pytest.raises(UsageError, match=reason):
        Run([], out, work_dir=work_dir)


async def test_a_folder_with_files_of_others_is_refused(bucket, library, tmp_path):
    (tmp_path / "library").mkdir()
    async with FakeTorchServe() as server:
        with pytest.raises(
            UsageError, match=r"--work-dir: expected the folder of a run, or an empty one, .* got .*library"
        ):
            await annotate(library, server, OUT, tmp_path)
    assert bucket.contents() == {}


def test_exports_are_sent_and_a_dry_run_changes_nothing(bucket, media, tmp_path):
    words = ["shots", str(media / "old.avi"), "--out", OUT, "--work-dir", str(tmp_path / "work"), "--format", "csv"]
    planned = CliRunner().invoke(app, [*words, "--dry-run"])
    assert (planned.exit_code, bucket.contents(), (tmp_path / "work").exists()) == (0, {}, False), planned.output
    assert CliRunner().invoke(app, words).exit_code == 0
    bucket.written.clear()
    assert CliRunner().invoke(app, words).exit_code == 0
    assert bucket.written["ledger.sqlite"] == 1  # though exports are sent after the rest
    assert bucket.contents()["results/sources.csv"] == (tmp_path / "work" / "sources.csv").read_bytes()
    words[words.index(str(tmp_path / "work"))] = str(tmp_path / "other")
    assert "all done before" in CliRunner().invoke(app, [*words, "--dry-run"]).output
    assert not (tmp_path / "other").exists()
