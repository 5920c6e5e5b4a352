"""A fault at each step of a request's way through each handler costs that request alone, of those that were joined."""

import io
import json
from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import caption_handler
import clip_handler
import shot_handler
import speaker_handler
import speech_handler
from reelscribe import wire
from support.fake_context import FakeContext, parsed
from support.shot_models import save_transnetv2
from support.speaker_models import save_encoder, talk

FAULTS = [
    RuntimeError("shapes do not match"),
    IndexError("index 7 is out of bounds"),
    AssertionError(),
    KeyError("missing"),
    OSError(5, "Input/output error"),
    RecursionError(),
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    ZeroDivisionError(),
    NotImplementedError(),
]
"""One for each step, in turn."""

HOSTILE_ITEMS = 4
"""Items of the hostile request; the others have one each, so a batch with more than a few holds the hostile one."""

MARK, LEVEL = 201, 0.25
"""The first value of frames, and of samples, in each item of the hostile request."""


def is_crowded(*arguments: Any) -> bool:
    return any(rows(argument) >= HOSTILE_ITEMS for argument in arguments)


def rows(value: Any) -> int:
    if isinstance(value, Mapping):
        return max(map(rows, value.values()), default=0)
    return len(value) if isinstance(value, (list, np.ndarray, torch.Tensor)) and np.ndim(value) else 0


def is_marked(*arguments: Any) -> bool:
    arrays = [getattr(argument, "frames", argument) for argument in arguments]
    return any(isinstance(array, np.ndarray) and array.flat[0] in (MARK, LEVEL) for array in arrays)


def is_hostile_body(row: dict[str, Any]) -> bool:
    return isinstance(row["body"], bytearray)


STEPS: list[tuple[str, str, Callable[..., bool]]] = [
    ("captions", "captions.frame_requests.request_body", is_hostile_body),
    ("captions", "captions.frame_requests.FrameLimits.check", lambda _, count, *size: count == HOSTILE_ITEMS),
    ("captions", "captions.frame_transform.FrameTransform.__call__", is_crowded),
    ("captions", "captions.families.Blip2.encode", is_crowded),
    ("captions", "captions.families.blip2.generate", is_crowded),
    ("captions", "captions.captioner.Captioner.decode", is_crowded),
    ("captions", "captions.frame_requests.FrameRequest.response", is_crowded),
    ("clips", "clips.clip_requests.request_body", is_hostile_body),
    ("clips", "clips.clip_requests._check_times", lambda times, _: times[0] == MARK),
    ("clips", "clips.families.Family.tokens_per_time", is_marked),
    ("clips", "clips.describer.Describer.text", is_marked),
    ("clips", "clips.patches.Patching.__call__", is_marked),
    ("clips", "clips.describer.Describer.encode", is_crowded),
    ("clips", "clips.families.Qwen3VL.encode", lambda *given: is_crowded(given[-1]["input_ids"])),
    ("clips", "clips.families.qwen3_vl.generate", is_crowded),
    ("clips", "clips.describer.Describer.decode", is_crowded),
    ("clips", "clips.clip_requests.ClipRequest.response", is_crowded),
    ("speech", "transcripts.audio_requests.request_body", is_hostile_body),
    ("speech", "transcripts.audio_requests._to_float32", is_marked),
    ("speech", "transcripts.whisper.log_mel.LogMel.__call__", is_crowded),
    ("speech", "transcripts.whisper.torch_engine.TorchEngine.encode", is_crowded),
    ("speech", "transcripts.whisper.torch_engine.TorchBatch.generate", is_crowded),
    ("speech", "transcripts.whisper.model.fit_words", is_marked),
    ("speech", "transcripts.audio_requests.AudioRequest.response", is_crowded),
    ("shots", "shots.window_requests.request_body", is_hostile_body),
    ("shots", "shots.transnetv2.TransNetV2.forward", is_crowded),
    ("shots", "shots.window_requests.WindowRequest.response", is_crowded),
    ("speakers", "transcripts.audio_requests.request_body", is_hostile_body),
    ("speakers", "speakers.speaker_model.speech_in", is_marked),
    ("speakers", "speakers.voice_encoder.MelPowers.__call__", is_marked),
    ("speakers", "transcripts.audio_requests.AudioRequest.response", is_crowded),
]
"""A handler, a function that it calls, and whether a call of that is about the hostile request."""

FRAME = np.zeros((96, 160, 3), np.uint8)
SOUND = talk((0, 0.2), (150, 0.6), (0, 0.2)).astype(np.float32)


def marked(array: np.ndarray, value: float) -> np.ndarray:
    copy = array.copy()
    copy.flat[0] = value
    return copy


