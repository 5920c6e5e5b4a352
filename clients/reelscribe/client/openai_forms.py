"""What servers with OpenAI's API are asked about one frame, clip, text or chunk of audio, and how answers are read.

A clip is sent with the presentation time of each of its frames. A Qwen-VL on vLLM takes a video whose frames have
numbers and a frame rate (`media_io_kwargs`); with 1000 frames a second, the numbers are milliseconds. Other servers get
pictures, each after its time.
"""

from __future__ import annotations

import io
import json
import math
import secrets
import wave
from binascii import b2a_base64
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Generic, NamedTuple, TypeVar, get_args

import numpy as np
from PIL import Image

from reelscribe.client.answer_text import answer_text, no_text
from reelscribe.contract.clips import Clip, ClipDescription, ClipStatus
from reelscribe.contract.descriptions import (
    CaptionerDescription,
    ChatModelDescription,
    ClipModelDescription,
    ModelDescription,
)
from reelscribe.contract.families import FAMILIES, FrameTimes
from reelscribe.contract.fields import read_confidence, read_count, read_list, read_number, read_text, round_confidence
from reelscribe.contract.frames import FrameArray, FrameCaption
from reelscribe.contract.speech import BOTH, ChunkTranscript, SampleArray, SpeechSegment, TranscriptionOptions
from reelscribe.errors import RequestRefused, UsageError, brief, printable

Items = TypeVar("Items")
ItemAnswer = TypeVar("ItemAnswer")

SEGMENTS = "verbose_json"
"""Part of a request for a transcript that asks for the times of its segments."""

OPTIONAL = ("logprobs", "seed", SEGMENTS)
"""Parts of requests that only add something. They are left out for a server that refuses them by name."""

_MILLISECONDS = 1000
_ENDED: dict[str, ClipStatus] = {
    **dict.fromkeys(("stop", "eos", "eos_token", "stop_sequence", "end_turn"), "complete"),
    **dict.fromkeys(("length", "max_tokens"), "truncated"),
}
"""How an answer ended, by its `finish_reason`: OpenAI's words, and those of other servers."""
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Fields of a message in which servers put what a model thinks before it answers."""


@dataclass(frozen=True)
class OpenAISettings:
    """How servers with OpenAI's API are asked.

    Raises:
        UsageError: A value is out of its range.
    """

    family: str | None = None
    """Family of the model, one of `contract.families.FAMILIES`, for models whose name does not tell it."""
    revision: str = ""
    """Any text that changes when the weights behind the model's name do, as servers do not say."""
    frame_format: str = "jpeg:95"
    """How frames are encoded: "jpeg:95" with a quality from 1 to 100 and all colours, or "png", which loses nothing."""
    frame_times: FrameTimes | None = None
    """How the model is told the times of frames; None for what its family takes."""
    frame_prompt: str | None = None
    """What the model is asked about single frames, may be empty; None for what suits its family."""
    max_tokens: int | None = None
    """Largest number of tokens of an answer; None for 256, or half of what the model takes if that is less."""

    def __post_init__(self) -> None:
        if self.family is not None and self.family not in FAMILIES:
            raise UsageError(f"family: expected one of {', '.join(FAMILIES)}, got {brief(self.family)}")
        if self.frame_times is not None and self.frame_times not in get_args(FrameTimes):
            raise UsageError(f"frame times: expected video or prompt, got {brief(self.frame_times)}")
        if self.max_tokens is not None and (type(self.max_tokens) is not int or self.max_tokens < 1):
            raise UsageError(f"max tokens: expected 1 or more, got {brief(self.max_tokens)}")
        _quality(self.frame_format)


class Content(NamedTuple):
    """The body of a request."""

    type: str
    """Its Content-Type."""
    body: bytes


