"""Operations: everything in which kinds of requests differ, and requests themselves.

An operation packs items into what is sent, parses what is answered, and joins the items of several sources.
`ModelClient` sends it, and `joining.py` forms requests of it. Items are an array of frames, or a sequence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from reelscribe import wire
from reelscribe.client import openai_forms
from reelscribe.client.answer_text import answer_text
from reelscribe.client.openai_forms import Content, Form
from reelscribe.contract.clips import Clip, ClipDescription
from reelscribe.contract.descriptions import (
    CaptionerDescription,
    ChatModelDescription,
    ClipModelDescription,
    ShotModelDescription,
    SpeakerModelDescription,
    SpeechDescription,
)
from reelscribe.contract.frames import FrameArray, FrameCaption, InputSize
from reelscribe.contract.shots import WindowAnswer, WindowArray
from reelscribe.contract.speech import BOTH, ChunkTranscript, SampleArray, TranscriptionOptions
from reelscribe.contract.voices import ChunkVoices
from reelscribe.errors import RequestRefused, UsageError, brief

JOIN_SECONDS = 0.05
"""Time for which a request that is not full waits for more to join it, in seconds. Where sources are decoded as fast as
their items are answered, requests are full before that. Where decoding is slower, the server is idle anyway."""

JOIN_CLIPS_SECONDS = 0.5
"""The same for clips. They are decoded and described some ten times as slowly as frames, so it takes longer until they
fill a request; but a device batch of many clips takes little longer than one of 2."""

Items = TypeVar("Items", bound="_Items")
"""The items of a request."""
ItemAnswer = TypeVar("ItemAnswer")
"""The answer to an item."""
Said = TypeVar("Said", FrameCaption, ClipDescription)
"""An answer that has a text in any case."""


class _Items(Protocol):
    """An array of frames or windows, or a sequence of chunks or clips."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice, /) -> Self: ...


@dataclass(frozen=True)
class Operation(Generic[Items, ItemAnswer]):
    """A kind of request to a model."""

    pack: Callable[[Items], list[wire.Segment]]
    """Packs items into the body of a request."""
    parse: Callable[[Any, int], list[ItemAnswer | RequestRefused]] | Callable[[Any, int], list[ItemAnswer]]
    """Parses the JSON of a response to a request with this many items, of which some may be answered without a text;
    raises TypeError, KeyError or ValueError for JSON that is not such a response."""
    nbytes: Callable[[Items], int]
    """Returns the size of items, in bytes."""
    join: Callable[[Sequence[Items]], Items]
    """Returns the items of several batches as those of one."""
    probe: Items
    """A single item that every working model answers."""
    probe_name: str
    """Name of the probe in error messages."""
    group: Callable[[Items], object] = lambda _: None
    """Returns a value that is equal for batches that can be joined."""
    join_seconds: float = JOIN_SECONDS
    """Time for which a request that is not full waits for more to join it, in seconds."""
    openai: Form[Any, ItemAnswer] | None = None
    """How a server with OpenAI's API is asked about one item; None if such servers cannot do it."""
    plain: Operation[Items, ItemAnswer] | None = None
    """The same without what the user has written, which a model may refuse, and every working model answers the probe;
    None if there is nothing of this kind."""


class Request(Generic[Items, ItemAnswer]):
    """Items about which a model is asked."""

    def __init__(self, operation: Operation[Items, ItemAnswer], items: Items) -> None:
        """Take the items, at least one. They must not change until the request is answered."""
        self.operation, self.items = operation, items
        self._content: tuple[object, Content] | None = None

    @cached_property
    def body(self) -> list[wire.Segment]:
        """The body for one of our handlers."""
        return self.operation.pack(self.items)

    async def content(self, form: Form[Any, Any], model: str, without: frozenset[str]) -> Content:
        """Return the content for a server with OpenAI's API, which takes a while, once; see `Form.pack`."""
        key = (model, without)
        if self._content is None or self._content[0] != key:
            packing = asyncio.ensure_future(asyncio.to_thread(form.pack, self.items, model, without))
            try:
                self._content = key, await asyncio.shield(packing)
            except asyncio.CancelledError:
                await asyncio.wait([packing])  # its thread reads the items, which may change from then on
                raise
        return self._content[1]


