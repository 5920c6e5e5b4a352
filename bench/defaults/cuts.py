"""Are the cuts of videos found where they are hard to find, and what does it cost to look for them?

    scripts/bench defaults/cuts [--videos 4] [--set tuning|held-out] [--photos FOLDER] [--footage FILE ...]
                                [--weights FOLDER]

demo/synthetic/shot_scenes.py makes the videos: kinds that each have one difficulty, in two sets that share nothing.
The threshold was chosen with "tuning"; "held-out" says what it is worth. With --photos, shots show the pictures of a
folder instead of textures, 17 or more. With --weights, a TransNetV2 with the weights in a folder looks at the same
videos, on one thread of the CPU.

For each detector, the first table shows for each kind how many cuts there are, how many were found at the very frame
(recall), and how many of those found are cuts (precision). The second shows what becomes of dissolves and of fades
through black, each of which is in a video of its own: in how many videos no shot began, one, and more than one, and in
how many at least one was told to follow gradually. The third shows where shots begin in drawn clips in which objects
move, appear and disappear on a background that stays: nowhere would be right.

The last tables show process CPU time a frame for decoding and for looking for cuts. Our own detector looks at noisy
videos of three sizes and at the files of --footage: each is the median of rounds in which both take turns at every
frame. The network looks at noise.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np
import torch
from PIL import Image

from lib.command import command_parser, run_command
from reelscribe.contract.frames import InputSize
from reelscribe.contract.shots import WindowArray
from reelscribe.decode.shots import CutDetector, ShotDetection
from reelscribe.decode.video import Video, VideoTask
from reelscribe.results.shots import MarkedFrame, shots_of
from reelscribe.run.tracks.shots import DEFAULT_PROBABILITY
from shots.detector import WINDOWING, ShotDetector, ShotSettings
from synthetic.shot_scenes import GRADUAL, KINDS, SceneSet, scene_of, write_scene
from synthetic.video_files import write_event_library, write_video

SIZES = ((640, 360), (1280, 720), (1920, 1080))
COST_FRAMES = 100
COST_ROUNDS = 5
EVENT_CLIPS = 8
EVENT_FRAMES = 100


class Found(NamedTuple):
    """The shots that a detector has found in a video, but the first."""

    starts: set[int]
    """Frames with which they begin."""
    gradual: set[int]
    """Those of these that follow the shot before them gradually."""


Detector = Callable[[Path], Found]


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


def find_by_comparing(path: Path) -> Found:
    """Find shots with our own detector."""
    with Video(VideoTask(str(path), InputSize(1, 1), sampling=None, detection=ShotDetection())) as video:
        assert video.shots is not None
        return Found({shot.start_frame for shot in video.shots[1:]}, set())


class LearnedDetector:
    """Finds shots with a TransNetV2."""

    def __init__(self, folder: Path) -> None:
        """Load the weights in a folder."""
        torch.set_num_threads(1)
        self.detector = ShotDetector(ShotSettings(str(folder)), torch.device("cpu"))

    def __call__(self, path: Path) -> Found:
        """Find the shots of a video."""
        with Video(VideoTask(str(path), InputSize(WINDOWING.width, WINDOWING.height))) as video:
            total = video.info.frames
            images = [frame.image for frame in video.frames(range(total)) if frame.image is not None]
            marked = list[MarkedFrame]()
            for first in range(0, total, WINDOWING.step):
                window = np.stack([images[index] for index in WINDOWING.indices(first, total)])
                (answer,) = self.detector.detect([[window]])
                for index in range(first, min(first + WINDOWING.step, total)):
                    place = WINDOWING.context + index - first
                    frame = MarkedFrame(index, 0.0, answer.cut[place], answer.transition[place])
                    if max(frame.cut, frame.transition) > DEFAULT_PROBABILITY:
                        marked.append(frame)
            shots, transitions = shots_of(marked, video.info, DEFAULT_PROBABILITY)
        pairs = list(zip(shots, transitions, strict=True))[1:]
        gradual = {shot.start_frame for shot, transition in pairs if transition == "gradual"}
        return Found({shot.start_frame for shot, _ in pairs}, gradual)


def print_kinds(find: Detector, path: Path, part: SceneSet, videos: int, photos: Sequence[Image.Image]) -> None:
    """Print the cuts that are found in the videos of each kind, which are written to `path`."""
    print(f"{part:16}{'cuts':>6}{'found':>7}{'false':>7}{'recall':>9}{'precision':>11}")
    total = Counts(0, 0, 0)
    for kind in KINDS:
        counts = Counts(0, 0, 0)
        for number in range(videos):
            scene, rate = scene_of(kind, part, number, photos)
            write_scene(path, scene, rate)
            cuts, found = {*scene.cuts}, find(path).starts
            these = Counts(len(cuts), len(found & cuts), len(found - cuts))
            counts = Counts(*map(sum, zip(counts, these, strict=True)))
        total = Counts(*map(sum, zip(total, counts, strict=True)))
        print(f"{kind:16}{counts}", flush=True)
    print(f"{'all':16}{total}\n")


def print_gradual(find: Detector, path: Path, part: SceneSet, videos: int, photos: Sequence[Image.Image]) -> None:
    """Print what becomes of gradual changes."""
    print(f"{'change':20}{'none':>6}{'one':>6}{'more':>6}{'gradual':>9}")
    for kind in GRADUAL:
        begun, gradual = [0, 0, 0], 0
        for number in range(videos):
            write_scene(path, *scene_of(kind, part, number, photos))
            found = find(path)
            begun[min(2, len(found.starts))] += 1
            gradual += bool(found.gradual)
        print(f"{kind:20}" + "".join(f"{count:>6}" for count in begun) + f"{gradual:>9}", flush=True)


def print_events(find: Detector, folder: Path) -> None:
    """Print where shots begin in drawn clips that each are one shot."""
    print(f"\n{'clip':60}{'false':>6}")
    paths, captions = write_event_library(
        folder, 640, 360, clips=EVENT_CLIPS, different=EVENT_CLIPS, frames=EVENT_FRAMES
    )
    for path, caption in zip(paths, captions, strict=True):
        starts = find(path).starts
        print(f"{caption[:58]:60}{len(starts):>6}  {', '.join(map(str, sorted(starts)))}", flush=True)


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


def print_costs(path: Path, footage: Sequence[Path]) -> None:
    """Print what our own detector costs."""
    print(f"\n{'video':24}{'decoding':>12}{'looking':>12}{'share':>9}")
    for width, height in SIZES:
        write_video(path, width, height, COST_FRAMES)
        print_cost(f"{width}x{height}", path)
    for each in footage:
        print_cost(each.name, each)


def print_costs_of_network(detector: ShotDetector, path: Path, footage: Sequence[Path]) -> None:
    """Print what the network costs, and beside it the decoding to its size."""
    shape = (1, WINDOWING.frames, WINDOWING.height, WINDOWING.width, 3)
    windows: WindowArray = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    looking = []
    for _ in range(COST_ROUNDS):
        began = time.process_time()
        detector.detect([[*windows]])
        looking.append((time.process_time() - began) / WINDOWING.step)
    cost = statistics.median(looking)
    print(f"\n{'video':24}{'decoding':>12}{'network':>12}{'share of decoding':>19}")
    paths = {each.name: each for each in footage}
    for width, height in SIZES:
        paths[f"{width}x{height}"] = path.with_name(f"{width}.mp4")
        write_video(paths[f"{width}x{height}"], width, height, COST_FRAMES)
    for name, each in paths.items():
        began = time.process_time()
        with Video(VideoTask(str(each), InputSize(WINDOWING.width, WINDOWING.height))) as video:
            frames = sum(1 for _ in video.frames(range(video.info.frames)))
        decoding = (time.process_time() - began) / frames
        share = decoding / (decoding + cost)
        print(f"{name:24}{decoding * 1e3:>9.2f} ms{cost * 1e3:>9.2f} ms{share:>19.0%}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = command_parser(__doc__)
    parser.add_argument("--videos", type=int, default=4)
    parser.add_argument("--set", choices=["tuning", "held-out"], default="held-out")
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--footage", type=Path, nargs="+", default=[])
    parser.add_argument("--weights", type=Path)
    args = parser.parse_args()
    photos = [Image.open(path).convert("RGB") for path in sorted(args.photos.iterdir())] if args.photos else []
    learned = LearnedDetector(args.weights) if args.weights else None
    detectors: dict[str, Detector] = {"reelscribe": find_by_comparing, **({"transnetv2": learned} if learned else {})}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "video.mp4"
        for name, find in detectors.items():
            print(f"--- {name}")
            print_kinds(find, path, args.set, args.videos, photos)
            print_gradual(find, path, args.set, args.videos, photos)
            print_events(find, Path(directory) / f"events of {name}")
        print_costs(path, args.footage)
        if learned:
            print_costs_of_network(learned.detector, path, args.footage)


if __name__ == "__main__":
    run_command(main)
