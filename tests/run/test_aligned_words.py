"""The words of transcripts get their times from a second model on the same servers."""

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from reelscribe._track_specs import ModelSpec
from reelscribe.client.endpoint import Server
from reelscribe.cluster.session import RemoteNodes
from reelscribe.contract.speech import BOTH, ChunkTranscript, SpeechSegment, TranscriptionOptions, Word
from reelscribe.errors import RequestRefused, ServerError, UsageError
from reelscribe.run.driver import Run
from reelscribe.run.tracks.transcripts import SpeechOptions, TranscriptMedium
from reelscribe.server.server_discovery import FoundServer
from support.fake_torchserve import SPEECH, FakeTorchServe, Received, refused
from support.local_cluster import LocalCluster
from support.patience import PATIENCE

ALIGNER = replace(SPEECH, name="a/wav2vec2", languages=(), tasks=("transcribe",), prompt_tokens=0, aligns=True)
OPTIONS = SpeechOptions(align_model="ctc", chunks_per_request=1)
HEARD = (Word(0.5, 1.0, "You"), Word(1.0, 2.0, "don't,"))
"""What the speech model hears in each chunk, with inexact times."""
SEGMENTS = (SpeechSegment(0.0, 2.0, "You don't,"), SpeechSegment(2.0, 9.0, "do you?"), SpeechSegment(9.0, 9.0, ""))


async def heard(request: Received) -> web.Response:
    """The transcript of each chunk; the first segment has the times of words if they are asked for."""
    timed = replace(SEGMENTS[0], words=HEARD) if request.tree.get("word_times") else SEGMENTS[0]
    said = ChunkTranscript("You don't, do you?", "en", (timed, *SEGMENTS[1:]))
    return web.json_response([said.to_json() for _ in request.names()])


def aligned(words: list[str]) -> ChunkTranscript:
    """The k-th word is said from k + 0.25 s to k + 0.75 s; without punctuation, as a model might spell it."""
    timed = tuple(Word(k + 0.25, k + 0.75, word.strip(",?"), 0.5) for k, word in enumerate(words))
    return ChunkTranscript("", None, (SpeechSegment(0.25, len(words) - 0.25, "", timed),))


async def alignments(request: Received) -> web.Response:
    return web.json_response([aligned(words).to_json() for words in request.tree["words"]])


async def too_short(request: Received) -> web.Response:
    """No chunk is long enough for its words."""
    return web.json_response([ChunkTranscript("", None, ()).to_json() for _ in request.names()])


