"""Sources of a frame or two: they share requests, and each has a record and a job of its own."""

import asyncio

import numpy as np
import pytest

from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionTrack
from support.fake_torchserve import FakeTorchServe, Gate
from support.patience import PATIENCE
from support.videos import write_pictures

LEVELS = range(40, 240, 20)


class CountingTrack(CaptionTrack):
    """Tells when a number of batches have been sent or wait in a request."""

    def __init__(self, client: CaptionClient, expected: int) -> None:
        super().__init__(client)
        self._sent, self._expected = 0, expected
        self.all_sent = asyncio.Event()

    async def send(self, assigned, batch):
        task = await super().send(assigned, batch)
        self._sent += 1
        if self._sent == self._expected:
            self.all_sent.set()
        return task


@pytest.fixture
def clips(tmp_path):
    """Videos of one frame, each of another grey."""
    paths = [tmp_path / f"clip-{level}.mkv" for level in LEVELS]
    for path, level in zip(paths, LEVELS, strict=True):
        write_pictures(path, "libx264", [np.full((16, 16, 3), level, np.uint8)])
    return [str(path) for path in paths]


async def test_short_sources_share_requests_and_have_records_of_their_own(clips, tmp_path):
    gate = Gate()
    async with FakeTorchServe(gate) as server, CaptionClient([Server(server.url)], "captioner") as client:
        track = CountingTrack(client, expected=len(clips))
        running = asyncio.create_task(Run([track], tmp_path / "out").run(clips))
        await asyncio.wait_for(track.all_sent.wait(), PATIENCE)
        gate.open.set()
        assert (await asyncio.wait_for(running, PATIENCE)).failed == 0
    assert sum(len(request.names()) for request in server.received) == len(clips)
    assert len(server.received) <= 2  # one that was sent first, and one with all that came while it was in flight
    with LedgerReader(tmp_path / "out") as ledger:
        results = [list(ledger.frame_results(job)) for job in range(1, len(clips) + 1)]
    assert [len(frames) for frames in results] == [1] * len(clips)
    texts = [frames[0].text for frames in results]
    assert len({*texts}) == len(clips)
