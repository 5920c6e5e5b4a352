"""What a run of days needs: it resumes where it was, reports its progress, and stops when it is interrupted."""

import asyncio
import json
import resource
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from reelscribe import (
    Caption,
    CaptionClient,
    CaptionOptions,
    CaptionTrack,
    MediaError,
    Run,
    Sampling,
    caption_file,
)
from reelscribe.cli import app
from servers.emulated import Emulated, serve_all_emulated
from servers.torchserve import CONFIG
from support.alike import assert_alike
from support.odd_library import write
from support.patience import PATIENCE
from support.servers import RunningServer, quick_java, read_records, record_of, saved_frames, wait_until

EVERY_FRAME = CaptionOptions(sampling=Sampling(every=1))

EVERY_FRAME = CaptionOptions(sampling=Sampling(every=1))


def reelscribe(*words: str | Path, exit_status: int = 0) -> str:
    result = CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False)
    assert result.exit_code == exit_status, result.output
    return result.output


@pytest.fixture
def clips(tmp_path):
    """Four clips of 90 frames."""
    folder = tmp_path / "clips"
    folder.mkdir()
    for k in range(4):
        write(folder / f"{k}.mp4", frames=90, size=(64, 48))
    return folder


def start(model: RunningServer, clips: Path, out: Path) -> subprocess.Popen[bytes]:
    """Start a run of small requests, and wait until it has saved something."""
    command = model.command(clips, "--out", out, "--frames-per-request", "2")
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: saved_frames(out), run)
    return run


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_finishes_what_was_sent_and_the_next_run_does_the_rest(slow, clips, tmp_path, sig):
    out = tmp_path / "out"
    with start(slow, clips, out) as run:
        decoders = psutil.Process(run.pid).children()
        run.send_signal(sig)
        _, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 130, errors
    assert decoders
    assert psutil.wait_procs(decoders, timeout=PATIENCE)[1] == []
    assert read_records(out) == []
    assert "interrupted; run the same command again to continue" in errors.decode()
    before = saved_frames(out)
    assert 0 < before < 360
    assert reelscribe("status", out, exit_status=130).startswith("interrupted: ")
    result = slow.caption(clips, "--out", out)
    assert "4 sources, 0 failed" in result.output
    assert f"{360 - before} captions made" in result.output
    whole = json.loads(reelscribe("status", out, "--json"))["tracks"][0]
    assert (whole["done"], whole["done_before"]) == (360 - before, before)
    assert [len(record["captions"]) for record in read_records(out)] == [90] * 4


def test_a_second_interrupt_stops_at_once(slow, clips, tmp_path):
    out = tmp_path / "out"
    with start(slow, clips, out) as run:
        run.send_signal(signal.SIGINT)
        assert any(b"interrupt again" in line for line in run.stderr)
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=PATIENCE)
    assert run.returncode == 130
    assert reelscribe("status", out, exit_status=130).startswith("interrupted: ")
    assert slow.caption(clips, "--out", out).exit_code == 0


def test_a_second_run_into_the_same_folder_is_refused_and_status_reports_the_first(slow, clips, tmp_path):
    out = tmp_path / "out"
    with start(slow, clips, out) as run:
        second = slow.caption(clips, "--out", out)
        status = reelscribe("status", out)
        run.communicate(timeout=PATIENCE)
    assert second.exit_code == 1
    assert "another run is writing there" in second.output
    assert status.startswith(f"running, process {run.pid}\n")
    assert reelscribe("status", out).startswith("done: all sources succeeded")


def test_status_distinguishes_a_killed_run_from_a_running_one(slow, clips, tmp_path):
    with start(slow, clips, tmp_path / "out") as run:
        run.kill()
    assert reelscribe("status", tmp_path / "out", exit_status=1).startswith("ended without notice")


def test_a_full_disk_stops_the_run_and_nothing_saved_is_lost(slow, clips, tmp_path):
    out = tmp_path / "out"
    with start(slow, clips, out) as run:
        # What a full disk is to a process: files that cannot grow.
        size = (out / "ledger.sqlite-wal").stat().st_size
        resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (size, size))
        _, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 1
    assert "cannot be written" in errors.decode()
    assert "run the same command again to continue" in errors.decode()
    before = saved_frames(out)
    assert 0 < before < 360
    rest = slow.caption(clips, "--out", out, "--frames-per-request", "2")
    assert f"{360 - before} captions made" in rest.output
    assert [len(record["captions"]) for record in read_records(out)] == [90] * 4


