"""How fast are few frames of long videos read, compared with all frames, and with what FFmpeg offers for it?

    scripts/bench library/sparse_sampling [--codecs h264 hevc] [--sizes 1920x1080] [--groups 1 2 10]
                                          [--seconds 10] [--rounds 1] [--json FILE]

Videos of 25 frames a second are encoded once, in groups of pictures of 1, 2 and 10 s without further keyframes: noisy,
textured pans, in which about half of the frames are B-frames that no other frame needs. Every round runs each way once,
in turns, on one thread, from opening the file to the last frame, scaled to 224x224. Videos last `--seconds`, and
`--frames 16` is read from videos of eight times that. The defaults take 3 minutes on two cores, and a size of 3840x2160
four times as long.

"ours" reads as a decode process does: all frames, `--fps 1`, `--every 30`, `--frames 16`, and clips of 5 s with two
frames a second. The other ways answer `--fps 1`: "PyAV" decodes with PyAV alone, and "ffmpeg" is the program, if it is
installed. They decode every frame ("all"), only keyframes ("nokey") or only references ("noref"), and take the last
frame that they got up to each wanted time; or they seek to the keyframe before each wanted time ("seek").

The table shows media seconds a second of wall time and of CPU time, the ratio of the latter to that of our reading of
all frames, and how many of the frames are not the wanted ones, which the program does not tell. Figures are medians
and, in brackets, smallest and largest.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Literal

import av
import numpy as np
from av.video.stream import VideoStream
from numpy.typing import NDArray

from lib.command import add_json_option, command_parser, run_command
from lib.report import Report, Spread, publish, take_turns
from reelscribe.contract.clips import ClipBudget
from reelscribe.contract.frames import InputSize
from reelscribe.contract.source import Span
from reelscribe.decode.clips import ClipCutting, ClipTask, ClipVideo
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.video import Video, VideoTask
from synthetic.video_files import FRAMES_PER_SECOND, repeat_video, texture

SIDE = 224
ENCODERS = {
    "h264": ("libx264", "veryfast", "crf=23:bframes=3:b-adapt=0:scenecut=0:keyint={frames}"),
    "hevc": ("libx265", "ultrafast", "log-level=none:crf=26:bframes=3:scenecut=0:keyint={frames}:min-keyint={frames}"),
}
"""FFmpeg's name of the encoder of each codec, its preset, and its options."""
Skip = Literal["DEFAULT", "NONREF", "NONKEY"]
LONGER = 8
"""How many times as long the videos are of which 16 frames are read."""
COLUMNS = ("file and way", "media s/s", "media s/CPU s", "to all", "wrong frames")


