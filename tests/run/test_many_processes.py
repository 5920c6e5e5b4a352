"""Records do not depend on how many decode processes read a source: all ways to choose frames, of odd and broken files.

Videos are divided at every entry point, so that short files have portions. With REELSCRIBE_TORTURE_RUNS set, frames
are chosen in all ways, and runs with 2 and 5 processes follow those with 1 and 3; this takes about 90 s.
"""

import hashlib
import os
import random
import shutil
from pathlib import Path

import pytest
from aiohttp import web

from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.contract.frames import FrameCaption
from reelscribe.decode.sampling import Sampling
from reelscribe.decode_pool import frames as frame_commands
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionOptions, CaptionTrack
from support import odd_media
from support.fake_torchserve import FakeTorchServe, Received
from support.odd_library import make_library

TORTURE = "REELSCRIBE_TORTURE_RUNS" in os.environ
WORKERS = (2, 3, 5) if TORTURE else (3,)
OPTIONS = {
    "every": CaptionOptions(Sampling(every=1)),
    "every-7": CaptionOptions(Sampling(every=7)),
    "fps": CaptionOptions(Sampling(fps=3)),
    "frames": CaptionOptions(Sampling(frames=16)),
    "keyframes": CaptionOptions(Sampling(keyframes=True)),
    "per-shot": CaptionOptions(Sampling(per_shot=3)),
    "start-end": CaptionOptions(Sampling(every=2, start=1.1, end=3.7)),
    "reuse": CaptionOptions(Sampling(every=1), reuse=True),
    "decord": CaptionOptions(Sampling(every=2), decoder="decord"),
}
DIVIDED = {"all-frames.mp4", "all-frames.mkv", "other.webm"}
"""Files of the library that have entry points, whatever is chosen; others have them where more frames are chosen."""


class RecordingTrack(CaptionTrack):
    """Keeps how many entry points each source has."""

    def __init__(self, client: CaptionClient, options: CaptionOptions) -> None:
        super().__init__(client, options)
        self.entry_points: dict[str, int] = {}

    def save_opened(self, path, job, opened):
        self.entry_points[Path(path).name] = len(opened.entry_points)
        return super().save_opened(path, job, opened)


async def digests(request: Received) -> web.Response:
    """Respond like a captioner whose captions tell every pixel apart."""
    captions = [hashlib.sha256(frame.tobytes()).hexdigest()[:12] for frame in request.frames]
    return web.json_response([FrameCaption(caption, avg_logprob=-0.25).to_json() for caption in captions])


@pytest.fixture(scope="module")
def library(media, tmp_path_factory) -> Path:
    """The library of the torture test, and files with many keyframes, whole, damaged, cut short and joined."""
    folder = tmp_path_factory.mktemp("library") / "odd"
    make_library(folder, media)
    for path in folder.glob("same-[46]*"):  # there are copies of both
        path.unlink()
    numbers = range(100)
    for name in ("all-frames.mp4", "all-frames.mkv", "recording.ts", "numbered.avi", "film.mov"):
        options = {"g": "10", "bf": "2"}
        odd_media.write(folder / name, "libx264", numbers, options=options)
    odd_media.write(folder / "open.mp4", "libx264", numbers, options={"bf": "2", "x264-params": "open-gop=1"})
    odd_media.write(folder / "renewed.mp4", "libx264", numbers, options={"x264-params": "intra-refresh=1"})
    options = {"g": "10", "deadline": "realtime", "cpu-used": "8"}
    odd_media.write(folder / "other.webm", "libvpx-vp9", numbers, options=options)
    odd_media.join(folder / "jumps.ts", folder / "recording.ts", folder / "recording.ts")
    for name in ("all-frames.mp4", "all-frames.mkv", "other.webm", "recording.ts"):
        chance, content = random.Random(name), bytearray((folder / name).read_bytes())
        (folder / f"short-{name}").write_bytes(content[: len(content) * 2 // 3])
        for _ in range(15):
            content[chance.randrange(len(content) // 5, len(content) * 9 // 10)] ^= 1 << chance.randrange(8)
        (folder / f"damaged-{name}").write_bytes(content)
    return folder


async def annotate(library: Path, out: Path, options: CaptionOptions) -> tuple[bytes, dict[str, int]]:
    """Caption all files; return the records and how many entry points each source has."""
    async with FakeTorchServe(digests) as server, CaptionClient([Server(server.url)], "captioner") as client:
        track = RecordingTrack(client, options)
        await Run([track], out).run([str(library)])
    return (out / "annotations.jsonl").read_bytes(), track.entry_points


@pytest.mark.parametrize("choice", OPTIONS if TORTURE else ["every", "keyframes"])
async def test_records_are_those_of_one_process(library, tmp_path, monkeypatch, choice):
    monkeypatch.setattr(frame_commands, "PORTION_SECONDS", 1e-9)
    options = OPTIONS[choice]
    alone, entry_points = await annotate(library, tmp_path / "1", with_workers(options, 1))
    assert not any(entry_points.values())
    assert alone.count(b'"captions":[{') > 20
    for workers in WORKERS:
        records, entry_points = await annotate(library, tmp_path / str(workers), with_workers(options, workers))
        divided = {name for name, points in entry_points.items() if points}
        assert divided == set() if options.reuse or options.decoder == "decord" else divided >= DIVIDED
        assert records == alone
        shutil.rmtree(tmp_path / str(workers))


def with_workers(options: CaptionOptions, workers: int) -> CaptionOptions:
    return CaptionOptions(**{**vars(options), "decode_workers": workers})