class Runs:
    """Runs over demo speech, on this machine or, if `elsewhere`, on another one."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.source, self.folder = source, folder
        self.aligner = FakeTorchServe(alignments, description=ALIGNER)
        self.aligner.model = "ctc"
        self.speech = FakeTorchServe(heard, description=SPEECH, beside=[self.aligner])

    def spec(self, options: SpeechOptions = OPTIONS) -> ModelSpec:
        return ModelSpec(options, [FoundServer(Server(self.speech.url))], "speech", 8)

    async def run(self, out: str, options: SpeechOptions = OPTIONS, *, elsewhere: bool = False) -> bytes:
        """Run; return the record."""
        spec = self.spec(options)
        async with AsyncExitStack() as stack:
            tracks = RemoteNodes([spec], LocalCluster("a")) if elsewhere else [await spec.open(stack)]
            run = Run(tracks, self.folder / out)
            await asyncio.wait_for(run.run([str(self.source)]), PATIENCE)
        return (self.folder / out / "annotations.jsonl").read_bytes()


@pytest.fixture
async def runs(media, tmp_path):
    runs = Runs(media / "phrases.ogg", tmp_path)
    async with runs.speech:
        yield runs


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_words_and_segments_have_the_times_of_the_second_model(runs, elsewhere):
    record = json.loads(await runs.run("out", elsewhere=elsewhere))
    first, second, *others = record["segments"]
    assert len(others) >= 2  # the other chunks
    assert (first["start"], first["end"], first["text"]) == (0.25, 1.75, "You don't,")
    assert [(word["start"], word["end"], word["text"]) for word in first["words"]] == [
        (0.25, 0.75, "You"),
        (1.25, 1.75, "don't,"),
    ]
    assert [word["text"] for word in second["words"]] == ["do", "you?"]
    assert others[0]["start"] > 15  # its times are those of the source
    assert {word["probability"] for word in second["words"]} == {0.5}
    sent = [request.tree for request in runs.aligner.received]
    assert [len(chunk) for tree in sent for chunk in tree["chunks"]] == [
        len(chunk) for request in runs.speech.received for chunk in request.tree["chunks"]
    ]
    assert {tree["sample_rate"] for tree in sent} == {16_000}


async def test_a_translation_keeps_the_times_of_the_speech_model(runs):
    async def both(request: Received) -> web.Response:
        said = ChunkTranscript("You don't, do you?", "fr", SEGMENTS)
        return web.json_response([replace(said, translation=said).to_json() for _ in request.names()])

    runs.speech.description, runs.speech.answer = replace(SPEECH, tasks=("transcribe", "translate", BOTH)), both
    record = json.loads(await runs.run("out", replace(OPTIONS, transcription=TranscriptionOptions(task=BOTH))))
    said, translated = record["segments"][0], record["translations"][0]
    assert (said["start"], said["end"], translated["start"], translated["end"]) == (0.25, 1.75, 0.0, 2.0)
    assert translated["words"] is None


async def test_a_run_that_is_continued_gives_the_same_bytes(runs):
    undisturbed = await runs.run("undisturbed")
    left = [alignments, lambda _: web.json_response("nonsense")]

    async def lies_after_one(request: Received) -> web.Response:
        answer = left.pop(0) if len(left) > 1 else left[0]
        return await answer(request) if answer is alignments else answer(request)

    runs.aligner.answer = lies_after_one
    with pytest.raises(ServerError, match="transcripts"):
        await runs.run("out")
    runs.aligner.answer = alignments
    runs.speech.received.clear()
    assert await runs.run("out") == undisturbed
    assert 0 < len(runs.speech.received) < undisturbed.count(b'"You don')
    runs.speech.received.clear()
    assert await runs.run("out") == undisturbed
    assert runs.speech.received == []


async def test_a_chunk_that_is_too_short_for_its_words_keeps_what_the_speech_model_heard(runs):
    runs.aligner.answer = too_short
    timed = replace(OPTIONS, transcription=TranscriptionOptions(word_times=True))
    for options, words in ((timed, [(0.5, 1.0), (1.0, 2.0)]), (OPTIONS, None)):
        segment = json.loads(await runs.run(str(words is None), options))["segments"][0]
        assert (segment["start"], segment["end"]) == (0.0, 2.0)
        assert (segment["words"] and [(word["start"], word["end"]) for word in segment["words"]]) == words


async def refuses(_: Received) -> web.Response:
    return refused(422, "SpeechError", "no")


async def times_another_word(request: Received) -> web.Response:
    return web.json_response([aligned(["one"]).to_json() for _ in request.names()])


@pytest.mark.parametrize(
    ("answer", "why"),
    [(refuses, "status 422: no"), (times_another_word, "expected the times of 4 words, got 1")],
)
async def test_what_cannot_be_aligned_is_kept_told_and_tried_again(runs, answer, why):
    undisturbed = json.loads(await runs.run("undisturbed"))
    runs.aligner.answer = lambda request: (too_short if request.tree["words"] == [["a"]] else answer)(request)
    record = json.loads(await runs.run("out"))
    texts = [segment["text"] for segment in undisturbed["segments"]]
    assert [segment["text"] for segment in record["segments"]] == texts
    assert [segment["words"] for segment in record["segments"]] == [None] * len(texts)
    assert {failure["error"] for failure in record["speech_failures"]} == {f"align model: {why}"}
    chunks = len(record["speech_failures"])
    assert record["error"]["message"] == f"{chunks} chunks of audio have no complete transcript: align model: {why}"
    runs.aligner.answer = alignments
    again = json.loads(await runs.run("out", replace(OPTIONS, retry_failed=True)))
    assert (again["status"], again["segments"]) == ("ok", undisturbed["segments"])


async def test_what_was_sent_before_a_run_is_stopped_is_aligned_and_saved(runs):
    undisturbed = await runs.run("undisturbed")
    requests = len(runs.speech.received)
    runs.speech.received.clear()
    answering, arrived = asyncio.Event(), asyncio.Event()

    async def hears_late(request: Received) -> web.Response:
        arrived.set()
        await answering.wait()
        return await heard(request)

    runs.speech.answer = hears_late
    async with AsyncExitStack() as stack:
        run = Run([await runs.spec().open(stack)], runs.folder / "out")
        running = asyncio.create_task(run.run([str(runs.source)]))
        await asyncio.wait_for(arrived.wait(), PATIENCE)
        run.stop()
        answering.set()
        assert (await asyncio.wait_for(running, PATIENCE)).interrupted
    assert 0 < len(runs.speech.received) < requests
    assert await runs.run("out") == undisturbed
    assert len(runs.speech.received) == requests


async def test_another_model_makes_transcripts_anew(runs):
    await runs.run("out")
    runs.aligner.description = replace(ALIGNER, revision="456")
    runs.speech.received.clear()
    await runs.run("out")
    assert runs.speech.received
    runs.speech.received.clear()
    runs.aligner.description = replace(ALIGNER, max_chunks=4, workers=2)  # answers are the same
    await runs.run("out")
    assert runs.speech.received == []


def test_without_the_option_settings_are_as_before():
    assert "align" not in TranscriptMedium(SpeechOptions(), SPEECH).settings()
    settings = TranscriptMedium(OPTIONS, SPEECH, ALIGNER).settings()
    assert settings.pop("align") == {"model": ["a/wav2vec2", "123"], "dtype": "float32", "engine": "torch"}
    assert settings == TranscriptMedium(SpeechOptions(), SPEECH).settings()


@pytest.mark.parametrize(
    ("aligner", "transcription", "rule"),
    [
        (replace(ALIGNER, aligns=False), TranscriptionOptions(), "expected one with a CTC head, .* got a/wav2vec2"),
        (ALIGNER, TranscriptionOptions(task="translate"), "expected the task transcribe or both"),
        (replace(ALIGNER, chunk_seconds=20.0), TranscriptionOptions(), ".* chunks of 30 s, .* which takes 20 s; raise"),
        (replace(ALIGNER, languages=("de",)), TranscriptionOptions("en"), "expected one for en, .* which knows de"),
    ],
)
async def test_a_model_that_does_not_fit_is_refused_before_anything_is_written(runs, aligner, transcription, rule):
    runs.aligner.description = aligner
    with pytest.raises(UsageError, match=f"align model: {rule}"):
        await runs.run("out", replace(OPTIONS, transcription=transcription))
    assert not (runs.folder / "out").exists()


async def test_a_model_that_is_not_there_is_named(runs):
    with pytest.raises((RequestRefused, ServerError), match="ctd"):
        await runs.run("out", replace(OPTIONS, align_model="ctd"))
