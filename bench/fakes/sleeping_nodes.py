"""Nodes of a run over many machines that only sleep, many in one process that is connected to the driver by a socket.

What the driver and a node tell each other is pickled, as between machines. A node makes for each source the calls of
the ledger that a captioner makes for a video of one frame, or none.
"""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import pickle
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Self

from reelscribe.cluster import mail
from reelscribe.cluster.mail import Message
from reelscribe.cluster.remote_node import LISTEN_SECONDS, REPORT_SECONDS, NodeSpec, version
from reelscribe.cluster.serving import Archive
from reelscribe.cluster.store_link import StoreLink
from reelscribe.contract.outcomes import Caption
from reelscribe.contract.source import Source, VideoInfo
from reelscribe.reporting.counters import Counters, NodeReport, Resources
from reelscribe.results.batches import SavedFrameBatch
from reelscribe.results.jobs import SavedVideo
from reelscribe.run import messages
from reelscribe.run.lost_nodes import NodeLost
from reelscribe.run.tracks.captions import CaptionMedium, CaptionOptions
from reelscribe.run.tracks.planned import PlannedTrack

DECODE_PROCESSES = 4
"""Number of sources that a node does at the same time."""

_LENGTH = struct.Struct("<I")
_VIDEO = SavedVideo(VideoInfo(1.0, 640, 360, 0, 1.0, 25, 25.0, 0.0, 1.0, "h264", None), 1.0, None)
_RESULTS = SavedFrameBatch(0, 1, 0, captions=[Caption(0, 0.0, "a man rides a horse on the beach", None, -0.5)])
_TRACK = Counters(seconds=1.0, done=1.0), Resources("frames", DECODE_PROCESSES, 1, 32)
_REPORT = messages.Report(NodeReport(1.0, [_TRACK]))


class _SleepingOptions(CaptionOptions):
    """The options of nodes that have no model."""

    def settings(self, description: None) -> dict[str, Any]:  # type: ignore[override]  # noqa: ARG002
        """Return what decides the captions."""
        return {"sampling": self.sampling.to_json()}


_PLANNED = PlannedTrack(CaptionMedium(_SleepingOptions(), None), DECODE_PROCESSES)


class SleepingNodes:
    """A cluster of nodes that sleep; see `session.Cluster`."""

    def __init__(self, nodes: int, seconds_per_source: float | None) -> None:
        """Describe the cluster.

        Args:
            nodes: Number of nodes.
            seconds_per_source: How long one of the DECODE_PROCESSES of a node sleeps for a source; None if nodes do
                nothing at all, and save nothing.
        """
        self._nodes, self._seconds = nodes, seconds_per_source
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count()
        self.calls = 0
        """Number of calls of nodes so far."""
        self.bytes_sent = 0
        """Bytes that were sent to nodes so far."""
        self.largest = 0
        """Size of the largest message to or from a node so far, in bytes."""

    async def __aenter__(self) -> Self:
        ours, theirs = socket.socketpair()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(theirs, self._nodes, self._seconds), daemon=True
        )
        self._process.start()
        theirs.close()
        reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        self._reading = asyncio.create_task(self._read(reader))
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._reading.cancel()
        self._writer.close()
        self._process.kill()
        self._process.join()

    async def nodes(self) -> AsyncIterator[_Handle]:
        """Yield each node once."""
        for number in range(self._nodes):
            yield _Handle(self, number)
        await asyncio.Event().wait()

    def free(self, name: str) -> None:
        """Do nothing, as no node is lost."""

    async def call(self, node: int, method: str, *arguments: Any) -> Any:
        """Call a method of a node, and return its answer."""
        number = next(self._numbers)
        future = self._answers[number] = asyncio.get_running_loop().create_future()
        body = pickle.dumps((number, node, method, pickle.dumps(arguments)))
        self.calls += 1
        self.bytes_sent += len(body)
        self.largest = max(self.largest, len(body))
        self._writer.write(_LENGTH.pack(len(body)) + body)
        return await future

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            async for body in _bodies(reader):
                number, answer = pickle.loads(body)  # noqa: S301 - it is our own
                self.largest = max(self.largest, len(body))
                future = self._answers.pop(number)
                if not future.done():
                    future.set_result(pickle.loads(answer))  # noqa: S301 - it is our own
        finally:
            for future in self._answers.values():
                future.cancel()


class _Handle:
    """A node, as the driver reaches it; see `session.NodeHandle`."""

    def __init__(self, nodes: SleepingNodes, number: int) -> None:
        self.name = f"node-{number}"
        self._nodes, self._number = nodes, number

    async def version(self) -> str:
        return str(await self._call("version"))

    async def lacking(self, digests: Sequence[str]) -> list[str]:
        raise NotImplementedError("these nodes serve no models")

    async def receive(self, archive: Archive, chunk: bytes) -> None:
        raise NotImplementedError("these nodes serve no models")

    async def begin(self, spec: NodeSpec) -> None:
        await self._call("begin", spec)

    async def tell(self, letters: Sequence[Message]) -> None:
        await self._call("tell", letters)

    async def listen(self) -> list[Message]:
        letters: list[Message] = await self._call("listen")
        return letters

    async def end(self) -> None:
        """Do nothing, as the cluster ends all nodes."""

    async def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return await self._nodes.call(self._number, method, *arguments)
        except OSError as error:
            raise NodeLost(str(error)) from None


class _Node:
    """A node that sleeps; see `remote_node.RemoteNode`."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._outbox: list[Message] = []
        self._has_mail = asyncio.Event()
        self._link = StoreLink(self._send, lambda _: None)
        self._processes = asyncio.Semaphore(DECODE_PROCESSES)
        self._tasks: set[asyncio.Task[None]] = set()

    async def version(self) -> str:
        return version()

    async def begin(self, spec: NodeSpec) -> None:  # noqa: ARG002 - it opens nothing
        self._send(messages.Ready([_PLANNED]))
        self._start(self._ask_settings())
        self._start(self._report())

    async def tell(self, letters: Sequence[Message]) -> None:
        for message in letters:
            if isinstance(message, messages.Lease):
                self._link.learn(message)
                self._start(self._annotate(message))
            elif isinstance(message, mail.Answers):
                self._link.answered(message.values)

    async def listen(self) -> list[Message]:
        if not self._outbox:
            self._has_mail.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_mail.wait(), LISTEN_SECONDS)
        return mail.cut(self._outbox)

    async def _ask_settings(self) -> None:
        self._settings = await self._link.settings_id(_PLANNED.settings)

    async def _annotate(self, lease: messages.Lease) -> None:
        """Ask of the ledger what `Annotator.annotate` and a captioner ask for a video of one frame."""
        path, link = lease.path, self._link
        if self._seconds is None:
            self._send(messages.Finished(Source(path), None))
            link.forget_lease(path)
            return
        sha256 = await link.find_digest(path, lease.stat)
        if sha256 is None:
            async with self._processes:
                await asyncio.sleep(self._seconds)
            sha256 = hashlib.sha256(path.encode()).hexdigest()
            link.save_digest(path, lease.stat, Source(path, 1000, sha256))
        source = Source(path, 1000, sha256)
        async with link.hold(sha256):
            job = await link.job(sha256, self._settings)
            if not job.done:
                await link.save_opened(job.id, _VIDEO, 1)
                await link.save_batch(job.id, _RESULTS)
                job, _ = await link.outcome(sha256, self._settings)
            await link.save_source(source, {"captions": job})
        self._send(messages.Finished(source, None))
        link.forget_lease(path)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            self._send(_REPORT)

    def _send(self, message: Message) -> None:
        self._outbox.append(message)
        self._has_mail.set()

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _serve(connection: socket.socket, nodes: int, seconds: float | None) -> None:
    """Main function of the process of nodes, until the driver closes the connection."""
    asyncio.run(_answer_calls(connection, nodes, seconds))


async def _answer_calls(connection: socket.socket, count: int, seconds: float | None) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    nodes = [_Node(seconds) for _ in range(count)]
    answering: set[asyncio.Task[None]] = set()

    async def answer(number: int, call: Any) -> None:
        body = pickle.dumps((number, pickle.dumps(await call)))
        writer.write(_LENGTH.pack(len(body)) + body)

    async for body in _bodies(reader):
        number, node, method, arguments = pickle.loads(body)  # noqa: S301 - it is our own
        call = getattr(nodes[node], method)(*pickle.loads(arguments))  # noqa: S301 - it is our own
        task = asyncio.create_task(answer(number, call))
        answering.add(task)
        task.add_done_callback(answering.discard)


async def _bodies(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield what was sent, until the connection is closed."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            yield await reader.readexactly(length)
