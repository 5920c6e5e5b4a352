"""A folder that somebody else has made or edited: nothing of theirs is overwritten, and one line says what to do."""

import asyncio
import json
import os
import shutil
import sqlite3
import struct
from contextlib import closing
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reelscribe._files import FolderLock, writer_of
from reelscribe.cli import app
from reelscribe.contract.outcomes import Caption, DescribedClip
from reelscribe.contract.source import AudioInfo, Section, Source, VideoInfo
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment
from reelscribe.errors import OutputError
from reelscribe.reporting.meter import Snapshot
from reelscribe.results.annotations import current_annotations
from reelscribe.results.batches import SavedAudioBatch, SavedClipBatch, SavedFrameBatch, TimedTranscript
from reelscribe.results.jobs import SavedAudio, SavedVideo
from reelscribe.results.ledger import Ledger
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.viewer.content.run_page import RunFollower

VIDEO = SavedVideo(VideoInfo(4.0, 64, 48, 0, 1.0, 40, 10.0, 0.0, 4.0, "h264", None), 4.0, None, [Section(0, 1, 0, 1)])
AUDIO = SavedAudio(AudioInfo("aac", 48_000, 2, 0.0, 0.0, 4.0), None)
SPEECH = ChunkTranscript("one", "en", (SpeechSegment(0.0, 1.0, "one"),), no_speech_prob=0.25)
JOBS = {
    "captions": (VIDEO, 1, SavedFrameBatch(0, 1, 0, captions=[Caption(0, 0.0, "a star", None, -0.25)])),
    "clips": (VIDEO, 1, SavedClipBatch(0, 1, 1, described=[DescribedClip(0.0, 1.0, 4, "a star", "complete", 3)])),
    "transcript": (AUDIO, 9, SavedAudioBatch(0, 9, transcripts=[TimedTranscript(0.0, 1.0, SPEECH)])),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """The folder of a run with one source, of which everything is known."""
    out = tmp_path_factory.mktemp("original")
    asyncio.run(save(out))
    with current_annotations(out):
        return out


@pytest.fixture
def out(original, tmp_path) -> Path:
    """A copy of it."""
    return shutil.copytree(original, tmp_path / "out")


async def save(out: Path) -> None:
    async with Ledger(out) as ledger:
        done = {}
        for kind, (opened, total, batch) in JOBS.items():
            job = done[kind] = await ledger.job(
                "00ff", await ledger.settings_id({"model": [kind, "1"], "sample_rate": 9})
            )
            await ledger.save_opened(job.id, opened, total)
            await ledger.save_batch(job.id, batch)
        await ledger.save_source(Source("/a.mp4", 5, "00ff"), done)
        await ledger.save_run_state({"state": "done"})


def edit(out: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(out / "ledger.sqlite")) as database, database:
        database.execute(statement, values)


def run(*words: str | Path) -> tuple[int, str]:
    """Run a command; returns its exit status, and the only line of its errors."""
    result = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
    (line,) = result.stderr.splitlines()
    assert line.isprintable()
    assert len(line) < 500
    return result.exit_code, line


EDITED = "it was edited or is damaged: put back a copy from before that, or choose another --out"
EDITS = [
    ("batches", "results", ["no JSON", "[]", "[[],[],[]]", "7", '{"a":1}', "[[[0,0.0,7,null]],[],[]]"]),
    ("batches", "results", ['[[[0,"soon","x",null]],[],[]]', '[[["0",0.0,"x",null]],[],[]]', "[[[0,NaN,null]],[],[]]"]),
    (
        "batches",
        "results",
        ["[" * 100_000, '[[[0,0.0,"x",1]],[],[]]', '[[[0,1e999,"x",0]],[],[]]', "[[],[],[[0,0,7]]]"],
    ),
    (
        "batches",
        "results",
        ['[[[0,0.0,"x",0]],[[0,0,0]],[]]', '[[],[["a",0,0]],[]]', '[[[0.0,1.0,{"text":"x"}]],[],[]]'],
    ),
    ("batches", "first", ["'x'", -1]),
    ("batches", "stop", ["x", -5, 99]),
    ("jobs", "opened", ["no JSON", "{}", "[]", '{"end_seconds":0}', '{"info":{},"why_incomplete":7}']),
    ("jobs", "total", ["many"]),
    ("jobs", "error", ["[]", "7", '["a",7]', '["a"]']),
    ("settings", "value", ['{"model": 7}', '{"model": ["a", 7], "sample_rate": 9}', "[]"]),
    ("sources", "error", ["[1, 2]", "x"]),
    ("sources", "bytes", ["five"]),
    ("sources", "name", [7]),
]


@pytest.mark.parametrize(("table", "column", "value"), [(*row, value) for *row, values in EDITS for value in values])
def test_an_edited_row_ends_an_export_with_one_line_and_leaves_the_results(out, table, column, value):
    before = (out / "annotations.jsonl").read_bytes()
    where = " WHERE id = 1" if table == "settings" else ""
    edit(out, f"UPDATE OR REPLACE {table} SET {column} = ?{where}", value)
    status, line = run("export", out, "--format", "csv")
    assert status == 1
    assert line.startswith(f"reelscribe: {out}/ledger.sqlite: cannot be read: ")
    assert line.endswith(EDITED)
    assert (out / "annotations.jsonl").read_bytes() == before
    assert not list(out.glob("*.csv"))


@pytest.mark.parametrize("path", [7, "/a.mp4", 1.5])
@pytest.mark.parametrize("command", [["export", "--format", "csv"], ["forget", "/a.mp4", "--dry-run"], ["forget", "/"]])
def test_an_edited_path_of_a_source_ends_every_command_and_hides_no_source(out, path, command):
    before = (out / "annotations.jsonl").read_bytes()
    edit(out, "UPDATE sources SET path = ?", path)
    status, line = run(command[0], out, *command[1:])
    assert (status, line.endswith(EDITED)) == (1, True)
    assert (out / "annotations.jsonl").read_bytes() == before


@pytest.mark.parametrize("state", ["[]", "7", "x", "{}", '{"state": "done", "pid": "x", "tracks": 5}'])
def test_an_edited_state_of_a_run_is_told_by_status(out, state):
    edit(out, "UPDATE run SET state = ?", state)
    assert run("status", out)[1].endswith(EDITED)


async def test_a_run_that_looks_up_an_edited_job_ends(out):
    edit(out, "UPDATE jobs SET opened = 'x'")
    async with Ledger(out) as ledger:
        with pytest.raises(OutputError, match="it was edited or is damaged"):
            await ledger.job("00ff", 1)


OTHER_VERSION = "use the version of reelscribe that wrote it, or choose another --out"
OTHERS = [
    ("PRAGMA user_version = 3", f"expected a ledger of version 2, got 3; {OTHER_VERSION}"),
    ("PRAGMA user_version = -1", f"expected a ledger of version 2, got -1; {OTHER_VERSION}"),
    ("PRAGMA application_id = 252006674", "a database of another program, which was left as it is"),
    ("DROP TABLE files", "a database of another program, which was left as it is"),
    (
        "CREATE TRIGGER t AFTER INSERT ON jobs BEGIN DELETE FROM batches; END",
        "got another trigger 't'; put back a copy from before it was changed",
    ),
    ("CREATE VIEW v AS SELECT * FROM jobs", "got another view 'v'; put back a copy"),
    ("CREATE VIRTUAL TABLE t USING fts5 (words)", "got another table 't"),
    ("CREATE INDEX i ON jobs (hex(sha256))", "got another index 'i'"),
    ("ALTER TABLE jobs ADD COLUMN x AS (hex(sha256))", "got another table 'jobs'"),
]


@pytest.mark.parametrize(("statement", "words"), OTHERS)
def test_a_ledger_of_another_kind_is_left_as_it_is(out, statement, words):
    edit(out, statement)
    before = (out / "ledger.sqlite").read_bytes()
    for command in (["export", out, "--format", "csv"], ["forget", out, "/a.mp4"], ["status", out]):
        status, line = run(*command)
        assert status == 1
        assert words in line
    assert (out / "ledger.sqlite").read_bytes() == before


async def test_a_ledger_with_statistics_is_read_and_written_to(out):
    edit(out, "ANALYZE")
    with LedgerReader(out) as ledger:
        assert [*ledger.settings()]
    async with Ledger(out) as ledger:
        await ledger.save_run_state({"state": "done"})


@pytest.mark.parametrize("version", [0, 1, 5])
async def test_the_database_of_another_program_is_left_as_it_is(tmp_path, version):
    edit(tmp_path, "CREATE TABLE notes (text)")
    edit(tmp_path, f"PRAGMA user_version = {version}")
    before = (tmp_path / "ledger.sqlite").read_bytes()
    with pytest.raises(OutputError, match="a database of another program"):
        await Ledger(tmp_path).__aenter__()
    with pytest.raises(OutputError, match="a database of another program"):
        LedgerReader(tmp_path).__enter__()
    assert (tmp_path / "ledger.sqlite").read_bytes() == before


@pytest.mark.parametrize("name", [".lock", "ledger.sqlite", "annotations.jsonl", "run.json", "failures.txt"])
def test_a_link_in_the_place_of_a_file_is_refused_and_not_written_through(out, tmp_path, name):
    other = tmp_path / "other"
    other.write_bytes((out / name).read_bytes() if (out / name).exists() else b"")
    before = other.read_bytes()
    (out / name).unlink(missing_ok=True)
    (out / name).symlink_to(other)
    status, line = run("forget", out, "/a.mp4")
    assert (status, "a symbolic link; expected a file or nothing there" in line) == (1, True)
    assert other.read_bytes() == before


@pytest.mark.parametrize("name", ["annotations.jsonl", "run.json", "captions.csv", "vtt/a.mp4.vtt"])
def test_a_link_with_the_name_of_an_unfinished_file_is_not_written_through(out, tmp_path, name):
    other = tmp_path / "other"
    other.write_text("of somebody")
    (out / "vtt").mkdir()
    (out / f"{name}.partial").symlink_to(other)
    result = CliRunner().invoke(app, ["export", str(out), "--format", "csv", "--format", "vtt"])
    assert result.exit_code == 0
    assert (out / name).is_file()
    assert not (out / f"{name}.partial").is_symlink()
    assert other.read_text() == "of somebody"


def test_a_link_in_the_place_of_an_export_is_replaced_and_not_written_through(out, tmp_path):
    (tmp_path / "other").write_text("of somebody")
    (out / "captions.csv").symlink_to(tmp_path / "other")
    assert CliRunner().invoke(app, ["export", str(out), "--format", "csv"]).exit_code == 0
    assert not (out / "captions.csv").is_symlink()
    assert (tmp_path / "other").read_text() == "of somebody"


def test_a_pipe_in_the_place_of_the_lock_keeps_nobody_waiting(tmp_path):
    os.mkfifo(tmp_path / ".lock")
    assert writer_of(tmp_path) in (None, "run")


@pytest.mark.parametrize("name", ["ledger.sqlite", "ledger.sqlite-journal", "ledger.sqlite-wal", "ledger.sqlite-shm"])
def test_a_pipe_in_the_place_of_what_sqlite_opens_keeps_nobody_waiting(out, name):
    (out / name).unlink(missing_ok=True)
    os.mkfifo(out / name)
    for words in [("export", out, "--format", "csv"), ("forget", out, "/a.mp4")]:
        status, line = run(*words)
        assert (status, f"{name}: expected a file or nothing there" in line) == (1, True)


@pytest.mark.parametrize("name", ["ledger.sqlite", "beside.sqlite"])
def test_a_journal_deletes_no_file_that_it_names(out, tmp_path, name):
    (tmp_path / "other").write_text("of somebody")
    magic, other = bytes.fromhex("d9d505f920a163d7"), os.fsencode(tmp_path / "other")
    if name == "beside.sqlite":
        edit(out, "VACUUM INTO ?", str(out / name))
    pages = (out / name).stat().st_size // 4096
    journal = (magic + struct.pack(">IIIII", 0, 1, pages, 512, 4096)).ljust(512, b"\0")
    journal += struct.pack(">I", 2**30 // 4096 + 1) + other + struct.pack(">II", len(other), sum(other)) + magic
    (out / f"{name}-journal").write_bytes(journal)
    words = ("forget", out, "/a.mp4") if name == "ledger.sqlite" else ("export", out, "--beside", "json")
    status, line = run(*words)
    assert (tmp_path / "other").exists()
    assert (status, "got one that names another file" in line) == (1, True)


def test_an_output_folder_may_be_a_link(out, tmp_path):
    (tmp_path / "link").symlink_to(out)
    assert CliRunner().invoke(app, ["export", str(tmp_path / "link"), "--format", "csv"]).exit_code == 0
    assert "a star" in (out / "captions.csv").read_text()
    with FolderLock(out), pytest.raises(OutputError, match="another run is writing there"):
        FolderLock(tmp_path / "link").__enter__()


def test_a_run_with_an_infinite_number_of_a_process_is_one_that_browsing_does_not_know(out):
    with LedgerReader(out) as reader:
        state = reader.run_state()
    tracked = {field.name: 0 for field in fields(Snapshot)} | {"tracks": [], "nodes": [], "failures": []}
    edit(out, "UPDATE run SET state = ?", json.dumps({**tracked, **state, "pid": float("inf"), "time": 0}))
    follower = RunFollower(out)
    follower.update()
    assert (follower.status, follower.problem[:50]) == (None, "The state of the run is not one that this version ")
