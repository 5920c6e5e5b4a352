"""What a decode process does: ``python -m reelscribe.decode_process FD SLOT_BYTES SLOTS``, started by `decode_pool`.

It reads orders, one JSON object a line, from standard input and answers the same way on standard output::

    <- {"identify": path}
    -> {"source": {"path", "bytes", "sha256"}} or {"error": message}

    <- {"slot": number}                                     the slot to fill next: the first one before any file
    <- {"decode": {"task", "spans", "frames_per_part", "reuse"}}
    -> {"video": {"info", "frame", "chosen", "end_seconds", "cut"}}     once, if it is a video
    -> {"part": {"first", "stop", "slot", "frame_indices", "pts_seconds", "reused", "undecodable", "anchor"}}
    <- {"slot": number}                                     after each part that took its slot
    -> {"end": {"decoded_frames"}} or {"error": message}    once

    -> {"beat": {}}                                         now and then, as long as it gets on

A part accounts for the chosen frames from ordinal `first` to before `stop`: those that lie in its slot, those that are
nearly equal to one before them (frame index, presentation time, frame index of that one), and those that cannot be
decoded (frame index, presentation time).

Frames lie in memory that both processes have mapped through the file descriptor FD: SLOTS slots of SLOT_BYTES bytes.
The process ends when its parent does.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import sys
import time
from bisect import bisect_left
from dataclasses import asdict, dataclass, field
from typing import IO, Any

import numpy as np

from reelscribe.errors import MediaError
from reelscribe.media import Span
from reelscribe.prebatch import frames_per_request
from reelscribe.reuse import Reuse
from reelscribe.sources import identify
from reelscribe.video import Video, VideoTask

BEAT_SECONDS = 1.0

MOST_ORDINALS = 1024
"""Of one part: a still picture of hours is saved, and told of, in pieces."""

_PR_SET_PDEATHSIG = 1


@dataclass
class _Part:
    """A part that is being made; its fields are those of the answer."""

    first: int
    stop: int
    anchor: int | None
    slot: int | None = None
    frame_indices: list[int] = field(default_factory=list)
    pts_seconds: list[float] = field(default_factory=list)
    reused: list[tuple[int, float, int | None]] = field(default_factory=list)
    undecodable: list[tuple[int, float]] = field(default_factory=list)


class DecodeProcess:
    """Decodes one file after the other into the slots."""

    def __init__(self, memory: mmap.mmap, slot_bytes: int, orders: IO[str], answers: IO[str]) -> None:
        self._memory, self._slot_bytes = memory, slot_bytes
        self._orders, self._answers = orders, answers
        self._slot: int | None = None
        self._last_beat = 0.0

    def run(self) -> None:
        """Follow orders until there are no more."""
        while order := self._next_order():
            try:
                if "identify" in order:
                    # Here, where a file that is huge or a disk that is dead can be given up by killing the process.
                    self._say(source=asdict(identify(order["identify"], self._beat)))
                else:
                    self._decode(**order["decode"])
            except MediaError as error:
                self._say(error=str(error))

    def _decode(self, task: Any, spans: list[Any], frames_per_part: int, reuse: bool) -> None:
        with Video(VideoTask.from_json(task), self._beat) as video:
            chosen = len(video.chosen)
            self._say(
                video={
                    "info": asdict(video.info),
                    "frame": asdict(video.frame),
                    "chosen": chosen,
                    "end_seconds": video.end_seconds,
                    "cut": video.cut,
                }
            )
            most = frames_per_request(self._slot_bytes, video.frame.nbytes, frames_per_part)
            for span in [Span(**span) for span in spans]:
                self._send(video, span, chosen if span.stop is None else span.stop, most, reuse)
            self._say(end={"decoded_frames": video.decoded})

    def _send(self, video: Video, span: Span, stop: int, most: int, reuse: bool) -> None:
        last = Reuse()
        if reuse and span.anchor is not None:
            at = bisect_left(video.chosen, span.anchor)
            for chosen in video.frames(range(at, at + 1)):
                if chosen.image is not None:
                    last.remember(chosen.image)
        part = _Part(span.first, span.first, span.anchor)
        try:
            for chosen in video.frames(range(span.first, stop)):
                self._beat()
                if chosen.image is None:
                    part.undecodable.append((chosen.frame_index, chosen.pts_seconds))
                elif reuse and last.nearly_equal(chosen.image):
                    part.reused.append((chosen.frame_index, chosen.pts_seconds, part.anchor))
                else:
                    last.remember(chosen.image)
                    self._put(part, video, chosen.image)
                    part.frame_indices.append(chosen.frame_index)
                    part.pts_seconds.append(chosen.pts_seconds)
                    part.anchor = chosen.frame_index
                part.stop = chosen.ordinal + 1
                if len(part.frame_indices) == most or part.stop - part.first == MOST_ORDINALS:
                    part = self._hand_over(part)
        except MediaError:
            self._hand_over(part)  # what came before it
            raise
        self._hand_over(part)

    def _put(self, part: _Part, video: Video, image: Any) -> None:
        if part.slot is None:
            part.slot = self._take_slot()
        shape = (self._slot_bytes // video.frame.nbytes, video.frame.height, video.frame.width, 3)
        room = np.ndarray(shape, np.uint8, self._memory, offset=part.slot * self._slot_bytes)
        room[len(part.frame_indices)] = image

    def _hand_over(self, part: _Part) -> _Part:
        if part.stop > part.first:
            self._say(part=asdict(part))
        return _Part(part.stop, part.stop, part.anchor)

    def _take_slot(self) -> int:
        while self._slot is None:
            self._slot = self._read()["slot"]
        slot, self._slot = self._slot, None
        return slot

    def _next_order(self) -> dict[str, Any]:
        while "slot" in (order := self._read()):
            self._slot = order["slot"]
        return order

    def _read(self) -> dict[str, Any]:
        line = self._orders.readline()
        if not line:
            sys.exit()  # the parent is gone
        order: dict[str, Any] = json.loads(line)
        return order

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._last_beat > BEAT_SECONDS:
            self._say(beat={})

    def _say(self, **answer: Any) -> None:
        self._last_beat = time.monotonic()
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()


def main() -> None:
    """Take standard output for answers alone: the codecs' libraries write to it as they like."""
    # A decoder that hangs reads no orders, and so would not notice that its parent is gone.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    fd, slot_bytes, slots = map(int, sys.argv[1:])
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        DecodeProcess(mmap.mmap(fd, slot_bytes * slots), slot_bytes, sys.stdin, answers).run()


if __name__ == "__main__":
    main()