def test_only_what_is_affected_runs_again(slow, clips, tmp_path):
    def captions(*options: str) -> int:
        output = slow.caption(clips, "--out", tmp_path / "out", *options).output
        return 0 if "nothing new" in output else int(output.split(" captions")[0].split()[-1])

    assert captions("--every", "10") == 36
    assert captions("--every", "10", "--frames-per-request", "3", "--decode-workers", "1") == 0
    assert captions("--every", "30") == 12
    write(clips / "1.mp4", frames=50, size=(64, 48))
    assert captions("--every", "10") == 5
    shutil.copy(clips / "0.mp4", clips / "copy of 0.mp4")
    assert captions("--every", "10") == 0
    assert len(read_records(tmp_path / "out")) == 5


def test_retry_failed_tries_failed_sources_again(slow, clips, tmp_path):
    (clips / "bad.mp4").write_text("no video")
    for options, status in (((), 3), ((), 3), (("--retry-failed",), 3)):
        assert slow.caption(clips, "--out", tmp_path, *options).exit_code == status


def test_a_source_that_is_renamed_meanwhile_loses_nothing(slow, clips, tmp_path):
    out = tmp_path / "out"
    with start(slow, clips, out) as run:
        for clip in sorted(clips.iterdir()):
            clip.rename(clip.with_name(f"new-{clip.name}"))
        run.communicate(timeout=PATIENCE)
    assert run.returncode == 3
    assert "is not there any more" in read_records(out)[0]["error"]["message"]
    before = saved_frames(out)
    result = slow.caption(clips, "--out", out)
    assert f"{360 - before} captions made" in result.output
    done = [record for record in read_records(out) if not record["source"]["missing"]]
    assert [len(record["captions"]) for record in done] == [90] * 4


def test_copies_of_a_source_that_fails_are_tried_again_once(server, media, tmp_path):
    for name in ("a.avi", "b.avi"):
        (tmp_path / name).write_bytes((media / "old.avi").read_bytes()[:90_000])
    command = (tmp_path / "a.avi", tmp_path / "b.avi", "--out", tmp_path / "out")
    assert server.caption(*command).exit_code == 3
    first = read_records(tmp_path / "out")
    assert server.caption(*command, "--retry-failed").exit_code == 3
    assert_alike(read_records(tmp_path / "out"), first)
    assert first[0]["captions"] == first[1]["captions"] != []


SAMPLINGS = {
    ("--fps", "2"): [0, 7, 15, 22, 30, 37, 45, 52, 60, 67, 75, 82],
    ("--frames", "4"): [0, 30, 59, 89],
    ("--every", "40", "--start", "1", "--end", "5"): [15, 55],
}


@pytest.mark.parametrize("options", SAMPLINGS, ids=" ".join)
def test_sampling_options_choose_frames(slow, clips, tmp_path, options):
    assert slow.caption(clips / "0.mp4", "--out", tmp_path, *options).exit_code == 0
    (record,) = read_records(tmp_path)
    assert [caption["frame_index"] for caption in record["captions"]] == SAMPLINGS[options]


def test_options_that_contradict_each_other_are_refused(slow, clips, tmp_path):
    result = slow.caption(clips, "--out", tmp_path, "--every", "2", "--fps", "1")
    assert result.exit_code == 2
    assert "every" in result.output


def test_models_of_dynamic_resolution_get_frames_of_the_videos_shape(server, media, tmp_path):
    clips = [media / "same-1920x1080.mp4", media / "portrait-odd.webm"]
    assert server.with_model("dynamic").caption(*clips, "--out", tmp_path).exit_code == 0
    texts = [{caption["text"] for caption in record_of(tmp_path, clip.name)["captions"]} for clip in clips]
    assert texts == [{"364 x 196"}, {"224 x 308"}]


def test_reused_captions_say_so_and_equal_ones_are_spans(server, media, tmp_path):
    clip = media / "same-640x360.webm"
    assert server.caption(clip, "--out", tmp_path / "all").exit_code == 0
    assert server.caption(clip, "--out", tmp_path / "reused", "--reuse").exit_code == 0
    (every,), (reused,) = read_records(tmp_path / "all"), read_records(tmp_path / "reused")
    origins = [caption["reused_from"] for caption in reused["captions"] if caption["reused_from"] is not None]
    texts = {caption["frame_index"]: caption["text"] for caption in reused["captions"]}
    assert len(origins) > len(texts) / 2
    for caption in reused["captions"]:
        origin = caption["frame_index"] if caption["reused_from"] is None else caption["reused_from"]
        assert caption["text"] == texts[origin]
    assert [caption["text"] for caption in every["captions"]] == [*texts.values()]
    assert every["caption_spans"] == reused["caption_spans"]
    assert [span["start"] for span in every["caption_spans"]] == [0.0, 2.0, 4.0, 6.0]
    assert every["caption_spans"][-1]["end"] == every["media"]["end_seconds"]