def pan(width: int, height: int, frames: int) -> Iterator[av.VideoFrame]:
    """Yield the frames of a pan over a texture, with grain that does not repeat soon, in YUV 4:2:0."""
    canvas = texture(width + 2 * frames, height + frames)[..., 0].clip(0, 255)
    rng = np.random.default_rng(1)
    grain = rng.normal(0, 3, (height + 64, width + 64)).astype(np.float32)
    planes: NDArray[np.uint8] = np.full((height * 3 // 2, width), 128, np.uint8)
    for k in range(frames):
        y, x = rng.integers(64, size=2)
        noisy = canvas[k : k + height, 2 * k : 2 * k + width] + grain[y : y + height, x : x + width]
        planes[:height] = noisy.clip(16, 235)
        planes[height:].reshape(2, -1)[:] = [[100 + k % 50], [150 - k % 50]]
        frame = av.VideoFrame.from_ndarray(planes, format="yuv420p")
        frame.pts, frame.time_base = k, Fraction(1, FRAMES_PER_SECOND)
        yield frame


def write_group(path: Path, codec: str, width: int, height: int, frames: int) -> None:
    """Write an MP4 file of one group of pictures."""
    encoder, preset, options = ENCODERS[codec]
    words = {"preset": preset, f"{encoder[3:]}-params": options.format(frames=frames)}
    with av.open(str(path), "w") as file:
        stream = file.add_stream(encoder, rate=FRAMES_PER_SECOND, options=words)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for frame in pan(width, height, frames):
            file.mux(stream.encode(frame))
        file.mux(stream.encode())


@dataclass
class Way:
    """A way of reading frames, and the figures of its rounds."""

    read: Callable[[], Sequence[float]]
    """Reads the frames, and returns the times of those that it got, in seconds."""
    media_seconds: float
    wanted: Sequence[float] | None = None
    """Times of the frames that it should get; None if it gets them by definition."""
    wall: list[float] = field(default_factory=list)
    wrong: int = 0

    def __call__(self) -> float:
        """Read the frames, and return the media seconds that are read in a second of CPU time."""
        began, cpu = time.perf_counter(), _cpu_seconds()
        times = self.read()
        cpu = _cpu_seconds() - cpu
        self.wall.append(self.media_seconds / (time.perf_counter() - began))
        if self.wanted is not None:
            got = [*times, *[-1.0] * len(self.wanted)]
            self.wrong = sum(abs(a - b) > 1e-3 for a, b in zip(self.wanted, got, strict=False))
        return self.media_seconds / cpu


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def ours(path: Path, sampling: Sampling) -> list[float]:
    """Read frames as a decode process does."""
    with Video(VideoTask(str(path), InputSize(SIDE, SIDE), sampling)) as video:
        frames = [(frame.pts_seconds, frame.image) for frame in video.frames(range(len(video.chosen)))]
    assert all(image is not None for _, image in frames)
    return [seconds for seconds, _ in frames]


def our_clips(path: Path) -> list[float]:
    """Read clips as a decode process does."""
    budget = ClipBudget(factor=32, min_pixels=32 * 32, max_pixels=SIDE * SIDE)
    with ClipVideo(ClipTask(str(path), budget, ClipCutting("windows", window_seconds=5.0))) as video:
        return [seconds for clip in video.read([Span(0)]) for seconds in clip.pts_seconds]


def with_pyav(path: Path, skip: Skip, wanted: Sequence[float]) -> list[float]:
    """Decode with PyAV alone, and take the last frame up to each wanted time."""
    times = list[float]()
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count, stream.codec_context.skip_frame = 1, skip
        last = None
        for frame in container.decode(stream):
            while last is not None and len(times) < len(wanted) and wanted[len(times)] < frame.time - 1e-3:
                times.append(_scaled(last))
            last = frame
        while last is not None and len(times) < len(wanted):
            times.append(_scaled(last))
    return times


def seeking(path: Path, wanted: Sequence[float]) -> list[float]:
    """Seek with PyAV to the keyframe before each wanted time, and decode from there."""
    times = list[float]()
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        for seconds in wanted:
            container.seek(round(seconds / (stream.time_base or 1)), stream=stream)
            times.append(next(_scaled(frame) for frame in container.decode(stream) if frame.time > seconds - 1e-3))
    return times


def _scaled(frame: av.VideoFrame) -> float:
    """Scale a frame, and return its time."""
    frame.reformat(SIDE, SIDE, "rgb24").to_ndarray()
    return float(frame.time)


def with_program(program: str, path: Path, skip: str) -> list[float]:
    """Decode with the program ffmpeg, and return nothing."""
    source = ["-threads", "1", "-skip_frame", skip, "-i", str(path)]
    filters = ["-filter_threads", "1", "-vf", f"fps=1,scale={SIDE}:{SIDE}", "-pix_fmt", "rgb24"]
    subprocess.run([program, "-v", "error", *source, *filters, "-f", "null", "-"], check=True)
    return []


def ways(path: Path, long: Path, seconds: int) -> dict[str, Way]:
    """Return all ways by name, of which the first reads all frames."""
    wanted = [float(second) for second in range(seconds)]

    def alone(skip: Skip) -> Way:
        return Way(lambda: with_pyav(path, skip, wanted), seconds, wanted)

    def with_ffmpeg(program: str, skip: str) -> Way:
        return Way(lambda: with_program(program, path, skip), seconds)

    found = {
        "ours, all frames": Way(lambda: ours(path, Sampling(every=1)), seconds),
        "ours, --fps 1": Way(lambda: ours(path, Sampling(fps=1)), seconds, wanted),
        "ours, --every 30": Way(lambda: ours(path, Sampling(every=30)), seconds),
        "ours, --frames 16": Way(lambda: ours(long, Sampling(frames=16)), LONGER * seconds),
        "ours, clips": Way(lambda: our_clips(path), seconds),
        "PyAV, all": alone("DEFAULT"),
        "PyAV, noref": alone("NONREF"),
        "PyAV, nokey": alone("NONKEY"),
        "PyAV, seek": Way(lambda: seeking(path, wanted), seconds, wanted),
    }
    if program := shutil.which("ffmpeg"):
        found |= {f"ffmpeg, {skip}": with_ffmpeg(program, skip) for skip in ("noref", "nokey")}
    return found


def measure(report: Report, name: str, rounds: int, ways: dict[str, Way]) -> None:
    """Add the rows of one video."""
    rates = take_turns(rounds, ways)
    whole = next(iter(rates.values()))
    for label, way in ways.items():
        wrong = "" if way.wanted is None else f"{way.wrong} of {len(way.wanted)}"
        report.add(f"{name}: {label}", Spread(tuple(way.wall)), rates[label], rates[label].over(whole), wrong)


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("--codecs", nargs="+", choices=ENCODERS, default=[*ENCODERS])
    parser.add_argument("--sizes", nargs="+", default=["1920x1080"], metavar="WIDTHxHEIGHT")
    parser.add_argument("--groups", nargs="+", type=int, default=[1, 2, 10], help="seconds of a group of pictures")
    parser.add_argument("--seconds", type=int, default=10, help="length of the videos, a multiple of the groups")
    parser.add_argument("--rounds", type=int, default=1)
    add_json_option(parser)
    arguments = parser.parse_args()
    if any(arguments.seconds % group for group in arguments.groups):
        parser.error(f"--seconds: expected a multiple of each of --groups, got {arguments.seconds}")
    report = Report("Few frames of long videos", COLUMNS)
    for codec, size, group in product(arguments.codecs, arguments.sizes, arguments.groups):
        with tempfile.TemporaryDirectory() as folder:
            one, path, long = (Path(folder) / f"{name}.mp4" for name in ("one", "path", "long"))
            width, height = map(int, size.split("x"))
            write_group(one, codec, width, height, group * FRAMES_PER_SECOND)
            repeat_video(one, path, arguments.seconds // group)
            repeat_video(path, long, LONGER)
            name = f"{codec} {size}, groups of {group} s"
            measure(report, name, arguments.rounds, ways(path, long, arguments.seconds))
    publish([report], arguments.json)


if __name__ == "__main__":
    run_command(main)