@dataclass(frozen=True)
class Form(Generic[Items, ItemAnswer]):
    """How a server is asked about one item."""

    path: str
    """Path after the address of the API."""
    pack: Callable[[Items, str, Collection[str]], Content]
    """Makes the request from a batch of one item, the name of the model, and the parts of OPTIONAL to leave out."""
    parse: Callable[[Any, Items], ItemAnswer]
    """Reads the JSON of an answer about such a batch. Raises TypeError, KeyError or ValueError for JSON that is none,
    and RequestRefused if it has no text, or the server did not finish it."""
    asks_segments: bool = False
    """True if it asks for SEGMENTS."""

    @staticmethod
    def tokens(value: Any) -> int:
        """Return how many tokens an answer has, by its JSON; 0 if that does not say."""
        usage = value.get("usage") if isinstance(value, dict) else None
        tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
        return max(0, tokens) if type(tokens) is int else 0


def captions(description: CaptionerDescription) -> Form[FrameArray, FrameCaption]:
    """Return how a server is asked for the caption of a frame, (1, height, width, 3) uint8 RGB."""

    def pack(frames: FrameArray, model: str, without: Collection[str]) -> Content:
        parts = [_picture(frames[0], description), *_text(description.prompt)]
        return _chat(parts, model, description, without)

    def parse(value: Any, _: FrameArray) -> FrameCaption:
        answer = _read_chat(value)
        return FrameCaption(answer.text, answer.avg_logprob)

    return Form("chat/completions", pack, parse)


def descriptions(
    description: ClipModelDescription, json_schema: Mapping[str, Any] | None
) -> Form[Sequence[Clip], ClipDescription]:
    """Return how a server is asked for the description of a clip, which may have to fit a JSON schema."""
    fitting = _fitting(json_schema)

    def pack(clips: Sequence[Clip], model: str, without: Collection[str]) -> Content:
        frames, times = clips[0].frames, clips[0].pts_seconds
        asked = clips[0].prompt or (description.still_prompt if len(frames) == 1 else description.prompt)
        if len(frames) == 1:
            return _chat([_picture(frames[0], description), *_text(asked)], model, description, without, fitting)
        if description.generation["frame_times"] == "video":
            video, options = _video(frames, times, description)
            return _chat([video, *_text(asked)], model, description, without, fitting | options)
        parts: list[dict[str, Any]] = []
        for frame, seconds in zip(frames, times, strict=True):
            parts += [*_text(f"<{seconds:.3f} seconds>"), _picture(frame, description)]
        return _chat([*parts, *_text(asked)], model, description, without, fitting)

    return Form("chat/completions", pack, lambda value, _: _read_chat(value))


def chats(
    description: ChatModelDescription, json_schema: Mapping[str, Any] | None
) -> Form[Sequence[str], ClipDescription]:
    """Return how a server is asked to answer a text, with an answer that may have to fit a JSON schema."""
    fitting = _fitting(json_schema)

    def pack(texts: Sequence[str], model: str, without: Collection[str]) -> Content:
        return _chat(_text(texts[0]), model, description, without, fitting)

    return Form("chat/completions", pack, lambda value, _: _read_chat(value))


def transcripts(sample_rate: int, options: TranscriptionOptions | None) -> Form[Sequence[SampleArray], ChunkTranscript]:
    """Return how a server is asked for the transcript of a chunk, (samples,) int16 mono at `sample_rate` Hz."""
    asked = options or TranscriptionOptions()
    language = next(iter(asked.languages), None)

    def pack(chunks: Sequence[SampleArray], model: str, without: Collection[str]) -> Content:
        if asked.task == BOTH:
            raise UsageError(f"task: expected transcribe or translate with OpenAI's API, got {BOTH}; run them in turn")
        if len(asked.languages) > 1:
            raise UsageError(f"language: expected one code with OpenAI's API, got {asked.language!r}")
        fields = {"model": model, "temperature": "0"}
        fields["response_format"] = "json" if SEGMENTS in without else SEGMENTS
        if language:
            fields["language"] = language
        if asked.previous_text:
            fields["prompt"] = _unicode(asked.previous_text)
        return _form(fields, _wav(chunks[0], sample_rate))

    def parse(value: Any, chunks: Sequence[SampleArray]) -> ChunkTranscript:
        return _read_transcript(value, len(chunks[0]) / sample_rate, language)

    path = f"audio/{'translations' if asked.task == 'translate' else 'transcriptions'}"
    return Form(path, pack, parse, asks_segments=True)


