"""Windows of audio on their way between the two stages of Whisper.

A window is the stretch of audio that the encoder takes at once. As the stages may run in different processes, windows
and their transcripts are sent as trees of plain values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from reelscribe.contract.speech import ChunkTranscript, TranscriptionOptions
from runtime.second_stage import TensorTree
from transcripts.chunks import Samples


@dataclass(frozen=True)
class Window:
    """What the second stage needs to know of a window, besides the encoder's states."""

    options: TranscriptionOptions
    duration: float
    """Length of the audio, in seconds."""
    seeds: tuple[int, ...]
    """A seed for each temperature."""

    @classmethod
    def of(
        cls, samples: Samples, options: TranscriptionOptions, sample_rate: int, temperatures: Sequence[float]
    ) -> Window:
        """Make the window of some audio.

        Seeds are hashes of the audio: for equal audio, a temperature draws equal tokens, in every batch and process.

        Args:
            samples: The audio, (N,) at `sample_rate`.
            options: How to transcribe it.
            sample_rate: In Hz.
            temperatures: The temperatures that may be tried.
        """
        digest = hashlib.sha256(samples.tobytes())
        return cls(options, len(samples) / sample_rate, tuple(_seed(digest, t) for t in temperatures))

    @classmethod
    def from_tree(cls, tree: TensorTree) -> Window:
        """Read what `to_tree` returned."""
        return cls(TranscriptionOptions(**tree["options"]), tree["duration"], tuple(tree["seeds"]))

    def to_tree(self) -> TensorTree:
        """Make a tree that can be sent to the second stage."""
        tree: TensorTree = _with_lists(asdict(self))
        return tree


class TranscribedWindow(NamedTuple):
    """The output of the second stage for a window."""

    transcript: ChunkTranscript
    """Its times count from the start of the window."""
    end: float
    """Seconds from the start of the window up to which it is transcribed; the rest of the window needs another pass."""
    token_count: int
    """Number of generated tokens, at all temperatures together."""

    @classmethod
    def from_tree(cls, tree: TensorTree) -> TranscribedWindow:
        """Read what `to_tree` returned."""
        return cls(ChunkTranscript.from_json(tree["transcript"]), tree["end"], tree["tokens"])

    def to_tree(self) -> TensorTree:
        """Make a tree that can be sent to the first stage."""
        return {"transcript": _with_lists(self.transcript.to_json()), "end": self.end, "tokens": self.token_count}


def _with_lists(value: Any) -> Any:
    """The value with lists instead of tuples, which cannot be sent."""
    if isinstance(value, dict):
        return {name: _with_lists(item) for name, item in value.items()}
    return [_with_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def _seed(digest: hashlib._Hash, temperature: float) -> int:
    copy = digest.copy()
    copy.update(str(temperature).encode())
    return int.from_bytes(copy.digest()[:8], "little", signed=True)
