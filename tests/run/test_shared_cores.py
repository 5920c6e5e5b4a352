"""How many decode processes the tracks of a run could have, by which a run says whether more of them would help."""

from contextlib import AsyncExitStack

import pytest

from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient, SpeechClient
from reelscribe.run import node
from reelscribe.run.tracks.captions import CaptionOptions
from reelscribe.run.tracks.track import Track
from reelscribe.run.tracks.transcripts import SpeechOptions
from support.fake_torchserve import SPEECH, FakeTorchServe


class Told(Track):
    """Keeps the number of decode processes that it gets, and the number for which there are cores."""

    def decode_with(self, processes: int, why: str, cores: int) -> None:
        super().decode_with(processes, why, cores)
        self.told = (processes, cores)


@pytest.mark.parametrize(
    ("of_frames", "of_speech", "expected"),
    [
        (None, None, [(12, 12), (3, 3)]),  # all cores decode already
        (4, None, [(4, 16), (12, 12)]),  # the other track takes what is left
        (4, 8, [(4, 8), (8, 12)]),
        (10, 6, [(10, 10), (6, 6)]),
    ],
)
async def test_a_track_that_has_the_cores_which_others_leave_can_have_no_more(
    of_frames, of_speech, expected, monkeypatch
):
    monkeypatch.setattr(node, "usable_cores", lambda: 16)
    async with AsyncExitStack() as stack:
        frames = await stack.enter_async_context(FakeTorchServe())
        speech = await stack.enter_async_context(FakeTorchServe(description=SPEECH))
        captioner = await stack.enter_async_context(CaptionClient([Server(frames.url)], "captioner"))
        listener = await stack.enter_async_context(SpeechClient([Server(speech.url)], "speech"))
        tracks = [
            Told(CaptionOptions(decode_workers=of_frames), captioner),
            Told(SpeechOptions(audio_workers=of_speech), listener),
        ]
        await node.enter_tracks(tracks, stack)
        assert [track.told for track in tracks] == expected
