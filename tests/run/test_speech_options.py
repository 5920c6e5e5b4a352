"""What is asked of a speech model, before anything is sent."""

from dataclasses import replace

import pytest

from reelscribe import Run, Server, SpeechClient, TranscriptTrack
from reelscribe.contract.chunking import Cutting
from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.errors import UsageError
from reelscribe.run.tracks.audio import chunk_samples
from reelscribe.run.tracks.transcripts import SpeechOptions
from support.fake_torchserve import SPEECH, FakeTorchServe, refused

OF_ONE_LANGUAGE = replace(SPEECH, languages=(), tasks=("transcribe",), word_times=False)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (
            SpeechOptions(TranscriptionOptions(language="en")),
            "language: expected one that .* knows, got 'en'; it knows none, as it does not say which language it knows",
        ),
        (
            SpeechOptions(TranscriptionOptions(task="translate")),
            "task: expected one that .* can do, transcribe; got 'translate'",
        ),
        (SpeechOptions(TranscriptionOptions(word_times=True)), "word times: .* cannot tell when a word was spoken"),
        (
            SpeechOptions(TranscriptionOptions(initial_prompt="Now.")),
            "initial prompt: a/whisper takes none; leave them",
        ),
        (SpeechOptions(TranscriptionOptions(hotwords="Uster")), "hot words: a/whisper takes none; leave them out"),
        (SpeechOptions(TranscriptionOptions(beams=5)), "beams: expected 1 to 1, the most of a/whisper, got 5"),
        (SpeechOptions(silence_db=float("nan")), "silence_db: expected -200 to 0 dB"),
        (SpeechOptions(silence_db=float("-inf")), "silence_db: expected -200 to 0 dB"),
        (SpeechOptions(silence_db=3.0), "silence_db: expected -200 to 0 dB"),
    ],
)
def test_what_the_model_cannot_do_is_refused(options, rule):
    with pytest.raises(UsageError, match=rule):
        options.check(OF_ONE_LANGUAGE)


def test_channels_are_mixed_or_separate():
    with pytest.raises(UsageError, match="channels: expected mix or separate, got 'left'"):
        SpeechOptions(channels="left")


def test_settings_of_the_mix_are_those_from_before_there_was_a_choice():
    assert "channels" not in SpeechOptions().settings(SPEECH)


async def test_a_search_as_long_as_a_chunk_is_refused_before_anything_is_written(media, tmp_path):
    options = SpeechOptions(cutting=Cutting(search_seconds=60.0))
    async with FakeTorchServe(description=SPEECH) as server, SpeechClient([Server(server.url)], "speech") as client:
        with pytest.raises(UsageError, match="search less"):
            await Run([TranscriptTrack(client, options)], str(tmp_path / "out")).run([str(media / "phrases.ogg")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("hotwords", ["", " ,\n", "\t", ",\r\n"])
def test_hot_words_that_are_none_are_refused(hotwords):
    with pytest.raises(UsageError, match="hot words: expected a text that is not empty"):
        SpeechOptions(TranscriptionOptions(hotwords=hotwords)).check(replace(SPEECH, prompt_tokens=223))


async def test_hot_words_that_the_model_refuses_end_a_run_before_anything_is_written(media, tmp_path):
    async def answer(request):
        return refused(422, "PromptError", "hotwords: expected at most 223 tokens together, got 300")

    speech = FakeTorchServe(answer, description=replace(SPEECH, prompt_tokens=223))
    options = SpeechOptions(TranscriptionOptions(hotwords="Uster"))
    async with speech as server, SpeechClient([Server(server.url)], "speech") as client:
        with pytest.raises(UsageError, match="at most 223 tokens together, got 300"):
            await Run([TranscriptTrack(client, options)], str(tmp_path / "out")).run([str(media / "phrases.ogg")])
    assert len(server.received) == 1
    assert not (tmp_path / "out").exists()


def test_everything_that_decides_what_is_heard_is_in_the_settings():
    options = SpeechOptions()
    options.check(SPEECH)
    settings = options.settings(SPEECH)
    assert not {"initial_prompt", "hotwords", "beams"} & settings.keys()  # as in results from before there were any
    speech = replace(SPEECH, prompt_tokens=223, beams=10)
    for other in (
        SpeechOptions(TranscriptionOptions(initial_prompt="Now.")),
        SpeechOptions(TranscriptionOptions(hotwords="Uster")),
        SpeechOptions(TranscriptionOptions(beams=5)),
    ):
        assert other.settings(speech) != settings
    assert SpeechOptions(TranscriptionOptions(beams=1)).settings(speech) == settings
    for other in (
        SpeechOptions(TranscriptionOptions(word_times=True)),
        SpeechOptions(TranscriptionOptions(task="translate")),
        SpeechOptions(silence_db=None),
        SpeechOptions(vad=True),
        SpeechOptions(channels="separate"),
    ):
        assert other.settings(SPEECH) != settings
    assert options.settings(replace(SPEECH, generation={"temperatures": [0]})) != settings
    for other in (
        SpeechOptions(chunks_per_request=1),
        SpeechOptions(audio_workers=4),
        SpeechOptions(retry_failed=True),
    ):
        assert other.settings(SPEECH) == settings


def test_a_request_is_within_8_mb_and_what_the_server_takes():
    long = replace(SPEECH, chunk_seconds=30.0, sample_rate=16_000, max_chunks=64)
    assert SpeechOptions(chunks_per_request=64).batch_size(long) * 2 * chunk_samples(long) <= 8e6
    assert SpeechOptions().batch_size(replace(long, max_chunks=2)) == 2
