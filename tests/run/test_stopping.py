"""How far a run gets ahead of its server, in which order it tells what is done, and how it ends before its time."""

import asyncio
import shutil
from dataclasses import replace

import pytest
from aiohttp import web

from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.decode.sampling import Sampling
from reelscribe.errors import ServerError
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.run import driver
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionMedium, CaptionOptions, CaptionTrack
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


async def test_a_run_that_is_stopped_during_its_last_request_is_complete(media, tmp_path, monkeypatch):
    operation = CaptionMedium.operation  # with this, a request is sent when its source has been read
    monkeypatch.setattr(CaptionMedium, "operation", lambda medium: replace(operation(medium), join_seconds=PATIENCE))

    async def answer(request):
        run.stop()
        return await captions(request)

    async with FakeTorchServe(answer) as server, CaptionClient([Server(server.url)], "captioner") as client:
        run = Run([CaptionTrack(client)], tmp_path)
        summary = await asyncio.wait_for(run.run([str(media / "old.avi")]), PATIENCE)
    assert (summary.interrupted, summary.snapshot.sources_done) == (False, 1)


async def test_a_new_source_before_many_that_are_done_comes_first(media, tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "OPEN_SOURCES", 4)
    library = tmp_path / "library"
    library.mkdir()
    for number in range(1, 20):
        shutil.copy(media / "same-480x270.mp4", library / f"{number:02}.mp4")
    told: list[str] = []
    async with FakeTorchServe() as server, CaptionClient([Server(server.url)], "captioner") as client:

        async def run_once() -> None:
            told.clear()
            one = Run(
                [CaptionTrack(client)], tmp_path / "out", on_record=lambda record: told.append(record.source.path)
            )
            await asyncio.wait_for(one.run([str(library)]), PATIENCE)

        await run_once()
        shutil.copy(media / "variable-rate.mp4", library / "00.mp4")
        await run_once()
    assert [path[-6:-4] for path in told] == [f"{number:02}" for number in range(20)]


async def test_nothing_goes_on_after_a_run_that_has_failed(media, tmp_path):
    async def answer(_):
        return web.json_response("no captions")

    async with FakeTorchServe(answer) as server, CaptionClient([Server(server.url)], "captioner") as client:
        sources = [str(media / name) for name in ("old.avi", "full-chroma.mkv", "variable-rate.mp4")]
        with pytest.raises(ServerError, match="expected a list"):
            await asyncio.wait_for(Run([CaptionTrack(client)], tmp_path).run(sources), PATIENCE)
        names = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]
    assert [name for name in names if name.startswith("Node.")] == []
