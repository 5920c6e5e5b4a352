"""Every exception that reelscribe raises on purpose.

::

    ReelscribeError
    ├── UsageError              an option, argument or setting cannot be used
    ├── MediaError              a source cannot be read: it is missing, empty, damaged or not a media file
    │   ├── NoPictures          a source has no video stream
    │   ├── NoAudio             a source has no audio stream
    │   ├── SourceChanged       a source is not the file that was digested, or was written to since
    │   ├── NoSuchObject        a store has no object of this name
    │   ├── StoreUnavailable    a store cannot answer now, or a connection to it broke; it may answer later
    │   ├── DecoderDied         the process that decoded a source ended early
    │   └── DecoderStalled      the process that decoded a source made no progress
    ├── RequestError            a request cannot be answered; each child has its HTTP status
    │   ├── WireError           400: a body is malformed, or a value cannot be packed into one
    │   ├── LimitExceeded       413: a request holds too much, or takes too long to read
    │   ├── MemoryNotShared     421: a request refers to memory that the server cannot read
    │   ├── UnsupportedFormat   415: a body has a known format that the handler does not read
    │   ├── FramesError         422: a body holds no frames that can be captioned
    │   ├── SpeechError         422: a body holds no audio that can be transcribed
    │   ├── PromptError         422: a prompt cannot be used
    │   ├── FileRefused         422: a media file in a body cannot be read, or an option for it cannot be used
    │   ├── RequestFailed       500: the handler or the model failed at this request, for a reason that nobody foresaw
    │   ├── CallFull            503: the handler's batch of requests is full; the client may send this one again
    │   └── OutOfDeviceMemory   507: a single frame or chunk does not fit the device's memory
    ├── StageFailed             the other stage of a split model reported an error
    ├── StageLost               the other stage of a split model ended or made no progress
    ├── ServerError             a server cannot be used, or did not fulfil a request
    │   ├── ServerUnreachable   no server answers at an address
    │   ├── AccessRefused       the server would refuse every request: token, model name or size limit
    │   ├── ModelApiOff         the server was started without the model API
    │   ├── UnknownModel        the server has no such model or version
    │   ├── ModelConflict       a change of the registered versions is not allowed in their present state
    │   ├── ServerOutOfMemory   the server has too little memory for a request
    │   ├── RequestRefused      the server refused one request
    │   └── NothingAnswered     a request failed, and then one that every working model answers
    ├── AnswerRefused           a model's answer does not fit the JSON schema that was given for it
    ├── StartupError            a server did not start, or a model did not load
    ├── NodeRefused             a node of a run over many machines cannot be used, now or later
    └── OutputError             results cannot be saved: full disk, no permission, another run's folder

Every message says what was expected, what came instead, and what to do.
"""

from __future__ import annotations

import errno
import logging
import traceback
from pathlib import Path
from typing import Any, ClassVar

_log = logging.getLogger(__name__)

CONTROL_CHARACTERS = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
"""Characters that terminals obey, without tabs and line breaks; for a class of a regular expression."""

REORDERING_CHARACTERS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Characters that nobody sees and that order those around them anew; for a class of a regular expression."""


MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What Python raises where a value that somebody else wrote, in a file, a ledger or an answer, is none of ours."""


class ReelscribeError(Exception):
    """Base of all errors of reelscribe; the class name is the `type` of an error in records and in responses."""


class UsageError(ReelscribeError):
    """An option, an argument or a setting cannot be used."""


class MediaError(ReelscribeError):
    """A source cannot be read: it is missing, empty, damaged or not a media file."""


class NoPictures(MediaError):
    """A source can be read but has no video stream."""


class NoAudio(MediaError):
    """A source can be read but has no audio stream."""


class SourceChanged(MediaError):
    """A source is not the file that was digested, or was written to since, so nothing of it may be saved."""


class NoSuchObject(MediaError):
    """A store has no object of this name."""


class StoreUnavailable(MediaError):
    """A store cannot answer now, or a connection to it broke; it may answer later."""


class DecoderDied(MediaError):
    """The process that decoded a source ended before it was done."""


class DecoderStalled(MediaError):
    """The process that decoded a source made no progress for too long."""


class RequestError(ReelscribeError):
    """A request cannot be answered; the handler sends this error for it and still answers the other requests."""

    http_status: ClassVar[int]
    """HTTP status of the response."""


