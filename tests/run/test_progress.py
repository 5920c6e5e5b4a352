"""What a run tells of itself while a server, a disk or a chat model keeps it waiting."""

import asyncio
from collections.abc import Callable

import pytest

from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.reporting import bottleneck
from reelscribe.reporting.meter import Snapshot
from reelscribe.reporting.progress import Progress
from reelscribe.results.ledger import Ledger
from reelscribe.run import folder
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionTrack
from support.fake_torchserve import FakeTorchServe, Gate
from support.patience import PATIENCE
from support.summary_runs import all_served, answer


class Waiting(Progress):
    """Keeps the first snapshot that names a limit after all was decoded, and then lets the run go on."""

    def __init__(self, limit: str, go_on: Callable[[], None]) -> None:
        self.limit, self.go_on = limit, go_on
        self.waited: Snapshot | None = None
        self.last: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        """Keep a snapshot."""
        self.last = snapshot
        is_decoded = bool(snapshot.tracks and snapshot.tracks[0].decoded)
        if self.waited is None and is_decoded and snapshot.bottleneck == self.limit:
            self.waited = snapshot
            self.go_on()


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(folder, "SNAPSHOT_SECONDS", 0.05)
    monkeypatch.setattr(bottleneck, "FIRST_SECONDS", 0.1)


def assert_honest(waiting: Waiting) -> None:
    """While a run waited, it was not done; at its end it was."""
    assert waiting.waited
    assert waiting.waited.eta_seconds != 0.0
    assert (waiting.waited.done_share < 1, waiting.waited.sources_done) == (True, 0)
    assert (waiting.last.eta_seconds, waiting.last.done_share) == (0.0, 1.0)


async def test_while_the_server_computes_what_is_decoded_nothing_is_done(media, tmp_path):
    gate = Gate()
    waiting = Waiting("the server is the limit: add GPUs", gate.open.set)
    async with FakeTorchServe(gate) as server, CaptionClient([Server(server.url)], "captioner") as client:
        run = Run([CaptionTrack(client)], tmp_path / "out", progress=waiting)
        await asyncio.wait_for(run.run([str(media / "old.avi")]), PATIENCE)
    assert_honest(waiting)


async def test_a_disk_that_does_not_save_is_the_limit(media, tmp_path, monkeypatch):
    saves, save = asyncio.Event(), Ledger.save_batch
    waiting = Waiting("saving is the limit: use a faster disk", saves.set)

    async def slowly(ledger, *batch):
        await saves.wait()
        await save(ledger, *batch)

    monkeypatch.setattr(Ledger, "save_batch", slowly)
    async with FakeTorchServe() as server, CaptionClient([Server(server.url)], "captioner") as client:
        run = Run([CaptionTrack(client)], tmp_path / "out", progress=waiting)
        await asyncio.wait_for(run.run([str(media / "old.avi")]), PATIENCE)
    assert_honest(waiting)


async def test_a_summary_at_the_end_is_the_limit_when_all_else_is_done(media, tmp_path):
    made = asyncio.Event()
    waiting = Waiting("the server is the limit: add GPUs", made.set)

    async def slowly(_):
        await made.wait()
        return answer()

    async with all_served() as served:
        served.chats.answer = slowly
        await served.run(tmp_path / "out", media / "spoken.mp4", progress=waiting)
    assert_honest(waiting)
    assert [track.eta_seconds for track in waiting.waited.tracks[:2]] == [0.0, 0.0]
