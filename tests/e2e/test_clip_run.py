"""Clips: real files, the real command, and a real TorchServe with the trained clip model."""

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import reelscribe
from compare_with_truth import clips_with_descriptions
from reelscribe import wire
from reelscribe.archive import build as archive
from reelscribe.errors import OutputError
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.server.config_properties import read_properties
from servers.torchserve import HANDLERS, ROOT
from support.alike import assert_alike
from support.patience import PATIENCE
from support.scraping import growth, scrape_server
from support.servers import RunningServer, assert_same_records, read_records, run_with_curl, serve, wait_until
from synthetic.event_clips import random_event_clip
from synthetic.video_files import empty_box

CLIPS = ROOT / "demo" / "clips"
SMALL_REQUESTS = ("--clips", "shots", "--clips-per-request", "2")


@pytest.fixture(scope="module")
def clips(tmp_path_factory, clip_model) -> Iterator[RunningServer]:
    """A server of its own with two workers, because a test kills them, which join requests as on a GPU."""
    directory = tmp_path_factory.mktemp("clips")
    handlers = directory / "handlers"
    shutil.copytree(HANDLERS, handlers)
    settings = (handlers / "clip.yaml").read_text()
    own = "minWorkers: 2\nmaxWorkers: 2\nbatchSize: 8\nmaxBatchDelay: 5\n"
    (handlers / "clip.yaml").write_text(f"{own}{settings}")
    archive.build("clips", "clip", clip_model, directory / "store", handlers=handlers)
    with serve(directory, "clips") as running:
        yield running


