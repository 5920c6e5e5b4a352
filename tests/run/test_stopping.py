"""What a run saves when it is stopped while a server is answering."""

import asyncio

from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.results.ledger import LedgerReader
from reelscribe.run.bulk import BulkRun
from reelscribe.run.captioning import CaptionTrack
from reelscribe.run.options import CaptionOptions
from support.fake_torchserve import FakeTorchServe, captions
from support.patience import PATIENCE


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
