"""What a decode process does: ``python -m reelscribe.decode_process FD SLOT_BYTES SLOTS``, started by `decode_pool`.

It reads orders, one JSON object a line, from standard input and answers the same way on standard output::

    <- {"decode": {"path", "frame": {...}, "every"}}
    -> {"source": {"path", "bytes", "sha256"}}                    once, if the file can be read
    -> {"info": {...}}                                            once, if it is a video
    -> {"frames": {"slot", "frame_indices", "pts_seconds"}}       for each filled slot
    <- {"free": slot}                                             once the frames in a slot are no longer needed
    -> {"end": {}} or {"error": "message"}                        once

Frames lie in memory that both processes have mapped through the file descriptor FD: SLOTS slots of SLOT_BYTES bytes.
The process ends when standard input does, and so never outlives its parent.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from dataclasses import asdict
from typing import IO, Any

import numpy as np

from reelscribe.errors import MediaError
from reelscribe.media import FrameSize
from reelscribe.sources import identify
from reelscribe.video import Video, VideoTask


class DecodeProcess:
    """Decodes one file after the other into the slots."""

    def __init__(self, memory: mmap.mmap, slot_bytes: int, slots: int, orders: IO[str], answers: IO[str]) -> None:
        self._memory, self._slot_bytes = memory, slot_bytes
        self._free = list(range(slots))
        self._orders, self._answers = orders, answers

    def run(self) -> None:
        """Follow orders until there are no more."""
        for line in self._orders:
            order = json.loads(line)
            if "free" in order:
                self._free.append(order["free"])
            else:
                task = order["decode"]
                self._decode(VideoTask(**{**task, "frame": FrameSize(**task["frame"])}))

    def _decode(self, task: VideoTask) -> None:
        try:
            # Here, where a file that is huge or a disk that is dead can be given up by killing the process.
            self._say(source=asdict(identify(task.path)))
            with Video(task) as video:
                self._say(info=asdict(video.info))
                self._send_frames(video, task)
        except MediaError as error:
            self._say(error=str(error))
        else:
            self._say(end={})

    def _send_frames(self, video: Video, task: VideoTask) -> None:
        shape = (self._slot_bytes // task.frame.nbytes, task.frame.height, task.frame.width, 3)
        indices: list[int] = []
        times: list[float] = []
        slot = -1

        def hand_over() -> None:
            if indices:
                self._say(frames={"slot": slot, "frame_indices": indices, "pts_seconds": times})
                indices.clear()
                times.clear()

        try:
            for index, seconds, frame in video.frames():
                if not indices:
                    slot = self._wait_for_slot()
                    room = np.ndarray(shape, np.uint8, self._memory, offset=slot * self._slot_bytes)
                room[len(indices)] = frame
                indices.append(index)
                times.append(seconds)
                if len(indices) == len(room):
                    hand_over()
        finally:
            # Also what a damaged file gave before it broke.
            hand_over()

    def _wait_for_slot(self) -> int:
        while not self._free:
            line = self._orders.readline()
            if not line:
                sys.exit()  # the parent is gone
            self._free.append(json.loads(line)["free"])
        return self._free.pop(0)

    def _say(self, **answer: Any) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()


def main() -> None:
    """Take standard output for answers alone: the codecs' libraries write to it as they like."""
    fd, slot_bytes, slots = map(int, sys.argv[1:])
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        DecodeProcess(mmap.mmap(fd, slot_bytes * slots), slot_bytes, slots, sys.stdin, answers).run()


if __name__ == "__main__":
    main()
