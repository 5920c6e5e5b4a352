"""Read frames with decord, which decodes and scales them at once; `FrameReader` does it for all that decord cannot.

decord finds frames by the table of the file that its own FFmpeg, of 2018, makes. It reads the files whose table has the
frames of the packet index at the same times, of containers that have an index: in MPEG transport streams, for example,
its first frame may be the twenty-first. It reads frame by frame from the beginning, because it seeks by the average
frame rate: it returns other frames than it says behind open GOPs, and where the frame rate varies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np

from reelscribe.contract.frames import FrameArray
from reelscribe.decode.packet_index import INDEXED_FORMATS, PacketIndex
from reelscribe.errors import UsageError, missing_package

Decoder = Literal["pyav", "decord"]
"""What decodes and scales frames."""

TIME_TOLERANCE = 1e-4
"""Largest difference between two presentation times that are the same, in seconds."""

FLOAT32 = 1e-6
"""Relative precision of decord's times."""


def check_decord(*, scales: bool) -> None:
    """Check that decord can decode as options say.

    Args:
        scales: Whether frames are scaled as FFmpeg does it, and nothing else is done with them.

    Raises:
        UsageError: They are not, or decord is not installed.
    """
    if not scales:
        raise UsageError(
            "decoder: expected --resize fast and no --deinterlace with decord, which scales frames by itself; leave"
            " these options out, or choose pyav"
        )
    if find_spec("decord") is None:
        raise UsageError(f"decoder: {missing_package('decord', 'decord')}")


class DecordReader:
    """Frames of a video file, decoded and scaled by decord.

    Args:
        name: Name under which FFmpeg opens the file.
        packets: The index of the file.
        size: Width and height to which frames are scaled.
        heartbeat: Called regularly while reading makes progress.

    Raises:
        Exception: decord cannot read the file. Its errors have no class in common.
    """

    decoded: int = 0
    """Number of frames that were decoded, wanted or not."""

    def __init__(self, name: str, packets: PacketIndex, size: tuple[int, int], heartbeat: Callable[[], None]) -> None:
        self._reader: Any = _decord().VideoReader(name, width=size[0], height=size[1], num_threads=1)
        self._packets, self._heartbeat = packets, heartbeat
        self._position, self._size = 0, size

    def agrees(self) -> bool:
        """Return whether it has the frames of the index at the same times, and shows them as players do."""
        packets, info = self._packets, self._packets.info
        is_usual = not (packets.why_incomplete or packets.corrupt_packets or info.skipped_frames)
        if not is_usual or packets.container_format not in INDEXED_FORMATS or info.dynamic_range != "sdr":
            return False
        if len(self._reader) != len(packets.times):
            return False
        times = self._reader.get_frame_timestamp(range(len(self._reader)))[:, 0]
        return np.allclose(times, packets.times, rtol=FLOAT32, atol=TIME_TOLERANCE)

    def read(self, wanted: Sequence[int]) -> Iterator[tuple[int, FrameArray]]:
        """Decode the wanted frames.

        Args:
            wanted: Indices of frames, ascending.

        Yields:
            (index, frame) for each of them, in order; the frame is (height, width, 3) uint8 RGB.

        Raises:
            Exception: decord cannot decode a frame.
        """
        for index in wanted:
            if index < self._position:
                self._reader.seek(0)
                self._position = 0
            while self._position <= index:
                frame = self._reader.next()
                self._position += 1
                self.decoded += 1
                self._heartbeat()
            # Rows of less than some 50 pixels end with bytes that are none, which decord counts as more channels.
            rows = frame.asnumpy().reshape(self._size[1], -1)[:, : 3 * self._size[0]]
            yield index, rows.reshape(*reversed(self._size), 3)


def open_with_decord(
    name: str, packets: PacketIndex, size: tuple[int, int], heartbeat: Callable[[], None]
) -> DecordReader | None:
    """Open a file with decord.

    Args:
        name: Name under which FFmpeg opens the file.
        packets: Its index.
        size: Width and height to which frames are scaled.
        heartbeat: Called regularly while reading makes progress.

    Returns:
        The reader; None if decord cannot read the file, or does not agree with the index.
    """
    try:
        reader = DecordReader(name, packets, size, heartbeat)
        return reader if reader.agrees() else None
    except Exception:  # noqa: BLE001 - whatever it is, PyAV has read the file so far, and goes on
        return None


def _decord() -> Any:
    """Import decord, whose libraries PyAV must not use.

    It makes the symbols of its libraries global, and PyAV would then call its zlib and its libvpx, which are older.
    """
    mode, vars(ctypes)["RTLD_GLOBAL"] = ctypes.RTLD_GLOBAL, ctypes.RTLD_LOCAL
    try:
        import decord
    finally:
        vars(ctypes)["RTLD_GLOBAL"] = mode
    decord.logging.set_level(decord.logging.QUIET)
    return decord
