"""How far a run gets ahead of its server, and what it saves when it is stopped while the server is answering."""

import asyncio

from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.results.ledger import LedgerReader
from reelscribe.run.bulk import BulkRun
from reelscribe.run.captioning import CaptionTrack
from reelscribe.run.options import CaptionOptions
from support.fake_torchserve import FakeTorchServe, Gate, captions
from support.patience import PATIENCE


class WatchedClient(CaptionClient):
    """Counts calls, and tells when it is asked a third time whether it is ready."""

    def __init__(self, server: FakeTorchServe) -> None:
        super().__init__([Server(server.url)], "captioner", requests_in_flight=2)
        self.calls = self.asked = 0
        self.asked_thrice = asyncio.Event()

    async def ready(self):
        self.asked += 1
        if self.asked == 3:
            self.asked_thrice.set()
        await super().ready()

    async def caption(self, frames):
        self.calls += 1
        return await super().caption(frames)


async def test_a_batch_that_cannot_be_sent_yet_is_left_to_its_decode_process(media, tmp_path):
    gate = Gate()
    async with FakeTorchServe(gate) as server, WatchedClient(server) as client:
        run = BulkRun([CaptionTrack(client, CaptionOptions(frames_per_request=2))], tmp_path)
        running = asyncio.create_task(run.run([str(media / "old.avi")]))
        await gate.wait_for(2)
        await asyncio.wait_for(client.asked_thrice.wait(), PATIENCE)
        assert client.calls == 2
        gate.open.set()
        assert (await running).failed == 0


async def test_requests_that_were_sent_are_saved_and_those_that_wait_are_given_up(media, tmp_path):
    answering = asyncio.Event()

    async def answer(request):
        await answering.wait()
        return await captions(request)

    async with FakeTorchServe(answer) as server, CaptionClient([Server(server.url)], "captioner") as client:
        run = BulkRun([CaptionTrack(client, CaptionOptions(frames_per_request=5))], tmp_path)
        running = asyncio.create_task(run.run([str(media / "old.avi")]))
        for _ in range(2):  # as many as are sent at once to one worker
            await server.arrivals.get()
        run.stop()
        answering.set()
        summary = await asyncio.wait_for(running, PATIENCE)
    assert summary.interrupted
    assert len(server.received) == 2
    with LedgerReader(tmp_path) as ledger:
        assert len(list(ledger.frame_results(1))) == 10
