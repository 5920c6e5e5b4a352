"""Captions and transcripts of a single file for programs, whose results come while the file is still read."""

import asyncio
from contextlib import aclosing

import pytest

from reelscribe import CaptionClient, CaptionOptions, Sampling, Server, SpeechClient, caption_file, transcribe_file
from reelscribe.contract.outcomes import Caption, Failure
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.errors import MediaError, NoAudio, NoPictures, ServerError
from support.fake_torchserve import SPEECH, FakeTorchServe, Gate, captions, refused, transcripts
from support.patience import PATIENCE

EVERY_TENTH = CaptionOptions(sampling=Sampling(every=10), frames_per_request=2)
"""Nine frames of old.avi, in five requests."""


def client_of(server: FakeTorchServe) -> CaptionClient:
    return CaptionClient([Server(server.url)], "captioner")


async def test_results_have_the_order_of_frames_also_when_the_first_request_is_answered_last(media):
    others = asyncio.Event()

    async def first_last(request):
        if request is server.received[0]:
            await asyncio.wait_for(others.wait(), PATIENCE)
        elif len(server.received) >= 4:
            others.set()
        return await captions(request)

    async with FakeTorchServe(first_last) as server, client_of(server) as client:
        results = [result async for result in caption_file(client, str(media / "old.avi"), EVERY_TENTH)]
    assert [result.frame_index for result in results] == list(range(0, 90, 10))


async def test_a_result_comes_before_the_requests_after_it_are_answered(media):
    gate = Gate()

    async def first_at_once(request):
        return await (captions if request is server.received[0] else gate)(request)

    async with FakeTorchServe(first_at_once) as server, client_of(server) as client:
        results = caption_file(client, str(media / "old.avi"), EVERY_TENTH)
        first = await asyncio.wait_for(anext(results), PATIENCE)
        assert first.frame_index == 0
        gate.open.set()
        assert len([result async for result in results]) == 8


async def test_a_generator_that_is_closed_stops_its_work(media):
    gate = Gate()

    async def first_at_once(request):
        return await (captions if request is server.received[0] else gate)(request)

    async with FakeTorchServe(first_at_once) as server, client_of(server) as client:
        async with aclosing(caption_file(client, str(media / "old.avi"), EVERY_TENTH)) as results:
            await asyncio.wait_for(anext(results), PATIENCE)
        working = [task for task in asyncio.all_tasks() if "Track." in repr(task) or "SourceSender." in repr(task)]
        gate.open.set()
    assert working == []


async def test_refused_requests_are_failures_and_no_exception(media):
    async def refuse(request):
        if not request.frames.any():  # black frames check whether the server works
            return await captions(request)
        return refused(422, "FramesError", "no good")

    async with FakeTorchServe(refuse) as server, client_of(server) as client:
        results = [result async for result in caption_file(client, str(media / "old.avi"), EVERY_TENTH)]
    assert len(results) == 9
    assert all(isinstance(result, Failure) for result in results)


async def test_a_file_that_is_cut_short_is_an_error_after_its_last_result(media, tmp_path):
    cut = tmp_path / "cut.avi"
    cut.write_bytes((media / "old.avi").read_bytes()[:90_000])
    results = []
    async with FakeTorchServe() as server, client_of(server) as client:
        with pytest.raises(MediaError, match=r"cut\.avi: .*cut short"):
            async for result in caption_file(client, str(cut), EVERY_TENTH):
                results += [result]
    assert [result.frame_index for result in results] == list(range(0, 80, 10))
    assert all(isinstance(result, Caption) for result in results)


async def test_the_class_of_an_error_says_which_stream_is_missing(media):
    async with FakeTorchServe() as server, client_of(server) as client:
        with pytest.raises(NoPictures, match=r"phrases\.ogg: "):
            await anext(caption_file(client, str(media / "phrases.ogg")))
    async with (
        FakeTorchServe(transcripts, description=SPEECH) as server,
        SpeechClient([Server(server.url)], "speech") as client,
    ):
        with pytest.raises(NoAudio, match=r"old\.avi: "):
            await anext(transcribe_file(client, str(media / "old.avi")))


async def test_no_digest_is_computed(media, monkeypatch):
    monkeypatch.delattr(DecodePool, "digest_file")
    async with FakeTorchServe() as server, client_of(server) as client:
        assert [result async for result in caption_file(client, str(media / "old.avi"))]


async def test_a_server_that_is_gone_is_no_media_error(media):
    async with CaptionClient([Server("http://127.0.0.1:1")], "captioner") as client:
        with pytest.raises(ServerError):
            await anext(caption_file(client, str(media / "old.avi")))
