"""Sends dicts of tensors from one rank of a model to another, with all transfers of a dict issued at once.

A message is a header, the description of a tree (tensor_tree.py), and the bytes of its tensors. Header and description
travel in a first transfer of exactly 16 KiB, so that the receiver knows its length; only a longer description needs a
second transfer. The receive for the first transfer of the next message is posted as soon as the description of the
current one is known, because gloo sends at once if the other rank has already posted its receive. Otherwise, it sends
when a thread of its own notices that the other rank is ready, and that thread competes with the computation.

Headers and descriptions travel by gloo. So do tensors, unless the process group has NCCL for them
(`init_process_group("cpu:gloo,cuda:nccl")`), which transfers from GPU to GPU. By gloo, tensors of a GPU go through
pinned memory of the host.

NCCL runs the operations of a group in sequence, so two ranks that both sent first would wait for each other: between
two ranks, only one direction may have a GPU as its device. Two links in the same direction would mix up their messages.

Waiting for NCCL makes the current CUDA stream wait. Therefore, the thread that uses a message should wait for it right
before it does: waiting earlier on the same stream would queue the transfer behind the work in progress. The timeout of
a link does not limit how long a CUDA stream waits; the timeout of the process group does.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any, NamedTuple
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.tensor_tree import MAX_METADATA_BYTES, TreeSpec, flatten
from reelscribe.errors import StageLost, StartupError, WireError

_TAGS = 1 << 31
_SOURCE_LINE = re.compile(r"^\[[^\]]*\] *")
"""The place in its source that gloo puts before each message."""

CPU = torch.device("cpu")

FIRST_BYTES = 16 << 10
"""Size in bytes of a message's first transfer. Shorter headers and descriptions are padded."""

_MAGIC = b"RSSTAGE1"

_HEADER = struct.Struct("<8s3q")

_IDLE_SECONDS = timedelta(days=3650).total_seconds()
"""Timeout for the next message to begin, as gloo cannot wait without one."""

_Posted = tuple[Tensor, list[dist.Work]]
"""A receive in progress: its buffer and its transfers."""


class Peer:
    """Another rank, and the transfers with it."""

    def __init__(self, rank: int, seconds: float, name: str | None) -> None:
        """Describe the other rank.

        Args:
            rank: Its global rank.
            seconds: Timeout of transfers, in seconds.
            name: What messages call the rank.
        """
        self._rank, self._seconds = rank, seconds
        self._name = name or f"rank {rank} of the model"

    def issue(
        self, operation: Callable[..., dist.Work | None], tensors: Sequence[Tensor], tags: Iterator[int]
    ) -> list[dist.Work]:
        """Issue the transfers of all tensors that are not empty at once.

        Args:
            operation: `dist.isend` or `dist.irecv`.
            tensors: What to send, or the buffers to receive into.
            tags: A counter for each direction. As each tensor has its own tag, none is mistaken for another.

        Returns:
            The transfers in progress, for `finish`.

        Raises:
            StageLost: The other rank is gone.
        """
        transfers = [
            dist.P2POp(operation, tensor, self._rank, tag=next(tags) % _TAGS) for tensor in tensors if len(tensor)
        ]
        if not transfers:
            return []
        with self._failures():
            return dist.batch_isend_irecv(transfers)

    def finish(self, works: Sequence[dist.Work], seconds: float | None) -> None:
        """Wait for transfers for at most `seconds` seconds; if None, for the timeout of transfers. Raises StageLost."""
        deadline = time.monotonic() + (self._seconds if seconds is None else seconds)
        with self._failures():
            for work in works:
                # Zero would select the process group's own timeout.
                work.wait(timedelta(seconds=max(0.001, deadline - time.monotonic())))

    def lost(self, reason: str) -> StageLost:
        """Make the error that says what went wrong with this rank."""
        return StageLost(f"{self._name} {reason}; both ranks have to restart")

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # the only class of errors that torch.distributed raises
            reason = _SOURCE_LINE.sub("", str(error).splitlines()[0])
            raise self.lost(f"is gone, or did not respond in time ({reason})") from error