def _fitting(json_schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the option with which answers fit a JSON schema; none if they are plain texts."""
    if json_schema is None:
        return {}
    schema = {"name": "answer", "schema": json_schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _chat(
    parts: Sequence[Mapping[str, Any]],
    model: str,
    description: ModelDescription,
    without: Collection[str],
    options: Mapping[str, Any] | None = None,
) -> Content:
    """Return the request of a chat with one message."""
    generation = {name: description.generation[name] for name in ("max_tokens", "temperature", "seed")}
    request = {
        "model": model,
        "messages": [{"role": "user", "content": list(parts)}],
        **generation,
        "logprobs": True,
        **(options or {}),
    }
    kept = {name: value for name, value in request.items() if name not in without}
    return Content("application/json", json.dumps(kept).encode())


def _text(text: str) -> list[dict[str, Any]]:
    """Return the part with a text; none if it is empty."""
    return [{"type": "text", "text": _unicode(text)}] if text else []


def _unicode(text: str) -> str:
    """Return a text in which what names of files have beyond Unicode is a "?"."""
    return text.encode("utf-8", "replace").decode()


def _picture(frame: FrameArray, description: ModelDescription) -> dict[str, Any]:
    encoded = encode_frame(frame, description.generation["frame_format"])
    kind = "png" if _quality(description.generation["frame_format"]) is None else "jpeg"
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{_base64(encoded)}"}}


def _video(
    frames: FrameArray, times: Sequence[float], description: ModelDescription
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the part with a video, and the option with the times of its frames."""
    data = [_base64(encode_frame(frame, description.generation["frame_format"])) for frame in frames]
    # Frames before 0 are shown at 0, as players do. vLLM finds out by itself how each one is encoded.
    numbers = [max(0, round(_MILLISECONDS * seconds)) for seconds in times]
    timing = {
        "fps": _MILLISECONDS,
        "frames_indices": numbers,
        "total_num_frames": numbers[-1] + 1,
        "do_sample_frames": False,
    }
    part = {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{','.join(data)}"}}
    return part, {"media_io_kwargs": {"video": timing}}


def encode_frame(frame: FrameArray, frame_format: str) -> bytes:
    """Return a frame, (height, width, 3) uint8 RGB, in a format of `OpenAISettings.frame_format`."""
    quality, file = _quality(frame_format), io.BytesIO()
    picture = Image.fromarray(np.ascontiguousarray(frame))
    if quality is None:
        picture.save(file, "PNG", compress_level=1)
    else:
        picture.save(file, "JPEG", quality=quality, subsampling=0)
    return file.getvalue()


def _base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode()


def _quality(frame_format: str) -> int | None:
    """Return the quality of JPEG, or None for PNG. Raises UsageError for another format."""
    kind, _, quality = str(frame_format).partition(":")
    if frame_format == "png":
        return None
    if kind != "jpeg" or not quality.isascii() or not quality.isdigit() or not 1 <= int(quality[:4]) <= 100:
        raise UsageError(
            f"frame format: expected png, or jpeg with a quality such as jpeg:95, got {brief(frame_format)}"
        )
    return int(quality)


def _wav(samples: SampleArray, sample_rate: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(sample_rate)
        writer.writeframes(samples.astype("<i2").tobytes())
    return file.getvalue()


def _form(fields: Mapping[str, str], wav: bytes) -> Content:
    """Return a form of RFC 7578 with fields and a file."""
    boundary = secrets.token_hex(16)
    head = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    head.append(
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="chunk.wav"\r\n'
        "Content-Type: audio/wav\r\n\r\n"
    )
    body = b"".join(["".join(head).encode(), wav, f"\r\n--{boundary}--\r\n".encode()])
    return Content(f"multipart/form-data; boundary={boundary}", body)


def _read_chat(value: Any) -> ClipDescription:
    """Read the answer of a chat: its text, how it ended, and what is known of its tokens.

    Raises:
        RequestRefused: It is one, but has no text that answers the question. This is about the question alone.
        TypeError, KeyError, ValueError: It is none.
    """
    choice = _first_choice(value)
    ended, message, usage = choice["finish_reason"], choice["message"], value.get("usage")
    if ended in ("abort", "error"):
        raise RequestRefused(503 if ended == "abort" else 500, f"the server ended the answer early ({ended})")
    if not isinstance(message, (dict, NoneType)) or not isinstance(ended, (str, NoneType)):
        raise TypeError(f"message: expected an object, got {brief(message)}, with finish_reason {brief(ended)}")
    content, has_thoughts, refusal = _content(message or {})
    if ended == "content_filter":
        raise RequestRefused(200, "the server's filter has stopped the answer", permanent=True)
    if refusal:
        raise RequestRefused(200, f"the model refuses: {printable(refusal[:200])}", permanent=True)
    status = _ENDED.get((ended or "").lower())
    if not status:
        why = f"expected an answer that ends with stop or length, got finish_reason {brief(ended)}"
        raise RequestRefused(200, why, permanent=True)
    if not content.strip():
        raise no_text(status, has_thoughts=has_thoughts)
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    text = answer_text(content, status)
    return ClipDescription(
        text,
        status,
        None if tokens is None else read_count("completion_tokens", tokens),
        # Of thoughts, it says nothing about the answer.
        None if has_thoughts or text != content.strip() else _average(choice.get("logprobs")),
    )


def _first_choice(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, got {brief(value)}")
    told = value.get("choices") if value.get("object") == "chat.completion" else value["choices"]
    choices = read_list("choices", told or [])
    if told in (None, []):  # as behind filters
        raise RequestRefused(200, "expected an answer, got none (no choices)", permanent=True)
    if len(choices) != 1 or not isinstance(choices[0], dict):
        raise ValueError(f"choices: expected one, got {len(choices)}")
    return choices[0]


def _content(message: Mapping[str, Any]) -> tuple[str, bool, str]:
    """Return the text of a message, which may be in parts, whether thoughts are beside it, and a refusal."""
    content, refusal = message.get("content"), message.get("refusal")
    parts = [{"text": content or ""}] if isinstance(content, (str, NoneType)) else read_list("content", content)
    if not all(isinstance(part, dict) for part in parts):
        raise TypeError(f"content: expected a text or parts of one, got {brief(content)}")
    said = [part.get("text") or "" for part in parts if part.get("type", "text") in ("text", "output_text")]
    texts = [read_text("content", text) for text in said]
    has_thoughts = len(texts) < len(parts) or any(map(message.get, _THOUGHTS))
    refusals = [refusal, *(part.get("refusal") for part in parts)]
    return "".join(texts), has_thoughts, next((each for each in refusals if isinstance(each, str) and each), "")


def _average(logprobs: Any) -> float | None:
    """Return the average log-probability of tokens; None if it is not known."""
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not content:
        return None
    each = [token["logprob"] if isinstance(token, dict) else token for token in read_list("logprobs", content)]
    # A sampler's rounding may give a certain token a little more than 0.
    average = math.fsum(read_number("logprob", one, highest=1e-3) for one in each) / len(each)
    return read_confidence("logprob", round_confidence(min(0.0, average)))


def _read_transcript(value: Any, seconds: float, language: str | None) -> ChunkTranscript:
    """Read the transcript of a chunk of so many seconds; without segments, the chunk is one."""
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, got {brief(value)}")
    told = value["text"]
    if told is None:
        raise RequestRefused(200, "expected a transcript, got none", permanent=True)
    text, segments = read_text("text", told).strip(), []
    for each in read_list("segments", value.get("segments") or []):
        if not isinstance(each, dict):
            raise TypeError(f"segments: expected objects, got {brief(each)}")
        start, end = (min(max(0.0, read_number(name, each[name])), seconds) for name in ("start", "end"))
        logprob = each.get("avg_logprob")
        average = None if logprob is None else read_confidence("avg_logprob", min(0.0, read_number("", logprob)))
        if said := read_text("text", each["text"]).strip():
            segments.append(SpeechSegment(start, max(start, end), said, None, average))
    if text and not segments:
        segments.append(SpeechSegment(0.0, seconds, text))
    spoken = value.get("language")
    code = spoken if isinstance(spoken, str) and spoken.isascii() and 2 <= len(spoken) <= 3 else None  # or "english"
    return ChunkTranscript(text or " ".join(each.text for each in segments), language or code, tuple(segments))