def test_shots_are_found_and_described_as_they_are(clips, tmp_path):
    result = clips.caption(CLIPS, "--clips", "shots", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    records = read_records(tmp_path)
    pairs = clips_with_descriptions(records)
    assert sum(clip["description"] == text for clip, text in pairs) >= len(pairs) - 1
    assert [len(record["clips"]) for record in records] == [len(record["shots"]) for record in records]
    assert {clip["status"] for record in records for clip in record["clips"]} == {"complete"}


def test_an_answer_fits_the_schema_that_a_run_asks_for(clips, tmp_path):
    schema = tmp_path / "schema.json"
    names = {"first": {"type": "string"}, "then": {"type": "string"}}
    schema.write_text(json.dumps({"type": "object", "properties": names, "required": ["first", "then"]}))
    asked = ("--prompt", "Describe this video clip as JSON.", "--json-schema", schema)
    result = clips.caption(CLIPS / "events.mp4", "--clips", "shots", *asked, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    (record,) = read_records(tmp_path / "out")
    assert [set(clip["json"]) for clip in record["clips"]] == [{"first", "then"}] * 4


def test_workers_know_the_largest_answer_that_the_server_takes(clips):
    (said,) = {psutil.Process(pid).environ()[wire.RESPONSE_SIZE_VARIABLE] for pid in clips.workers()}
    assert said == read_properties(clips.instance.config.read_text())["max_response_size"]


async def test_a_hostile_prompt_costs_none_of_the_files_that_are_joined_with_its_own(clips):
    before, file = scrape_server(clips), (CLIPS / "events.mp4").read_bytes()
    prompts = [{}] * 3 + [{"X-Reelscribe-Prompt": "<|video_pad|>"}] + [{}] * 2
    workers = [psutil.Process(pid) for pid in clips.workers()]
    for worker in workers:
        worker.suspend()  # until all requests are there
    try:
        requests = [asyncio.ensure_future(clips.post(file, headers)) for headers in prompts]
        await growth(clips, before, ("ts_inference_requests_total", "clips"), count=len(prompts))
    finally:
        for worker in workers:
            worker.resume()
    answers = await asyncio.gather(*requests)
    assert [status for status, _ in answers] == [200] * 3 + [422] + [200] * 2
    assert json.loads(answers[3][1])["error"]["type"] == "PromptError"
    assert len({text for status, text in answers if status == 200}) == 1


def test_curl_gets_the_description_of_a_picture(clips, tmp_path):
    events = random_event_clip(random.Random(4))
    events.draw(0.5, 640, 360).save(tmp_path / "still.jpg")
    command = (
        f'curl -s -H "Authorization: {clips.headers["Authorization"]}" -T {tmp_path}/still.jpg {clips.predictions}'
    )
    answer = json.loads(run_with_curl(command, tmp_path))
    assert (answer["text"], answer["status"]) == (events.still_caption(0.5), "complete")


@pytest.mark.parametrize(
    ("options", "headers"),
    [
        (("--clips", "shots"), {}),
        (
            ("--clips", "windows", "--clip-fps", "1", "--clip-max-frames", "4", "--clip-total-pixels", "100000"),
            {"Clips": "windows", "Fps": "1", "Max-Frames": "4", "Total-Pixels": "100000"},
        ),
        (("--clips", "shots", "--prompt", "What happens until {end}?"), {"Prompt": "What happens until {end}?"}),
    ],
)
def test_a_posted_video_gets_the_fields_of_its_record_in_a_run(clips, tmp_path, options, headers):
    assert clips.caption(CLIPS, *options, "--out", tmp_path).exit_code == 0
    headers = {f"X-Reelscribe-{name}": value for name, value in headers.items()}
    for record in read_records(tmp_path):
        status, text = asyncio.run(clips.post(Path(record["source"]["path"]).read_bytes(), headers))
        answer = json.loads(text)
        assert status == 200
        assert_alike(answer, {name: record[name] for name in answer})
        assert {"media", "shots", "clips", "clip_failures"} <= {*answer}
        assert all(clip["frames"] <= 4 for clip in record["clips"] if "Max-Frames" in str(headers))


def test_python_describes_clips_of_fewer_frames_and_pixels(clips, tmp_path):
    server, video = reelscribe.Server(clips.url, clips.token), CLIPS / "events.mp4"
    options = reelscribe.ClipOptions(max_frames=4, total_pixels=100_000)
    (record,) = reelscribe.annotate(
        video, tmp_path, server=server, captions=False, clips=True, transcript=False, clip_options=options
    )
    assert [clip.frames for clip in record.clips] == [4] * len(record.clips)
    described = reelscribe.describe(video, server=server, options=options)
    assert [clip.text for clip in described] == [clip.text for clip in record.clips]


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """Many files with the content of the demo clips, and with digests of their own."""
    folder = tmp_path_factory.mktemp("library") / "library"
    folder.mkdir()
    for k in range(24):
        source = CLIPS / ("events.mp4", "variable-rate.mp4")[k % 2]
        (folder / f"{k}.mp4").write_bytes(source.read_bytes() + empty_box(k))
    return folder


def saved(out: Path) -> int:
    """How many clips the ledger of a run has."""
    try:
        with LedgerReader(out) as reader:
            state = reader.run_state()
    except OutputError:
        return 0
    return int(sum(track["done"] + track["done_before"] for track in state["tracks"])) if state else 0


def test_whatever_is_killed_the_descriptions_are_those_of_a_quiet_run(clips, library, tmp_path):
    quiet, out = tmp_path / "quiet", tmp_path / "out"
    assert clips.caption(library, *SMALL_REQUESTS, "--out", quiet).exit_code == 0
    command = clips.command(library, *SMALL_REQUESTS, "--out", out, "--stall-seconds", str(PATIENCE))

    def kill_client(run: subprocess.Popen) -> None:
        run.kill()

    def decode_processes(run: subprocess.Popen) -> list[psutil.Process]:
        children = psutil.Process(run.pid).children()
        return [child for child in children if "decode_pool" in " ".join(child.cmdline())]

    def kill_decode_process(run: subprocess.Popen) -> None:
        wait_until(lambda: decode_processes(run), run)
        decode_processes(run)[0].kill()

    def kill_worker(_: subprocess.Popen) -> None:
        os.kill(clips.workers()[0], signal.SIGKILL)

    # A decode process is killed as soon as there is one: all files may be decoded before the first answers are saved.
    blows: list[tuple[int, Callable[[subprocess.Popen], None], int]] = [
        (12, kill_client, 12),
        (12, kill_decode_process, 30),
        (36, kill_worker, 42),
        (48, kill_client, 48),
    ]
    for saved_before, blow, saved_after in blows:
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as run:
            wait_until(lambda least=saved_before: saved(out) >= least, run)
            blow(run)
            if blow is not kill_client:
                wait_until(lambda least=saved_after: saved(out) >= least, run)
                run.kill()
    result = clips.caption(library, *SMALL_REQUESTS, "--out", out)
    assert result.exit_code == 0, result.output
    assert_same_records(out, quiet)
