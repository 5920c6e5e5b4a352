"""Are the cuts of videos found where they are hard to find, and what does it cost to look for them?

    scripts/bench defaults/cuts [--videos 4] [--set tuning|held-out] [--photos FOLDER] [--footage FILE ...]

demo/synthetic/shot_scenes.py makes the videos: kinds that each have one difficulty, in two sets that share nothing.
The threshold was chosen with "tuning"; "held-out" says what it is worth. With --photos, shots show the pictures of a
folder instead of textures, 17 or more.

The first table shows for each kind how many cuts there are, how many were found at the very frame (recall), and how
many of those found are cuts (precision). The second shows what becomes of dissolves and of fades through black, which
are no cuts: each video has one, and it shows in how many videos no cut was found, one, and more than one. The third
shows process CPU time a frame for decoding and for looking for cuts, of noisy videos of three sizes and of the files of
--footage: each is the median of rounds in which both take turns at every frame.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import av
from PIL import Image

from lib.command import command_parser, run_command
from reelscribe.contract.frames import InputSize
from reelscribe.decode.shots import CutDetector, ShotDetection
from reelscribe.decode.video import Video, VideoTask
from synthetic.shot_scenes import GRADUAL, KINDS, SceneSet, scene_of, write_scene
from synthetic.video_files import write_video

SIZES = ((640, 360), (1280, 720), (1920, 1080))
COST_FRAMES = 100
COST_ROUNDS = 5


class Counts(NamedTuple):
    """The cuts that were found in the videos of a kind."""

    cuts: int
    """Cuts that there are."""
    right: int
    """Cuts that were found."""
    false: int
    """Frames that were taken for cuts."""

    def __str__(self) -> str:
        recall, precision = self.right / self.cuts, self.right / max(1, self.right + self.false)
        return f"{self.cuts:>6}{self.right:>7}{self.false:>7}{recall:>9.1%}{precision:>11.1%}"


def find_cuts(path: Path) -> set[int]:
    """Return the frames with which shots begin, but the first."""
    with Video(VideoTask(str(path), InputSize(1, 1), sampling=None, detection=ShotDetection())) as video:
        assert video.shots is not None
        return {shot.start_frame for shot in video.shots[1:]}


def count(path: Path, kind: str, part: SceneSet, videos: int, photos: Sequence[Image.Image]) -> Counts:
    """Look for the cuts of all videos of a kind, each written to `path`."""
    counts = Counts(0, 0, 0)
    for number in range(videos):
        scene, rate = scene_of(kind, part, number, photos)
        write_scene(path, scene, rate)
        cuts, found = {*scene.cuts}, find_cuts(path)
        these = Counts(len(cuts), len(found & cuts), len(found - cuts))
        counts = Counts(*map(sum, zip(counts, these, strict=True)))
    return counts


def measure_cost(path: Path) -> tuple[float, float]:
    """Return the seconds of process CPU time a frame for decoding, and for looking for cuts."""
    decoding, looking = list[float](), list[float]()
    for _ in range(COST_ROUNDS):
        frames = 0
        finder, spent, began = CutDetector(ShotDetection()), 0.0, time.process_time()
        with av.open(str(path)) as file:
            file.streams.video[0].thread_count = 1
            for index, frame in enumerate(file.decode(video=0)):
                frames = index + 1
                before = time.process_time()
                finder.push(index, frame)
                spent += time.process_time() - before
        decoding.append((time.process_time() - began - spent) / frames)
        looking.append(spent / frames)
    return statistics.median(decoding), statistics.median(looking)


def print_cost(name: str, path: Path) -> None:
    """Print a row of the table of costs."""
    decoding, looking = measure_cost(path)
    print(f"{name:24}{decoding * 1e3:>9.2f} ms{looking * 1e3:>9.2f} ms{looking / decoding:>9.0%}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = command_parser(__doc__)
    parser.add_argument("--videos", type=int, default=4)
    parser.add_argument("--set", choices=["tuning", "held-out"], default="held-out")
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--footage", type=Path, nargs="+", default=[])
    args = parser.parse_args()
    photos = [Image.open(path).convert("RGB") for path in sorted(args.photos.iterdir())] if args.photos else []
    with tempfile.TemporaryDirectory() as folder:
        path, total = Path(folder) / "video.mp4", Counts(0, 0, 0)
        print(f"{args.set:16}{'cuts':>6}{'found':>7}{'false':>7}{'recall':>9}{'precision':>11}")
        for kind in KINDS:
            counts = count(path, kind, args.set, args.videos, photos)
            total = Counts(*map(sum, zip(total, counts, strict=True)))
            print(f"{kind:16}{counts}", flush=True)
        print(f"{'all':16}{total}\n\n{'change':20}{'none':>6}{'one':>6}{'more':>6}")
        for kind in GRADUAL:
            begun = [0, 0, 0]
            for number in range(args.videos):
                write_scene(path, *scene_of(kind, args.set, number, photos))
                begun[min(2, len(find_cuts(path)))] += 1
            print(f"{kind:20}" + "".join(f"{videos:>6}" for videos in begun), flush=True)
        print(f"\n{'video':24}{'decoding':>12}{'looking':>12}{'share':>9}")
        for width, height in SIZES:
            write_video(path, width, height, COST_FRAMES)
            print_cost(f"{width}x{height}", path)
        for footage in args.footage:
            print_cost(footage.name, footage)


if __name__ == "__main__":
    run_command(main)