def captioning(description: CaptionerDescription | None) -> Operation[FrameArray, FrameCaption]:
    """Return the operation that captions frames, (N, height, width, 3) uint8 RGB.

    Args:
        description: The captioner; None before it is known.
    """
    size = description.input_size.for_video(224, 224) if description else InputSize(224, 224)
    return Operation(
        pack=lambda frames: wire.pack({"frames": frames}),
        parse=_parse_captions,
        nbytes=lambda frames: frames.nbytes,
        join=np.concatenate,
        probe=np.zeros((1, size.height, size.width, 3), np.uint8),
        probe_name="a black frame",
        group=lambda frames: frames.shape[1:],
        openai=openai_forms.captions(description) if description else None,
    )


def transcribing(
    description: SpeechDescription | None, sample_rate: int, options: TranscriptionOptions | None
) -> Operation[Sequence[SampleArray], ChunkTranscript]:
    """Return the operation that transcribes chunks, (samples,) int16 mono each.

    Args:
        description: The speech model; None before it is known.
        sample_rate: Sample rate of the chunks, in Hz.
        options: Language, task, word times, vocabulary and beams; None for the model's own settings.
    """
    plain = None
    if options and (options.initial_prompt is not None or options.hotwords is not None):
        without = replace(options, initial_prompt=None, hotwords=None)
        plain = transcribing(description, sample_rate, without)
    settings: dict[Any, Any] = {"sample_rate": sample_rate, **(options.to_json() if options else {})}
    languages: set[str | None] | None = None
    if options and options.languages:
        languages = {*options.languages, None}
    elif description and description.languages is not None:
        languages = {*description.languages, description.language, None}

    def parse(value: Any, count: int) -> list[ChunkTranscript]:
        transcripts = [ChunkTranscript.from_json(each) for each in _list_of(count, "transcripts", value)]
        for transcript in transcripts:
            texts = [transcript, transcript.translation] if transcript.translation else [transcript]
            if (len(texts) == 2) != (options is not None and options.task == BOTH):
                raise ValueError(f"translation: expected one where the task is {BOTH}, and no other")
            for text in texts:
                if languages is not None and text.language not in languages:
                    raise ValueError(
                        f"language: expected one that the request or the model names, not {brief(text.language)}"
                    )
        return transcripts

    return Operation(
        pack=lambda chunks: wire.pack({**settings, "chunks": list(chunks)}),
        parse=parse,
        nbytes=_size_of_chunks,
        join=_concatenated,
        probe=_silence(sample_rate),
        probe_name="a second of silence",
        openai=openai_forms.transcripts(sample_rate, options),
        plain=plain,
    )


class SpokenChunk(NamedTuple):
    """A chunk, and the words that are spoken in it."""

    samples: SampleArray
    words: Sequence[str]


def aligning(sample_rate: int) -> Operation[Sequence[SpokenChunk], ChunkTranscript]:
    """Return the operation that finds when the words of chunks are spoken.

    An answer has one segment with the words, or none if the chunk is too short for them.

    Args:
        sample_rate: Sample rate of the chunks, in Hz.
    """

    def pack(chunks: Sequence[SpokenChunk]) -> list[wire.Segment]:
        words: list[Any] = [list(chunk.words) for chunk in chunks]
        return wire.pack({"sample_rate": sample_rate, "chunks": [chunk.samples for chunk in chunks], "words": words})

    probe: Sequence[SpokenChunk] = [SpokenChunk(np.zeros(sample_rate, np.int16), ["a"])]
    return Operation(
        pack=pack,
        parse=lambda value, count: [ChunkTranscript.from_json(each) for each in _list_of(count, "transcripts", value)],
        nbytes=lambda chunks: sum(chunk.samples.nbytes for chunk in chunks),
        join=_concatenated,
        probe=probe,
        probe_name="a second of silence",
    )


def describing_clips(
    description: ClipModelDescription | None, json_schema: Mapping[str, Any] | None = None
) -> Operation[Sequence[Clip], ClipDescription]:
    """Return the operation that describes clips.

    Args:
        description: The clip model; None before it is known.
        json_schema: JSON schema that answers must fit, for servers that can hold a model to it; None for plain texts.
    """
    size = description.budget.frame_size(4, 224, 224) if description else InputSize(224, 224)
    black: Sequence[Clip] = [Clip(np.zeros((4, size.height, size.width, 3), np.uint8), [0.0, 0.5, 1.0, 1.5])]
    return Operation(
        pack=_pack_clips,
        parse=_parse_descriptions,
        nbytes=lambda clips: sum(clip.frames.nbytes for clip in clips),
        join=_concatenated,
        probe=black,
        probe_name="a black clip",
        join_seconds=JOIN_CLIPS_SECONDS,
        openai=openai_forms.descriptions(description, json_schema) if description else None,
    )


