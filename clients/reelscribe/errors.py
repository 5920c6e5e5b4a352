"""Every exception that reelscribe raises on purpose.

::

    ReelscribeError
    ├── UsageError            what was asked for cannot be done as asked
    ├── MediaError            a source cannot be read: missing, empty, damaged, not a video
    │   ├── NoPictures        it can be, but there is no video in it
    │   ├── NoSound           it can be, but there is no sound in it
    │   ├── DecoderDied       the process that was decoding it ended
    │   └── DecoderStalled    the process that was decoding it did not get on
    ├── WireError             bytes that are no body we know, or a value that no body can hold
    ├── UnsupportedFormat     a body of another kind than those that are read: JSON, a form, a GIF
    ├── FramesError           a body that was understood but holds no frames that can be captioned
    ├── SpeechError           a body that was understood but holds no sound that can be transcribed
    ├── LimitExceeded         more or larger frames, or more sound, than one request may hold
    ├── CallFull              a request that was joined with too many others; it may come again
    ├── OutOfDeviceMemory     one frame or one chunk of sound alone does not fit the device
    ├── StageFailed           an error in the other part of a model that is split over processes
    ├── StageLost             the other part of a model that is split over processes is gone or does not get on
    ├── ServerError           the server did not do what was asked
    │   ├── ServerUnreachable nobody answers at that address
    │   ├── AccessRefused     token, model name or size limit: it would refuse every request
    │   ├── ModelApiOff       models can be registered only where the server was started for it
    │   ├── UnknownModel      no such model or version
    │   ├── ModelConflict     that version is there already
    │   ├── ServerOutOfMemory the server has no memory left for it
    │   ├── RequestRefused    it could not answer this request
    │   └── NothingAnswered   one request after the other failed: it is not the frames
    ├── StartupError          a server did not start, or a model did not load
    └── OutputError           results cannot be saved: a full disk, no permission, another run's folder

Messages say the rule, what was expected, what came, and what to do.
"""

from __future__ import annotations

from typing import Any


class ReelscribeError(Exception):
    """Base of all of them; its name is the `type` in records and in answers of the server."""


class UsageError(ReelscribeError):
    """What was asked for cannot be done as asked."""


class MediaError(ReelscribeError):
    """A source cannot be read: missing, empty, damaged, not a video."""


class NoPictures(MediaError):
    """A source can be read, but has no video stream."""


class NoSound(MediaError):
    """A source can be read, but has no audio stream."""


class DecoderDied(MediaError):
    """The process that was decoding a source ended before it was done."""


class DecoderStalled(MediaError):
    """The process that was decoding a source showed no progress for too long."""


class WireError(ReelscribeError):
    """Bytes that are no body we know, or a value that no body can hold."""


class UnsupportedFormat(ReelscribeError):
    """A body of another kind than those that are read: JSON, a form, a GIF."""


class FramesError(ReelscribeError):
    """A body that was understood but holds no frames that can be captioned."""


class SpeechError(ReelscribeError):
    """A body that was understood but holds no sound that can be transcribed."""


class LimitExceeded(ReelscribeError):
    """More or larger frames, or more sound, than one request may hold."""


class CallFull(ReelscribeError):
    """A request that was joined with too many others for one call of the handler; it may come again."""


class OutOfDeviceMemory(ReelscribeError):
    """One frame or one chunk of sound alone does not fit the device's memory."""


class StageFailed(ReelscribeError):
    """An error in the other part of a model that is split over two processes; that part goes on."""


class StageLost(ReelscribeError):
    """The other part of a model that is split over two processes is gone, or does not get on."""


class ServerError(ReelscribeError):
    """The server did not do what was asked."""


class ServerUnreachable(ServerError):
    """Nobody answers at that address."""


class AccessRefused(ServerError):
    """Token, model name or size limit: the server would refuse every request.

    `passes` says that it may be different after a while, as when a server restarts.
    """

    def __init__(self, message: str, *, passes: bool = False) -> None:
        super().__init__(message)
        self.passes = passes


class ModelApiOff(ServerError):
    """Models can be registered and unregistered only where the server was started for it."""


class UnknownModel(ServerError):
    """The server has no such model or version."""


class ModelConflict(ServerError):
    """That version is registered already, or it is the default and others are left."""


class ServerOutOfMemory(ServerError):
    """The server has no memory left for what was asked."""


class RequestRefused(ServerError):
    """The server could not answer this request.

    `status` is that of HTTP; `final`: it would be the same again; `deadly`: workers that worked on it have died.
    """

    def __init__(self, status: int, message: str, *, final: bool = False) -> None:
        super().__init__(f"status {status}: {message}")
        self.status = status
        self.final = final
        self.deadly = False


class NothingAnswered(ServerError):
    """One request after the other failed, and none between them was answered: it is not the frames."""


class StartupError(ReelscribeError):
    """A server did not start, or a model did not load."""


class OutputError(ReelscribeError):
    """Results cannot be saved: a full disk, no permission, another run's folder."""


def brief(value: Any) -> str:
    """A stranger's value in a message: never long, and never slow to make."""
    if type(value) is int:
        return repr(value) if value.bit_length() <= 128 else f"<int of {value.bit_length()} bits>"
    if type(value) in (str, bytes):
        shown = repr(value[:60])[:80]
        return shown + ("..." if len(value) > 60 or len(shown) == 80 else "")
    if type(value) is tuple and len(value) <= 8 and all(type(item) is int for item in value):
        return f"({', '.join(map(brief, value))})"
    return f"<{type(value).__name__}>"
