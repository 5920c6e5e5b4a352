import pytest

from transcripts.whisper.transcriber import Thresholds

USUAL = Thresholds(compression_ratio=2.4, no_speech=0.8)
NONE = Thresholds(None, None)


@pytest.mark.parametrize(
    ("compression_ratio", "ends_in_loop", "needs_fallback"),
    [
        (1.5, False, False),
        (3.0, True, True),
        (3.0, False, False),  # people repeat themselves, too
        (1.5, True, False),  # four words are no loop
    ],
)
def test_a_text_that_got_into_a_loop_is_decoded_again(compression_ratio, ends_in_loop, needs_fallback):
    assert USUAL.needs_fallback(compression_ratio, ends_in_loop=ends_in_loop) is needs_fallback
    assert not NONE.needs_fallback(compression_ratio, ends_in_loop=ends_in_loop)


@pytest.mark.parametrize(
    ("avg_logprob", "no_speech_prob", "no_speech"),
    [
        (-0.3, 0.01, False),  # long speech
        (-1.5, 0.06, False),  # a short word
        (-1.3, 0.4, True),  # a sound
        (-0.3, 0.6, False),
        (-0.3, 0.9, True),
    ],
)
def test_the_probability_of_no_speech_and_an_improbable_text_count_together(avg_logprob, no_speech_prob, no_speech):
    assert USUAL.is_no_speech(avg_logprob, no_speech_prob) is no_speech
    assert not NONE.is_no_speech(avg_logprob, no_speech_prob)
