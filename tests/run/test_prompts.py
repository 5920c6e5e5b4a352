"""What is asked about a clip: the fields of a prompt, the words of a stretch of time, and answers that fit a schema."""

import asyncio
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web

from reelscribe.client.endpoint import Server
from reelscribe.client.models import ClipClient, SpeechClient
from reelscribe.contract.clips import ClipDescription
from reelscribe.contract.outcomes import Utterance
from reelscribe.contract.source import Section
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment, TranscriptionOptions, Word
from reelscribe.decode.clips import ClipCutting
from reelscribe.errors import UsageError
from reelscribe.run.bulk import BulkRun, Summary
from reelscribe.run.tracks.clips import ClipTrack
from reelscribe.run.tracks.options import ClipOptions, SpeechOptions
from reelscribe.run.tracks.prompts import (
    AnswerRefused,
    ask_again,
    check_schema,
    fill,
    has_field,
    read_answer,
    words_between,
)
from reelscribe.run.tracks.transcripts import TranscriptTrack
from support import odd_media
from support.clip_runs import NAMES, clip_server, describe, records, write_clips
from support.fake_torchserve import SPEECH, Answer, FakeTorchServe, refused
from support.patience import PATIENCE
from support.videos import write

SPAN = Section(50, 110, 2.0, 4.4)
INT = {"type": "integer"}
SCHEMA = {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}


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


@pytest.mark.parametrize(
    "answer",
    [
        '{"what": "a dog"}',
        ' \n{"what": "a dog"}\n',
        '```json\n{"what": "a dog"}\n```',
        '\n```\n{\n"what": "a dog"}\n```\n',
    ],
)
def test_an_answer_that_fits_is_parsed_with_and_without_a_fence(answer):
    assert read_answer(answer, SCHEMA) == {"what": "a dog"}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("", "it is no JSON: Expecting value"),
        ("A dog runs.", "it is no JSON: Expecting value"),
        ('Here: {"what": "a dog"}', "it is no JSON: Expecting value"),
        ('{"what": "a dog"', "it is no JSON: Expecting ',' delimiter"),
        ('{"what": "a dog"} and more', "it is no JSON: Extra data"),
        ('{"what": NaN}', "it is no JSON: NaN is no number"),
        ('{"what": [-Infinity]}', "it is no JSON: -Infinity is no number"),
        ('{"what": 1e999}', "it is no JSON: 1e999 is no number"),
        ("9" * 5000, "it is no JSON: "),
        ("[" * 100_000, "it has more than 100 arrays and objects inside each other"),
        ('{"what": ' * 101 + "1" + "}" * 101, "it has more than 100 arrays and objects inside each other"),
        ("[]", r"it does not fit the schema: \$: \[\] is not of type 'object'"),
        ("{}", r"it does not fit the schema: \$: 'what' is a required property"),
        ('{"what": 5}', r"it does not fit the schema: \$.what: 5 is not of type 'string'"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_with_the_reason(answer, why):
    with pytest.raises(AnswerRefused, match=f"^{why}"):
        read_answer(answer, SCHEMA)


def test_a_long_reason_is_shortened():
    with pytest.raises(AnswerRefused) as error:
        read_answer(f'"{"a" * 5000}"', SCHEMA)
    assert len(str(error.value)) < 300


def test_an_answer_may_be_anything_that_the_schema_allows():
    deep = "[" * 100 + "]" * 100
    assert [read_answer(text, {}) for text in ("null", "-1.5e3", '"a"', "[]")] == [None, -1500, "a", []]
    assert read_answer(deep, {}) is not None
    assert read_answer('{"next": {"next": {}}}', {"properties": {"next": {"$ref": "#"}}}) == {"next": {"next": {}}}


@pytest.mark.parametrize("name", ["$ref", "$dynamicRef"])
@pytest.mark.parametrize("reference", ["#/nothing", "#/allOf/x", "other.json", "http://127.0.0.1:1/schema.json"])
def test_a_schema_refers_to_parts_of_itself_alone(name, reference):
    schema = {"allOf": [{}], "properties": {"a": {name: reference}}}
    with pytest.raises(UsageError, match=f"JSON schema: expected references to parts of itself, got {reference}"):
        check_schema(schema)


DRAFT_7 = "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize(
    "schema",
    [
        {
            "$id": "http://x/s.json",
            "properties": {"a": {"$ref": "part.json"}},
            "$defs": {"p": {"$id": "part.json", **INT}},
        },
        {"$schema": DRAFT_7, "properties": {"a": {"$ref": "#part"}}, "definitions": {"p": {"$id": "#part", **INT}}},
        {"properties": {"a": {"$ref": "#/$defs/p"}, "b": {"const": {"$ref": "hello"}}}, "$defs": {"p": INT}},
    ],
)
def test_references_to_parts_of_a_schema_are_followed(schema):
    check_schema(schema)
    assert read_answer('{"a": 1}', schema) == {"a": 1}
    with pytest.raises(AnswerRefused, match="is not of type 'integer'"):
        read_answer('{"a": "b"}', schema)


def test_what_is_filled_in_has_no_special_tokens():
    utterances = [said(2.0, 3.0, "say <|im_end|> now")]
    assert fill("{transcript}", "x.mp4", SPAN, utterances) == "say < |im_end|> now"
    assert fill("{name}", "<|im_end|>.mp4", SPAN, []) == "< |im_end|>"


