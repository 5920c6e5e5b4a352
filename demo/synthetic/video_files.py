"""Makes noisy, textured video clips, which are about as expensive to decode and scale as natural video."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from synthetic.event_clips import EventClip, random_event_clip
from synthetic.scenes import draw, random_scene

FRAMES_PER_SECOND = 25

Images = Callable[[int, int, int], Iterator[NDArray[np.uint8]]]
"""Makes frames of a width and a height, a number of them."""


def texture(width: int, height: int) -> NDArray[np.float32]:
    """Return an image with detail of all scales, as natural images have it.

    Returns:
        (height, width, 3), with a mean of about 128 (grey) and a standard deviation of 50; values may be outside 0 to
        255.
    """
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


def write_video(path: Path, width: int, height: int, frames: int, images: Images | None = None) -> None:
    """Write an H.264 file at FRAMES_PER_SECOND, by default of `panned_frames`."""
    _encode(path, width, height, (images or panned_frames)(width, height, frames))


def panned_frames(width: int, height: int, frames: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the frames, (height, width, 3) RGB, of a pan over the texture, with grain."""
    canvas, rng = texture(width + 2 * frames, height + frames), np.random.default_rng(1)
    for k in range(frames):
        noisy = canvas[k : k + height, 2 * k : 2 * k + width] + rng.normal(0, 3, (height, width, 1))
        yield noisy.clip(0, 255).astype(np.uint8)


def drawn_frames(width: int, height: int, frames: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the frames, (height, width, 3) RGB, of a scene of two objects that drift slowly to the right."""
    scene = random_scene(random.Random(1), width / height, 2)
    for k in range(frames):
        yield np.asarray(draw(scene, width, height, offset=(0.0005 * k, 0.0)))


def event_frames(clip: EventClip, width: int, height: int, frames: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the frames, (height, width, 3) RGB, of a clip of the demo clip model, with grain."""
    rng = np.random.default_rng(1)
    grain = rng.normal(0, 3, (2 * height, 2 * width, 1)).astype(np.int16)
    for k in range(frames):
        # Drawing large images and grain takes long, so they are drawn smaller, and the grain is another part each time.
        small = clip.draw(k / frames, 640, round(640 * height / width))
        y, x = rng.integers(height), rng.integers(width)
        noisy = np.asarray(small.resize((width, height)), np.int16) + grain[y : y + height, x : x + width]
        yield noisy.clip(0, 255).astype(np.uint8)


def _encode(path: Path, width: int, height: int, images: Iterable[NDArray[np.uint8]]) -> None:
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=FRAMES_PER_SECOND, options={"preset": "veryfast", "crf": "20"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for k, image in enumerate(images):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = k, Fraction(1, FRAMES_PER_SECOND)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())


def repeat_video(clip: Path, path: Path, times: int) -> None:
    """Write a file that shows the frames of `clip` several times, one after the other, without encoding them again."""
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


def write_library(
    folder: Path, width: int, height: int, *, clips: int, frames: int, images: Images | None = None
) -> list[Path]:
    """Write video files with the same frames into a new folder.

    The files differ in an empty MP4 box at their end. A run would caption equal files only once.

    Args:
        folder: The folder, which must not exist.
        width: Width in pixels.
        height: Height in pixels.
        clips: Number of files.
        frames: Number of frames in each file.
        images: Makes the frames; by default `panned_frames`.

    Returns:
        The paths of the files.
    """
    folder.mkdir(parents=True)
    clip = folder / "clip-0.mp4"
    write_video(clip, width, height, frames, images)
    return _write_copies([clip], clips)


def write_short_library(
    folder: Path, width: int, height: int, *, clips: int, different: int, images: Images | None = None
) -> list[Path]:
    """Write video files of one frame each into a new folder; their frames are those of `write_library`.

    Args:
        folder: The folder, which must not exist.
        width: Width in pixels.
        height: Height in pixels.
        clips: Number of files.
        different: Number of different frames, after which they begin anew.
        images: Makes the frames; by default `panned_frames`.

    Returns:
        The paths of the files.
    """
    folder.mkdir(parents=True)
    paths = [folder / f"clip-{k}.mp4" for k in range(different)]
    for path, image in zip(paths, (images or panned_frames)(width, height, different), strict=True):
        _encode(path, width, height, [image])
    return _write_copies(paths, clips)


def write_event_library(
    folder: Path, width: int, height: int, *, clips: int, different: int, frames: int
) -> tuple[list[Path], list[str]]:
    """Write video files of one clip of `events` each into a new folder.

    Args:
        folder: The folder, which must not exist.
        width: Width in pixels.
        height: Height in pixels.
        clips: Number of files.
        different: Number of different clips, after which they begin anew.
        frames: Number of frames in each file.

    Returns:
        The paths of the files, and what happens in each.
    """
    folder.mkdir(parents=True)
    rng = random.Random(2)
    paths, captions = [folder / f"clip-{k}.mp4" for k in range(different)], list[str]()
    for path in paths:
        clip = random_event_clip(rng, width / height)
        _encode(path, width, height, event_frames(clip, width, height, frames))
        captions.append(clip.caption)
    return _write_copies(paths, clips), [captions[k % different] for k in range(clips)]


def _write_copies(originals: list[Path], clips: int) -> list[Path]:
    """Copy files in turn, each copy with another digest, until there are `clips` of them; return all paths."""
    contents = [path.read_bytes() for path in originals]
    paths = [originals[0].with_name(f"clip-{k}.mp4") for k in range(clips)]
    for k in range(len(originals), clips):
        paths[k].write_bytes(contents[k % len(contents)] + empty_box(k))
    return paths


def empty_box(number: int) -> bytes:
    """Return an MP4 box that readers skip; its bytes differ for each number."""
    return (16).to_bytes(4, "big") + b"free" + number.to_bytes(8, "big")
