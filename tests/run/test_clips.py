"""Runs that describe clips with a model, and what of them is saved, sent again and asked again."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest
from aiohttp import web

from reelscribe.client.endpoint import Server
from reelscribe.client.models import ClipClient
from reelscribe.contract.clips import ClipDescription
from reelscribe.decode.clips import ClipCutting
from reelscribe.errors import NothingAnswered, UsageError
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.run.driver import Run
from reelscribe.run.tracks.clips import ClipTrack
from support import shots
from support.clip_runs import NAMES, clip_server, describe, options_of, records, sent, write_clips
from support.decoding import MISBEHAVING
from support.fake_torchserve import Gate, descriptions, refused, worker_died
from support.odd_library import write_sound
from support.patience import PATIENCE
from support.videos import write


@pytest.fixture
def video(tmp_path) -> Path:
    """A video of four clips."""
    return write_clips(tmp_path / "video.mkv")


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out"


def texts(out: Path, name: str = "video.mkv") -> list[str]:
    return [clip["text"] for clip in records(out)[name]["clips"]]


def failures(out: Path, name: str = "video.mkv") -> list[tuple[float, str]]:
    """Where each clip without a description starts, and why it has none."""
    return [(failure["start"], failure["error"]) for failure in records(out)[name]["clip_failures"]]


def settings_of(out: Path) -> dict:
    """The settings of the descriptions in the record of a run with one source."""
    (record,) = records(out).values()
    return json.loads((out / "run.json").read_text())["settings"][record["clip_settings"]]


async def test_the_record_has_the_description_of_each_clip(video, out):
    answers = {
        40: ClipDescription("A dog runs on the beach.", "complete", 8, -0.25),
        80: ClipDescription("A dog runs on a beach.", "complete", 7, -0.5),
        120: ClipDescription("la la la la la la la la", "truncated", 30),
        160: ClipDescription("A car.", "complete", 3, 0.0),
    }

    async def answer(request):
        return web.json_response([answers[name].to_json() for name in request.names()])

    async with clip_server(answer) as server:
        assert (await describe(out, [video], server)).failed == 0
    record = records(out)["video.mkv"]
    assert [tuple(clip.values()) for clip in record["clips"]] == [
        (0.0, 1.0, 4, "A dog runs on the beach.", "complete", 8, -0.25, None, []),
        (1.0, 2.0, 4, "A dog runs on a beach.", "complete", 7, -0.5, None, []),
        (2.0, 3.0, 4, "la la la la la la la la", "truncated", 30, None, None, ["repetition"]),
        (3.0, 4.0, 4, "A car.", "complete", 3, 0.0, None, []),
    ]
    assert (record["status"], record["media"]["frames"], record["shots"], record["clip_failures"]) == ("ok", 40, [], [])
    assert settings_of(out)["model"] == {"name": "a/qwen", "revision": "123"}


async def test_frames_travel_with_their_times_and_with_the_prompt_that_is_given(video, out):
    async with clip_server() as server:
        await describe(out, [video], server, prompt="From {start} to {end} of {name}?", fps=8.0)
        (request,) = server.received
    assert [clip["prompt"] for clip in request.clips] == [f"From {k} to {k + 1} of video?" for k in range(4)]
    assert [clip["frames"].shape for clip in request.clips] == [(8, 8, 16, 3)] * 4
    assert request.clips[1]["pts_seconds"] == [1.0, 1.1, 1.3, 1.4, 1.5, 1.6, 1.8, 1.9]


async def test_without_a_prompt_none_is_sent(video, out):
    async with clip_server() as server:
        await describe(out, [video], server)
        (request,) = server.received
    assert all(set(clip) == {"frames", "pts_seconds"} for clip in request.clips)
    assert settings_of(out)["settings"]["prompt"] == "What happens?"


async def test_a_clip_for_each_shot_comes_with_the_shots(tmp_path, out):
    path = tmp_path / "cut.mp4"
    shots.write(path, shots.cut(30, 40, 10))
    async with clip_server() as server:
        await describe(out, [path], server, cutting=ClipCutting())
    record = records(out)["cut.mp4"]
    assert [(clip["start"], clip["end"]) for clip in record["clips"]] == [(0.0, 1.2), (1.2, 3.2)]
    assert [shot["start_frame"] for shot in record["shots"]] == [0, 30, 70]
    assert settings_of(out)["settings"]["clips"]["detection"] == {"threshold": 0.75}


async def test_copies_are_described_once(video, out, tmp_path):
    copy = Path(shutil.copy(video, tmp_path / "copy.mkv"))
    async with clip_server() as server:
        await describe(out, [video, copy], server)
        assert sent(server) == [*NAMES]
    assert texts(out, "copy.mkv") == texts(out) == [f"clip {name}" for name in NAMES]


async def test_a_second_run_sends_nothing_and_leaves_the_same_bytes(video, out):
    async with clip_server() as server:
        await describe(out, [video], server)
    before = [(out / name).read_bytes() for name in ("annotations.jsonl", "run.json")]
    async with clip_server() as server:
        summary = await describe(out, [video], server)
        assert server.received == []
    assert [(out / name).read_bytes() for name in ("annotations.jsonl", "run.json")] == before
    assert summary.snapshot.tracks[0].done_before == 4


class WatchedTrack(ClipTrack):
    """A track with an event that is set when the shots of a video are on the disk."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.found = asyncio.Event()

    def save_opened(self, path, job, opened):
        saving = super().save_opened(path, job, opened)
        if opened.shots:
            saving.add_done_callback(lambda _: self.found.set())
        return saving


