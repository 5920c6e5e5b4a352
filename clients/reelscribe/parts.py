"""What came of a stretch of a video's chosen frames, and the captions of frames that took over another's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from reelscribe.media import Caption, Failure

UNDECODABLE = "it cannot be decoded"


@dataclass(frozen=True)
class Part:
    """The chosen frames from ordinal `first` to before `stop`, each in one of three lists."""

    first: int
    stop: int
    anchor: int | None
    """Index of the last frame up to its end that was sent to be captioned."""
    captions: Sequence[tuple[int, float, str]] = ()
    """Frame index, presentation time, text."""
    reused: Sequence[tuple[int, float, int]] = ()
    """Frame index, presentation time, index of the frame that was sent in place of it."""
    failures: Sequence[tuple[int, float, str]] = field(default=())
    """Frame index, presentation time, why there is no caption."""

    def results_to_json(self) -> str:
        """The three lists."""
        # In ASCII: a model's text may hold half a surrogate pair, which SQLite does not take.
        return json.dumps([self.captions, self.reused, self.failures], separators=(",", ":"))

    @classmethod
    def from_json(cls, first: int, stop: int, anchor: int | None, results: str) -> Part:
        """The other way round."""
        return cls(first, stop, anchor, *json.loads(results))


def unfold(parts: Iterable[Part], after: Caption | None = None) -> Iterator[Caption | Failure]:
    """What came of each frame of successive parts, in order; `after` is the last caption before them."""
    index, text = (after.frame_index, after.text) if after else (-1, "")
    for part in parts:
        results: list[Caption | Failure | tuple[int, float, int]] = [
            *(Caption(*row) for row in part.captions),
            *(Failure(*row) for row in part.failures),
            *part.reused,
        ]
        for result in sorted(results, key=_frame_index):
            if isinstance(result, Caption):
                index, text = result.frame_index, result.text
                yield result
            elif isinstance(result, Failure):
                yield result
            elif result[2] == index:
                yield Caption(result[0], result[1], text, index)
            else:
                yield Failure(result[0], result[1], f"nearly equal to frame {result[2]}, which has no caption")


def _frame_index(result: Caption | Failure | Sequence[float]) -> int:
    return result.frame_index if isinstance(result, (Caption, Failure)) else int(result[0])