def trees(kind: str) -> tuple[Any, Any]:
    """What an honest request has of one item, and a hostile one of HOSTILE_ITEMS."""
    if kind in ("speech", "speakers"):
        return {"chunks": [SOUND]}, {"chunks": [marked(SOUND, LEVEL)] * HOSTILE_ITEMS}
    if kind == "clips":
        frames = np.stack([FRAME, FRAME])
        hostile = {"frames": marked(frames, MARK), "pts_seconds": [MARK, MARK + 1]}
        return {"clips": [{"frames": frames}]}, {"clips": [hostile] * HOSTILE_ITEMS}
    window = np.zeros((8, 27, 48, 3), np.uint8)
    item = FRAME if kind == "captions" else window
    return item[None], np.stack([marked(item, MARK)] * HOSTILE_ITEMS)


@pytest.fixture(scope="module")
def handlers(demo_model, clip_model, demo_speech, tmp_path_factory) -> dict[str, Callable[..., Any]]:
    folder = tmp_path_factory.mktemp("models")
    kinds = {
        "captions": (caption_handler.CaptionHandler(), demo_model),
        "clips": (clip_handler.ClipHandler(), clip_model),
        "speech": (speech_handler.SpeechHandler(), demo_speech),
        "shots": (shot_handler.ShotHandler(), save_transnetv2(folder / "shots")),
        "speakers": (speaker_handler.SpeakerHandler(), save_encoder(folder / "speakers")),
    }
    for handler, model in kinds.values():
        handler.handle(None, FakeContext({"model": model}))
    return {kind: handler.handle for kind, (handler, _) in kinds.items()}


@pytest.mark.parametrize(("number", "kind", "target", "is_hostile"), [(n, *step) for n, step in enumerate(STEPS)])
def test_a_fault_at_any_step_costs_the_request_alone(handlers, monkeypatch, number, kind, target, is_hostile):
    honest, hostile = (b"".join(wire.pack(tree)) for tree in trees(kind))
    fault = FAULTS[number % len(FAULTS)]

    def call() -> tuple[list[Any], dict[int, int]]:
        context = FakeContext()
        bodies = honest, bytearray(hostile), honest
        return parsed(handlers[kind]([{"body": body} for body in bodies], context)), context.statuses

    (before, answered, _), none = call()
    assert (none, len(answered)) == ({}, HOSTILE_ITEMS)
    with monkeypatch.context() as patch:
        original = resolve_name(target)

        def faulty(*arguments: Any, **options: Any) -> Any:
            if is_hostile(*arguments):
                raise fault
            return original(*arguments, **options)

        patch.setattr(target, faulty)
        (first, error, last), statuses = call()
    assert statuses == {1: 500}
    assert error["error"]["type"] == "RequestFailed"
    assert error["error"]["message"].startswith(f"{type(fault).__name__}: expected to answer this request")
    assert first == last == before
    assert call()[1] == {}


@pytest.mark.parametrize(
    "target",
    ["captions.frame_requests.open_still", "captions.frame_requests.to_frame", "worker.media_file.MediaFiles.request"]
    + [f"worker.media_file.{name}" for name in ("_file_in_memory", "FileRequest.__init__", "FileRequest.response")],
)
def test_a_fault_while_a_file_is_decoded_costs_it_alone(handlers, monkeypatch, media, target):
    def faulty(*_: Any) -> None:
        raise MemoryError

    file = io.BytesIO()
    Image.new("RGB", (480, 270)).save(file, "PNG")
    hostile = file.getvalue() if "still" in target or "to_frame" in target else (media / "old.avi").read_bytes()
    honest = {"body": b"".join(wire.pack(FRAME))}
    monkeypatch.setattr(target, faulty)
    context = FakeContext()
    first, error, last = parsed(handlers["captions"]([honest, {"body": hostile}, honest], context))
    assert context.statuses == {1: 500}
    assert error["error"]["type"] == "RequestFailed"
    assert first == last
    assert first["text"]


@pytest.mark.parametrize(("most", "statuses"), [("400", {1: 500}), ("", {}), ("none", {})])
def test_an_answer_over_the_limit_of_the_server_is_an_error_of_its_request(handlers, monkeypatch, most, statuses):
    monkeypatch.setenv(wire.RESPONSE_SIZE_VARIABLE, most)
    context = FakeContext()
    rows = [{"body": b"".join(wire.pack(tree))} for tree in (FRAME, np.stack([FRAME] * 9), FRAME)]
    first, second, last = parsed(handlers["captions"](rows, context))
    assert context.statuses == statuses
    assert first == last
    if statuses:
        message = "answer: at most 400 bytes (max_response_size of TorchServe), got "
        assert second["error"]["message"].startswith(message)


def test_a_plain_answer_that_is_no_unicode_is_an_error_of_its_request(handlers, monkeypatch):
    monkeypatch.setattr("captions.captioner.Captioner.decode", lambda _, tokens: ["\ud800"] * len(tokens))
    context = FakeContext(headers=[{"Accept": "text/plain"}, {}])
    plain, answer = handlers["captions"]([{"body": b"".join(wire.pack(FRAME))}] * 2, context)
    assert context.statuses == {0: 500}
    assert (json.loads(plain)["error"]["type"], json.loads(answer)["text"]) == ("RequestFailed", "\ud800")
