"""A server with OpenAI's API: what it is asked, what of its answers is believed, and what its refusals mean."""

import asyncio

import numpy as np
import pytest
import pytest_asyncio

from reelscribe.client.credentials import ApiKey
from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient, ClipClient, SpeechClient
from reelscribe.client.openai_forms import OpenAISettings
from reelscribe.contract.clips import Clip, ClipDescription
from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.errors import AccessRefused, ServerError, UsageError
from support.fake_openai import chat, pictures, serving
from support.patience import PATIENCE
from support.sending import no_waiting

FRAMES = np.random.default_rng(0).integers(0, 256, (3, 32, 64, 3), np.uint8)
CLIP = Clip(FRAMES, [-0.02, 0.0335, 12.5])


@pytest_asyncio.fixture
async def server():
    async with serving() as fake:
        yield fake


async def describe(server, clip=CLIP, settings=None, key=None):
    async with ClipClient([Server(server.url, key, openai=settings or OpenAISettings())], "m") as client:
        await client.describe()
        return (await client.describe_clips([clip]))[0]


async def test_a_clip_is_a_video_whose_frames_have_their_times(server):
    described = await describe(server, settings=OpenAISettings(frame_format="png"))
    assert described == ClipDescription("a cat", "complete", 2, -0.25)
    (request,) = server.asked
    video, text = request["messages"][0]["content"]
    assert np.array_equal(pictures(request), FRAMES)
    assert video["type"] == "video_url"
    assert request["media_io_kwargs"]["video"]["frames_indices"] == [0, 34, 12_500]
    assert request["media_io_kwargs"]["video"]["fps"] == 1000
    assert text["text"].startswith("Describe this video clip")
    assert (request["temperature"], request["seed"], request["max_tokens"]) == (0, 0, 256)


async def test_other_servers_get_pictures_after_their_times(server):
    await describe(server, settings=OpenAISettings(frame_times="prompt", frame_format="jpeg:95"))
    parts = server.asked[0]["messages"][0]["content"]
    assert [part["text"] for part in parts[:6:2]] == ["<-0.020 seconds>", "<0.034 seconds>", "<12.500 seconds>"]
    assert all(part["image_url"]["url"].startswith("data:image/jpeg;base64,") for part in parts[1:6:2])
    assert "media_io_kwargs" not in server.asked[0]


async def test_a_frame_is_captioned_and_a_chunk_transcribed(server):
    segment = {"start": 0.5, "end": 99, "text": " Hello.", "avg_logprob": -0.1}
    server.answers = [chat("a dog"), {"text": " Hello.", "segments": [segment]}]
    async with CaptionClient([Server(server.url)], "m") as client:
        await client.describe()
        assert [each.text for each in await client.caption(FRAMES[0])] == ["a dog"]
    async with SpeechClient([Server(server.url)], "m") as client:
        await client.describe()
        chunk = np.zeros(32_000, np.int16)
        (transcript,) = await client.transcribe([chunk], 16_000, TranscriptionOptions(language="en, en"))
    assert (transcript.segments[0].start, transcript.segments[0].end, transcript.language) == (0.5, 2.0, "en")
    assert (server.asked[1]["language"], server.asked[1]["response_format"]) == ("en", "verbose_json")


async def test_hot_words_and_the_initial_prompt_are_the_prompt_of_a_transcription(server):
    server.answers = [{"text": "Uster."}]
    async with SpeechClient([Server(server.url)], "m") as client:
        assert (await client.describe()).prompt_tokens is None
        options = TranscriptionOptions(initial_prompt="A meeting in Zürich.", hotwords="Uster\nWil")
        await client.transcribe([np.zeros(32_000, np.int16)], 16_000, options)
    assert server.asked[0]["prompt"] == "Uster, Wil A meeting in Zürich."


async def test_no_server_with_this_api_makes_a_transcript_and_its_translation_at_once(server):
    async with SpeechClient([Server(server.url)], "m") as client:
        assert "both" not in (await client.describe()).tasks
        with pytest.raises(UsageError, match="expected transcribe or translate with OpenAI's API, got both"):
            await client.transcribe([np.zeros(32_000, np.int16)], 16_000, TranscriptionOptions(task="both"))
    assert server.asked == []