class WireError(RequestError):
    """A body is malformed, or a value cannot be packed into one."""

    http_status = 400


class LimitExceeded(RequestError):
    """A request holds more or larger frames, or more audio, than one request may hold, or takes too long to read."""

    http_status = 413


class MemoryNotShared(RequestError):
    """A request refers to memory that the server cannot read (`contract.shared_memory`); send its content instead."""

    http_status = 421


class UnsupportedFormat(RequestError):
    """A body has a known format that the handler does not read, such as JSON, a form or a GIF."""

    http_status = 415


class FramesError(RequestError):
    """A body can be read but holds no frames that can be captioned."""

    http_status = 422


class SpeechError(RequestError):
    """A body can be read but holds no audio that can be transcribed."""

    http_status = 422


class PromptError(RequestError):
    """A prompt cannot be used: that of a clip, or an initial prompt and hot words."""

    http_status = 422


class FileRefused(RequestError):
    """A media file in a body cannot be read, as a MediaError of a run would say, or an option for it cannot be used."""

    http_status = 422


class RequestFailed(RequestError):
    """The handler or the model failed at this request, for a reason that nobody foresaw; the server's log has it."""

    http_status = 500


class CallFull(RequestError):
    """The handler's batch of requests is full without this request; the client may send it again."""

    http_status = 503


class OutOfDeviceMemory(RequestError):
    """A single frame or a single chunk of audio does not fit the device's memory."""

    http_status = 507


class StageFailed(ReelscribeError):
    """The other stage of a model that is split over two processes reported an error; it is still running."""


class StageLost(ReelscribeError):
    """The other stage of a model that is split over two processes ended or made no progress."""


class ServerError(ReelscribeError):
    """A server cannot be used, or did not fulfil a request."""


class ServerUnreachable(ServerError):
    """No server answers at an address."""


class AccessRefused(ServerError):
    """The server would refuse every request, because of the token, the model name or a size limit.

    Args:
        message: What the server refused, and what to do.
        temporary: Whether the same request may succeed later, for example because the server is restarting.
        status: HTTP status of the response; None if another model answered than was expected.
    """

    def __init__(self, message: str, *, temporary: bool = False, status: int | None = None) -> None:
        super().__init__(message)
        self.temporary = temporary
        self.status = status


class ModelApiOff(ServerError):
    """The server was started without the model API, so models cannot be registered or unregistered."""


class UnknownModel(ServerError):
    """The server has no such model or version."""


class ModelConflict(ServerError):
    """The version is registered already, or it is the default version while others are registered."""


class ServerOutOfMemory(ServerError):
    """The server has too little memory for a request."""


class RequestRefused(ServerError):
    """The server refused one request.

    Args:
        status: HTTP status of the response.
        message: The server's message.
        permanent: Whether the same request would be refused again.
        retry_after: Seconds after which the server wants to be asked again; None if it does not say.
        is_busy: Whether the server has too many requests: its queue is full, or it limits the rate.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        permanent: bool = False,
        retry_after: float | None = None,
        is_busy: bool = False,
    ) -> None:
        super().__init__(f"status {status}: {message}")
        self.status = status
        self.permanent = permanent
        self.retry_after = retry_after
        self.is_busy = is_busy
        self.kills_workers = False
        """True if several workers died while they computed this request; the balancer counts them and sets this."""


class NothingAnswered(ServerError):
    """A request failed, and then one that every working model answers, so the content of the first is not the cause."""


class AnswerRefused(ReelscribeError):
    """A model's answer does not fit the JSON schema that was given for it; the message says why."""


class StartupError(ReelscribeError):
    """A server did not start, or a model did not load."""


class NodeRefused(ReelscribeError):
    """A node of a run over many machines cannot be used, and it would be so again."""


class OutputError(ReelscribeError):
    """Results cannot be saved: the disk is full, permission is missing, or the folder belongs to another run."""


def is_of_one_source(error: BaseException) -> bool:
    """Return whether an error is about one source alone, so that a run goes on without it.

    That is what cannot be read or packed, and whatever nobody has expected. All other errors that reelscribe raises on
    purpose are about the run, such as a server that is gone, and so is that the machine has no more of something, such
    as room on a disk.

    Args:
        error: What was raised by the work on a source.
    """
    if isinstance(error, ReelscribeError):
        return isinstance(error, (MediaError, RequestError))
    return not used_up(error)


