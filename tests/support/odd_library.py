"""A folder of the files that a library of videos holds: good ones, and every kind of bad one."""

import os
import random
import shutil
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from synthetic.scenes import draw, random_scene

TRUNCATIONS = 10


def make_library(folder: Path, media: Path) -> int:
    """Fill `folder`; returns how many sources it holds."""
    folder.mkdir()
    for path in media.iterdir():
        if path.suffix != ".jsonl":
            shutil.copy(path, folder)
    whole = (media / "old.avi").read_bytes()
    for k in range(TRUNCATIONS):
        (folder / f"truncated-{k}.avi").write_bytes(whole[: len(whole) * (k + 1) // (TRUNCATIONS + 1)])
    webm = (media / "same-640x360.webm").read_bytes()
    (folder / "damaged.webm").write_bytes(webm[:6000] + bytes(400) + webm[6400:])
    (folder / "zero.mp4").touch()
    (folder / "text.mp4").write_text("this is text\n" * 100)
    (folder / "page.mkv").write_text("<html><body>404 Not Found</body></html>")
    (folder / "zeros.mov").write_bytes(bytes(100_000))
    shutil.copy(media / "old.avi", folder / "mislabelled.mp4")
    shutil.copy(media / "old.avi", folder / "Übersicht 日本語 🎬.avi")
    shutil.copy(media / "same-480x270.mp4", folder / ("long-" * 49 + "name.mp4"))
    shutil.copy(media / "same-480x270.mp4", os.fsencode(folder) + b"/caf\xe9.mp4")
    for name in ("hang", "hang-always", "crash", "crash-always"):
        shutil.copy(media / "old.avi", folder / f"{name}.avi")
        with (folder / f"{name}.avi").open("ab") as file:
            file.write(name.encode())  # another content, for copies are captioned once
    write(folder / "one-frame.mp4", frames=1)
    write(folder / "two-frames.mkv", frames=2)
    write(folder / "odd-size.mkv", size=(33, 17), pixel_format="yuv444p")
    write(folder / "portrait.mp4", size=(270, 480))
    write(folder / "rotated.mp4", rotated=True)
    write(folder / "wide-pixels.mp4", pixel_aspect=Fraction(4, 3))
    write(folder / "10-bit.mkv", pixel_format="yuv420p10le")
    write(folder / "full-range.mkv", pixel_format="yuvj420p", codec="mjpeg")
    write(folder / "starts-late.ts", codec="mpeg2video")
    write(folder / "variable.mkv", variable=True)
    write_sound(folder / "sound-only.mp4", media / "spoken.mp4")
    os.mkfifo(folder / "pipe.mp4")
    shutil.copy(media / "same-480x270.mp4", folder / "forbidden.mp4")
    (folder / "forbidden.mp4").chmod(0)
    (folder / "loop.mp4").symlink_to("loop.mp4")
    (folder / "broken-link.mp4").symlink_to("nowhere.mp4")
    return len(list(folder.iterdir()))


def write(
    path: Path,
    *,
    frames: int = 45,
    size: tuple[int, int] = (480, 270),
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    pixel_aspect: Fraction | None = None,
    rotated: bool = False,
    variable: bool = False,
) -> None:
    """A clip of one scene, of 15 frames a second."""

    scene = random_scene(random.Random(path.name), size[0] / size[1])
    with av.open(str(path), "w") as file:
        stream = file.add_stream(codec, rate=15)
        stream.width, stream.height, stream.pix_fmt = *size, pixel_format
        stream.bit_rate = 800_000
        if pixel_aspect:
            stream.codec_context.sample_aspect_ratio = pixel_aspect
        for k in range(frames):
            image = np.asarray(draw(scene, *size, offset=(0.0006 * k, 0.0004 * k)))
            picture = av.VideoFrame.from_ndarray(image, format="rgb24")
            picture.pts, picture.time_base = (k * k if variable else k), Fraction(1, 15)
            file.mux(stream.encode(picture))
        file.mux(stream.encode())
    if rotated:
        turn(path)


def turn(path: Path) -> None:
    """Say in an MP4's track header that its frames are shown turned by 90 degrees."""
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4 + 40
    one, zero = (1 << 16).to_bytes(4, "big"), bytes(4)
    minus_one = (-(1 << 16)).to_bytes(4, "big", signed=True)
    data[at : at + 20] = zero + one + zero + minus_one + zero
    path.write_bytes(data)


def write_sound(path: Path, spoken: Path) -> None:
    """The sound of a clip alone."""
    with av.open(str(spoken)) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.audio[0])
        for packet in source.demux(audio=0):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
