"""Answers that must fit a JSON schema: which schemas are accepted, which answers fit, and the second try."""

import json

import numpy as np
import pytest
from aiohttp import web

from reelscribe.contract.clips import ClipDescription
from reelscribe.errors import UsageError
from reelscribe.run.tracks.prompts import (
    AnswerRefused,
    ask_again,
    check_schema,
    read_answer,
)
from support.clip_runs import NAMES, clip_server, describe, records, write_clips
from support.fake_torchserve import Answer
from support.videos import write

INT = {"type": "integer"}
SCHEMA = {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}


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
        ('{"what": [' + "1," * 2**20 + "1]}", "it has 2097165 characters; expected at most 131072"),
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
    record = records(out)["video.mkv"]
    assert record["error"]["type"] == "AnswerRefused"
    assert record["error"]["message"].startswith("1 clip has no description: the answer cannot be used: it ")
    (failure,) = record["clip_failures"]
    assert failure["error"].startswith("the answer cannot be used: it ")
    assert (failure["start"], failure["end"], failure["text"]) == (0.0, 1.0, bad)
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
