"""Answers in which a model says nothing, or thinks first: no thought is a result, and nothing else fails with them."""

import numpy as np
import pytest
import pytest_asyncio

from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient, ClipClient, ModelClient, SpeechClient
from reelscribe.client.operations import chatting
from reelscribe.contract.clips import Clip, ClipDescription
from reelscribe.contract.descriptions import ChatModelDescription
from reelscribe.contract.speech import ChunkTranscript
from reelscribe.errors import AccessRefused, RequestRefused
from support.fake_openai import chat, serving
from support.lying_server import LyingServer, as_json
from support.sending import FRAMES, connected, no_waiting

CLIP = Clip(np.zeros((2, 32, 64, 3), np.uint8), [0.0, 0.5])
HARMONY = "<|start|>assistant<|channel|>"

THOUGHTS = [
    *("<think>hm</think>A dog.", "hm\n</think>\n\nA dog.", "</think>A dog.", "<think>\n\n</think>\n\nA dog."),
    *("<THINKING a='b'>hm</THINKING> A dog.", "<seed:think>hm</seed:think>A dog.", "<reasoning>hm</reasoning>A dog."),
    *("[THINK]hm[/THINK]A dog.", "◁think▷hm◁/think▷A dog.", "<unused94>thought\nhm<unused95>A dog."),
    *("<|channel>thought\nhm<channel|>A dog.", "<think>a</think>\n<think>b</think>A dog."),
    *("<think>a<think>b</think>c</think>A dog.", "<think>a <think> is a mark</think>A dog."),
    *("<think>hm</think><answer>A dog.</answer>", "<think>hm</think>\n<|begin_of_box|>A dog.<|end_of_box|>"),
    f"<|channel|>analysis<|message|>hm<|end|>{HARMONY}commentary<|message|>oh<|end|>{HARMONY}final<|message|>A dog.",
    *("<|channel|>final <|constrain|>json<|message|>A dog.<|return|>", "analysisWe need to.assistantfinalA dog."),
    "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>A dog.<|END_RESPONSE|>",
    "<|begin_of_thought|>hm<|end_of_thought|>\n<|begin_of_solution|>A dog.<|end_of_solution|>",
    *(
        "Here is my thought process: hm Here is my response: A dog.",
        "<think/>A dog.",
        "a <think> b</think> c</think>A dog.",
    ),
    "<SUMMARY>hm</SUMMARY><REASONING>hm</REASONING><CONCLUSION>A dog.</CONCLUSION>",  # LLaVA-CoT
    [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "A dog."}],
]
"""What models write, each in the way of a family, whose answer is "A dog."."""

WITHOUT_THOUGHTS = [
    *("A <b> [tag] of 3 < 4.", "It shows <think> on a screen", "A <think>b</think> c", "A dog.<think>b</think>"),
    *("A whiteboard with <reasoning> and </reasoning> tags.", "<SUMMARY>A dog.</SUMMARY>", '{"a": "<think>b</think>"}'),
    *(
        "A sign. It reads: Here is my response: No more.",
        '{"a": "Here is my response: x"}',
        "<CONCLUSION> is on a sign",
    ),
    *(
        "analysis of a dog",
        "analysis_of_code.py is shown",
        "analysis_of_code.py has AssistantFinal",
        "an assistantfinal",
    ),
]
"""What looks like thoughts, or has words of theirs, in the middle of what a model says."""

NO_TEXT = {
    **{text: chat(text) for text in ("", " \n", "\u200b\ufeff", "<think>hm</think>", "hm</think> ", "<think>hm")},
    "a text without end": chat("<think " * 2**18),
    "many thoughts": chat("<think></think>" * 2**16),
    "thoughts in plain words": chat("Here's my thought process: hm"),
    "analysis of an assistant that is cut off": chat("<|start|>assistant<|channel|>analysis<|message|>hm", "length"),
    "thoughts that are cut off": chat("<think>a<think>b</think>c", "length"),
    "analysis in plain words that is cut off": chat("analysisWe need to describe the picture. It", "length"),
    "analysis that is cut off": chat("<|channel|>analysis<|message|>hm", "length"),
    "null": chat(None),
    "null at the limit": chat(None, "length"),
    "another end": chat("a", "other"),
    "no end": chat("a", None),
    "a tool": chat(None, "tool_calls"),
    "a filter": chat("", "content_filter"),
    "no choice": {"choices": []},
    "null for choices": {"choices": None},
    "no choices": {"object": "chat.completion", "usage": None},
}
for name, message in {
    "a refusal": {"content": None, "refusal": "I cannot."},
    "a refusal in parts": {"content": [{"type": "refusal", "refusal": "I cannot."}]},
    "reasoning_content": {"content": None, "reasoning_content": "hm"},
    "reasoning": {"content": "", "reasoning": "hm"},
    "no content": {"role": "assistant"},
    "null in parts": {"content": [{"type": "text", "text": None}]},
    "no message": None,
}.items():
    NO_TEXT[name] = {"choices": [{"message": message, "finish_reason": "stop"}]}


