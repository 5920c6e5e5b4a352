"""All frames of a video by decord, for files that another process hung or crashed on; only where decord is sure to be
right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from reelscribe.media import FrameArray
from reelscribe.packets import Packets

FORMATS = {"mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "avi"}
"""FFmpeg's names of the containers with an index that decord reads rightly."""

SAME_SECONDS = 1e-3


def read_with_decord(name: str, packets: Packets, beat: Callable[[], None]) -> Iterator[tuple[int, FrameArray]]:
    """(index, (height, width, 3) uint8 RGB) of every frame of the file `name`, from the first on, as stored.

    Gives none at all if decord would give others than `packets` says, and stops early at a frame that it cannot decode.
    """
    if packets.format not in FORMATS or packets.video_streams > 1 or packets.damaged or packets.info.rotation:
        return
    import decord  # here, as it takes longer than all the rest

    decord.logging.set_level(decord.logging.QUIET)
    try:
        # One thread: processes are what runs in parallel here.
        reader = decord.VideoReader(name, num_threads=1)
        if not _agrees(reader, packets):
            return
        # Not skip_frames, which lands on other frames in files without an index.
        for index in range(len(packets.times)):
            frame = reader.next().asnumpy()
            if frame.shape != (packets.info.height, packets.info.width, 3):
                return  # it takes the padding of small frames for more channels
            beat()
            yield index, frame
    except (decord.DECORDError, StopIteration):
        return


def _agrees(reader: Any, packets: Packets) -> bool:
    starts = reader.get_frame_timestamp(range(len(reader)))[:, 0].astype(np.float64)
    times = packets.times
    return len(starts) == len(times) and bool(np.abs((starts - starts[0]) - (times - times[0])).max() <= SAME_SECONDS)
