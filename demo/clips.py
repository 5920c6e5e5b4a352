"""Noisy, textured video clips, on which decoding and scaling cost what they cost on natural pictures."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

FRAMES_PER_SECOND = 25


def texture(width: int, height: int) -> NDArray[np.float32]:
    """An image, (height, width, 3), with detail of all scales around middle grey (128), as natural pictures have it."""
    rng = np.random.default_rng(0)
    total = np.zeros((height, width, 3), np.float32)
    for step in (1, 2, 4, 8, 16, 32, 64, 128):
        size = (width // step + 2, height // step + 2)
        for channel in range(3):
            layer = Image.fromarray(rng.normal(0, step**0.6, size[::-1]).astype(np.float32))
            large = layer.resize((size[0] * step, size[1] * step), Image.Resampling.BICUBIC)
            total[..., channel] += np.asarray(large)[:height, :width]
    image: NDArray[np.float32] = 128 + total / total.std() * 50
    return image


def write_clip(path: Path, width: int, height: int, frames: int) -> None:
    """Write an H.264 file that pans over the texture, with grain, at 25 frames/s."""
    canvas, rng = texture(width + 2 * frames, height + frames), np.random.default_rng(1)
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=FRAMES_PER_SECOND, options={"preset": "veryfast", "crf": "20"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for k in range(frames):
            noisy = canvas[k : k + height, 2 * k : 2 * k + width] + rng.normal(0, 3, (height, width, 1))
            frame = av.VideoFrame.from_ndarray(noisy.clip(0, 255).astype(np.uint8), format="rgb24")
            frame.pts, frame.time_base = k, Fraction(1, FRAMES_PER_SECOND)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())


def repeat_clip(clip: Path, path: Path, times: int) -> None:
    """Write the frames of `clip` several times, one after the other, to the file `path`, without encoding them anew."""
    with av.open(str(path), "w") as longer:
        with av.open(str(clip)) as file:
            source = file.streams.video[0]
            stream = longer.add_stream_from_template(source)
            length = int(source.duration or 0)
        for k in range(times):
            with av.open(str(clip)) as file:
                for packet in file.demux(video=0):
                    if packet.dts is not None and packet.pts is not None:
                        packet.dts, packet.pts = packet.dts + k * length, packet.pts + k * length
                        packet.stream = stream
                        longer.mux(packet)


def write_library(folder: Path, width: int, height: int, *, clips: int, frames: int) -> list[Path]:
    """Write files of so many frames each into a new folder.

    All show the same frames. They differ in an empty box at their end, so that a run does not take them for one file.
    """
    folder.mkdir(parents=True)
    paths = [folder / f"clip-{k}.mp4" for k in range(clips)]
    write_clip(paths[0], width, height, frames)
    clip = paths[0].read_bytes()
    for k, path in enumerate(paths[1:], 1):
        path.write_bytes(clip + empty_box(k))
    return paths


def empty_box(number: int) -> bytes:
    """A box of MP4 that readers skip, different for each number."""
    return (16).to_bytes(4, "big") + b"free" + number.to_bytes(8, "big")