@pytest_asyncio.fixture
async def server():
    async with serving() as fake:
        yield fake


async def ask(server, client_type=ClipClient):
    """The answer about a clip, and whatever a frame or a text is answered with."""
    with no_waiting():
        async with client_type([Server(server.url)], "m") as client:
            await client.describe()
            answers = client.describe_clips([CLIP]) if client_type is ClipClient else client.caption(FRAMES[0])
            return (await answers)[0]


@pytest.mark.parametrize("text", THOUGHTS)
async def test_what_a_model_thinks_is_no_part_of_its_answer(server, text):
    server.answers = [chat(text)]
    assert await ask(server) == ClipDescription("A dog.", "complete", 2)  # and its confidence is not that of the answer


@pytest.mark.parametrize("text", WITHOUT_THOUGHTS)
async def test_a_text_without_thoughts_is_the_answer(server, text):
    server.answers = [chat(f" {text}\n")]
    assert await ask(server) == ClipDescription(text, "complete", 2, -0.25)


async def test_thoughts_are_no_part_of_captions_and_of_texts(server):
    server.answers = [chat("<think>hm</think>A dog."), chat('hm</think>```json\n{"a": 1}\n```')]
    assert (await ask(server, CaptionClient)).text == "A dog."
    async with ModelClient([Server(server.url)], "m", ChatModelDescription) as client:
        (answer,) = await client.request(chatting(await client.describe(), {}), ["Question"])
    assert answer.text == '```json\n{"a": 1}\n```'


@pytest.mark.parametrize("answer", NO_TEXT.values(), ids=NO_TEXT)
async def test_an_answer_without_text_is_the_failure_of_its_item_alone_and_asked_for_once(server, answer):
    server.answer = lambda _: answer  # whatever is asked, so that nothing else tells that the server works
    refusal = await ask(server)
    assert isinstance(refusal, RequestRefused)
    assert (refusal.permanent, refusal.status) == (True, 200)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("error", "times", "asked", "kind"),
    [
        ({"code": 429, "message": "slow"}, 1, 2, ClipDescription),
        ({"code": "503", "message": "busy"}, 3, 4, ClipDescription),
        ({"code": 502, "message": "the model is gone"}, 1, 2, ClipDescription),
        ({"code": 502, "message": "the model is gone"}, 2, 3, RequestRefused),  # then a black clip is answered
        ("no such luck", 2, 3, RequestRefused),
        ({"code": 400, "message": "too long"}, 1, 2, RequestRefused),
    ],
)
async def test_an_error_in_an_answer_of_status_200_is_what_its_code_says(server, error, times, asked, kind):
    server.answers = [{"error": error, "choices": []}] * times
    assert isinstance(await ask(server), kind)
    assert len(server.asked) == asked


async def test_a_key_that_is_refused_in_an_answer_of_status_200_ends_the_run(server):
    server.answers = [{"error": {"code": 402, "message": "no credits"}}]
    with pytest.raises(AccessRefused, match="no credits"):
        await ask(server)


@pytest.mark.parametrize(
    ("answer", "texts"),
    [
        ({"text": "", "segments": [{"start": 0, "end": 1, "text": " Hi."}]}, ["Hi.", "Hi."]),
        ({"text": " Hi.\n", "segments": None}, ["Hi.", "Hi."]),
        ({"text": ""}, [""]),  # silence
        ({"text": None, "segments": None}, []),
    ],
)
async def test_a_transcript_is_empty_for_silence_and_none_is_a_failure(server, answer, texts):
    server.answers = [answer]
    async with SpeechClient([Server(server.url)], "m") as client:
        await client.describe()
        (told,) = await client.transcribe([np.zeros(32_000, np.int16)], 16_000)
    assert isinstance(told, ChunkTranscript if texts else RequestRefused)
    assert ([told.text, *(each.text for each in told.segments)] if texts else []) == texts


async def test_a_handler_that_says_nothing_about_a_frame_fails_for_that_frame():
    told = [{"text": text, "avg_logprob": -0.5} for text in ("a dog", " ", "hm</think>a cat", "")]
    async with LyingServer(as_json(told)) as server, connected(server) as client:
        answers = await client.caption(FRAMES[:4])
    assert [getattr(each, "text", None) for each in answers] == ["a dog", None, "a cat", None]