async def interrupt(path: Path, out: Path, *, clips_per_request: int, after_search: bool) -> None:
    """Interrupt a run while two requests are in flight, which are then answered."""
    gate, options = Gate(descriptions), options_of(cutting=ClipCutting(), clips_per_request=clips_per_request)
    async with clip_server(gate) as server, ClipClient([Server(server.url)], "clips") as client:
        track = WatchedTrack(client, options)
        run = Run([track], out)
        running = asyncio.create_task(run.run([str(path)]))
        await asyncio.wait_for(gate.wait_for(2), PATIENCE)  # as many as are sent at once to one worker
        if after_search:
            await asyncio.wait_for(track.found.wait(), PATIENCE)
        run.stop()
        gate.open.set()
        assert (await asyncio.wait_for(running, PATIENCE)).interrupted


async def test_an_interrupted_run_goes_on_with_the_clips_that_are_missing(tmp_path, out):
    path = tmp_path / "cut.mp4"
    shots.write(path, shots.cut(*[30] * 5))
    await interrupt(path, out, clips_per_request=1, after_search=False)
    async with clip_server() as server:
        summary = await describe(out, [path], server, cutting=ClipCutting(), clips_per_request=1)
        assert (summary.failed, len(server.received)) == (0, 3)
    clips = records(out)["cut.mp4"]["clips"]
    assert [clip["start"] for clip in clips] == pytest.approx([0.0, 1.2, 2.4, 3.6, 4.8])


async def test_shots_that_an_interrupted_run_has_found_are_not_looked_for_again(tmp_path, out, monkeypatch):
    path = tmp_path / "crash-always.mp4"
    shots.write(path, shots.cut(*[30] * 5))
    await interrupt(path, out, clips_per_request=2, after_search=True)
    monkeypatch.setenv("PYTHONPATH", MISBEHAVING, prepend=os.pathsep)  # it dies if shots are looked for
    async with clip_server() as server:
        summary = await describe(out, [path], server, cutting=ClipCutting(), clips_per_request=2)
        assert (summary.failed, summary.replaced_processes, len(server.received)) == (0, 0, 1)


async def test_the_last_request_of_a_run_does_not_wait_for_more_clips(video, out, monkeypatch):
    monkeypatch.setattr("reelscribe.client.operations.JOIN_CLIPS_SECONDS", 10 * PATIENCE)
    async with clip_server() as server, asyncio.timeout(PATIENCE):
        await describe(out, [video], server)
        assert sent(server) == [*NAMES]


