"""What a real vLLM was asked and has answered (tests/data/openai) is what the client sends, and reads."""

import json
from pathlib import Path

import numpy as np
import pytest

from reelscribe.client.endpoint import Server
from reelscribe.client.models import ClipClient
from reelscribe.client.openai_forms import OpenAISettings
from reelscribe.contract.clips import Clip
from reelscribe.errors import AccessRefused, RequestRefused
from support.fake_openai import chat, pictures, serving, why_wrong

RECORDED = Path(__file__).parents[1] / "data" / "openai" / "vllm.json"
EXCHANGES = {each["name"]: each for each in json.loads(RECORDED.read_text())}
CHATS = {name: each for name, each in EXCHANGES.items() if each["request"] and name != "times refused"}
CLIP = Clip(np.zeros((2, 32, 64, 3), np.uint8), [0.0, 0.5])


@pytest.mark.parametrize("name", CHATS)
def test_the_strict_server_takes_what_a_real_one_was_asked(name):
    assert why_wrong(CHATS[name]["request"]) is None


def test_frames_and_times_of_a_clip_are_those_that_were_asked_about():
    request = EXCHANGES["clip"]["request"]
    assert [picture.shape for picture in pictures(request)] == [(64, 64, 3)] * 4
    assert request["media_io_kwargs"]["video"]["frames_indices"] == [0, 500, 1000, 12_500]
    times = [part["text"] for part in EXCHANGES["pictures"]["request"]["messages"][0]["content"] if "text" in part]
    assert times[:4] == ["<0.000 seconds>", "<0.500 seconds>", "<1.000 seconds>", "<12.500 seconds>"]


async def answers_to(name: str) -> list:
    """What the client makes of a recorded answer."""
    async with serving() as server:
        server.listed = EXCHANGES["models"]["answer"]["data"]
        server.answers = [(EXCHANGES[name]["status"], EXCHANGES[name]["answer"])]
        server.answer = lambda _: chat(system_fingerprint=EXCHANGES["clip"]["answer"]["system_fingerprint"])
        async with ClipClient([Server(server.url, openai=OpenAISettings("qwen3-vl"))], "clips") as client:
            description = await client.describe()
            assert (description.name, description.engine) == ("demo/models/clips", "vllm 0.32.0")
            return await client.describe_clips([CLIP])


@pytest.mark.parametrize("name", ["clip", "pictures", "still", "schema", "length"])
async def test_an_answer_is_read(name):
    (description,) = await answers_to(name)
    answer = EXCHANGES[name]["answer"]
    assert description.text == answer["choices"][0]["message"]["content"].strip()
    assert description.status == ("truncated" if name == "length" else "complete")
    assert description.tokens == answer["usage"]["completion_tokens"]
    assert -20 < description.avg_logprob <= 0


async def test_what_is_too_long_for_the_model_is_the_failure_of_that_clip():
    (refusal,) = await answers_to("too long")
    assert isinstance(refusal, RequestRefused)
    assert "4096" in str(refusal)


async def test_a_server_without_times_is_told_apart_by_its_message():
    with pytest.raises(AccessRefused, match="start it with --trust-request-mm-kwargs"):
        await answers_to("times refused")