async def test_a_chunk_at_which_vllm_fails_is_asked_about_without_segments(server):
    failure = (500, {"error": {"message": "tuple index out of range", "code": 500}})
    server.answers = [failure, {"text": ""}, {"text": "Hi.", "segments": [{"start": 0, "end": 1, "text": "Hi."}]}]
    async with SpeechClient([Server(server.url)], "m") as client:
        await client.describe()
        first, second = [(await client.transcribe([np.zeros(32_000, np.int16)], 16_000))[0] for _ in range(2)]
    assert (first.segments, second.segments[0].end) == ((), 1.0)
    assert [asked["response_format"] for asked in server.asked] == ["verbose_json", "json", "verbose_json"]


async def test_tokens_and_the_queue_of_vllm_are_known(server):
    told = []
    async with ClipClient([Server(server.url)], "m") as client:
        client.on_answer = told.append
        await client.describe()
        await client.describe_clips([CLIP])
    assert [(answer.tokens, answer.queued) for answer in told] == [(2, 3)]


async def test_a_server_that_lists_no_models_is_asked_for_the_one_that_is_named(server):
    server.listed = []
    await describe(server)
    assert server.asked[0]["model"] == "m"


async def test_a_server_that_takes_no_times_ends_the_run_with_the_flag(server):
    server.answers = [(400, {"error": {"message": "start it with --trust-request-mm-kwargs"}})]
    with pytest.raises(AccessRefused, match=r"--trust-request-mm-kwargs, or .* --frame-times prompt"):
        await describe(server)


async def test_busy_servers_are_asked_again_and_optional_parts_left_out(server):
    server.answers = [
        (429, {"error": "slow"}, {"Retry-After": "0.01"}),
        (400, {"error": {"message": "logprobs are not supported"}}),
        chat("a cat", "length", usage=None),
    ]
    assert (await describe(server)).tokens is None
    assert ["logprobs" in asked for asked in server.asked] == [True, True, False]


@pytest.mark.parametrize(
    "answer",
    [
        *([], {}, {"choices": [{}]}, {"choices": [7]}, {"choices": {}}),
        *(chat(7), chat(ended=7), chat(usage={"completion_tokens": -1})),
    ],
)
async def test_an_answer_of_another_shape_is_an_error(server, answer):
    server.answers = [answer]
    with pytest.raises(ServerError, match="answer of openai"):
        await describe(server)


async def test_a_server_with_other_settings_than_before_ends_the_run(server):
    server.answers = [chat(system_fingerprint="one"), chat(system_fingerprint="two")]
    async with ClipClient([Server(server.url)], "m") as client:
        await client.describe()
        await client.describe_clips([CLIP])
        with pytest.raises(AccessRefused, match="expected the server as it was"):
            await client.describe_clips([CLIP])


async def test_a_model_that_is_swapped_is_waited_out(server, messages):
    own, server.answers = server.listed, [(404, {"error": {"message": "no model m"}})]
    with no_waiting():
        async with asyncio.timeout(PATIENCE), ClipClient([Server(server.url)], "m") as client:
            await client.describe()
            server.listed = [own[0] | {"root": "another"}]
            asking = asyncio.create_task(client.describe_clips([CLIP]))
            while not any("it serves another model now, another" in line for line in messages.lines):
                await messages.arrived.wait()
                messages.arrived.clear()
            server.listed = own
            assert (await asking)[0].text == "a cat"


async def test_the_key_file_has_the_key_alone(server, tmp_path):
    path = tmp_path / "key"
    path.write_text("secret\n")
    path.chmod(0o600)
    await describe(server, key=ApiKey(path))
    assert server.keys == {"Bearer secret"}
    for wrong in ("two words", "", '{"inference":{"key":"of-torchserve"}}'):
        path.write_text(wrong)
        with pytest.raises(UsageError, match="one line with the key"):
            ApiKey(path)


@pytest.mark.parametrize("wrong", [{"frame_format": "jpeg"}, {"frame_format": "jpeg:0"}, {"family": "x"}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(UsageError, match="expected"):
        OpenAISettings(**wrong)
