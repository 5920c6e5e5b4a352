"""A fault that nobody expected, in each step of the way of a source: it costs that source alone."""

import asyncio
import errno
import json
import shutil
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from reelscribe import wire
from reelscribe._track_specs import ModelSpec
from reelscribe.cli import app
from reelscribe.client import operations
from reelscribe.client.balancer import Balancer
from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.cluster.session import RemoteNodes
from reelscribe.decode.sampling import Sampling
from reelscribe.decode_pool.frames import ReadFrames
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.errors import OutputError
from reelscribe.export import subtitles
from reelscribe.results.batches import SavedFrameBatch
from reelscribe.results.ledger import Ledger
from reelscribe.results.records import CaptionResult
from reelscribe.run import node
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionMedium, CaptionOptions, CaptionTrack
from reelscribe.server.server_discovery import FoundServer
from reelscribe.storage import archives
from reelscribe.storage.spool import Spool
from support.fake_torchserve import FakeTorchServe
from support.local_cluster import LocalCluster
from support.patience import PATIENCE
from support.videos import write

LEVELS = {"a.mp4": 20, "victim.mp4": 250, "x.mp4": 80, "y.mp4": 140}
"""The sources, and the grey of their frames."""

OPTIONS = CaptionOptions(Sampling(frames=2), decode_workers=1)


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("faults") / "library"
    folder.mkdir()
    for name, level in LEVELS.items():
        write(folder / name, "libx264", [level] * 8)
    with tarfile.open(folder.parent / "s.tar", "w") as tar:
        for name in LEVELS:
            tar.add(folder / name, name)
    return folder


async def annotate(name: Path, out: Path, *, elsewhere: bool = False) -> dict[str, dict]:
    """Caption all sources; returns their records by their names."""
    async with FakeTorchServe() as server, CaptionClient([Server(server.url)], "captioner") as client:
        spec = ModelSpec(OPTIONS, [FoundServer(Server(server.url))], "captioner", 8)
        tracks = RemoteNodes([spec], LocalCluster("a")) if elsewhere else [CaptionTrack(client, OPTIONS)]
        await asyncio.wait_for(Run(tracks, out).run([str(name)]), PATIENCE)
    records = map(json.loads, (out / "annotations.jsonl").read_text().splitlines())
    return {record["source"]["path"].rpartition("/")[2].rpartition("::")[2]: record for record in records}


def is_white(frames: np.ndarray) -> bool:
    return bool((frames > 240).all((1, 2, 3)).any())


def of_path(*arguments: object) -> bool:
    return "victim" in str(arguments)


STEPS: dict[str, tuple[object, str, Callable[..., bool]]] = {
    "info": (node, "file_stat", of_path),
    "look up": (Ledger, "find_digest", of_path),
    "digest": (DecodePool, "digest_file", of_path),
    "read": (DecodePool, "read", of_path),
    "open": (ReadFrames, "parse_opened", of_path),
    "decode": (ReadFrames, "parse_batch", of_path),
    "send": (Balancer, "send", lambda balancer, request, permit: is_white(request.items)),
    "pack": (wire, "pack", lambda tree: is_white(tree["frames"])),
    "parse": (operations, "_parse_captions", lambda values, count: "frame 25" in str(values)),
    "results": (CaptionMedium, "results", lambda medium, batch, answers: "frame 25" in str(answers)),
    "save": (SavedFrameBatch, "results_to_json", lambda batch: "frame 25" in str(batch)),
    "finish": (Ledger, "save_source", of_path),
}
"""The function that fails in each step, and for which arguments it does."""


def break_(monkeypatch, owner: object, name: str, fails: Callable[..., bool], error: Exception) -> None:
    """Let a function fail for some arguments."""
    original = getattr(owner, name)

    def function(*arguments: object) -> object:
        if fails(*arguments):
            raise error
        return original(*arguments)

    monkeypatch.setattr(owner, name, function)


@pytest.fixture(scope="module")
def undisturbed(library, tmp_path_factory) -> dict[str, dict]:
    return asyncio.run(annotate(library, tmp_path_factory.mktemp("undisturbed")))


async def check(name: Path, out: Path, undisturbed: dict[str, dict], error: Exception, caplog, **options: bool) -> None:
    """The victim alone has the error, the log has the traceback, and the next run mends it."""
    records = await annotate(name, out, **options)
    found = records.pop("victim.mp4")["error"]
    assert found["type"] == type(error).__name__
    assert found["message"].startswith("expected results or a reason that is known, got ")
    assert records == {name: record for name, record in undisturbed.items() if name != "victim.mp4"}
    (logged,) = [str(told.exc_info[1]) for told in caplog.records if told.exc_info]
    assert str(error) in logged


