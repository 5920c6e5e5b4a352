"""What is saved of a source whose decode process dies does not depend on how far its replies had come."""

import asyncio

import pytest

from reelscribe.contract.source import Source
from reelscribe.run.tracks.track import Assignment, SourceSender


class Track:
    """Notes what it is to save."""

    def __init__(self) -> None:
        self.saved = []

    def save_opened(self, path, job, opened):
        self.saved.append(opened)
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def send(self, assigned, batch):
        return asyncio.create_task(asyncio.sleep(0, batch))

    async def save(self, path, job, opened, saved) -> None:
        self.saved.append(saved)

    def raise_if_stopping(self) -> None:
        pass


@pytest.mark.parametrize(
    ("batches", "died", "saved"),
    [
        ([], True, []),
        ([], False, ["opened"]),
        (["first", "second"], True, ["opened", "first", "second"]),
    ],
    ids=["it died before its first batch", "a file without batches", "it died after some batches"],
)
async def test_what_was_opened_is_saved_with_the_first_batch_or_at_the_end(batches, died, saved):
    track = Track()
    sender = SourceSender(track, Assignment(Source("a.mp4"), planned=None, settings_id=1), job=None)
    sender.open("opened")
    for batch in batches:
        await sender.send(batch)
    await sender.finish(died=died)
    assert track.saved == saved
