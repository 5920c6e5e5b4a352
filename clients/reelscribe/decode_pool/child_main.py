"""The decode process: ``python -m reelscribe.decode_pool.child_main FD SLOT_BYTES SLOTS PARENT``.

`watched_process.py` starts it, and kills it if it hangs. It reads commands from standard input, one JSON object per
line, and writes replies to standard output, one JSON array of replies per line. Below, ``<-`` marks a command of the
parent and ``->`` a reply of the process.

Digest files::

    <- {"digest_files": [path, ...]}
    -> {"digests": [..., ...]}                                    for each file {"source": {"path", "bytes", "sha256"}},
                                                                  or an error

Read the header of a file::

    <- {"read_header": path}
    -> {"header": {"seconds", "frames_per_second"}}               or an error

Read the frames, the clips, the windows or the audio of a file::

    <- {"read_frames": {...}}, {"read_clips": {...}},             see frames.py, clips.py,
       {"read_windows": {...}} or {"read_audio": {...}}           windows.py and audio.py
       {..., "slot": number}                                      the slot to fill; with the first file only
    -> {"opened": {...}}                                          facts about the file; again at its end for audio,
                                                                  and for clips if their shots were looked for
    -> {"batch": {"first", "stop", "slot", ...}}                  "slot" is null if the batch has no data in a slot
    <- {"slot": number}                                           the next slot to fill, after each batch with a slot
    -> {"fetch": [first, stop]}                                   the blocks that may be missing in a copy of the file
    <- {"fetched": [first, stop]}                                 if all are there; otherwise the process is ended
    -> {"warning": text}                                          if thumbnails cannot be kept
    -> {"end": {"decoded": frames or seconds of audio}}           or an error

Close the file that was kept open, because it has other portions (see frames.py)::

    <- {"close_file": {}}                                         there is no reply

A file that cannot be read::

    -> {"error": {"type": class name of the error, "message"}}

At any time between a command and its last reply, about once a second while the process makes progress::

    -> {"heartbeat": {}}

Frames and samples are written to memory that both processes map through the file descriptor FD: SLOTS slots of
SLOT_BYTES bytes each. The process exits when its parent, whose process id is PARENT, does.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import mmap
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from reelscribe._files import OpenSource, size_in
from reelscribe.contract.source import Header, Source
from reelscribe.decode_pool.child_channel import ChildChannel, KeptFile
from reelscribe.errors import MediaError

_PR_SET_PDEATHSIG = 1


def serve(channel: ChildChannel, after_command: Callable[[bool], None] = lambda _: None) -> None:
    """Execute the commands of the parent until the parent is gone, then exit.

    Args:
        channel: Connection to the parent.
        after_command: Called after each command, with whether a file was kept open.
    """
    kept = KeptFile[Any]()
    while True:
        command = channel.next_command()
        if "read_frames" not in command:
            kept.close()
        try:
            if "close_file" in command:
                pass
            elif "digest_files" in command:
                # A decode process does this, because it can be killed while it reads a huge file or a dead disk.
                channel.send(digests=[_digest(channel, path) for path in command["digest_files"]])
            elif "read_header" in command:
                channel.send(header=asdict(read_header(command["read_header"])))
            else:
                channel.send(end={"decoded": _read(channel, kept, command)})
        except MediaError as error:
            kept.close()
            channel.send(**_error(error))
        after_command(kept.is_open)


def free_memory(file_is_open: bool) -> None:
    """Free what a file has left in memory.

    PyAV's containers, codecs and frames refer to each other, and Python would free them only after many more files: 30
    MB of each file of 1080p, or 100 MB where frames are held. What is still alive is not looked at again, except for a
    file that was kept open.
    """
    gc.collect()
    if not file_is_open:
        gc.freeze()


def digest_file(path: str, heartbeat: Callable[[], None] = lambda: None) -> Source:
    """Read a whole file and compute its SHA-256.

    Args:
        path: Path of the file.
        heartbeat: Called after each mebibyte.

    Returns:
        The path, the size, the digest, and the `file_stat` of the file.

    Raises:
        MediaError: The file does not exist, is not a regular file, or cannot be read. The message has no path.
        SourceChanged: The file was written to meanwhile.
    """
    digest = hashlib.sha256()
    try:
        if os.path.isdir(path):  # a run replaces folders by the media files in them, unless it cannot read a folder
            os.listdir(path)
        if os.path.exists(path) and not os.path.isfile(path):
            raise MediaError("expected a regular file")
        with OpenSource(path) as file:
            while block := file.read(2**20):
                digest.update(block)
                heartbeat()
            file.check()
            return Source(path, size_in(file.stat), digest.hexdigest(), file.stat)
    except (OSError, ValueError) as error:  # ValueError: no file can have this name
        raise MediaError(f"it cannot be read: {getattr(error, 'strerror', None) or error}") from None


def read_header(path: str) -> Header:
    """Read the header of a media file.

    Args:
        path: Path of the file.

    Returns:
        What it says.

    Raises:
        MediaError: The file cannot be read, or is no media file. The message has no path.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # opening a pipe would wait for its other end
        raise MediaError("expected a regular file")
    # Imported here, because processes that only compute digests start faster without FFmpeg.
    import av

    from reelscribe.decode.container import (
        choose_streams,
        ffmpeg_reason,
        open_for_ffmpeg,
        open_without_probing,
        stated_seconds,
    )

    with open_for_ffmpeg(path) as file:
        try:
            with open_without_probing(file.name, analyzeduration="1") as container:
                video, _ = choose_streams(container)
                rate = video.average_rate or video.guessed_rate if video else 0
                seconds = stated_seconds(container)
                return Header(seconds if seconds > 0 else None, None if rate is None else float(rate))
        except (av.FFmpegError, UnicodeError, ValueError) as error:
            raise MediaError(f"not a media file that can be read: {ffmpeg_reason(error)}") from None


def _digest(channel: ChildChannel, path: str) -> dict[str, Any]:
    try:
        return {"source": asdict(digest_file(path, channel.heartbeat))}
    except MediaError as error:
        return _error(error)


def _error(error: MediaError) -> dict[str, Any]:
    return {"error": {"type": type(error).__name__, "message": str(error)}}


def _read(channel: ChildChannel, kept: KeptFile[Any], command: dict[str, Any]) -> float:
    """Read a file, and return how many frames or seconds of audio were decoded."""
    # Each is imported when it is first needed: most processes need only one, and start faster without the others.
    if "read_audio" in command:
        from reelscribe.decode_pool import audio

        return audio.feed(channel, **command["read_audio"])
    if "read_clips" in command:
        from reelscribe.decode_pool import clips

        return clips.feed(channel, **command["read_clips"])
    if "read_windows" in command:
        from reelscribe.decode_pool import windows

        return windows.feed(channel, **command["read_windows"])
    from reelscribe.decode_pool import frames

    return frames.feed(channel, kept, **command["read_frames"])


def main() -> None:
    """Serve the parent process over standard input and output."""
    # A process that hangs in a codec reads no commands, so it would not notice that its parent is gone.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    fd, slot_bytes, slots, parent = map(int, sys.argv[1:])
    if os.getppid() != parent:  # it died before it could be watched
        sys.exit()
    # Some codecs print to standard output, so it becomes standard error, and replies go to a copy of the original one.
    with os.fdopen(os.dup(1), "w") as replies:
        os.dup2(2, 1)
        serve(ChildChannel(mmap.mmap(fd, slot_bytes * slots), slot_bytes, sys.stdin, replies), free_memory)


if __name__ == "__main__":
    main()