@pytest.mark.parametrize("error", [RuntimeError("out of luck"), MemoryError()], ids=repr)
@pytest.mark.parametrize("step", STEPS)
async def test_a_fault_in_a_step_costs_one_source(step, error, library, undisturbed, tmp_path, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        break_(patch, *STEPS[step], error)
        await check(library, tmp_path, undisturbed, error, caplog)
    assert await annotate(library, tmp_path) == undisturbed


@pytest.mark.parametrize("step", ["digest", "send", "save", "finish"])
async def test_a_fault_of_a_node_or_of_its_driver_costs_one_source(
    step, library, undisturbed, tmp_path, monkeypatch, caplog
):
    error = RuntimeError("out of luck")
    break_(monkeypatch, *STEPS[step], error)
    await check(library, tmp_path, undisturbed, error, caplog, elsewhere=True)


@pytest.mark.parametrize("step", [(Spool, "fetch"), (archives.TarStore, "read")], ids=str)
async def test_a_fault_while_a_member_is_fetched_costs_it_alone(step, library, tmp_path, monkeypatch, caplog):
    archive = library.parent / "s.tar"
    undisturbed, error = await annotate(archive, tmp_path / "undisturbed"), RuntimeError("out of luck")
    break_(monkeypatch, *step, of_path, error)
    await check(archive, tmp_path / "out", undisturbed, error, caplog)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
async def test_what_all_sources_lack_ends_the_run_and_the_next_one_does_them(
    number, library, undisturbed, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        break_(patch, DecodePool, "digest_file", lambda *_: True, OSError(number, "x"))
        with pytest.raises(OutputError, match=r"make room|ulimit -n"):
            await annotate(library, tmp_path)
    assert await annotate(library, tmp_path) == undisturbed


@pytest.mark.parametrize("where", ["--format", "--beside"])
def test_a_fault_in_an_export_costs_one_source(where, library, tmp_path, monkeypatch):
    films, out = shutil.copytree(library, tmp_path / "films"), tmp_path / "out"
    asyncio.run(annotate(films, out))
    command = ["export", str(out), where, "vtt"]
    with monkeypatch.context() as patch:
        break_(patch, subtitles, "cues_of", of_path, RuntimeError("out of luck"))
        failed = CliRunner().invoke(app, command, catch_exceptions=False)
    assert failed.exit_code == 3
    assert f"{films}/victim.mp4" in failed.stderr
    assert "RuntimeError: out of luck" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert {path.name.partition(".")[0] for path in tmp_path.rglob("*.vtt")} == {"a", "x", "y"}
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    assert len(list(tmp_path.rglob("*.vtt"))) == len(LEVELS)


async def test_a_fault_in_writing_a_record_costs_that_record(library, undisturbed, tmp_path, monkeypatch, caplog):
    error = RuntimeError("out of luck")
    with monkeypatch.context() as patch:
        break_(patch, CaptionResult, "spans", lambda result: "frame 25" in str(list(result.captions())), error)
        await check(library, tmp_path, undisturbed, error, caplog)
    assert await annotate(library, tmp_path) == undisturbed


@pytest.mark.parametrize("value", ["zz", b"\0\xff", 7, "", "a\0b", "0" * 10_000])
async def test_a_digest_that_is_none_is_computed_anew(value, library, undisturbed, tmp_path):
    await annotate(library, tmp_path)
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as ledger, ledger:
        ledger.execute("UPDATE files SET sha256 = ? WHERE path = ?", (value, bytes(library / "victim.mp4")))
    assert await annotate(library, tmp_path) == undisturbed
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as ledger:
        ((length,),) = ledger.execute("SELECT DISTINCT length(sha256) FROM files")
    assert length == 64


def test_a_fault_of_all_sources_is_no_traceback_and_the_next_run_does_them(library, tmp_path, monkeypatch):
    command = ["shots", str(library), "--out", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        break_(patch, DecodePool, "read", lambda *_: True, RuntimeError("out of luck"))
        failed = CliRunner().invoke(app, command, catch_exceptions=False)
    assert failed.exit_code == 3
    assert failed.stderr.count("WARNING: ") == len(LEVELS)
    assert "RuntimeError: out of luck (" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
