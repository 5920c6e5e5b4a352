"""A node of a run over many machines: it annotates what the driver leases to it, on the main path of one machine.

The driver calls `begin` once. From then on it calls `tell` with what it has to say, and `listen` for what the node has
to say, which returns when there is something. A node that nobody listens to for FENCE_SECONDS was given up, or its
driver is dead, so it ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial

import reelscribe
from reelscribe._tasks import Turns, cancel_all
from reelscribe._track_specs import TrackSpec
from reelscribe.cluster import messages
from reelscribe.cluster.messages import Message
from reelscribe.cluster.serving import Archive, Receiver
from reelscribe.cluster.store_link import StoreLink
from reelscribe.cluster.tokens import LentTokens
from reelscribe.contract.source import VIDEO_SUFFIXES
from reelscribe.errors import ReelscribeError
from reelscribe.reporting.forecast import SourceSize
from reelscribe.reporting.meter import Meter
from reelscribe.run.annotating import Annotator
from reelscribe.run.tracks.track import Stopped, Track

FENCE_SECONDS = 45.0
"""Seconds without a listener after which a node ends. A driver gives a node up earlier than that."""

LISTEN_SECONDS = 1.0
"""Longest time, in seconds, for which `listen` waits for something to say."""

REPORT_SECONDS = 1.0
"""Seconds between two reports of a node."""


@dataclass(frozen=True)
class NodeSpec:
    """What a node shall do."""

    tracks: Sequence[TrackSpec]
    """What it shall make of each source."""
    folder: str
    """Working folder of the driver, in which the names of sources are meant."""
    tokens: Sequence[str | None] = ()
    """The tokens for the servers of all tracks, in order; None for a server that requires none."""
    archives: Sequence[Archive] = ()
    """The models that a server of the node's own serves; none if the servers of the tracks do."""


def version() -> str:
    """Return what must be equal on the driver and all nodes, because they exchange Python objects."""
    return f"reelscribe {reelscribe.__version__}, Python {sys.version_info.major}.{sys.version_info.minor}"