def refusing(*names: int):
    """Refuse requests with clips of these names."""

    async def answer(request):
        bad = {*names}.intersection(request.names())
        return refused(422, "FramesError", "no good") if bad else await descriptions(request)

    return answer


async def test_a_clip_that_is_refused_is_a_failure_and_the_others_stay(video, out):
    async with clip_server(refusing(120)) as server:
        assert (await describe(out, [video], server, clips_per_request=1)).failed == 1
    assert texts(out) == ["clip 40", "clip 80", "clip 160"]
    assert failures(out) == [(2.0, "status 422: no good")]
    error = records(out)["video.mkv"]["error"]
    assert error == {"type": "RequestRefused", "message": "1 clip has no description: status 422: no good"}


async def test_what_failed_is_tried_again_when_that_is_asked_for(video, out):
    async with clip_server(refusing(120)) as server:
        await describe(out, [video], server, clips_per_request=1)
    async with clip_server() as server:
        assert (await describe(out, [video], server)).failed == 1
        assert server.received == []
        assert (await describe(out, [video], server, retry_failed=True)).failed == 0
        assert sent(server) == [120]
    assert (texts(out), failures(out)) == ([f"clip {name}" for name in NAMES], [])


async def test_a_clip_over_which_workers_die_costs_itself_alone(video, out):
    async def answer(request):
        return worker_died() if 80 in request.names() else await descriptions(request)

    async with clip_server(answer) as server:
        assert (await describe(out, [video], server)).failed == 1
    assert texts(out) == ["clip 40", "clip 120", "clip 160"]
    assert failures(out) == [(1.0, "status 500: no luck")]


async def test_a_model_that_answers_nothing_ends_the_run(video, out):
    async def answer(_):
        return refused(422, "FramesError", "no good")

    async with clip_server(answer) as server:
        with pytest.raises(NothingAnswered, match="and then a black clip too"):
            await describe(out, [video], server)


class CountingTrack(ClipTrack):
    """Tells when a number of batches have been sent or wait in a request."""

    def __init__(self, client: ClipClient, expected: int) -> None:
        super().__init__(client, options_of())
        self._sent, self._expected = 0, expected
        self.all_sent = asyncio.Event()

    async def send(self, assigned, batch):
        task = await super().send(assigned, batch)
        self._sent += 1
        if self._sent == self._expected:
            self.all_sent.set()
        return task


async def test_what_is_refused_in_one_source_is_not_refused_in_those_that_shared_its_request(tmp_path, out):
    paths = [write_clips(tmp_path / f"{name}.mkv", [name]) for name in NAMES]
    gate = Gate(refusing(120))
    async with clip_server(gate) as server, ClipClient([Server(server.url)], "clips") as client:
        track = CountingTrack(client, expected=len(paths))
        running = asyncio.create_task(Run([track], out).run([str(path) for path in paths]))
        await asyncio.wait_for(track.all_sent.wait(), PATIENCE)
        gate.open.set()
        assert (await asyncio.wait_for(running, PATIENCE)).failed == 1
    assert max(len(request.names()) for request in server.received) > 1
    for name in NAMES:
        expected = ([], ["status 422: no good"]) if name == 120 else ([f"clip {name}"], [])
        found = texts(out, f"{name}.mkv"), [error for _, error in failures(out, f"{name}.mkv")]
        assert found == expected


async def test_two_servers_share_the_clips_of_a_source(video, out):
    gates = [Gate(descriptions), Gate(descriptions)]
    async with clip_server(gates[0]) as one, clip_server(gates[1]) as other:
        running = asyncio.create_task(describe(out, [video], one, other, clips_per_request=1))
        for gate in gates:
            await asyncio.wait_for(gate.wait_for(2), PATIENCE)
        for gate in gates:
            gate.open.set()
        assert (await running).failed == 0
        assert sent(one, other) == [*NAMES]
    assert texts(out) == [f"clip {name}" for name in NAMES]