class _Header(NamedTuple):
    magic: bytes
    metadata_bytes: int
    checksum: int
    on_gpu: int
    """1 if tensors travel from GPU to GPU, otherwise 0."""


class Sending:
    """Tensors that are being sent. They stay alive, and must not be written to, until `wait` returns."""

    def __init__(self, peer: Peer, works: list[dist.Work], tensors: list[Tensor]) -> None:
        self._peer, self._works, self._tensors = peer, works, tensors

    def wait(self, seconds: float | None = None) -> None:
        """Wait until everything is sent. The other rank was ready to receive it then, but may not have read it yet.

        With NCCL, this returns as soon as the current CUDA stream waits for the transfer.

        Args:
            seconds: Timeout in seconds; by default that of the link.

        Raises:
            StageLost: The other rank is gone, or the timeout expired.
        """
        self._peer.finish(self._works, seconds)
        for tensor in self._tensors:
            if tensor.is_cuda:
                # NCCL sends on its own stream, and only the current stream waits for that: the memory is not free yet.
                tensor.record_stream(torch.cuda.current_stream(tensor.device))
        self._works, self._tensors = [], []


class Receiving:
    """A tree that is being received."""

    def __init__(self, peer: Peer, works: list[dist.Work], finish: Callable[[], dict[str, Any]]) -> None:
        self._peer, self._works, self._finish = peer, works, finish

    def wait(self, seconds: float | None = None) -> dict[str, Any]:
        """Wait for the tree. Call it once.

        With NCCL, this returns as soon as the current CUDA stream waits for the transfer.

        Args:
            seconds: Timeout in seconds; by default that of the link.

        Returns:
            The tree as it was sent, with its tensors on the link's device.

        Raises:
            StageLost: The other rank is gone, or the timeout expired.
            RuntimeError: The device has no memory for the tensors. The link can still be used.
        """
        self._peer.finish(self._works, seconds)
        return self._finish()


