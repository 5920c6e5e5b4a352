"""Captions, descriptions of clips, transcripts and records of files or arrays, in one call.

Each function has a synchronous and an asynchronous form. They use the server on this machine unless another one is
given, and close their connections before they return. Notebooks show what they return with pictures.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from reelscribe._track_specs import ModelSpec
from reelscribe._values import Results, SavedRecord
from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient, ClipClient, SpeechClient
from reelscribe.contract.descriptions import (
    CaptionerDescription,
    ClipModelDescription,
    ModelDescription,
    SpeechDescription,
)
from reelscribe.contract.frames import FrameArray
from reelscribe.contract.outcomes import (
    Caption,
    ClipFailure,
    DescribedClip,
    Failure,
    Silence,
    SpeechFailure,
    Translation,
    Utterance,
)
from reelscribe.errors import RequestRefused, UsageError, brief
from reelscribe.export.bucket_copy import work_folder
from reelscribe.results.annotations import NAME
from reelscribe.results.escaping import escape_surrogates
from reelscribe.run.driver import Run
from reelscribe.run.in_memory import caption_frames, transcribe_samples
from reelscribe.run.single_file import caption_file, describe_file, transcribe_file
from reelscribe.run.source_list import SourceList
from reelscribe.run.tracks.captions import CaptionOptions
from reelscribe.run.tracks.clips import ClipOptions
from reelscribe.run.tracks.medium import Options
from reelscribe.run.tracks.speakers import SpeakerOptions
from reelscribe.run.tracks.transcripts import SpeechOptions
from reelscribe.server.model_discovery import find_model
from reelscribe.server.server_discovery import FoundServer, find_servers

T = TypeVar("T")
SourcePath = str | os.PathLike[str]


@overload
async def caption_async(
    source: SourcePath,
    *,
    server: Server | str | None = None,
    model: str | None = ...,
    options: CaptionOptions | None = None,
) -> Results[Caption | Failure]: ...


@overload
async def caption_async(
    source: FrameArray,
    *,
    server: Server | str | None = None,
    model: str | None = ...,
    options: CaptionOptions | None = None,
) -> list[str | RequestRefused]: ...


async def caption_async(
    source: SourcePath | FrameArray,
    *,
    server: Server | str | None = None,
    model: str | None = None,
    options: CaptionOptions | None = None,
) -> Results[Caption | Failure] | list[str | RequestRefused]:
    """Caption the frames of a video file, or frames in memory. The asynchronous form of `caption`."""
    _check_source(source, "an array of frames")
    _check("options", options, CaptionOptions, None)
    found = _found(server)
    async with CaptionClient([found.server], await _name(found, model, CaptionerDescription)) as client:
        if not isinstance(source, np.ndarray):
            path = os.fspath(source)
            return Results([result async for result in caption_file(client, path, options)], path)
        if options is not None:
            raise UsageError("caption: expected options for a file alone; choose the frames of an array yourself")
        return await caption_frames(client, source)


@overload
def caption(
    source: SourcePath,
    *,
    server: Server | str | None = None,
    model: str | None = ...,
    options: CaptionOptions | None = None,
) -> Results[Caption | Failure]: ...


@overload
def caption(
    source: FrameArray,
    *,
    server: Server | str | None = None,
    model: str | None = ...,
    options: CaptionOptions | None = None,
) -> list[str | RequestRefused]: ...


def caption(
    source: SourcePath | FrameArray,
    *,
    server: Server | str | None = None,
    model: str | None = None,
    options: CaptionOptions | None = None,
) -> Results[Caption | Failure] | list[str | RequestRefused]:
    """Caption the frames of a video file, or frames in memory.

    Args:
        source: Path of a video, or (N, H, W, 3) uint8 RGB frames, or a single frame, (H, W, 3).
        server: A server or its inference address; by default that of the environment variable REELSCRIBE_SERVER, or
            the one that runs in `.server`, with its key.
        model: Name of the captioner on the server; by default the only one that is served.
        options: Which frames of a file to caption, and how; by default one frame a second. Not allowed for an array.

    Returns:
        For a file, a Caption for each chosen frame, or a Failure that says why it has none. For an array, the caption
        of each frame as text, or the RequestRefused that says why it has none.

    Raises:
        MediaError: The file cannot be read, or is damaged or cut short.
        ServerError: The server cannot be used.
        UsageError: The array or an option is invalid.
    """
    if isinstance(source, np.ndarray):  # the overloads of `caption_async` tell a path from an array
        return _run(caption_async(source, server=server, model=model, options=options))
    return _run(caption_async(source, server=server, model=model, options=options))


async def describe_async(
    source: SourcePath,
    *,
    server: Server | str | None = None,
    model: str | None = None,
    options: ClipOptions | None = None,
) -> Results[DescribedClip | ClipFailure]:
    """Describe the clips of a video file. The asynchronous form of `describe`."""
    _check_source(source)
    _check("options", options, ClipOptions, None)
    found = _found(server)
    async with ClipClient([found.server], await _name(found, model, ClipModelDescription)) as client:
        path = os.fspath(source)
        return Results([result async for result in describe_file(client, path, options)], path)


def describe(
    source: SourcePath,
    *,
    server: Server | str | None = None,
    model: str | None = None,
    options: ClipOptions | None = None,
) -> Results[DescribedClip | ClipFailure]:
    """Describe the clips of a video file with a video-language model.

    Args:
        source: Path of a video.
        server: A server or its inference address; by default that of the environment variable REELSCRIBE_SERVER, or
            the one that runs in `.server`, with its key.
        model: Name of the clip model on the server; by default the only one that is served.
        options: Where the clips are, and what the model is asked; by default a clip for each shot.

    Returns:
        A DescribedClip for each clip, or a ClipFailure that says why it has no description.

    Raises:
        MediaError: The file cannot be read, or is damaged or cut short.
        ServerError: The server cannot be used.
        UsageError: An option is invalid.
    """
    return _run(describe_async(source, server=server, model=model, options=options))


async def transcribe_async(
    source: SourcePath | NDArray[Any],
    *,
    sample_rate: int | None = None,
    server: Server | str | None = None,
    model: str | None = None,
    options: SpeechOptions | None = None,
) -> Results[Utterance | Translation | Silence | SpeechFailure]:
    """Transcribe the audio of a media file, or samples in memory. The asynchronous form of `transcribe`."""
    _check_source(source, "an array of samples")
    _check("sample_rate", sample_rate, (int, np.integer), None)
    _check("options", options, SpeechOptions, None)
    found = _found(server)
    name = await _name(found, model, SpeechDescription, options.align_model if options else None)
    async with SpeechClient([found.server], name) as client:
        if not isinstance(source, np.ndarray):
            path = os.fspath(source)
            return Results([result async for result in transcribe_file(client, path, options)], path)
        if sample_rate is None:
            raise UsageError("transcribe: expected the sample_rate of the samples, in Hz")
        return Results(await transcribe_samples(client, source, int(sample_rate), options))


def transcribe(
    source: SourcePath | NDArray[Any],
    *,
    sample_rate: int | None = None,
    server: Server | str | None = None,
    model: str | None = None,
    options: SpeechOptions | None = None,
) -> Results[Utterance | Translation | Silence | SpeechFailure]:
    """Transcribe the audio of a media file, or samples in memory.

    Args:
        source: Path of a video or audio file, or (N,) mono samples, int16 or floats from -1 to 1.
        sample_rate: Sample rate of an array, in Hz; ignored for a file.
        server: A server or its inference address; by default that of the environment variable REELSCRIBE_SERVER, or
            the one that runs in `.server`, with its key.
        model: Name of the speech model on the server; by default the only one that is served.
        options: Language, task, word times, and where audio is cut; by default the language is detected, in samples in
            memory for each chunk by itself.

    Returns:
        In order of time, an Utterance for each segment, with the task "both" a Translation for each in English, a
        Silence where nothing is loud enough to be heard, and a SpeechFailure where the model could not answer. Times
        are seconds of presentation time.

    Raises:
        MediaError: The file cannot be read, has no audio, or is damaged or cut short.
        ServerError: The server cannot be used.
        UsageError: The samples or an option are invalid, or an array comes without its sample_rate.
    """
    return _run(transcribe_async(source, sample_rate=sample_rate, server=server, model=model, options=options))


async def annotate_async(
    sources: SourcePath | SourceList | Iterable[SourcePath | SourceList],
    out: SourcePath | None = None,
    *,
    work_dir: SourcePath | None = None,
    server: Server | str | None = None,
    captions: bool = True,
    clips: bool = False,
    transcript: bool = True,
    speakers: bool = False,
    model: str | None = None,
    clip_model: str | None = None,
    speech_model: str | None = None,
    speaker_model: str | None = None,
    caption_options: CaptionOptions | None = None,
    clip_options: ClipOptions | None = None,
    speech_options: SpeechOptions | None = None,
    speaker_options: SpeakerOptions | None = None,
) -> Results[SavedRecord]:
    """Caption, describe and transcribe files and folders. The asynchronous form of `annotate`."""
    if not (captions or clips or transcript or speakers):
        raise UsageError("annotate: expected captions, clips, a transcript or speakers, got none of them")
    if speakers and transcript and speech_options and speech_options.channels == "separate":
        raise UsageError(
            "speakers: expected speech_options of the mix, as separate channels are speakers by themselves"
        )
    names = _names(sources)
    _check("out", out, (str, os.PathLike), None)
    _check("work_dir", work_dir, (str, os.PathLike), None)
    _check("caption_options", caption_options, CaptionOptions, None)
    _check("clip_options", clip_options, ClipOptions, None)
    _check("speech_options", speech_options, SpeechOptions, None)
    _check("speaker_options", speaker_options, SpeakerOptions, None)
    found = _found(server)
    wanted: list[tuple[bool, str, str | None, Options]] = [
        (captions, "model", model, caption_options or CaptionOptions()),
        (clips, "clip_model", clip_model, clip_options or ClipOptions()),
        (transcript, "speech_model", speech_model, speech_options or SpeechOptions()),
        (speakers, "speaker_model", speaker_model, speaker_options or SpeakerOptions()),
    ]
    async with AsyncExitStack() as stack:
        place = out or stack.enter_context(tempfile.TemporaryDirectory(prefix="reelscribe-"))
        folder, _ = work_folder(place, work_dir)
        tracks = []
        for is_wanted, argument, name, options in wanted:
            _check(argument, name, str, None)
            if is_wanted:
                tracks.append(await (await ModelSpec(options, [found], name).resolved()).open(stack))
        done: list[str] = []
        thumbnails = None if out else 0  # nobody would see those in a temporary folder
        run = Run(
            tracks,
            place,
            work_dir=work_dir,
            on_record=lambda record: done.append(record.absolute_path),
            thumbnails=thumbnails,
        )
        await run.run(names)
        return Results(_saved(folder, done, kept=out is not None))


def annotate(
    sources: SourcePath | SourceList | Iterable[SourcePath | SourceList],
    out: SourcePath | None = None,
    *,
    work_dir: SourcePath | None = None,
    server: Server | str | None = None,
    captions: bool = True,
    clips: bool = False,
    transcript: bool = True,
    speakers: bool = False,
    model: str | None = None,
    clip_model: str | None = None,
    speech_model: str | None = None,
    speaker_model: str | None = None,
    caption_options: CaptionOptions | None = None,
    clip_options: ClipOptions | None = None,
    speech_options: SpeechOptions | None = None,
    speaker_options: SpeakerOptions | None = None,
) -> Results[SavedRecord]:
    """Caption, describe and transcribe files and folders, as `reelscribe annotate` does.

    All records are returned at once. For a whole library use `Run`, which passes on each record as it is written.

    Args:
        sources: One file, folder, glob or address, a SourceList of them, or several of all these.
        out: Folder for annotations.jsonl, thumbnails and the ledger, with which the same call can continue after an
            interruption; or an address, such as s3://bucket/results/, to which such a folder is copied. By default
            nothing is kept.
        work_dir: That folder, on a disk of this machine, if `out` is an address.
        server: A server or its inference address; by default that of the environment variable REELSCRIBE_SERVER, or
            the one that runs in `.server`, with its key.
        captions: Whether frames are captioned.
        clips: Whether clips are described.
        transcript: Whether a transcript is made.
        speakers: Whether speakers are told apart by their voices.
        model: Name of the captioner on the server; by default the only one that is served.
        clip_model: Name of the clip model on the server; by default the only one that is served.
        speech_model: Name of the speech model on the server; by default the only one that is served.
        speaker_model: Name of the speaker model on the server; by default the only one that is served.
        caption_options: Which frames to caption, and how; by default one frame a second.
        clip_options: Where the clips are, how many frames and pixels of each are sent, and what the model is asked; by
            default a clip for each shot.
        speech_options: Language, task, word times, and where audio is cut; by default the language is detected.
        speaker_options: How many speakers there may be, and where audio is cut; by default any number.

    Returns:
        The record of each of these sources, in their order. It also has what earlier runs into `out` have made of the
        source. The record of a source that failed says why it did.

    Raises:
        ServerError: The server cannot be used.
        OutputError: The folder is in use by another run, or cannot be written to.
        UsageError: A name matches no source, an option is invalid, or nothing is to be made.
    """
    return _run(
        annotate_async(
            sources,
            out,
            work_dir=work_dir,
            server=server,
            captions=captions,
            clips=clips,
            transcript=transcript,
            speakers=speakers,
            model=model,
            clip_model=clip_model,
            speech_model=speech_model,
            speaker_model=speaker_model,
            caption_options=caption_options,
            clip_options=clip_options,
            speech_options=speech_options,
            speaker_options=speaker_options,
        )
    )


def _saved(folder: Path, paths: Sequence[str], *, kept: bool) -> Iterator[SavedRecord]:
    """Yield the record of each source, as annotations.jsonl has it, in the order of their absolute paths `paths`."""
    wanted = {escape_surrogates(path): path for path in paths}
    with (folder / NAME).open("rb") as file:
        read = (SavedRecord.from_line(line, folder=str(folder) if kept else None) for line in file)
        records = {record.source.absolute_path: record for record in read if record.source.absolute_path in wanted}
    return (replace(records[name], _file=path) for name, path in wanted.items())


def _check(name: str, value: object, kinds: type | tuple[type, ...], *allowed: None) -> None:
    """Raise UsageError if an argument is of another type; bool is no int."""
    if (allowed and value is None) or (isinstance(value, kinds) and not isinstance(value, bool)):
        return
    names = [kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,))] + ["None"] * len(allowed)
    raise UsageError(f"{name}: expected {' or '.join(names)}, got {brief(value)}")


def _check_source(source: object, array: str = "") -> None:
    """Raise UsageError if a source is neither a path nor, where `array` says what it holds, an array."""
    if not isinstance(source, (str, os.PathLike)) and not (array and isinstance(source, np.ndarray)):
        raise UsageError(f"source: expected a path{array and f' or {array}'}, got {brief(source)}")


def _names(sources: SourcePath | SourceList | Iterable[SourcePath | SourceList]) -> list[str | SourceList]:
    """Return sources as `Run` takes them. Raises UsageError if one of them is neither a path nor a list."""
    if isinstance(sources, (str, os.PathLike, SourceList)):
        sources = [sources]
    if not isinstance(sources, Iterable):
        raise UsageError(f"sources: expected a path or several, got {brief(sources)}")
    names: list[str | SourceList] = []
    for source in sources:
        if not isinstance(source, SourceList):
            _check_source(source)
            source = os.fspath(source)
        names.append(source)
    return names


def _found(server: Server | str | None) -> FoundServer:
    _check("server", server, (Server, str), None)
    if isinstance(server, Server):
        return FoundServer(server)
    return find_servers(None if server is None else [server])[0]


async def _name(found: FoundServer, model: str | None, kind: type[ModelDescription], besides: str | None = None) -> str:
    _check("model", model, str, None)
    return await find_model(found, kind, model, besides=besides)


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; in another thread if this one runs an event loop already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
