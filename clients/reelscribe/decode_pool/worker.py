"""What a decode process does: ``python -m reelscribe.decode_pool.worker FD SLOT_BYTES SLOTS``, started by `decoder`.

It reads orders, one JSON object a line, from standard input and answers the same way on standard output::

    <- {"digest_file": path}
    -> {"source": {"path", "bytes", "sha256"}} or {"error": {"type", "message"}}

    <- {"slot": number}                                     the slot to fill next: the first one before any file
    <- {"frames": {...}} or {"sound": {...}}                 see frame_feed.py and audio_feed.py
    -> {"opened": {...}}                                    once or more, if it is what was expected
    -> {"part": {"first", "stop", "slot", ...}}
    <- {"slot": number}                                     after each part that took its slot
    -> {"end": {"decoded"}} or {"error": {"type", "message"}}       once

    -> {"heartbeat": {}}                                         now and then, as long as it gets on

Frames and samples lie in memory that both processes have mapped through the file descriptor FD: SLOTS slots of
SLOT_BYTES bytes. The process ends when its parent does.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
from dataclasses import asdict
from typing import Any

from reelscribe.decode.source_file import digest_file
from reelscribe.decode_pool.channel import WorkerChannel
from reelscribe.errors import MediaError

_PR_SET_PDEATHSIG = 1


def follow(orders: WorkerChannel) -> None:
    """Follow orders until there are no more."""
    while order := orders.next():
        try:
            if "digest_file" in order:
                # Here, where a file that is huge or a disk that is dead can be given up by killing the process.
                orders.say(source=asdict(digest_file(order["digest_file"], orders.heartbeat)))
            else:
                orders.say(end={"decoded": _feed(orders, order)})
        except MediaError as error:
            orders.say(error={"type": type(error).__name__, "message": str(error)})


def _feed(orders: WorkerChannel, order: dict[str, Any]) -> float:
    """How much was decoded. Each kind is imported when it is needed: a process serves one of them all its life."""
    if "sound" in order:
        from reelscribe.decode_pool import audio_feed as audio_feed

        return audio_feed.feed(orders, **order["sound"])
    from reelscribe.decode_pool import frame_feed

    return frame_feed.feed(orders, **order["frames"])


def main() -> None:
    """Take standard output for answers alone: the codecs' libraries write to it as they like."""
    # A decoder that hangs reads no orders, and so would not notice that its parent is gone.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    fd, slot_bytes, slots = map(int, sys.argv[1:])
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        follow(WorkerChannel(mmap.mmap(fd, slot_bytes * slots), slot_bytes, sys.stdin, answers))


if __name__ == "__main__":
    main()
