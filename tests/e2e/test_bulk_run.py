"""What a run of days needs: it goes on where it was, says where it is, and stops when it is told."""

import asyncio
import json
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from e2e.conftest import CONFIG, Running, read_records, serving, wait_until
from emulated_server import serve_emulated
from reelscribe.cli import app
from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.contract.annotations import Caption
from reelscribe.contract.frames import PixelBudget
from reelscribe.decode.sampling import Sampling
from reelscribe.errors import MediaError, OutputError
from reelscribe.results.ledger import LedgerReader
from reelscribe.run.bulk import BulkRun
from reelscribe.run.captioning import CaptionTrack
from reelscribe.run.one_source import caption_file
from reelscribe.run.options import CaptionOptions
from support.odd_library import write


def reelscribe(*words: str | Path) -> str:
    result = CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A server that captions 100 frames a second, whatever the machine."""
    with serve_emulated(tmp_path_factory.mktemp("slow") / "server", CONFIG, frames_per_second=100) as server:
        yield Running(server.instance, server.model)


@pytest.fixture
def clips(tmp_path):
    """Four clips of 90 frames."""
    folder = tmp_path / "clips"
    folder.mkdir()
    for k in range(4):
        write(folder / f"{k}.mp4", frames=90, size=(64, 48))
    return folder


def begin(running: Running, clips: Path, out: Path, *options: str) -> subprocess.Popen[bytes]:
    """A run that has saved something."""
    run = subprocess.Popen(
        running.command(clips, "--out", out, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_until(lambda: saved_frames(out), run)
    return run


def saved_frames(out: Path) -> int:
    with suppress(OutputError), LedgerReader(out) as ledger:
        return sum(1 for job in range(1, 5) for _ in ledger.frame_results(job))
    return 0  # it is just being made


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_finishes_what_was_sent_and_the_next_run_does_the_rest(slow, clips, tmp_path, sig):
    out = tmp_path / "out"
    with begin(slow, clips, out) as run:
        decoders = psutil.Process(run.pid).children()
        run.send_signal(sig)
        _, told = run.communicate(timeout=60)
    assert run.returncode == 130, told
    assert decoders
    assert psutil.wait_procs(decoders, timeout=10)[1] == []
    assert not (out / "annotations.jsonl").exists()
    assert "interrupted; the same command goes on" in told.decode()
    before = saved_frames(out)
    assert 0 < before < 360
    assert "interrupted: " in reelscribe("status", out)
    result = slow.caption(clips, "--out", out, "--model", "emulated")
    assert f"4 of 4 sources, 0 failed; {360 - before} captions made" in result.output
    assert [len(record["captions"]) for record in read_records(out)] == [90] * 4


def test_a_second_interrupt_stops_at_once(slow, clips, tmp_path):
    out = tmp_path / "out"
    with begin(slow, clips, out) as run:
        run.send_signal(signal.SIGINT)
        assert b"interrupt again" in run.stderr.readline()
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=10)
    assert run.returncode == 130
    assert slow.caption(clips, "--out", out, "--model", "emulated").exit_code == 0


def test_one_folder_is_for_one_run_and_status_tells_of_it(slow, clips, tmp_path):
    out = tmp_path / "out"
    with begin(slow, clips, out) as run:
        second = slow.caption(clips, "--out", out, "--model", "emulated")
        told = reelscribe("status", out)
        run.communicate(timeout=60)
    assert second.exit_code == 1
    assert "another run is writing there" in second.output
    assert told.startswith(f"running, process {run.pid}: ")
    assert reelscribe("status", out).startswith("done: 4 of 4 sources")


def test_a_killed_run_is_told_from_a_running_one(slow, clips, tmp_path):
    with begin(slow, clips, tmp_path / "out") as run:
        run.kill()
    assert reelscribe("status", tmp_path / "out").startswith("ended without notice")


def test_a_full_disk_stops_the_run_and_nothing_saved_is_lost(slow, clips, tmp_path):
    out = tmp_path / "out"
    with begin(slow, clips, out, "--frames-per-request", "2") as run:
        # What a full disk is to a process: files that cannot grow.
        size = (out / "ledger.sqlite-wal").stat().st_size
        resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (size, size))
        _, told = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "cannot be written" in told.decode()
    assert "the same command goes on" in told.decode()
    before = saved_frames(out)
    assert 0 < before < 360
    rest = slow.caption(clips, "--out", out, "--model", "emulated", "--frames-per-request", "2")
    assert f"{360 - before} captions made" in rest.output
    assert [len(record["captions"]) for record in read_records(out)] == [90] * 4


def test_only_what_is_affected_runs_again(slow, clips, tmp_path):
    def captions(*options: str) -> int:
        output = slow.caption(clips, "--out", tmp_path / "out", "--model", "emulated", *options).output
        return 0 if "nothing new" in output else int(output.split(" captions")[0].split()[-1])

    assert captions("--every", "10") == 36
    assert captions("--every", "10", "--frames-per-request", "3", "--decode-workers", "1") == 0
    assert captions("--every", "30") == 12
    write(clips / "1.mp4", frames=50, size=(64, 48))
    assert captions("--every", "10") == 5
    shutil.copy(clips / "0.mp4", clips / "copy of 0.mp4")
    assert captions("--every", "10") == 0
    assert len(read_records(tmp_path / "out")) == 5


def test_failed_sources_are_tried_again_when_asked(slow, clips, tmp_path):
    (clips / "bad.mp4").write_text("no video")
    for options, status in (((), 3), ((), 3), (("--retry-failed",), 3)):
        assert slow.caption(clips, "--out", tmp_path, "--model", "emulated", *options).exit_code == status


def test_a_source_that_is_renamed_meanwhile_loses_nothing(slow, clips, tmp_path):
    out = tmp_path / "out"
    with begin(slow, clips, out) as run:
        for clip in sorted(clips.iterdir()):
            clip.rename(clip.with_name(f"new-{clip.name}"))
        run.communicate(timeout=60)
    assert run.returncode == 3
    assert "is not there any more" in read_records(out)[0]["error"]["message"]
    before = saved_frames(out)
    result = slow.caption(clips, "--out", out, "--model", "emulated")
    assert f"{360 - before} captions made" in result.output
    assert [len(record["captions"]) for record in read_records(out)] == [90] * 4


def test_copies_of_a_source_that_fails_are_tried_again_once(running, media, tmp_path):
    for name in ("a.avi", "b.avi"):
        (tmp_path / name).write_bytes((media / "old.avi").read_bytes()[:90_000])
    command = (tmp_path / "a.avi", tmp_path / "b.avi", "--out", tmp_path / "out")
    assert running.caption(*command).exit_code == 3
    first = read_records(tmp_path / "out")
    assert running.caption(*command, "--retry-failed").exit_code == 3
    assert read_records(tmp_path / "out") == first
    assert first[0]["captions"] == first[1]["captions"] != []


SAMPLINGS = {
    ("--fps", "2"): [0, 7, 15, 22, 30, 37, 45, 52, 60, 67, 75, 82],
    ("--frames", "4"): [0, 30, 59, 89],
    ("--every", "40", "--start", "1", "--end", "5"): [15, 55],
}


@pytest.mark.parametrize("options", SAMPLINGS, ids=" ".join)
def test_frames_are_chosen_as_asked(slow, clips, tmp_path, options):
    assert slow.caption(clips / "0.mp4", "--out", tmp_path, "--model", "emulated", *options).exit_code == 0
    (record,) = read_records(tmp_path)
    assert [caption["frame_index"] for caption in record["captions"]] == SAMPLINGS[options]


def test_options_that_contradict_each_other_are_refused(slow, clips, tmp_path):
    result = slow.caption(clips, "--out", tmp_path, "--every", "2", "--fps", "1")
    assert result.exit_code == 2
    assert "every" in result.output


@pytest.mark.parametrize("options", [("--no-stream",), ("--frames-per-request", "1"), ("--decode-workers", "1")])
def test_every_shape_of_request_gives_the_same_captions(running, joining, media, tmp_path, options):
    clips = [media / "old.avi", media / "variable-rate.mp4", media / "portrait-odd.webm"]
    assert running.caption(*clips, "--out", tmp_path / "a").exit_code == 0
    server = joining if "1" in options else running
    assert server.caption(*clips, "--out", tmp_path / "b", "--model", server.model, *options).exit_code == 0
    first, second = ([record["captions"] for record in read_records(tmp_path / name)] for name in ("a", "b"))
    assert first == second


def test_models_of_dynamic_resolution_get_frames_of_the_videos_shape(media, tmp_path):
    budget = PixelBudget(factor=28, min_pixels=4 * 28 * 28, max_pixels=100 * 28 * 28)
    with serve_emulated(tmp_path / "server", CONFIG, frames_per_second=1000, frame=budget) as serving:
        server = Running(serving.instance, serving.model)
        clips = [media / "same-1920x1080.mp4", media / "portrait-odd.webm"]
        assert server.caption(*clips, "--out", tmp_path / "out", "--model", "emulated").exit_code == 0
    texts = [{caption["text"] for caption in record["captions"]} for record in read_records(tmp_path / "out")]
    assert texts == [{"364 x 196"}, {"224 x 308"}]


def test_reused_captions_say_so_and_equal_ones_are_segments(running, media, tmp_path):
    clip = media / "same-640x360.webm"
    assert running.caption(clip, "--out", tmp_path / "all").exit_code == 0
    assert running.caption(clip, "--out", tmp_path / "reused", "--reuse").exit_code == 0
    (every,), (reused,) = read_records(tmp_path / "all"), read_records(tmp_path / "reused")
    origins = [caption["reused_from"] for caption in reused["captions"] if "reused_from" in caption]
    texts = {caption["frame_index"]: caption["text"] for caption in reused["captions"]}
    assert len(origins) > len(texts) / 2
    for caption in reused["captions"]:
        assert caption["text"] == texts[caption.get("reused_from", caption["frame_index"])]
    assert [caption["text"] for caption in every["captions"]] == [*texts.values()]
    assert every["segments"] == reused["segments"]
    assert [segment["start"] for segment in every["segments"]] == [0.0, 2.0, 4.0, 6.0]
    assert every["segments"][-1]["end"] == every["media"]["end_seconds"]


def test_servers_share_the_load_and_one_may_go(running, media, tmp_path, demo_model):
    with serving(tmp_path, demo_model) as other:
        servers = ["--server", running.url, "--server", other.url]
        keys = ["--key-file", str(running.instance.key_file), "--key-file", str(other.instance.key_file)]
        command = [sys.executable, "-m", "reelscribe.cli", "caption", str(media), "--out", str(tmp_path / "out")]
        with subprocess.Popen([*command, *servers, *keys], stderr=subprocess.PIPE) as run:
            wait_until(lambda: "200" in (other.instance.logs / "access_log.log").read_text(), run)
            for process in other.instance.processes():
                process.kill()
            _, told = run.communicate(timeout=120)
        assert run.returncode == 0, told
    assert sum(len(record["captions"]) for record in read_records(tmp_path / "out")) == 802


def test_formats_are_written_and_can_be_exported_later(running, media, tmp_path):
    clip = media / "old.avi"
    assert running.caption(clip, "--out", tmp_path, "--format", "vtt", "--format", "csv").exit_code == 0
    assert (tmp_path / "vtt" / "old.avi.vtt").read_text().startswith("WEBVTT")
    assert len((tmp_path / "captions.csv").read_text().splitlines()) == 91
    told = reelscribe("export", tmp_path, "--format", "srt", "--format", "parquet")
    assert (tmp_path / "srt" / "old.avi.srt").exists()
    assert str(tmp_path / "captions.parquet") in told


def test_a_program_watches_lines_of_json(slow, clips, tmp_path):
    command = slow.command(clips, "--out", tmp_path / "out", "--json-log")
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.stdout == ""
    assert "4 of 4 sources" in events[-1]["text"]
    assert Counter(event["event"] for event in events)["source"] == 4
    assert "eta_seconds" in events[0]
    assert {"done", "bottleneck"} <= set(events[0]["lanes"][0])
    assert slow.caption(clips, "--out", tmp_path / "quiet", "--model", "emulated", "--quiet").output == ""


async def test_one_file_in_a_program(running, media, tmp_path):
    async with CaptionClient([Server(running.url, running.token)], "captioner") as client:
        options = CaptionOptions(sampling=Sampling(every=10))
        captions = [result async for result in caption_file(client, str(media / "old.avi"), options)]
        (tmp_path / "cut.avi").write_bytes((media / "old.avi").read_bytes()[:90_000])
        seen = []
        with pytest.raises(MediaError, match="cut short"):
            async for result in caption_file(client, str(tmp_path / "cut.avi"), options):
                seen += [result]
    assert [caption.frame_index for caption in captions] == list(range(0, 90, 10))
    assert all(isinstance(caption, Caption) for caption in captions)
    assert seen == captions[: len(seen)]
    assert len(seen) == 8


async def test_two_files_at_a_time_share_a_client(running, media):
    async def count(client: CaptionClient, name: str) -> int:
        return len([caption async for caption in caption_file(client, str(media / name))])

    async with CaptionClient([Server(running.url, running.token)], "captioner") as client:
        assert await asyncio.gather(count(client, "old.avi"), count(client, "spoken.mp4")) == [90, 120]


async def test_a_run_in_a_program(running, media, tmp_path):
    counts = []

    def on_record(record):
        counts.append(len(list(record.caption_result.captions())))

    async with CaptionClient([Server(running.url, running.token)], "captioner") as client:
        summary = await BulkRun([CaptionTrack(client)], tmp_path, on_record=on_record).run([str(media)])
    assert summary.failed == 0
    assert counts == [len(record["captions"]) for record in read_records(tmp_path)]
