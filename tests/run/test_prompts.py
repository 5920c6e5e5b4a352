"""What is asked about a clip: the fields of a prompt, and the words of a stretch of time."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from aiohttp import web

from reelscribe.client.endpoint import Server
from reelscribe.client.models import ClipClient, SpeechClient
from reelscribe.contract.outcomes import Utterance
from reelscribe.contract.source import Section
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment, TranscriptionOptions, Word
from reelscribe.decode.clips import ClipCutting
from reelscribe.reporting.summary import Summary
from reelscribe.run.driver import Run
from reelscribe.run.tracks.clips import ClipOptions, ClipTrack
from reelscribe.run.tracks.prompts import (
    fill,
    has_field,
    words_between,
)
from reelscribe.run.tracks.transcripts import SpeechOptions, TranscriptTrack
from support import odd_media
from support.clip_runs import clip_server, records
from support.fake_torchserve import SPEECH, FakeTorchServe, refused
from support.patience import PATIENCE

SPAN = Section(50, 110, 2.0, 4.4)


def said(start: float, end: float, text: str, words: list[tuple[float, float, str]] | None = None) -> Utterance:
    times = None if words is None else tuple(Word(*word) for word in words)
    return Utterance(start, end, text, "en", None, times)


GO_LEFT = said(1.0, 3.0, "Go left.", [(1.0, 1.6, " Go"), (2.6, 3.0, " left.")])
THEN = said(3.0, 6.0, "Then straight on.", [(3.0, 3.4, "Then"), (4.0, 4.8, "straight"), (5.0, 6.0, "on.")])


@pytest.mark.parametrize(
    ("prompt", "filled"),
    [
        ("What happens?", "What happens?"),
        ("From {start} to {end} s of {name}", "From 2 to 4.4 s of film.part1"),
        ("They say: {transcript}", "They say: left. Then"),
        ("Answer as {schema}", 'Answer as {"type": "object", "required": ["«wer»"]}'),
        ("{start} {start}", "2 2"),
        ("{other} {} {Start} {{start}} {start", "{other} {} {Start} {2} {start"),
        ('Like {"who": "..."}, {name}', 'Like {"who": "..."}, film.part1'),
    ],
)
def test_the_fields_of_a_prompt_are_filled_in_and_other_braces_stay(prompt, filled):
    schema = {"type": "object", "required": ["«wer»"]}
    assert fill(prompt, "/videos/film.part1.mp4", SPAN, [GO_LEFT, THEN], schema) == filled


def test_what_is_filled_in_is_not_searched_for_fields():
    utterances = [said(2.0, 3.0, "say {name} and {start}")]
    assert fill("{transcript}", "x.mp4", SPAN, utterances) == "say {name} and {start}"
    assert fill("{name}", "{end}.mp4", SPAN, []) == "{end}"


def test_where_nothing_is_said_and_no_schema_given_the_fields_are_empty():
    assert fill("[{transcript}] [{schema}]", "x.mp4", SPAN, []) == "[] []"


def test_times_are_in_seconds_with_the_digits_that_they_have():
    assert fill("{start}-{end}", "x.mp4", Section(0, 1, 3599.96, 7200.0), []) == "3599.96-7200"


def test_a_field_is_found_in_the_prompt_alone():
    assert has_field("Say {transcript}.", "transcript")
    assert not has_field("Say transcript.", "transcript")
    assert not has_field(None, "transcript")


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        (0.0, 10.0, "Go left. Then straight on."),
        (2.0, 4.4, "left. Then"),  # the middle of "straight" is at 4.4 s
        (2.0, 4.41, "left. Then straight"),
        (1.7, 2.5, ""),
        (6.0, 9.0, ""),
    ],
)
def test_words_with_times_belong_where_their_middle_is(start, end, words):
    assert words_between([GO_LEFT, THEN], start, end) == words


@pytest.mark.parametrize("edges", [[0.0, 1.0, 2.8, 4.4, 5.5, 9.0], [0.0, 9.0], [0.0, 3.2, 9.0]])
def test_stretches_that_follow_each_other_have_every_word_once(edges):
    stretches = [words_between([GO_LEFT, THEN], *edge) for edge in pairwise(edges)]
    assert " ".join(filter(None, stretches)) == "Go left. Then straight on."


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        (0.0, 10.0, "Go left. Then straight on."),
        (0.0, 2.0, "Go left."),  # half of it
        (0.0, 1.9, ""),
        (3.5, 5.5, "Then straight on."),
        (4.0, 4.2, "Then straight on."),  # of a stretch within it
        (2.9, 3.1, "Go left. Then straight on."),
        (6.0, 9.0, ""),
    ],
)
@pytest.mark.parametrize("words_of_segment", [None, []])
def test_segments_without_word_times_belong_where_half_of_them_is(start, end, words, words_of_segment):
    utterances = [said(1.0, 3.0, " Go left.", words_of_segment), said(3.0, 6.0, "Then straight on.", words_of_segment)]
    assert words_between(utterances, start, end) == words


def test_what_is_filled_in_has_no_special_tokens():
    utterances = [said(2.0, 3.0, "say <|im_end|> now")]
    assert fill("{transcript}", "x.mp4", SPAN, utterances) == "say < |im_end|> now"
    assert fill("{name}", "<|im_end|>.mp4", SPAN, []) == "< |im_end|>"


WORDS = [(1.0, 1.5, "one"), (3.0, 3.5, "three"), (5.0, 5.5, "five"), (11.0, 11.5, "eleven")]
"""What is spoken in the media file, 12 s long, as the fake speech model has it."""


async def spoken(request):
    """Respond like the speech handler, with the words of the media file in one segment each."""
    words = [SpeechSegment(*word, (Word(*word),) if request.tree["word_times"] else None) for word in WORDS]
    text = " ".join(word for _, _, word in WORDS)
    return web.json_response([ChunkTranscript(text, "en", tuple(words)).to_json() for _ in request.names()])


async def annotate(
    out: Path,
    paths: Sequence[Path],
    clips: FakeTorchServe,
    speech: FakeTorchServe,
    *,
    word_times: bool = True,
    prompt: str = "[{transcript}]",
) -> Summary:
    """Transcribe sources, and describe windows of 4 s of them with their words."""
    options = ClipOptions(ClipCutting("windows", window_seconds=4.0), prompt=prompt)
    of_speech = SpeechOptions(TranscriptionOptions(word_times=word_times), silence_db=None)
    async with (
        ClipClient([Server(clips.url)], "clips") as clip_client,
        SpeechClient([Server(speech.url)], "speech") as speech_client,
    ):
        run = Run([ClipTrack(clip_client, options), TranscriptTrack(speech_client, of_speech)], out)
        return await asyncio.wait_for(run.run([str(path) for path in paths]), PATIENCE)


def prompts(server: FakeTorchServe) -> list[str]:
    return [clip["prompt"] for request in server.received for clip in request.clips]


@pytest.fixture
async def served():
    """A server of the clip model, and one of the speech model."""
    async with clip_server() as clips, FakeTorchServe(spoken, description=SPEECH) as speech:
        yield clips, speech


@pytest.mark.parametrize("word_times", [True, False])
async def test_a_prompt_waits_for_the_transcript_and_has_the_words_of_its_clip(media, tmp_path, served, word_times):
    clips, speech = served
    assert (await annotate(tmp_path / "out", [media / "spoken.mp4"], *served, word_times=word_times)).failed == 0
    assert len(speech.received) == 1
    assert prompts(clips) == ["[one three]", "[five]", "[eleven]"]
    record = records(tmp_path / "out")["spoken.mp4"]
    assert [len(record[name]) for name in ("clips", "segments")] == [3, 4]


async def test_each_source_has_its_own_words(media, tmp_path, served):
    async def say_how_long(request):
        seconds = [len(chunk) / SPEECH.sample_rate for chunk in request.tree["chunks"]]
        said = [ChunkTranscript("", "en", (SpeechSegment(0.0, each, f"{each:.0f} s"),)) for each in seconds]
        return web.json_response([transcript.to_json() for transcript in said])

    clips, speech = served
    speech.answer = say_how_long
    odd_media.write(tmp_path / "short.mkv", audio="flac")
    paths = [tmp_path / "short.mkv", media / "spoken.mp4"]
    await annotate(tmp_path / "out", paths, *served, prompt="{name}: {transcript}")
    assert sorted(prompts(clips)) == ["short: 2 s", *["spoken: 12 s"] * 3]


async def test_a_transcript_that_has_been_made_before_is_used(media, tmp_path, served):
    clips, speech = served
    await annotate(tmp_path / "out", [media / "spoken.mp4"], *served, prompt="Who speaks?")
    await annotate(tmp_path / "out", [media / "spoken.mp4"], *served)
    assert len(speech.received) == 1
    assert prompts(clips) == ["Who speaks?"] * 3 + ["[one three]", "[five]", "[eleven]"]


async def test_with_another_transcript_clips_are_described_again_if_the_prompt_has_its_words(media, tmp_path, served):
    clips, _ = served
    for prompt, described in [("Who speaks?", 3), ("[{transcript}]", 9)]:
        for word_times in (False, True, False):  # the times of words stay
            paths, out = [media / "spoken.mp4"], tmp_path / "out"
            await annotate(out, paths, *served, word_times=word_times, prompt=prompt)
        assert len(prompts(clips)) == described


async def test_where_there_is_no_transcript_the_prompt_has_no_words(media, tmp_path, served):
    clips, speech = served
    assert (await annotate(tmp_path / "out", [media / "old.avi"], *served)).failed == 0
    assert (set(prompts(clips)), speech.received) == ({"[]"}, [])


async def test_clips_are_described_although_the_transcript_fails(media, tmp_path, served):
    async def refuse_all_but_a_second_of_silence(request):
        too_long = len(request.tree["chunks"][0]) > SPEECH.sample_rate
        return refused(422, "SpeechError", "no good") if too_long else await spoken(request)

    clips, speech = served
    speech.answer = refuse_all_but_a_second_of_silence
    assert (await annotate(tmp_path / "out", [media / "spoken.mp4"], *served)).failed == 1
    assert prompts(clips) == ["[]"] * 3
    record = records(tmp_path / "out")["spoken.mp4"]
    assert (len(record["clips"]), record["speech_failures"][0]["error"]) == (3, "status 422: no good")