_SPACE = "a disk is full: make room, or choose another folder; temporary files are in TMPDIR"
_FILES = "too many files are open: allow more with `ulimit -n`, or use fewer processes, such as with --decode-workers"
PROCESSES_USED_UP = "no more processes or threads can be started: end other programs, or allow more with `ulimit -u`"
MEMORY_USED_UP = "the memory is used up: end other programs, or use fewer processes, such as with --decode-workers"
_USED_UP = {
    errno.ENOMEM: MEMORY_USED_UP,
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
}


def used_up(error: BaseException) -> str | None:
    """Return what to do if the machine has no more of something that all need, which any line of a program may find.

    Args:
        error: What was raised.

    Returns:
        The advice; None for every other error.
    """
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return PROCESSES_USED_UP
    advice = _USED_UP.get(error.errno or 0) if isinstance(error, OSError) else None
    return f"{error.filename}: {advice}" if advice and isinstance(error, OSError) and error.filename else advice


def reason_of(error: Exception, path: str) -> str:
    """Return what is told of an error of a source, in records and elsewhere.

    An exception that nobody has expected is logged with its traceback. The text of the message has the places that it
    came from, as commands show no more than that.

    Args:
        error: What was raised by the work on the source.
        path: Its path or address.

    Raises:
        OutputError: The machine has no more of what all sources need.
        Exception: `error` itself, if it is not about this source alone.
    """
    if advice := used_up(error):
        raise OutputError(advice) from error
    if not is_of_one_source(error):
        raise error
    if isinstance(error, ReelscribeError):
        return str(error)
    text = " ".join(f"{type(error).__name__}: {str(error)[:300]}".split()).rstrip(": ")
    frames = traceback.extract_tb(error.__traceback__)[-12:]
    places = " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    _log.error("%s: %s (%s)", path, text, places, exc_info=error)
    return (
        f"expected results or a reason that is known, got {text}; it is tried again with the next run; if that fails,"
        " too, please report it with what the run has logged"
    )


def missing_package(package: str, extra: str) -> str:
    """Say that a package is missing, and which command installs it, for an error message.

    Args:
        package: Name of the package.
        extra: The extra of reelscribe that has it.
    """
    return f"expected the package {package}, got none; install it with: {install_command(extra)}"


def install_command(extra: str) -> str:
    """Return the command that installs an extra of reelscribe, from the folder or file where reelscribe came from.

    Args:
        extra: Name of the extra.
    """
    # Imported here, because few programs lack a package.
    import json
    import shlex
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlsplit

    try:
        origin = json.loads(distribution("reelscribe").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:  # it is part of a model archive
        origin = {}
    address = urlsplit(origin.get("url", ""))
    came_from = unquote(address.path) if address.scheme == "file" else "reelscribe"
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}{shlex.quote(f'{came_from}[{extra}]')}"


def brief(value: Any) -> str:
    """Describe an untrusted value for an error message, in little time and space whatever the value is.

    Args:
        value: Any value.

    Returns:
        The repr of a small int, str or bytes value or of a small tuple of int, the beginning of the repr of a longer
        str or bytes value, or else the type of the value.
    """
    if type(value) is int:
        return repr(value) if value.bit_length() <= 128 else f"<int of {value.bit_length()} bits>"
    if type(value) in (str, bytes):
        shown = repr(value[:60])[:80]
        return shown + ("..." if len(value) > 60 or len(shown) == 80 else "")
    if type(value) is tuple and len(value) <= 8 and all(type(item) is int for item in value):
        return f"({', '.join(map(brief, value))})"
    return f"<{type(value).__name__}>"


def kind_of(value: Any) -> str:
    """Describe a value of a body for an error message, which tells nothing of what the body holds.

    Args:
        value: Any value.

    Returns:
        The name of its type, and its length if it has one.
    """
    length = f" of length {len(value)}" if isinstance(value, (str, bytes, memoryview, tuple, list, dict)) else ""
    return f"{type(value).__name__}{length}"


def printable(text: str, kept: str = "") -> str:
    """Return a text with escapes for what a terminal could not show or would obey, as file names may hold anything.

    It escapes more than CONTROL_CHARACTERS and REORDERING_CHARACTERS, also what no font has: a name in a message must
    be one that the user can tell from others, and can type.

    Args:
        text: Any text.
        kept: Characters that stay as they are, such as a line feed where the text may have several lines.
    """
    return "".join(
        char if char.isprintable() or char in kept else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )
