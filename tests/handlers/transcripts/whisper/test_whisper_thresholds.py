import pytest

from transcripts.whisper.transcriber import Thresholds

USUAL = Thresholds(compression_ratio=2.4, logprob=-1.0, no_speech=0.6)
NONE = Thresholds(None, None, None)


@pytest.mark.parametrize(
    ("thresholds", "avg_logprob", "compression_ratio", "no_speech_prob", "doubtful", "no_speech"),
    [
        (USUAL, -0.3, 1.5, 0.1, False, False),
        (USUAL, -1.5, 1.5, 0.1, True, False),
        (USUAL, -0.3, 3.0, 0.1, True, False),
        # Silence is no clearer at another temperature, but a probable text that repeats itself may be.
        (USUAL, -1.5, 3.0, 0.9, False, True),
        (USUAL, -0.3, 3.0, 0.9, True, False),
        (USUAL, -0.3, 1.5, 0.9, False, False),
        (NONE, -9.0, 99.0, 0.99, False, False),
        # Without a threshold for the text, nothing overrules the probability of no speech.
        (Thresholds(2.4, None, 0.6), -0.3, 1.5, 0.9, False, True),
        (Thresholds(2.4, None, 0.6), -0.3, 3.0, 0.9, True, True),
    ],
)
def test_what_needs_fallback_and_what_is_no_speech(
    thresholds, avg_logprob, compression_ratio, no_speech_prob, doubtful, no_speech
):
    assert thresholds.needs_fallback(avg_logprob, compression_ratio, no_speech_prob, ends_in_loop=True) is doubtful
    assert thresholds.is_no_speech(avg_logprob, no_speech_prob) is no_speech


def test_speech_that_repeats_itself_is_no_failure():
    assert not USUAL.needs_fallback(-0.3, 3.0, 0.1, ends_in_loop=False)


def test_text_whose_tokens_are_guessed_is_no_speech():
    thresholds = Thresholds(2.4, -1.0, 0.6, text_probability=0.4)
    assert thresholds.is_no_speech(-0.9, 0.0, text_probability=0.39)
    assert not thresholds.is_no_speech(-1.2, 0.0, text_probability=0.41)
    assert not NONE.is_no_speech(-9.0, 0.0, text_probability=0.0)
