"""`reelscribe status` of folders that runs have left, also where nothing can be written."""

import asyncio
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reelscribe.cli import app
from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.contract.outcomes import SourceError
from reelscribe.contract.source import Source
from reelscribe.reporting.meter import Snapshot
from reelscribe.results.ledger import Ledger
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionTrack
from support.fake_torchserve import FakeTorchServe
from support.snapshots import ON_NODES

NOBODY = 65534


@pytest.fixture
def out(media) -> Iterator[Path]:
    """The folder of a run over a video, a copy of it and a file that is no video, where other users can read."""
    folder = Path(tempfile.mkdtemp(prefix="status-"))
    folder.chmod(0o755)
    sources = folder / "sources"
    sources.mkdir()
    shutil.copy(media / "old.avi", sources / "a.avi")
    shutil.copy(media / "old.avi", sources / "b.avi")
    (sources / "bad.mp4").write_text("no video")
    asyncio.run(annotate(sources, folder / "out"))
    yield folder / "out"
    shutil.rmtree(folder)


async def annotate(sources: Path, out: Path) -> None:
    async with FakeTorchServe() as server, CaptionClient([Server(server.url)], "captioner") as client:
        await Run([CaptionTrack(client)], out).run([str(sources)])


def status(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["status", *map(str, words)])
    return result.exit_code, result.output


def test_damaged_and_repeated_sources_are_told(out):
    exit_status, text = status(out)
    assert exit_status == 3
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "done: 1 of 3 sources failed"
    assert {"sources 3 3 of 3", "failed 1", "copies 1", "captions 8 8"} <= set(lines)
    assert any(line.startswith(f"{out.parent}/sources/bad.mp4:") for line in lines)


def test_it_can_be_json(out):
    exit_status, text = status(out, "--json")
    told = json.loads(text)
    assert exit_status == told["exit_status"] == 3
    assert (told["state"], told["sources_copies"], told["tracks"][0]["done"]) == ("failed sources", 1, 8)


def test_what_was_forgotten_is_no_part_of_the_whole_job(out):
    bad = out.parent / "sources" / "bad.mp4"
    for name in (bad, bad.with_name("b.avi")):
        assert CliRunner().invoke(app, ["forget", str(out), str(name)]).exit_code == 0
        exit_status, text = status(out)
        assert (exit_status, text.splitlines()[0]) == (0, "done: all sources succeeded")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert {"sources 1 1 of 1", "failed 0", "captions 8"} <= set(lines)
    assert "bad.mp4" not in text
    told = json.loads(status(out, "--json")[1])
    assert [told[name] for name in ("sources", "sources_done", "sources_failed", "sources_copies")] == [1, 1, 0, 0]
    assert (told["others"], told["others_failed"], told["failures"]) == (0, 0, [])
    assert told["tracks"][0]["done_before"] is None


@pytest.mark.parametrize(
    ("before", "forgotten", "after"),
    [
        ((5, 5, 1, 0, 0), ["bad.mp4"], (4, 4, 0, 0, 0)),
        ((1, 1, 0, 4, 1), ["bad.mp4"], (1, 1, 0, 3, 0)),
        ((4, 3, 0, 2, 1), ["a.mp4"], (4, 3, 0, 1, 1)),
        ((4, 4, 0, 1, 1), ["a.mp4"], (4, 4, 1, 0, 0)),
    ],
)
def test_what_was_forgotten_is_taken_from_the_numbers_of_the_run_and_of_others(tmp_path, before, forgotten, after):
    numbers = dict(zip(("sources", "sources_done", "sources_failed", "others", "others_failed"), before, strict=True))
    asyncio.run(save_sources(tmp_path, ["a.mp4", "b.mp4", "c.mp4", "d.mp4"], ["bad.mp4"]))
    asyncio.run(save_state(tmp_path, replace(ON_NODES, **numbers)))
    for name in forgotten:
        assert CliRunner().invoke(app, ["forget", str(tmp_path), f"/v/{name}"]).exit_code == 0
    told = json.loads(status(tmp_path, "--json")[1])
    assert tuple(told[name] for name in numbers) == after


async def save_sources(out: Path, good: list[str], bad: list[str]) -> None:
    async with Ledger(out) as ledger:
        for name in good:
            await ledger.save_source(Source(f"/v/{name}", 5, hashlib.sha256(name.encode()).hexdigest()), {})
        for name in bad:
            await ledger.save_unreadable(f"/v/{name}", SourceError("MediaError", "broken"))


async def save_state(out: Path, snapshot: Snapshot) -> None:
    async with Ledger(out) as ledger:
        await ledger.save_run_state({"state": "interrupted", "pid": 7, "time": 0.0, **asdict(snapshot)})


def test_the_ledger_of_an_earlier_version_is_read_without_what_it_kept_for_the_time_left(tmp_path):
    async def save() -> None:
        async with Ledger(tmp_path) as ledger:
            earlier = asdict(ON_NODES)
            del earlier["done_share"]
            await ledger.save_run_state({"state": "interrupted", "pid": 7, "time": 0.0, "costs": {"a": {}}, **earlier})

    asyncio.run(save())
    exit_status, text = status(tmp_path, "--json")
    assert (exit_status, json.loads(text)["sources"]) == (130, 5)
    assert not {"costs", "speeds"} & json.loads(text).keys()


def test_nodes_of_a_run_over_many_machines_are_told(tmp_path):
    asyncio.run(save_state(tmp_path, ON_NODES))
    exit_status, text = status(tmp_path)
    assert exit_status == 130
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "3 nodes, lost 2 times:" in lines
    assert "store-2 7 0 0.0x lost: it has not answered for 30 s" in lines
    told = json.loads(status(tmp_path, "--json")[1])
    assert [(node["name"], node["sources_done"]) for node in told["nodes"]] == [
        ("store-1", 1030),
        ("store-2", 7),
        ("store-3", 0),
    ]


def test_a_folder_that_was_no_run_is_a_usage_error(tmp_path):
    exit_status, text = status(tmp_path)
    assert exit_status == 2
    assert "expected the folder of a run" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user who may not write there")
def test_a_ledger_can_be_read_where_nothing_can_be_written(out):
    """A process of another user, who may read the folder and not write to it, reads the state of the run."""
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        os.setuid(NOBODY)
        try:
            with LedgerReader(out) as ledger:
                os.write(writing, ledger.run_state()["state"].encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "done"
