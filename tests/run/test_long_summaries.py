"""Summaries of more text than a model takes at once: it is folded in steps, and no request is too long."""

import re
from itertools import pairwise

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from reelscribe.contract.speech import ChunkTranscript, SpeechSegment
from reelscribe.run.tracks.summaries import BYTES_PER_TOKEN, TEMPLATE_TOKENS, TextLine, parts_of
from support.fake_openai import chat
from support.summary_runs import IN_RECORD, all_served, answer, record_of

ENGLISH = "the quick brown fox jumps over the lazy dog and "
JAPANESE = "いろはにほへとちりぬるを我が世誰ぞ"
LONGEST = 2048
"""Number of tokens that the model takes."""


@pytest.fixture
async def served():
    async with all_served() as servers:
        servers.chats.listed = [servers.chats.listed[0] | {"max_model_len": LONGEST}]
        yield servers


def say(served, text: str, segments: int) -> None:
    """Let the speech model say a text so many times in the 12 seconds of the file, each time with its number."""

    async def respond(request):
        said = tuple(SpeechSegment(12 * k / segments, 12 * (k + 1) / segments, f"{k}: {text}") for k in range(segments))
        return web.json_response([ChunkTranscript("", "en", said).to_json() for _ in request.names()])

    served.speech.answer = respond


def tokens(asked) -> int:
    """The most tokens that a request and its answer take together."""
    text = asked["messages"][0]["content"][0]["text"]
    return TEMPLATE_TOKENS + -(-len(text.encode()) // BYTES_PER_TOKEN) + asked["max_tokens"]


def too_long(most: int):
    """Answer like a vLLM that takes so many tokens."""

    def respond(asked):
        message = f"This model's maximum context length is {most} tokens. However, you requested {tokens(asked)}"
        return (400, {"error": {"message": message}}) if tokens(asked) > most else answer()

    return respond


def numbers(prompts: list[str]) -> list[int]:
    """The numbers of what was said, in the order in which the model was told them."""
    return [int(number) for prompt in prompts for number in re.findall(r" said: ([0-9]+): ", prompt)]


@pytest.mark.parametrize(("text", "segments"), [(ENGLISH, 60), (JAPANESE, 60), (40 * ENGLISH, 12), (90 * JAPANESE, 3)])
async def test_a_long_text_is_told_in_parts_and_then_the_summaries_of_these(media, tmp_path, served, text, segments):
    def bad_and_then_good(asked):
        again = "Your last answer was" in asked["messages"][0]["content"][0]["text"]
        return answer(summary="S. " * 200) if again else chat("<|bad|>" * 400)

    say(served, text, segments)
    served.chats.answer = bad_and_then_good
    assert (await served.run(tmp_path / "out", media / "spoken.mp4")).failed == 0
    assert max(map(tokens, served.chats.asked)) <= LONGEST
    told = [prompt for prompt in served.prompts() if "Your last answer was" not in prompt]
    assert [*dict.fromkeys(numbers(told))] == [*range(segments)]
    assert told[-1].count("s, summary: S. ") > 1
    assert "s, said: " not in told[-1]
    assert record_of(tmp_path / "out")["summary"]["text"].startswith("S. S.")


async def test_what_the_server_refuses_as_too_long_is_halved(media, tmp_path, served):
    served.chats.answer = too_long(LONGEST - 400)
    say(served, ENGLISH, 60)
    assert (await served.run(tmp_path / "out", media / "spoken.mp4")).failed == 0
    assert record_of(tmp_path / "out")["summary"] == IN_RECORD


async def test_a_server_that_refuses_every_text_as_too_long_is_not_asked_for_ever(media, tmp_path, served):
    def refuse(asked):
        return too_long(1)(asked) if " s, " in asked["messages"][0]["content"][0]["text"] else answer()

    served.chats.answer = refuse
    say(served, ENGLISH, 60)
    assert (await served.run(tmp_path / "out", media / "spoken.mp4")).failed == 1
    record = record_of(tmp_path / "out")
    assert (record["error"]["type"], record["summary"]) == ("RequestRefused", None)
    assert "no summary: status 400: This model's maximum context length" in record["error"]["message"]


async def test_a_server_that_does_not_say_what_the_model_takes_is_told_a_moderate_text_at_once(media, tmp_path, served):
    served.chats.listed = [{"id": "m", "owned_by": "sglang"}]
    say(served, ENGLISH, 600)
    assert (await served.run(tmp_path / "out", media / "spoken.mp4")).failed == 0
    assert 4096 < max(map(tokens, served.chats.asked)) <= 8192


TIMES = st.floats(0, 1e6)
LINES = st.lists(
    st.builds(TextLine, TIMES, TIMES, st.just("said"), st.text(st.characters(codec="utf-8"), max_size=400))
)


@given(LINES, st.integers(100, 1000))
def test_parts_have_every_letter_once_in_order_and_fit(lines, most_bytes):
    parts = parts_of(lines, most_bytes)
    assert "".join(line.text for part in parts for line in part) == "".join(line.text for line in lines)
    assert all(0 < len("".join(f"{line}\n" for line in part).encode()) <= most_bytes for part in parts)


@given(LINES, st.integers(100, 1000))
def test_no_part_has_room_for_the_first_line_of_the_next_one(lines, most_bytes):
    parts = parts_of(lines, most_bytes)
    for part, following in pairwise(parts):
        assert sum(line.nbytes for line in part) + following[0].nbytes > most_bytes
