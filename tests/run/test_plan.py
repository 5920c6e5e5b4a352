"""What a run has before it: which sources, how long they are, what was done before, and how long it will take."""

import asyncio
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from reelscribe._files import file_stat
from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.contract.shared_memory import machine
from reelscribe.contract.source import Header
from reelscribe.decode.sampling import Sampling
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.decode_pool.watched_process import DecodeProcess
from reelscribe.errors import UsageError
from reelscribe.reporting.plan import Plan
from reelscribe.reporting.progress import Progress
from reelscribe.reporting.summary import Summary
from reelscribe.results.known_files import AskedFile, look_up
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.run import driver, listing
from reelscribe.run.driver import Run
from reelscribe.run.file_search import Selection
from reelscribe.run.tracks.captions import CaptionOptions, CaptionTrack
from support.fake_torchserve import DESCRIPTION, FakeTorchServe, Received, captions
from support.patience import PATIENCE

NAMES = ["full-chroma.mkv", "old.avi", "same-480x270.mp4", "variable-rate.mp4"]


@pytest.fixture
def library(media, tmp_path) -> Path:
    """Four videos of 19, 7.5, 8 and 12 seconds."""
    folder = tmp_path / "library"
    folder.mkdir()
    for name in NAMES:
        shutil.copy(media / name, folder)
    return folder


class Runs:
    """Runs and dry runs of a fake captioner into one folder."""

    def __init__(self, server: FakeTorchServe, library: Path, out: Path) -> None:
        self.server, self._library, self._out = server, library, out

    async def run(self, options: CaptionOptions | None = None, **choice) -> Summary:
        return await self._do("run", options, **choice)

    async def plan(self, options: CaptionOptions | None = None, **choice) -> Plan:
        return await self._do("plan", options, **choice)

    async def _do(self, what: str, options: CaptionOptions | None, **choice):
        async with CaptionClient([Server(self.server.url)], "captioner") as client:
            self.latest = Run([CaptionTrack(client, options)], self._out, **choice)
            return await asyncio.wait_for(getattr(self.latest, what)([str(self._library)]), PATIENCE)


class Announced(Progress):
    """Keeps what a run announces. With `before_answers`, a server answers no request before that."""

    def __init__(self) -> None:
        self._came = asyncio.Event()

    def announce(self, plan: Plan) -> None:
        self.plan = plan
        self._came.set()

    async def before_answers(self, request: Received) -> web.Response:
        await self._came.wait()
        return await captions(request)


@pytest.fixture
async def runs(library, tmp_path):
    async with FakeTorchServe() as server:
        yield Runs(server, library, tmp_path / "out")


async def test_a_dry_run_tells_everything_and_writes_nothing(runs, tmp_path):
    plan = await runs.plan()
    assert (plan.sources, plan.before, plan.unknown, plan.left) == (4, 0, 0, None)
    assert plan.media_seconds == pytest.approx(46.5, abs=0.5)
    assert str(plan).startswith("4 sources, 46 s of media; one frame a second: about 47 frames to come")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "devices", "threads", "processes"),
    [
        (machine(), ("cuda:0",), 4, "14 decode processes: 16 cores, less 2 for the server here"),
        (machine(), ("cpu",), 4, "11 decode processes: 16 cores, less 5 for the server here"),
        ("another", ("cuda:0",), 4, "16 decode processes: 16 cores"),
    ],
)
async def test_all_cores_decode_that_no_server_here_needs(runs, monkeypatch, name, devices, threads, processes):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    runs.server.description = replace(DESCRIPTION, machine=name, devices=devices, cpu_threads=threads)
    assert f"; {processes}; time to go" in str(await runs.plan())
    assert "; 3 decode processes; time to go" in str(await runs.plan(CaptionOptions(decode_workers=3)))