class Node:
    """Annotates sources for a driver."""

    def __init__(self) -> None:
        """Begin with nothing to do."""
        self._outbox: list[Message] = []
        self._has_mail = asyncio.Event()
        self._link = StoreLink(self._send)
        self._visible = Turns(_look)
        self._leased: dict[str, asyncio.Task[None]] = {}
        self._listened = time.monotonic()
        self._main: asyncio.Task[None] | None = None
        self._is_ending = False

    @cached_property
    def archives(self) -> Receiver:
        """Receives the archives of models."""
        return Receiver()

    async def version(self) -> str:
        """Return the `version` of this machine."""
        return version()

    async def begin(self, spec: NodeSpec) -> None:
        """Open the models; `listen` returns Ready when they are open, or Failed."""
        self._listened = time.monotonic()  # archives may have been sent until now, for long
        self._main = asyncio.create_task(self._run(spec))

    async def tell(self, mail: Sequence[Message]) -> None:
        """Take messages of the driver, in order."""
        for message in mail:
            self._take(message)

    async def listen(self) -> list[Message]:
        """Return messages for the driver: at once if there are any, and otherwise after LISTEN_SECONDS at most."""
        self._listened = time.monotonic()
        if not self._outbox:
            self._has_mail.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_mail.wait(), LISTEN_SECONDS)
        return messages.cut(self._outbox)

    async def end(self) -> None:
        """End all that the node has started; return when it has ended."""
        if self._main:
            if not self._is_ending:
                self._is_ending = True
                self._main.cancel()
            await asyncio.gather(self._main, return_exceptions=True)

    def _send(self, message: Message) -> None:
        self._outbox.append(message)
        self._has_mail.set()

    async def _run(self, spec: NodeSpec) -> None:
        """Open the models, work until cancelled, and close everything."""
        background = [asyncio.create_task(self._fence())]
        try:
            async with AsyncExitStack() as stack:
                stack.enter_context(_messages_to(self._send))
                with suppress(OSError):  # then only sources with absolute names can be seen
                    os.chdir(spec.folder)
                await self._open(spec, stack)
                stack.push_async_callback(lambda: cancel_all(list(self._leased.values())))
                background += [asyncio.create_task(each) for each in (self._meter.stalls.watch(), self._report())]
                await asyncio.Event().wait()
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver must not wait for the node
            self._fail(error)
        finally:
            await cancel_all(background)

    async def _open(self, spec: NodeSpec, stack: AsyncExitStack) -> None:
        self._tokens = stack.enter_context(LentTokens(spec.tokens))
        specs = self._tokens.used_by(spec.tracks)
        if spec.archives:
            server = await stack.enter_async_context(self.archives.serving(spec.archives))
            server.ended.add_done_callback(self._server_ended)
            specs = [track.on([server.found]) for track in specs]
        opened = [await track.open(stack) for track in specs]
        self._tracks: list[Track] = [await stack.enter_async_context(track) for track in opened]
        self._meter = Meter(0, ())
        for track in self._tracks:
            track.resolve_dependencies(self._tracks)
            track.count_in(self._meter)
            await track.begin(self._link)
        self._annotator = Annotator(self._tracks, self._link, self._meter)
        processes = sum(track.pool.workers for track in self._tracks)
        self._send(messages.Ready([(track.kind, track.settings_text) for track in self._tracks], processes))

    def _server_ended(self, why: asyncio.Future[str]) -> None:
        if not why.cancelled():
            self._send(messages.Lost(f"its TorchServe has ended: {why.result()}"))

    def _take(self, message: Message) -> None:
        match message:
            case messages.Lease():
                self._link.learn(message)
                task = self._leased[message.path] = asyncio.create_task(self._annotate(message))
                task.add_done_callback(partial(self._lease_ended, message.path))
            case messages.Answers(values):
                self._link.answered(values)
            case messages.Share(requests_in_flight):
                for track in self._tracks:
                    track.limit_requests(requests_in_flight)
            case messages.Tokens(texts):
                self._tokens.write(texts)
            case messages.GiveBack(most):
                for path in self._not_begun(most):
                    self._leased[path].cancel()
            case messages.Stop():
                self._annotator.stop()

    async def _annotate(self, lease: messages.Lease) -> None:
        path = lease.path
        try:
            size, why_unseen = await self._visible.ask(path)
            if why_unseen and not lease.unseen_elsewhere:
                self._send(messages.Unseen(path, why_unseen))
                return
            if not lease.is_done:
                self._meter.expect(path, size)
            annotated = await self._annotator.annotate(path)
            known = lease.is_done and annotated.source.sha256 == lease.sha256  # else it was written to since
            self._send(messages.Finished(annotated.source, annotated.error, known))
        except Stopped:
            self._send(messages.GivenBack([path]))
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver must not wait for the source
            self._send(messages.GivenBack([path]))
            self._fail(error, f"{path}: ")

    def _lease_ended(self, path: str, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # maybe before its first step
            self._send(messages.GivenBack([path]))
        self._meter.give_up(path)
        self._link.forget_lease(path)
        del self._leased[path]
        if not self._leased:
            self._send(self._figures())  # the run may end before the next report is due

    def _not_begun(self, most: int) -> list[str]:
        """Return the newest leases of sources that no decode process has begun to read."""
        waiting = [path for path in reversed(self._leased) if not self._meter.is_begun(path)]
        return waiting[:most]

    def _fail(self, error: Exception, while_doing: str = "") -> None:
        text = str(error) if isinstance(error, ReelscribeError) else f"{while_doing}{error!r}"
        self._send(messages.Failed(type(error).__name__, text))

    async def _report(self) -> None:
        """Tell the driver how the node is, until cancelled."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            self._send(self._figures())

    def _figures(self) -> messages.Report:
        return messages.Report(self._meter.snapshot(), sum(track.pool.failures for track in self._tracks))

    async def _fence(self) -> None:
        """End the process when nobody listens any more; what it might still save would change nothing."""
        while (left := self._listened + FENCE_SECONDS - time.monotonic()) > 0:  # noqa: ASYNC110 - nothing is what is waited for
            await asyncio.sleep(left)
        os._exit(1)


async def _look(paths: list[str]) -> list[tuple[SourceSize, str | None]]:
    """Return the size of each file, and why it cannot be seen; None if it can."""
    return await asyncio.to_thread(lambda: [look(path) for path in paths])


def look(path: str) -> tuple[SourceSize, str | None]:
    """Return the size of a file, and why it cannot be seen from this machine; None if it can."""
    video = os.path.splitext(path)[1].lower() in VIDEO_SUFFIXES
    try:
        size = os.stat(path).st_size
        why_unseen = None if os.access(path, os.R_OK) else "permission denied"
    except (OSError, ValueError) as error:
        size, why_unseen = 0, str(error)
    return SourceSize("video" if video else "audio", size), why_unseen


class _Messages(logging.Handler):
    """Tells the driver what is logged."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        super().__init__()
        self._tell = send
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        """Tell the driver a message, from whatever thread it comes."""
        said = messages.Said(record.levelno, record.getMessage())
        self._loop.call_soon_threadsafe(self._tell, said)


@contextmanager
def _messages_to(send: Callable[[Message], None]) -> Iterator[None]:
    logger, handler = logging.getLogger("reelscribe"), _Messages(send)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
