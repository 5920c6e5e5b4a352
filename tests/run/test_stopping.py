"""How far a run gets ahead of its server, and what it saves when it is stopped while the server is answering."""

import asyncio

from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.decode.sampling import Sampling
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionOptions, CaptionTrack
from support.fake_torchserve import FakeTorchServe, Gate, captions
from support.patience import PATIENCE


class WatchedClient(CaptionClient):
    """Counts calls, and tells when so many requests have waited for a permit."""

    def __init__(self, server: FakeTorchServe, expected: int) -> None:
        super().__init__([Server(server.url)], "captioner", requests_in_flight=2)
        self.calls = self.asked_for = 0
        self.asked = asyncio.Event()
        acquire = self.in_flight.acquire

        async def acquire_and_count(*arguments):
            self.asked_for += 1
            if self.asked_for == expected:
                self.asked.set()
            return await acquire(*arguments)

        self.in_flight.acquire = acquire_and_count

    async def request(self, operation, items, permit=None):
        self.calls += 1
        return await super().request(operation, items, permit)


async def test_of_the_batches_that_may_not_be_sent_yet_one_request_is_formed(media, tmp_path):
    gate, sources = Gate(), ["old.avi", "full-chroma.mkv", "variable-rate.mp4"]
    async with FakeTorchServe(gate) as server, WatchedClient(server, expected=3) as client:
        options = CaptionOptions(Sampling(every=1), frames_per_request=2, decode_workers=3)
        run = Run([CaptionTrack(client, options)], tmp_path)
        running = asyncio.create_task(run.run([str(media / name) for name in sources]))
        await asyncio.wait_for(client.asked.wait(), PATIENCE)  # one more than may be sent
        await gate.wait_for(2)
        await client.describe()  # a round trip in which more could be asked for
        assert (client.calls, client.asked_for) == (2, 3)
        gate.open.set()
        assert (await asyncio.wait_for(running, PATIENCE)).failed == 0


async def test_requests_that_were_sent_are_saved_and_those_that_wait_are_given_up(media, tmp_path):
    answering = asyncio.Event()

    async def answer(request):
        await answering.wait()
        return await captions(request)

    async with FakeTorchServe(answer) as server, CaptionClient([Server(server.url)], "captioner") as client:
        run = Run([CaptionTrack(client, CaptionOptions(Sampling(every=1), frames_per_request=5))], tmp_path)
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