def chatting(
    description: ChatModelDescription, json_schema: Mapping[str, Any] | None
) -> Operation[Sequence[str], ClipDescription]:
    """Return the operation that answers texts.

    Args:
        description: The chat model.
        json_schema: JSON schema that answers must fit; None for plain texts.
    """
    probe: Sequence[str] = ["Answer as briefly as you can."]
    return Operation(
        pack=_no_handler_chats,
        parse=_no_handler_chats,
        nbytes=lambda texts: sum(map(len, texts)),
        join=_concatenated,
        probe=probe,
        probe_name="a short question",
        openai=openai_forms.chats(description, json_schema),
    )


def finding_shots(description: ShotModelDescription) -> Operation[WindowArray, WindowAnswer]:
    """Return the operation that looks at windows of frames, (N, T, height, width, 3) uint8 RGB.

    Args:
        description: The shot model.
    """
    windowing = description.windowing

    def parse(value: Any, count: int) -> list[WindowAnswer]:
        return [WindowAnswer.from_json(each, windowing.frames) for each in _list_of(count, "windows", value)]

    return Operation(
        pack=lambda windows: wire.pack({"windows": windows}),
        parse=parse,
        nbytes=lambda windows: windows.nbytes,
        join=np.concatenate,
        probe=np.zeros((1, windowing.frames, windowing.height, windowing.width, 3), np.uint8),
        probe_name="a black window",
    )


def finding_voices(description: SpeakerModelDescription) -> Operation[Sequence[SampleArray], ChunkVoices]:
    """Return the operation that finds voices in chunks, (samples,) int16 mono each.

    Args:
        description: The speaker model.
    """

    def parse(value: Any, count: int) -> list[ChunkVoices]:
        voices = [ChunkVoices.from_json(each) for each in _list_of(count, "chunks with voices", value)]
        for each in voices:
            each.check_size(description.embedding_size)
        return voices

    return Operation(
        pack=lambda chunks: wire.pack({"sample_rate": description.sample_rate, "chunks": list(chunks)}),
        parse=parse,
        nbytes=_size_of_chunks,
        join=_concatenated,
        probe=_silence(description.sample_rate),
        probe_name="a second of silence",
    )


def _silence(sample_rate: int) -> Sequence[SampleArray]:
    """Return a chunk of a second without any sound."""
    return [np.zeros(sample_rate, np.int16)]


def _size_of_chunks(chunks: Sequence[SampleArray]) -> int:
    return sum(chunk.nbytes for chunk in chunks)


def _parse_captions(value: Any, count: int) -> list[FrameCaption | RequestRefused]:
    listed = _list_of(count, 'captions with "text" and "avg_logprob"', value)
    return [_with_text(FrameCaption.from_json(each)) for each in listed]


def _parse_descriptions(value: Any, count: int) -> list[ClipDescription | RequestRefused]:
    return [_with_text(ClipDescription.from_json(each)) for each in _list_of(count, "descriptions", value)]


def _with_text(answer: Said) -> Said | RequestRefused:
    """Return the answer to a frame or clip without thoughts, or the refusal in its place if it says nothing."""
    try:
        text = answer_text(answer.text, answer.status if isinstance(answer, ClipDescription) else "complete")
    except RequestRefused as refusal:
        return refusal
    return answer if text == answer.text.strip() else replace(answer, text=text, avg_logprob=None)


def _pack_clips(clips: Sequence[Clip]) -> list[wire.Segment]:
    trees: list[Any] = [clip.to_wire() for clip in clips]
    return wire.pack({"clips": trees})


def _no_handler_chats(*_: Any) -> Any:
    raise UsageError("chat: expected a server with OpenAI's API, as no handler of reelscribe answers texts")


def _concatenated(batches: Sequence[Sequence[Any]]) -> Sequence[Any]:
    return [item for batch in batches for item in batch]


def _list_of(count: int, answers: str, value: Any) -> list[Any]:
    """Return the answers to a request; raise ValueError unless there is one for each of its items."""
    if not isinstance(value, list) or len(value) != count:
        raise ValueError(f"expected a list of {count} {answers}")
    return value