async def test_clips_that_cannot_be_decoded_are_failures(tmp_path, out):
    path, signature = tmp_path / "damaged.mov", b"\x89PNG\r\n\x1a\n"
    write(path, "png", [name for name in NAMES for _ in range(10)], pix_fmt="rgb24")
    header, *frames = path.read_bytes().split(signature)
    content = [(bytes(8) if 10 <= k < 20 else signature) + frame for k, frame in enumerate(frames)]
    path.write_bytes(b"".join([header, *content]))
    async with clip_server() as server:
        assert (await describe(out, [path], server)).failed == 1
        assert sent(server) == [40, 120, 160]
    assert failures(out, path.name) == [(1.0, "it cannot be decoded")]
    assert records(out)[path.name]["error"]["message"] == "damaged: 1 of 4 clips cannot be decoded"


async def test_a_source_without_pictures_is_an_error(media, tmp_path, out):
    write_sound(tmp_path / "sound.mp4", media / "spoken.mp4")
    async with clip_server() as server:
        assert (await describe(out, [tmp_path / "sound.mp4"], server)).failed == 1
    assert records(out)["sound.mp4"]["error"]["type"] == "NoPictures"


@pytest.mark.parametrize(
    "other",
    [
        {"prompt": "Who?"},
        {"json_schema": {"type": ["object", "string"]}, "prompt": '{"a": 1}'},
        {"fps": 8.0},
        {"cutting": ClipCutting("windows", window_seconds=2.0)},
    ],
    ids=str,
)
async def test_other_settings_make_other_results_and_those_of_before_stay(video, out, other):
    async def answer(request):
        return web.json_response([ClipDescription('"a dog"', "complete", 5).to_json() for _ in request.clips])

    async with clip_server(answer) as server:
        await describe(out, [video], server)
        before = (out / "annotations.jsonl").read_bytes()
        await describe(out, [video], server, **other)
        assert (out / "annotations.jsonl").read_bytes() != before
        requests = len(server.received)
        await describe(out, [video], server)
        assert (len(server.received), (out / "annotations.jsonl").read_bytes()) == (requests, before)
    with LedgerReader(out) as ledger:
        assert [len(list(ledger.clip_results(job))) for job in (1, 2)] == [4, 2 if "cutting" in other else 4]


@pytest.mark.parametrize("changes", [{"clips_per_request": 1}, {"decode_workers": 1}, {"stall_seconds": 99.0}])
async def test_settings_that_change_no_answer_keep_the_results(video, out, changes):
    async with clip_server() as server:
        await describe(out, [video], server)
        requests = len(server.received)
        await describe(out, [video], server, **changes)
        assert len(server.received) == requests


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"fps": 0.0}, "clip fps: expected more than 0 frames a second, got 0"),
        ({"prompt": " "}, "prompt: expected a text that is not empty"),
        (
            {"json_schema": {"type": "thing"}},
            "JSON schema: expected a valid one, got an error at .*: 'thing' is not valid",
        ),
        ({"prompt": "They say {transcript}"}, "prompt: {transcript} needs a transcript; use `reelscribe annotate`"),
    ],
)
async def test_what_cannot_be_asked_is_refused_before_anything_is_written(video, out, options, rule):
    async with clip_server() as server:
        with pytest.raises(UsageError, match=rule):
            await describe(out, [video], server, **options)
    assert not out.exists()


@pytest.mark.parametrize("options", [{"prompt": "Who?"}, {"json_schema": {}}])
async def test_a_model_with_a_prompt_of_its_own_takes_no_other(video, out, options):
    async with clip_server(allow_prompts=False) as server:
        with pytest.raises(UsageError, match="prompt: a/qwen is served with a prompt of its own"):
            await describe(out, [video], server, **options)
        assert not out.exists()
        assert (await describe(out, [video], server)).failed == 0
