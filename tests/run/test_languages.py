"""A chunk whose detected language is unsure is asked again in that of the chunks of its source around it."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web

from reelscribe.client.endpoint import Server
from reelscribe.client.models import SpeechClient
from reelscribe.contract.chunking import Cutting
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment, TranscriptionOptions, Word
from reelscribe.errors import UsageError
from reelscribe.run.driver import Run
from reelscribe.run.tracks.transcripts import SpeechOptions, TranscriptTrack
from support.audio import RATE, write
from support.fake_torchserve import SPEECH, FakeTorchServe, Gate, Received, refused
from support.patience import PATIENCE

SECONDS = 4.0
MODEL = replace(SPEECH, chunk_seconds=SECONDS, languages=("cy", "de", "en"), detects_among=True)
OPTIONS = SpeechOptions(cutting=Cutting(0), audio_workers=1)
DETECTED = [("en", 0.5), ("de", 0.9), ("cy", 0.3), ("en", 0.7), ("de", 0.4), ("en", 0.7), ("cy", 0.99), ("cy", 0.1)]
"""What the model detects in silence and in each chunk, by its loudness; nothing is said in chunks 6 and 7."""


async def heard(request: Received) -> web.Response:
    """The text of a chunk says in which language it was written."""
    asked, answers = request.tree.get("language"), []
    for number in request.names():
        language, probability = DETECTED[number // 1000] if asked in (None, "de,cy") else (asked, None)
        text = "" if number >= 6000 else f"{number // 1000} in {language}"
        said = (SpeechSegment(0.0, 1.0, text),) if text else ()
        answers.append(ChunkTranscript(text, language, said, language_probability=probability).to_json())
    return web.json_response(answers)


def recording(path: Path, *chunks: int) -> str:
    """A recording of chunks, each of which is as loud as its number says."""
    write(path, np.repeat(np.array(chunks, np.float32) * 1000 / 32768, round(SECONDS * RATE)))
    return str(path)


async def run(server: FakeTorchServe, out: Path, *sources: str, gate: Gate | None = None, **options) -> list[dict]:
    """Run; return the records. With a gate, stop as soon as a request waits at it, and then open it."""
    async with SpeechClient([Server(server.url)], "speech") as client:
        run = Run([TranscriptTrack(client, replace(OPTIONS, **options))], out)
        running = asyncio.create_task(run.run(list(sources)))
        if gate:
            await asyncio.wait_for(gate.wait_for(1), PATIENCE)
            run.stop()
            gate.open.set()
        await asyncio.wait_for(running, PATIENCE)
    return [json.loads(line) for line in (out / "annotations.jsonl").read_text().splitlines()]


def said(record: dict) -> list[tuple[str, float | None]]:
    return [(segment["text"], segment["language_probability"]) for segment in record["segments"]]


@pytest.fixture
async def server():
    async with FakeTorchServe(heard, description=MODEL) as server:
        yield server


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ((1, 2, 4), [("1 in de", 0.9), ("2 in de", None), ("4 in de", 0.4)]),
        ((2, 4), [("2 in cy", 0.3), ("4 in de", 0.4)]),  # nothing is sure
        ((6, 6, 2, 4), [("2 in cy", 0.3), ("4 in de", 0.4)]),  # nor is it where nothing is said
        ((1, 7), [("1 in de", 0.9)]),  # where nothing is said, no language is asked for
        ((1, 3, 2), [("1 in de", 0.9), ("3 in en", 0.7), ("2 in de", None)]),
        ((1, 3, 2, 5), [("1 in de", 0.9), ("3 in en", 0.7), ("2 in en", None), ("5 in en", 0.7)]),
    ],
)
async def test_an_unsure_chunk_takes_the_language_of_most_of_what_is_sure(server, tmp_path, chunks, expected):
    (record,) = await run(server, tmp_path / "out", recording(tmp_path / "a.wav", *chunks))
    assert said(record) == expected
    again = [text for text, probability in expected if probability is None]
    assert [request.names() for request in server.received[1:]] == [[int(text[0]) * 1000] for text in again]


@pytest.mark.parametrize(("language", "asked"), [("de", ["de"]), ("de,cy", ["de,cy", "de"])])
async def test_only_a_detected_language_can_be_unsure(server, tmp_path, language, asked):
    chosen = TranscriptionOptions(language=language)
    (record,) = await run(server, tmp_path / "out", recording(tmp_path / "a.wav", 1, 2), transcription=chosen)
    assert [text for text, _ in said(record)] == ["1 in de", "2 in de"]
    assert [request.tree["language"] for request in server.received] == asked


async def test_sources_that_share_a_request_do_not_share_a_language(server, tmp_path):
    sources = recording(tmp_path / "a.wav", 1, 2), recording(tmp_path / "b.wav", 2, 5), recording(tmp_path / "c.wav", 2)
    records = await run(server, tmp_path / "out", *sources)
    assert [[text for text, _ in said(record)] for record in records] == [
        ["1 in de", "2 in de"],
        ["2 in en", "5 in en"],
        ["2 in cy"],
    ]


async def test_a_run_that_is_stopped_between_two_questions_is_continued_with_the_same_bytes(server, tmp_path):
    source = recording(tmp_path / "a.wav", 1, 2, 3, 2, 2, 5, 4, 4)
    undisturbed = await run(server, tmp_path / "undisturbed", source, chunks_per_request=2)
    server.answer = gate = Gate(heard)
    before = (tmp_path / "out" / "annotations.jsonl", tmp_path / "undisturbed" / "annotations.jsonl")
    assert await run(server, tmp_path / "out", source, gate=gate, chunks_per_request=2) != undisturbed
    assert await run(server, tmp_path / "out", source, chunks_per_request=2) == undisturbed
    assert before[0].read_bytes() == before[1].read_bytes()


async def test_words_are_those_of_the_second_answer(tmp_path):
    async def aligned(request: Received) -> web.Response:
        timed = [tuple(Word(k, k + 1.0, word) for k, word in enumerate(words)) for words in request.tree["words"]]
        segments = [SpeechSegment(0.0, 3.0, "", words) for words in timed]
        return web.json_response([ChunkTranscript("", None, (segment,)).to_json() for segment in segments])

    aligner = FakeTorchServe(aligned, description=replace(MODEL, languages=(), detects_among=False, aligns=True))
    aligner.model = "ctc"
    async with FakeTorchServe(heard, description=MODEL, beside=[aligner]) as server:
        (record,) = await run(server, tmp_path / "out", recording(tmp_path / "a.wav", 1, 2), align_model="ctc")
    words = [[word["text"] for word in segment["words"]] for segment in record["segments"]]
    assert words == [["1", "in", "de"], ["2", "in", "de"]]


async def test_a_refused_second_question_leaves_the_first_answer_and_is_asked_again(server, tmp_path):
    async def refuses(request: Received) -> web.Response:
        asked = request.tree.get("language") and request.names() != [0]  # the probe is answered
        return refused(422, "SpeechError", "no") if asked else await heard(request)

    source, server.answer = recording(tmp_path / "a.wav", 1, 2), refuses
    (record,) = await run(server, tmp_path / "out", source)
    assert said(record) == [("1 in de", 0.9), ("2 in cy", 0.3)]
    assert record["speech_failures"][0]["error"] == "language of the chunks around: status 422: no"
    server.answer = heard
    (record,) = await run(server, tmp_path / "out", source, retry_failed=True)
    assert said(record) == [("1 in de", 0.9), ("2 in de", None)]


def test_several_languages_need_a_model_that_detects_which_is_spoken():
    several = SpeechOptions(TranscriptionOptions(language="de, en,de"))
    assert several.transcription.languages == ("de", "en")
    settings = several.settings(MODEL)
    assert (settings["language"], settings["chunks_per_request"]) == ("de, en,de", 8)  # as neighbours may decide
    assert "chunks_per_request" not in SpeechOptions(TranscriptionOptions(language="de")).settings(MODEL)
    with pytest.raises(UsageError, match=r"expected one code, as a/whisper cannot detect which .*, got 'de, en,de'"):
        several.check(replace(MODEL, detects_among=False))
    with pytest.raises(UsageError, match="expected one that a/whisper knows, got 'xx'; it knows cy, de, en"):
        SpeechOptions(TranscriptionOptions(language="de,xx")).check(MODEL)
    with pytest.raises(UsageError, match="expected one for de, got ctc, which knows en"):
        several.check_aligning(MODEL, replace(MODEL, name="ctc", languages=("en",), aligns=True))
