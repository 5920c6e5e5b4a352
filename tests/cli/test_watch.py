"""`--watch`: a run goes on with sources that appear, and ends when it is told to."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from reelscribe.contract.source import VIDEO_SUFFIXES
from reelscribe.run import watching as watching_module
from reelscribe.run.file_search import Selection
from reelscribe.run.source_list import SourceList
from reelscribe.run.watching import Watch
from support.patience import PATIENCE
from support.stores import web_server

FASTER = """
from reelscribe.run import watching
watching.LOOK_SECONDS = watching.RETRY_SECONDS = 0.05
watching.REST_SECONDS = 0.5
from reelscribe.cli import app
app()
"""


@contextmanager
def watching(out, *names, options=()):
    """A command that watches, for which waiting is short, and that is killed if a test hangs."""
    command = [sys.executable, "-c", FASTER, "shots", "--watch", "--json-log", "--out", out, *options, *names]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        killer = threading.Timer(PATIENCE, process.kill)
        killer.start()
        try:
            yield process
        finally:
            killer.cancel()
            process.kill()


def records_of_next_run(out, process) -> dict[str, dict]:
    """The records, when the next run has exported them."""
    assert any(json.loads(line)["event"] == "export" for line in process.stderr)
    found = map(json.loads, (out / "annotations.jsonl").read_text().splitlines())
    return {os.path.basename(record["source"]["path"]): record for record in found}


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_run_goes_on_with_files_that_appear_until_it_is_told_to_stop(media, tmp_path, sig):
    (library := tmp_path / "library").mkdir()
    (empty := tmp_path / "empty").mkdir()
    with watching(tmp_path / "out", empty, library, options=["--format", "csv"]) as process:
        shutil.copy(media / "old.avi", library)
        assert set(records_of_next_run(tmp_path / "out", process)) == {"old.avi"}
        shutil.copy(media / "same-640x360.webm", library)
        found = records_of_next_run(tmp_path / "out", process)
        assert set(found) == {"old.avi", "same-640x360.webm"}
        assert all(record["status"] == "ok" for record in found.values())
        process.send_signal(sig)
        assert process.wait(PATIENCE) in (0, 130)  # 130 if it came during a run
    assert (tmp_path / "out" / "sources.csv").exists()


def test_what_never_can_appear_is_refused(tmp_path):
    with watching(tmp_path / "out", tmp_path / "missing") as process:
        assert process.wait(PATIENCE) == 2
        assert "expected a folder, a glob or an address to watch, found nothing there" in process.stderr.read()
    with watching(tmp_path / "out", tmp_path, options=["--limit", "1"]) as process:
        assert process.wait(PATIENCE) == 2
        assert "--watch: expected it without --dry-run and --limit" in process.stderr.read()


async def test_changes_are_noticed_wherever_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(watching_module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(watching_module, "LOOK_IN_STORES_SECONDS", 0.01)
    noticed = []
    here, far = tmp_path / "here" / "a.mp4", tmp_path / "far" / "b.mp4"
    for path in (here, far):
        path.parent.mkdir()
        path.write_bytes(b"one")
    with web_server(far.parent) as (_, address):
        for names in ([f"{address}/b.mp4", str(here.parent)], [str(here.parent), f"{address}/b.mp4"]):
            watch = Watch(names, VIDEO_SUFFIXES, Selection())
            await asyncio.wait_for(watch.wait(), PATIENCE)
            for path in (here, far):
                path.write_bytes(path.read_bytes() + b"more")
                await asyncio.wait_for(watch.wait(), PATIENCE)
                noticed.append(path)
    assert noticed == [here, far, here, far]


async def test_a_changed_row_of_a_list_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(watching_module, "LOOK_SECONDS", 0.01)
    table = tmp_path / "films.csv"
    (tmp_path / "a.mp4").touch()
    table.write_text("path\n")
    watch = Watch([SourceList(str(table))], VIDEO_SUFFIXES, Selection())
    noticed = []
    for language in ("en", "de"):
        table.write_text(f"path,language\n{tmp_path / 'a.mp4'},{language}\n")
        await asyncio.wait_for(watch.wait(), PATIENCE)
        noticed.append(language)
    assert noticed == ["en", "de"]