async def test_many_cores_start_no_more_processes_than_there_is_work(runs, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    started, start = [], DecodeProcess.start.__func__
    monkeypatch.setattr(DecodeProcess, "start", classmethod(lambda *args: started.append(1) or start(*args)))
    await runs.run(limit=1)
    assert len(started) <= 3  # one decodes, one may compute the digest, and one may read headers


@pytest.mark.parametrize(
    ("sampling", "frames"),
    [
        (Sampling(fps=2), 93),
        (Sampling(frames=4), 16),
        (Sampling(keyframes=True), None),
        (Sampling(fps=1, start=2, end=5), 12),
    ],
)
async def test_the_number_of_frames_to_come_follows_from_what_is_chosen(runs, sampling, frames):
    (choice,) = (await runs.plan(CaptionOptions(sampling))).choices
    assert (choice.name, choice.count) == (sampling.describe(), frames)


async def test_what_was_done_before_is_not_to_come_and_the_time_left_is_known(runs):
    await runs.run(limit=2)
    plan = await runs.plan()
    assert (plan.sources, plan.before, plan.choices[0].count) == (4, 2, 20)
    assert plan.left is not None
    await runs.run()
    assert str(await runs.plan()).endswith("all done before")


async def test_other_settings_than_in_the_last_run_are_told(runs):
    await runs.run(CaptionOptions(Sampling(fps=1)), limit=1)
    assert (await runs.plan(CaptionOptions(Sampling(fps=1)))).changed_settings == ()
    changed = await runs.plan(CaptionOptions(Sampling(fps=2), reuse=True))
    assert changed.changed_settings == ("reuse_drift_levels", "reuse_levels", "sampling")
    told = "1 record will show other results than now, as other settings were chosen"
    assert f"{told} (reuse_drift_levels, reuse_levels, sampling)" in str(changed)


async def test_the_failures_of_earlier_batches_are_known(runs, library):
    (library / "a bad one.mp4").write_text("no video")
    counted = [(await runs.run(limit=2)).snapshot for _ in range(2)]
    assert [(each.sources, each.sources_failed, each.others, each.others_failed) for each in counted] == [
        (2, 1, 0, 0),
        (2, 0, 2, 1),
    ]


async def test_a_limit_takes_the_first_sources_that_are_not_done(runs):
    first = await runs.run(limit=3)
    assert (first.snapshot.sources, first.snapshot.sources_done) == (3, 3)
    second = await runs.run(limit=3)
    assert (second.snapshot.sources, second.snapshot.frames) == (1, 12)
    assert (await runs.run(limit=3)).snapshot.sources == 0


async def test_with_a_limit_what_could_not_be_read_comes_last(runs, library):
    (library / "a-gone.mp4").symlink_to("nowhere")
    first = await runs.run(limit=2)
    assert (first.snapshot.sources, first.failed) == (2, 1)
    plan = await runs.plan(limit=3)
    assert (plan.sources, plan.excluded) == (3, 1)
    second = await runs.run(limit=3)
    assert (second.snapshot.sources, second.failed) == (3, 0)
    third = await runs.run(limit=3)
    assert (third.snapshot.sources, third.failed) == (1, 1)


async def test_globs_leave_out_paths_and_names(runs):
    plan = await runs.plan(selection=Selection(exclude=["*.avi", "*/library/same-*"]))
    assert (plan.sources, plan.excluded) == (2, 2)
    plan = await runs.plan(selection=Selection(include=["*.avi", "*/library/same-*"], exclude=["*.avi"]))
    assert (plan.sources, plan.excluded) == (1, 3)


async def test_shards_are_parts_that_depend_on_names_alone(runs):
    plans = [await runs.plan(selection=Selection(shard=(number, 3))) for number in (1, 2, 3)]
    assert sum(plan.sources for plan in plans) == 4
    assert all(plan.sources + plan.excluded == 4 for plan in plans)


async def test_only_what_was_written_since_a_time_can_be_taken(runs, library):
    for path in library.iterdir():
        os.utime(path, (1000, 1000))
    os.utime(library / "old.avi", (2000, 2000))
    assert (await runs.plan(selection=Selection(newer_than=1500))).sources == 1
    assert (await runs.plan(selection=Selection(newer_than=3000))).sources == 0


async def test_globs_that_leave_nothing_are_refused_before_anything_is_written(runs, tmp_path):
    with pytest.raises(UsageError, match=r"expected globs that leave a source, but none of 4 sources is left by \*"):
        await runs.run(selection=Selection(exclude=["*"]))
    assert not (tmp_path / "out").exists()


async def test_headers_are_read_once_and_again_after_a_file_was_written_to(runs, library, tmp_path):
    (library / "no-video.mp4").write_text("this is text")
    announced = Announced()
    runs.server.answer = announced.before_answers
    await runs.run(progress=announced)
    paths = [library / name for name in (*NAMES, "no-video.mp4")]

    def known() -> list[Header | None]:
        files = [AskedFile(str(path), file_stat(str(path)), {}) for path in paths]
        with LedgerReader(tmp_path / "out") as reader:
            return [file.header for file in look_up(reader.select, files)]

    assert [header.seconds and round(header.seconds) for header in known()] == [19, 8, 8, 12, None]
    paths[0].write_bytes(paths[1].read_bytes())
    assert [header is not None for header in known()] == [False, True, True, True, True]


async def test_of_many_small_files_some_headers_are_read_and_the_others_taken_for_alike(
    runs, library, media, monkeypatch
):
    for name in NAMES:
        (library / name).unlink()
    for number in range(20):
        shutil.copy(media / "same-480x270.mp4", library / f"{number}.mp4")
    all_read = await runs.plan()
    monkeypatch.setattr(listing, "SMALL_FILES", 6)
    read, read_header = [], DecodePool.read_header
    monkeypatch.setattr(DecodePool, "read_header", lambda pool, path: read.append(path) or read_header(pool, path))
    announced = Announced()
    runs.server.answer = announced.before_answers
    await runs.run(progress=announced)
    assert len(read) == 5  # every fourth
    assert (announced.plan.unknown, announced.plan.estimated) == (0, True)
    assert announced.plan.media_seconds == pytest.approx(all_read.media_seconds)


async def test_frames_to_come_are_counted_after_an_interruption_whatever_the_frame_rates(runs):
    """Of opened sources the number of chosen frames is known, and of the others what their headers say."""
    options = CaptionOptions(Sampling(every=1))
    announced = Announced()
    runs.server.answer = announced.before_answers
    await runs.run(options, progress=announced, on_record=lambda _: runs.latest.stop())
    (choice,) = (await runs.plan(options)).choices
    rest = await runs.run(options)
    assert choice.count == pytest.approx(rest.snapshot.frames, abs=4)


async def test_the_run_goes_on_while_headers_are_read(runs, monkeypatch):
    """A process that reads headers and never answers delays nothing."""

    async def never(self, path):
        await asyncio.Event().wait()

    monkeypatch.setattr("reelscribe.decode_pool.pool.DecodePool.read_header", never)
    assert (await runs.run()).snapshot.sources_done == 4


async def test_copies_are_counted_and_annotated_once(runs, library):
    shutil.copy(library / "old.avi", library / "copy.avi")
    now = (await runs.run()).snapshot
    assert (now.sources_done, now.sources_copies, now.frames) == (5, 1, 47)


async def test_a_dry_run_of_the_command_prints_one_line(library, tmp_path):
    async with FakeTorchServe() as server:
        words = ["caption", str(library), "--out", str(tmp_path / "out"), "--server", server.url, "--dry-run"]
        command = [sys.executable, "-m", "reelscribe.cli", *words]
        run = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        output, _ = await asyncio.wait_for(run.communicate(), PATIENCE)
    assert run.returncode == 0
    assert output.count(b"\n") == 1
    assert output.startswith(b"4 sources, 46 s of media; ")
    assert not (tmp_path / "out").exists()


async def test_a_short_run_and_one_with_nothing_to_do_tell_the_same_length_as_a_dry_run(runs):
    dry, announced = await runs.plan(), Announced()
    for before in (0, 4):
        await runs.run(progress=announced)
        told = announced.plan
        assert (told.before, told.media_seconds) == (before, pytest.approx(dry.media_seconds, abs=0.1))
        assert (told.estimated, told.unknown) == (False, 0)


async def test_a_run_that_is_done_before_all_headers_are_read_tells_its_plan(runs, library, monkeypatch):
    async def never(self, path):
        await asyncio.Event().wait()

    monkeypatch.setattr("reelscribe.decode_pool.pool.DecodePool.read_header", never)
    monkeypatch.setattr("reelscribe.run.driver.HEAD_START_SECONDS", 0.1)
    announced = Announced()
    (library / "notes.txt").touch()
    await runs.run(limit=2, progress=announced)
    assert (announced.plan.sources, announced.plan.excluded, announced.plan.left_out) == (2, 2, {".txt": 1})


async def test_no_headers_are_read_before_each_decode_process_has_opened_a_source(library, tmp_path, monkeypatch):
    happened, first_is_saved = [], asyncio.Event()

    class SlowTrack(CaptionTrack):
        """Opens one source only after something of the other one has been saved."""

        async def assign(self, source, planned):
            if source.path.endswith(NAMES[1]):
                await first_is_saved.wait()
            return await super().assign(source, planned)

        def save_opened(self, path, *rest):
            happened.append(Path(path).name)
            return super().save_opened(path, *rest)

        async def save(self, *arguments):
            await super().save(*arguments)
            first_is_saved.set()

    async def read_headers(*_, **__) -> None:
        happened.append("headers")

    monkeypatch.setattr(driver, "HEAD_START_SECONDS", PATIENCE)
    monkeypatch.setattr(listing.Listing, "read_headers", read_headers)
    async with FakeTorchServe(captions) as server, CaptionClient([Server(server.url)], "captioner") as client:
        track = SlowTrack(client, CaptionOptions(decode_workers=2))
        names = [str(library / name) for name in NAMES[:2]]
        await asyncio.wait_for(Run([track], tmp_path / "out").run(names), PATIENCE)
    assert happened == [*NAMES[:2], "headers"]


async def test_headers_are_read_at_once_where_all_sources_were_opened_before_the_end_of_a_slow_list(
    library, tmp_path, monkeypatch
):
    opened, read, find = asyncio.Event(), asyncio.Event(), listing.Listing.find

    class Told(CaptionTrack):
        def save_opened(self, *arguments):
            saving = super().save_opened(*arguments)
            opened.set()
            return saving

    async def find_slowly(*arguments) -> None:
        await find(*arguments)
        await opened.wait()

    async def read_headers(*_, **__) -> None:
        read.set()

    async def answer(request) -> web.Response:
        await read.wait()
        return await captions(request)

    monkeypatch.setattr(driver, "HEAD_START_SECONDS", PATIENCE)
    monkeypatch.setattr(listing.Listing, "find", find_slowly)
    monkeypatch.setattr(listing.Listing, "read_headers", read_headers)
    async with FakeTorchServe(answer) as server, CaptionClient([Server(server.url)], "captioner") as client:
        track = Told(client, CaptionOptions(decode_workers=1))
        await asyncio.wait_for(Run([track], tmp_path / "out").run([str(library / NAMES[0])]), PATIENCE)
    assert read.is_set()  # or the run, whose answers wait for it, would not have ended
