"""What is captioned of each source, and how: the options of a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from reelscribe.decode_pool import STALL_SECONDS, DecodePool
from reelscribe.media import ModelDescription, Resize
from reelscribe.prebatch import MAX_FRAMES_PER_REQUEST, request_bytes
from reelscribe.reuse import REUSE_LEVELS
from reelscribe.sampling import Sampling

HELD_BYTES = 2**30
"""Of frames that are read before the first of them is sent, where whole sources are; beyond it they are sent."""


@dataclass(frozen=True)
class CaptionOptions:
    """What is captioned, and how it is done."""

    sampling: Sampling = field(default_factory=Sampling)
    resize: Resize = "fast"
    reuse: bool = False
    """Whether frames that are nearly equal to the last captioned one take over its caption."""
    frames_per_request: int = MAX_FRAMES_PER_REQUEST
    """At most; fewer if they would exceed 8 MB."""
    stream: bool = True
    """Whether frames are sent while their source is still being read."""
    decode_workers: int = 2
    stall_seconds: float = STALL_SECONDS
    """A decode process that does not get on for so long is ended."""
    retry_failed: bool = False
    """Whether sources that ended with an error in an earlier run are tried again."""

    def settings(self, description: ModelDescription) -> dict[str, Any]:
        """Everything but the weights that decides what the captions say."""
        return {
            "sampling": self.sampling.to_json(),
            "resize": self.resize,
            "reuse_levels": REUSE_LEVELS if self.reuse else None,
            "frame": asdict(description.frame),
            "dtype": description.dtype,
            "prompt": description.prompt,
            "generation": dict(description.generation),
        }

    def prebatch(self, description: ModelDescription) -> int:
        """Frames of one request at most."""
        return min(self.frames_per_request, description.max_frames)

    def pool(self, description: ModelDescription, requests_in_flight: int) -> DecodePool:
        """The processes that decode for these options."""
        slot_bytes = request_bytes(description.frame.nbytes, self.prebatch(description))
        held = 0 if self.stream else self.held_parts(description) * self.decode_workers
        return DecodePool(self.decode_workers, slot_bytes, requests_in_flight + held, stall_seconds=self.stall_seconds)

    def held_parts(self, description: ModelDescription) -> int:
        """Of a source that is read before it is sent."""
        return max(1, HELD_BYTES // request_bytes(description.frame.nbytes, self.prebatch(description)))