class StageLink:
    """Sends trees of tensors to one other rank, and receives trees from it, in order.

    A tree is what `flatten` of tensor_tree.py accepts. A link lasts as long as its process group, as a receive for the
    next message is always posted. After a StageLost it cannot be used any more: both ranks have to restart.
    """

    def __init__(
        self,
        peer: int,
        *,
        device: torch.device = CPU,
        seconds: float,
        name: str | None = None,
    ) -> None:
        """Link this rank to another one; the other rank needs a link as well.

        Args:
            peer: Global rank of the other one.
            device: Where received tensors are stored.
            seconds: Timeout of a transfer once it has begun, in seconds.
            name: What messages call the other rank.

        Raises:
            StartupError: The process group has no gloo for the CPU.
        """
        self._peer = Peer(peer, seconds, name)
        self._device = device
        self._transport = _transport_device(device)
        self._send_tags, self._receive_tags = count(), count()
        self._next: _Posted | None = None

    def isend_tensor_dict(self, tree: Mapping[str, Any]) -> Sending:
        """Issue all sends of a tree at once, and return; `Sending.wait` has to be called.

        Args:
            tree: What `flatten` of tensor_tree.py accepts.

        Raises:
            WireError: The tree cannot be sent. The link can still be used.
            StageLost: The other rank is gone.
        """
        metadata, tensors = flatten(tree)
        header = _Header(_MAGIC, len(metadata), crc32(metadata), self._transport != CPU)
        text = bytearray(_HEADER.pack(*header) + metadata).ljust(FIRST_BYTES)
        description = torch.frombuffer(text, dtype=torch.uint8).tensor_split([FIRST_BYTES])
        contents = self._bytes_to_send(tensors)
        works = self._peer.issue(dist.isend, description, self._send_tags)
        works += self._peer.issue(dist.isend, contents, self._send_tags)
        return Sending(self._peer, works, [*description, *contents])

    def irecv_tensor_dict(self, seconds: float | None = None) -> Receiving:
        """Wait for the next message to begin, issue all its receives at once, and return.

        `Receiving.wait` has to be called. By gloo, tensors are received on the host, and `wait` moves them to the
        device; by NCCL, this allocates their memory on the GPU.

        Args:
            seconds: Timeout for the message to begin, in seconds; None waits without one.

        Raises:
            StageLost: The other rank is gone, a timeout expired, or the message is damaged.
        """
        spec = self._receive_description(_IDLE_SECONDS if seconds is None else seconds)
        pinned = self._device.type == "cuda" and self._transport == CPU
        buffers = [
            torch.empty(tensor.nbytes, dtype=torch.uint8, device=self._transport, pin_memory=pinned)
            for tensor in spec.tensors
        ]
        works = self._peer.issue(dist.irecv, buffers, self._receive_tags)
        self._next = self._post(FIRST_BYTES)
        return Receiving(self._peer, works, lambda: self._restored(spec, buffers))

    def send_tensor_dict(self, tree: Mapping[str, Any]) -> None:
        """Send a tree, and wait until it was sent; see `isend_tensor_dict`."""
        self.isend_tensor_dict(tree).wait()

    def recv_tensor_dict(self, seconds: float | None = None) -> dict[str, Any]:
        """Receive a tree, and wait for it; see `irecv_tensor_dict`."""
        return self.irecv_tensor_dict(seconds).wait()

    def _receive_description(self, seconds: float) -> TreeSpec:
        """Receive what the next message holds besides the bytes of tensors; it has to begin within `seconds`."""
        first = self._received(self._next or self._post(FIRST_BYTES), seconds)
        header = _Header(*_HEADER.unpack_from(first))
        expected = header._replace(magic=_MAGIC, on_gpu=self._transport != CPU)
        if header != expected or not 0 < header.metadata_bytes <= MAX_METADATA_BYTES:
            raise self._peer.lost(f"sent {header}, expected {expected} of at most {MAX_METADATA_BYTES} bytes")
        end = _HEADER.size + header.metadata_bytes
        text = (first + self._received(self._post(end - FIRST_BYTES)))[_HEADER.size : end]
        if crc32(text) != header.checksum:
            raise self._peer.lost(f"sent {len(text)} bytes that arrived damaged")
        try:
            return TreeSpec(text)
        except WireError as error:
            raise self._peer.lost(f"sent something other than a tree ({error})") from error

    def _post(self, nbytes: int) -> _Posted:
        """Post a receive for the next `nbytes` bytes; for none if it is negative."""
        buffer = torch.empty(max(0, nbytes), dtype=torch.uint8)
        return buffer, self._peer.issue(dist.irecv, [buffer], self._receive_tags)

    def _received(self, posted: _Posted, seconds: float | None = None) -> bytes:
        """Wait for a posted receive, with a timeout of `seconds` or that of the link."""
        buffer, works = posted
        self._peer.finish(works, seconds)
        return buffer.numpy().tobytes()

    def _bytes_to_send(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The bytes of tensors, (nbytes,) uint8, on the device they are sent from; copied only where necessary."""
        moved = [tensor.contiguous().to(self._transport, non_blocking=True) for tensor in tensors]
        for device in {tensor.device for tensor in tensors if tensor.is_cuda and self._transport == CPU}:
            torch.cuda.current_stream(device).synchronize()
        # reshape(-1) would keep the stride of a single element, and then its bytes could not be viewed.
        return [tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8) for tensor in moved]

    def _restored(self, spec: TreeSpec, buffers: Sequence[Tensor]) -> dict[str, Any]:
        """Restore the tree from the bytes of its tensors."""
        return spec.unflatten(
            buffer.view(tensor.dtype).view(tensor.shape).to(self._device, non_blocking=True)
            for buffer, tensor in zip(buffers, spec.tensors, strict=True)
        )


def _transport_device(device: torch.device) -> torch.device:
    """The device that tensors are sent from and received on."""
    backends = dist.get_backend_config().split(",")
    if "cpu:gloo" not in backends:
        raise StartupError(
            f"stage: expected a process group with gloo for the CPU, got {','.join(backends)};"
            ' use init_process_group("cpu:gloo,cuda:nccl"), or "gloo"'
        )
    return device if f"{device.type}:nccl" in backends else CPU
