"""Dicts of tensors from one rank of a model to another, with all transfers of a dict issued at once.

A message is a header, what its tree holds (tensor_tree.py), and the bytes of its tensors. The first 16 KiB travel as
one tensor, so that it costs no second turn to learn how long the rest of the outline is: mostly there is none. Their
receive is posted as soon as the outline of the message before is known: gloo sends at once what the other rank expects,
and else only when a thread of its own hears that it does, which waits for its turn beside one that computes. Header and
outline travel by gloo; tensors do, too, or from GPU to GPU by NCCL where the process group has it for them
(`init_process_group("cpu:gloo,cuda:nccl")`). By gloo, tensors of a GPU go through pinned memory of the host.

NCCL does one thing after the other in a group: there, each direction wants a group of its own, or two ranks that both
send first wait for each other. Two links in one direction between the same ranks want groups of their own anyway.

To wait for NCCL is to have the current CUDA stream wait. So wait for a message in the thread that works with it, right
before: a thread that waits earlier on the same stream puts the transfer behind the work in hand. No limit of a link
bounds what then waits on the GPU; the group's own limit does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import count
from typing import Any, NamedTuple
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor

from reelscribe.errors import StartupError, WireError
from pipeline.ranks import Peer, Slices
from pipeline.tensor_tree import MAX_METADATA_BYTES, Outline, take_apart

CPU = torch.device("cpu")

FIRST_BYTES = 16 << 10
"""Of a message, whose receive is posted ahead; what is shorter is filled up."""

_MAGIC = b"RSSTAGE1"
_HEADER = struct.Struct("<8s4q")
_IDLE_SECONDS = timedelta(days=3650).total_seconds()
"""gloo knows no wait without an end."""

_Posted = tuple[Tensor, list[dist.Work]]
"""A receive: its buffer, and its works."""


class _Header(NamedTuple):
    magic: bytes
    metadata_bytes: int
    checksum: int
    parts: int
    """Ranks of the stage that sends."""
    on_gpu: int
    """Whether tensors travel from GPU to GPU."""


class Sending:
    """Tensors on their way; they are kept alive, and must not be written to, until `wait` returns."""

    def __init__(self, peer: Peer, works: list[dist.Work], tensors: list[Tensor]) -> None:
        self._peer, self._works, self._tensors = peer, works, tensors

    def wait(self, seconds: float | None = None) -> None:
        """Return when all has left, at most after `seconds`, or the link's.

        The other rank was ready for it then, and need not have read it.
        By NCCL, it returns when the current stream waits for it. Raises StageLost.
        """
        self._peer.finish(self._works, self._peer.deadline(seconds))
        for tensor in self._tensors:
            if tensor.is_cuda:
                # NCCL sends on a stream of its own, which this stream waits for: the memory is free after it, not now.
                tensor.record_stream(torch.cuda.current_stream(tensor.device))
        self._works, self._tensors = [], []


class Receiving:
    """Tensors on their way here."""

    def __init__(self, peer: Peer, works: list[dist.Work], post_process: Callable[[float], dict[str, Any]]) -> None:
        self._peer, self._works, self._post_process = peer, works, post_process

    def wait(self, seconds: float | None = None) -> dict[str, Any]:
        """The tree as it was sent, its tensors on the link's device; at most `seconds`, or the link's. Call it once.

        By NCCL, it returns when the current stream waits for them. Raises StageLost, or what the device says when it
        has no memory for them: the link is none the worse for that.
        """
        deadline = self._peer.deadline(seconds)
        self._peer.finish(self._works, deadline)
        return self._post_process(deadline)


class StageLink:
    """Trees of tensors to and from one other rank; messages arrive in the order in which they were sent.

    A link lasts as long as its group, as it always expects a next message.
    A tree is a dict with names (str) of tensors, dicts, lists, str, int (64 bits), float, bool and None. After a
    StageLost, a link is of no more use: both ranks have to start again.
    """

    def __init__(
        self,
        peer: int,
        *,
        group: dist.ProcessGroup | None = None,
        device: torch.device = CPU,
        seconds: float,
        slices: dist.ProcessGroup | None = None,
        name: str | None = None,
    ) -> None:
        """To rank `peer` (global) by `group`, the default one if None; received tensors lie on `device`.

        A transfer that has begun may take `seconds`. With `slices`, the ranks of this rank's own stage, large tensors
        travel in as many slices, one between each pair of counterparts, and are joined by all-gather; both stages have
        as many ranks, and all ranks of the sending one send the same tree. `name` is what messages call rank `peer`.
        """
        self._peer = Peer(peer, group, seconds, name)
        self._device = device
        self._wire = _wire(group, device)
        self._slices = Slices(slices)
        self._send_tags, self._receive_tags = count(), count()
        self._next: _Posted | None = None

    def isend_tensor_dict(self, tree: Mapping[str, Any]) -> Sending:
        """Issue all sends at once and return; `wait` has to be called.

        Raises WireError for a tree that cannot be sent, StageLost if the other rank is gone.
        """
        metadata, tensors = take_apart(tree)
        header = _Header(_MAGIC, len(metadata), crc32(metadata), self._slices.parts, self._wire != CPU)
        text = bytearray(_HEADER.pack(*header) + metadata).ljust(FIRST_BYTES)
        described = torch.frombuffer(text, dtype=torch.uint8).tensor_split([FIRST_BYTES])
        shares = [values[self._slices.share(len(values))] for values in self._on_wire(tensors)]
        works = self._peer.issue(dist.isend, described, self._send_tags)
        works += self._peer.issue(dist.isend, shares, self._send_tags)
        return Sending(self._peer, works, [*described, *shares])

    def irecv_tensor_dict(self, seconds: float | None = None) -> Receiving:
        """Receive what the next message holds, issue all receives at once and return; `wait` has to be called.

        Waits `seconds` for a message to begin, for ever if None. What comes by gloo is received on the host, and `wait`
        moves it to the device; by NCCL, the memory is taken on the GPU here. Raises StageLost.
        """
        outline = self._receive_outline(_IDLE_SECONDS if seconds is None else seconds)
        sizes = [spec.nbytes for spec in outline.specs]
        pinned = self._device.type == "cuda" and self._wire == CPU
        buffers = [
            torch.empty(self._slices.room(size), dtype=torch.uint8, device=self._wire, pin_memory=pinned)
            for size in sizes
        ]
        shares = [buffer[self._slices.share(size)] for buffer, size in zip(buffers, sizes, strict=True)]
        works = self._peer.issue(dist.irecv, shares, self._receive_tags)
        self._next = self._post(FIRST_BYTES)
        return Receiving(self._peer, works, lambda deadline: self._joined(outline, buffers, deadline))

    def send_tensor_dict(self, tree: Mapping[str, Any]) -> None:
        """`isend_tensor_dict`, and wait."""
        self.isend_tensor_dict(tree).wait()

    def recv_tensor_dict(self, seconds: float | None = None) -> dict[str, Any]:
        """`irecv_tensor_dict`, and wait."""
        return self.irecv_tensor_dict(seconds).wait()

    def _receive_outline(self, seconds: float) -> Outline:
        """What the next message holds; it may take `seconds` to begin."""
        first = self._received(self._next or self._post(FIRST_BYTES), seconds)
        header = _Header(*_HEADER.unpack_from(first))
        expected = header._replace(magic=_MAGIC, parts=self._slices.parts, on_gpu=self._wire != CPU)
        if header != expected or not 0 < header.metadata_bytes <= MAX_METADATA_BYTES:
            raise self._peer.lost(f"sent {header}, expected {expected} of at most {MAX_METADATA_BYTES} bytes")
        end = _HEADER.size + header.metadata_bytes
        text = (first + self._received(self._post(end - FIRST_BYTES)))[_HEADER.size : end]
        if crc32(text) != header.checksum:
            raise self._peer.lost(f"sent {len(text)} bytes that were damaged on their way")
        try:
            return Outline(text)
        except WireError as error:
            raise self._peer.lost(f"sent what is no tree ({error})") from error

    def _post(self, count: int) -> _Posted:
        """A receive of the next `count` bytes, of none if it is negative."""
        buffer = torch.empty(max(0, count), dtype=torch.uint8)
        return buffer, self._peer.issue(dist.irecv, [buffer], self._receive_tags)

    def _received(self, posted: _Posted, seconds: float | None = None) -> bytes:
        """What came; it may take `seconds`, or the link's."""
        buffer, works = posted
        self._peer.finish(works, self._peer.deadline(seconds))
        return buffer.numpy().tobytes()

    def _on_wire(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The bytes of tensors, (nbytes,) uint8, where they are sent from; copied only if they have to be."""
        moved = [tensor.contiguous().to(self._wire, non_blocking=True) for tensor in tensors]
        for device in {tensor.device for tensor in tensors if tensor.is_cuda and self._wire == CPU}:
            torch.cuda.current_stream(device).synchronize()
        # reshape(-1) would keep the stride of a single element, which then has no bytes to view.
        return [tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8) for tensor in moved]

    def _joined(self, outline: Outline, buffers: Sequence[Tensor], deadline: float) -> dict[str, Any]:
        """The tree, when this rank's share of each tensor is here."""
        self._slices.gather(buffers, deadline)
        return outline.filled(
            buffer[: spec.nbytes].view(spec.dtype).view(spec.shape).to(self._device, non_blocking=True)
            for buffer, spec in zip(buffers, outline.specs, strict=True)
        )


def _wire(group: dist.ProcessGroup | None, device: torch.device) -> torch.device:
    """Where tensors are when they are sent and received."""
    backends = dist.get_backend_config(group).split(",")
    if "cpu:gloo" not in backends:
        raise StartupError(
            f"stage: expected a process group with gloo for the CPU, got {','.join(backends)};"
            ' use init_process_group("cpu:gloo,cuda:nccl"), or "gloo"'
        )
    return device if f"{device.type}:nccl" in backends else CPU
