"""The interface between the engines of a Whisper and all that reelscribe adds to them.

An engine encodes windows, scores their languages, generates tokens and aligns them with the audio. Cutting audio into
windows, temperatures and thresholds, segments and words are the same with every engine (transcriber.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from runtime.compiled_steps import CompiledSteps
from transcripts.whisper.tokens import TokenSegment, WhisperTokens


class DecodedTokens(NamedTuple):
    """The tokens that were generated for one window."""

    tokens: list[int]
    """IDs of text and timestamp tokens, without the prompt and the end token."""
    avg_logprob: float
    """Average log-probability of the tokens and the end token."""
    no_speech_prob: float
    """Probability from 0 to 1 that the window holds no speech, of the decoder's first step."""


class AlignedTokens(NamedTuple):
    """When the N text tokens of a segment are spoken, and how probable they are."""

    times: list[float]
    """When each token starts, and when the last one ends: N + 1 increasing times, in seconds of the window."""
    probabilities: list[float]
    """The probability of each token after those before it, among all text tokens, as in openai/whisper."""


class WindowBatch(Protocol):
    """B encoded windows that an engine decodes."""

    def __len__(self) -> int:
        """B."""

    def select(self, rows: Sequence[int]) -> WindowBatch:
        """Return some of the windows."""

    def language_logits(self) -> Tensor:
        """Return the logits of the languages of a multilingual model in each window, (B, languages), on the CPU."""

    def generate(
        self, prompts: list[list[int]], limits: list[int], temperature: float, seeds: list[int], beams: int = 1
    ) -> list[DecodedTokens]:
        """Generate tokens for each window: the most probable ones, or at a temperature over 0 random ones.

        The probability of no speech is that of the audio alone, whatever was said before it.

        Args:
            prompts: The prompt of each window; all of the same length.
            limits: The most tokens of each window. Settings and the model's positions may limit them further.
            temperature: 0 for greedy decoding; higher values sample more evenly.
            seeds: A seed for each window. Equal seeds draw equal samples, whatever the other windows are: a chunk has
                the same transcript in every batch, which transformers' own fallback for Whisper does not promise.
            beams: Number of texts that are followed at once, at temperature 0: of those that have ended, the one with
                the highest average log-probability is returned.

        Returns:
            The tokens of each window.
        """

    def align(self, prompt: list[int], segments: Sequence[TokenSegment], duration: float) -> list[AlignedTokens]:
        """Align the text tokens of a window with its audio; only for a batch of one window.

        Args:
            prompt: IDs of the tokens before the text, with <|notimestamps|>.
            segments: The segments of the window, in order, each with at least one token.
            duration: Length of the window's audio, in seconds.

        Returns:
            The times and the probabilities of the tokens of each segment. No token lasts less than 0.02 s, unless the
            window is too short for that; then all tokens last equally long.
        """


class WhisperEngine(Protocol):
    """A loaded Whisper, or one of its two stages."""

    tokens: WhisperTokens
    """The special tokens of the model."""
    word_times: bool
    """True if the model can align tokens with the audio."""
    dtype: str
    """Name of the data type that the model computes in."""
    revision: str
    """Commit or digest of the weights."""
    positions: int
    """Number of the decoder's positions."""
    steps: CompiledSteps | None
    """The compiled steps of the decoder, if the settings ask for them."""

    def encode(self, features: Tensor) -> Tensor:
        """Run the encoder.

        Args:
            features: Log-mel spectrograms of B windows, (B, mels, frames), float32.

        Returns:
            The encoder's states, (B, T, D), for `batch`.
        """

    def batch(self, states: Tensor) -> WindowBatch:
        """Return the windows whose states `encode` returned."""


def token_limits(limits: list[int], prompt: list[int], most: float, positions: int) -> list[int]:
    """Limit the tokens of windows further, to what settings and the model allow.

    Args:
        limits: The most tokens of each window.
        prompt: A prompt of the windows.
        most: The limit of the settings; infinity for none.
        positions: Number of the decoder's positions.

    Returns:
        The most tokens of each window.
    """
    # The last position is left for the end token, which the alignment of words needs.
    longest = min(most, positions - len(prompt) - 1)
    return [int(min(limit, longest)) for limit in limits]


def average_logprob(total: float, generated: int) -> float:
    """Return the average of log-probabilities with this sum, of so many tokens and, as in openai/whisper, their end."""
    return total / (generated + 1)