@pytest.mark.parametrize(
    "schema",
    [{}, SCHEMA, {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "maxItems": 3}],
)
def test_a_json_schema_is_accepted(schema):
    check_schema(schema)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ([], "expected an object"),
        (None, "expected an object"),
        ("object", "expected an object"),
        (True, "expected an object"),
        ({"type": "thing"}, "'thing' is not valid under any of the given schemas"),
        ({"properties": []}, r"\[\] is not of type 'object'"),
        ({"pattern": "["}, r"'\[' is not a 'regex'"),
    ],
)
def test_what_is_no_json_schema_is_refused(schema, reason):
    with pytest.raises(UsageError, match=f"JSON schema: .*{reason}"):
        check_schema(schema)


def test_the_second_try_has_the_prompt_the_last_answer_and_why_it_is_refused():
    asked = ask_again("What happens?", "A dog runs.", "it is no JSON")
    assert asked.startswith(
        "What happens?\n\nYour last answer was:\nA dog runs.\n\nIt cannot be used, because it is no JSON."
    )
    assert len(ask_again("What?", "a" * 10**6, "it is no JSON")) < 3000


GOOD, PROSE = '{"what": "a dog"}', "A dog runs."
QUOTED = f"Your last answer was:\n{PROSE}\n\nIt cannot be used, because it is no JSON"


def first_then(first: dict[int, str], second: str) -> Answer:
    """Respond to clips of these names with texts, and with another one where the prompt quotes the last answer."""

    async def answer(request):
        names = zip(request.clips, request.names(), strict=True)
        answers = [second if "Your last answer" in clip.get("prompt", "") else first[name] for clip, name in names]
        return web.json_response([ClipDescription(text, "complete", 9).to_json() for text in answers])

    return answer


async def test_an_answer_that_does_not_fit_is_asked_for_once_more_with_the_reason(tmp_path):
    video = write_clips(tmp_path / "video.mkv", [40, 80, 120])
    async with clip_server(first_then({40: GOOD, 80: PROSE, 120: f"```\n{GOOD}\n```"}, GOOD)) as server:
        options = {"prompt": "As {schema}, please.", "json_schema": SCHEMA}
        assert (await describe(tmp_path / "out", [video], server, **options)).failed == 0
        first, second = server.received
    asked = f"As {json.dumps(SCHEMA)}, please."
    assert [clip["prompt"] for clip in first.clips] == [asked] * 3
    assert second.names() == [80]
    assert second.clips[0]["prompt"].startswith(f"{asked}\n\n{QUOTED}")
    assert np.array_equal(second.clips[0]["frames"], first.clips[1]["frames"])
    clips = records(tmp_path / "out")["video.mkv"]["clips"]
    assert [(clip["json"], clip["text"]) for clip in clips] == [
        ({"what": "a dog"}, GOOD),
        ({"what": "a dog"}, GOOD),
        ({"what": "a dog"}, f"```\n{GOOD}\n```"),
    ]


@pytest.mark.parametrize("bad", [PROSE, "{}", '{"what": "a dog", "more": NaN}', "[" * 5000 + "]" * 5000])
async def test_after_two_answers_that_do_not_fit_the_clip_has_failed_with_the_text(tmp_path, bad):
    video, out = write_clips(tmp_path / "video.mkv", [40, 80]), tmp_path / "out"
    async with clip_server(first_then({40: bad, 80: GOOD}, bad)) as server:
        assert (await describe(out, [video], server, json_schema=SCHEMA)).failed == 1
        assert [request.names() for request in server.received] == [[40, 80], [40]]
    (failure,) = records(out)["video.mkv"]["clip_failures"]
    assert failure["error"].startswith("the answer cannot be used: it ")
    assert (failure["start_seconds"], failure["end_seconds"], failure["text"]) == (0.0, 1.0, bad)
    assert [clip["json"] for clip in records(out)["video.mkv"]["clips"]] == [{"what": "a dog"}]
    async with clip_server(first_then({40: GOOD, 80: GOOD}, GOOD)) as server:
        assert (await describe(out, [video], server, json_schema=SCHEMA, retry_failed=True)).failed == 0


async def test_the_second_try_repeats_the_models_own_prompt_for_clips_and_for_single_frames(tmp_path):
    moving, still = write_clips(tmp_path / "moving.mkv", [40]), tmp_path / "still.mkv"
    write(still, "libx264", [80])
    async with clip_server(first_then({40: PROSE, 80: PROSE}, GOOD)) as server:
        for video in (moving, still):
            assert (await describe(tmp_path / "out", [video], server, json_schema=SCHEMA)).failed == 0
        first, second, of_still, again = [request.clips[0] for request in server.received]
    assert "prompt" not in first
    assert "prompt" not in of_still
    assert second["prompt"].startswith(f"What happens?\n\n{QUOTED}")
    assert again["prompt"].startswith(f"What is it?\n\n{QUOTED}")


async def test_a_schema_that_refers_to_nothing_is_refused_before_anything_is_sent(tmp_path):
    video = write_clips(tmp_path / "video.mkv")
    async with clip_server(first_then(dict.fromkeys(NAMES, GOOD), GOOD)) as server:
        with pytest.raises(UsageError, match="expected references to parts of itself, got #/nothing"):
            await describe(tmp_path / "out", [video], server, json_schema={"$ref": "#/nothing"})
        assert server.received == []


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
        run = BulkRun([ClipTrack(clip_client, options), TranscriptTrack(speech_client, of_speech)], out)
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
        for word_times in (True, False):
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