@pytest.fixture
def other(tmp_path):
    """A second server of the slow model, for a test that kills it."""
    models = {"slow": Emulated(frames_per_second=100)}
    with serve_all_emulated(tmp_path / "other", CONFIG, models, **quick_java()) as servings:
        yield RunningServer(servings["slow"].instance, "slow")


def test_servers_share_the_load_and_one_may_go(slow, other, clips, tmp_path):
    predictions = '"POST /predictions/slow HTTP/1.1" 200'
    second = ["--server", other.url, "--key-file", str(other.instance.key_file)]
    command = slow.command(clips, "--out", tmp_path / "out", "--frames-per-request", "2", *second)
    with subprocess.Popen(command, stderr=subprocess.PIPE) as run:
        # The first response describes the model.
        wait_until(lambda: (other.instance.logs / "access_log.log").read_text().count(predictions) > 1, run)
        for process in other.instance.processes():
            process.kill()
        _, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, errors
    assert [len(record["captions"]) for record in read_records(tmp_path / "out")] == [90] * 4


def test_formats_are_written_and_can_be_exported_later(server, media, tmp_path):
    clip = media / "old.avi"
    assert server.caption(clip, "--out", tmp_path, "--format", "vtt", "--format", "csv").exit_code == 0
    assert (tmp_path / "vtt" / "old.avi.vtt").read_text().startswith("WEBVTT")
    assert len((tmp_path / "captions.csv").read_text().splitlines()) == 91
    written = reelscribe("export", tmp_path, "--format", "srt", "--format", "parquet")
    assert (tmp_path / "srt" / "old.avi.srt").exists()
    assert f"2 .parquet files below {tmp_path / 'parquet'}" in written


def test_a_run_logs_lines_of_json(slow, clips, tmp_path):
    command = slow.command(clips, "--out", tmp_path / "out", "--json-log", "--format", "csv")
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.stdout == ""
    assert (events[-2]["event"], events[-2]["snapshot"]["sources_done"]) == ("summary", 4)
    assert all("time" in event for event in events)
    assert events[-1]["event"] == "export"
    assert str(tmp_path / "out" / "captions.csv") in events[-1]["exported"]
    assert Counter(event["event"] for event in events)["source"] == 4
    assert "eta_seconds" in events[0]
    assert {"done", "bottleneck"} <= set(events[0]["tracks"][0])
    assert slow.caption(clips, "--out", tmp_path / "quiet", "--quiet").output == ""


async def test_one_file_in_a_program(server, media, tmp_path):
    async with server.client() as client:
        options = CaptionOptions(sampling=Sampling(every=10))
        captions = [result async for result in caption_file(client, str(media / "old.avi"), options)]
        (tmp_path / "cut.avi").write_bytes((media / "old.avi").read_bytes()[:90_000])
        rest = []
        with pytest.raises(MediaError, match="cut short"):
            async for result in caption_file(client, str(tmp_path / "cut.avi"), options):
                rest += [result]
    assert [caption.frame_index for caption in captions] == list(range(0, 90, 10))
    assert all(isinstance(caption, Caption) for caption in captions)
    assert_alike(rest, captions[: len(rest)])
    assert len(rest) == 8


async def test_two_files_at_a_time_share_a_client(server, media):
    async def count(client: CaptionClient, name: str) -> int:
        return len([caption async for caption in caption_file(client, str(media / name), EVERY_FRAME)])

    async with server.client() as client:
        assert await asyncio.gather(count(client, "old.avi"), count(client, "spoken.mp4")) == [90, 120]


async def test_a_run_in_a_program(server, media, tmp_path):
    clips, counts = [str(media / name) for name in ("old.avi", "spoken.mp4")], []

    def on_record(record):
        counts.append(len(list(record.caption_result.captions())))

    async with server.client() as client:
        summary = await Run([CaptionTrack(client, EVERY_FRAME)], tmp_path, on_record=on_record).run(clips)
    assert summary.failed == 0
    assert counts == [len(record["captions"]) for record in read_records(tmp_path)]
