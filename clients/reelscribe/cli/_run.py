"""The run that a command stands for: its servers, its progress, its interrupts, and what is written in the end."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from reelscribe.errors import UsageError

if TYPE_CHECKING:  # imports wait until needed: they may be missing, and take time
    from reelscribe.client.endpoint import Server
    from reelscribe.run.bulk import Summary
    from reelscribe.run.options import CaptionOptions, SpeechOptions
    from reelscribe.run.progress import Progress


T = TypeVar("T")

LOCAL_KEYS = Path(".server/key_file.json")
INFERENCE_ADDRESS = "http://127.0.0.1:8080"
MANAGEMENT_ADDRESS = "http://127.0.0.1:8081"


@dataclass(frozen=True)
class Served:
    """Where a model is served."""

    servers: list[Server]
    model: str
    requests_in_flight: int


@dataclass(frozen=True)
class CommandRun:
    """What the three commands have in common."""

    sources: list[str]
    out: Path
    formats: list[str]
    cues: str
    quiet: bool
    json_log: bool
    metrics_port: int | None

    def go(self, captions: tuple[Served, CaptionOptions] | None, speech: tuple[Served, SpeechOptions] | None) -> int:
        """Run, tell, export; returns how many sources failed. Raises KeyboardInterrupt if it was interrupted."""
        from stamina.instrumentation import set_on_retry_hooks

        from reelscribe.export.formats import CUES, check_formats, export
        from reelscribe.results.jsonl import NAME

        check_formats(self.formats)
        cues = one_of(self.cues, CUES, "--cues")
        if self.quiet and self.json_log:
            raise UsageError("--quiet and --json-log: expected one of them, got both")
        progress = _progress(quiet=self.quiet, json_log=self.json_log)
        set_on_retry_hooks([])  # which would log each new try; the client says once that it waits
        try:
            with self._watched(progress) as watched:
                summary = asyncio.run(self._run(captions, speech, watched))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        exporting = self.formats and not summary.interrupted
        written = export(self.out / NAME, self.out, self.formats, cues) if exporting else []
        tell = progress.say if self.json_log else typer.echo
        for text in [
            f"{summary}: {self.out if summary.interrupted else self.out / NAME}",
            *(f"wrote {path}" for path in written),
        ]:
            if not self.quiet:
                tell(text)
        if summary.interrupted:
            raise KeyboardInterrupt
        return summary.failed

    def _watched(self, progress: Progress) -> AbstractContextManager[Progress]:
        if self.metrics_port is None:
            return nullcontext(progress)
        from reelscribe.run.metrics import metrics_served

        return metrics_served(progress, self.metrics_port)

    async def _run(
        self,
        captions: tuple[Served, CaptionOptions] | None,
        speech: tuple[Served, SpeechOptions] | None,
        progress: Progress,
    ) -> Summary:
        from reelscribe.client.models import CaptionClient, SpeechClient
        from reelscribe.run.bulk import BulkRun
        from reelscribe.run.captioning import CaptionTrack
        from reelscribe.run.transcribing import TranscriptTrack

        tracks: list[CaptionTrack | TranscriptTrack] = []
        async with AsyncExitStack() as stack:
            if captions:
                at, options = captions
                client = CaptionClient(at.servers, at.model, requests_in_flight=at.requests_in_flight, say=progress.say)
                tracks.append(CaptionTrack(await stack.enter_async_context(client), options))
            if speech:
                at, speech_options = speech
                speech_client = SpeechClient(
                    at.servers, at.model, requests_in_flight=at.requests_in_flight, say=progress.say
                )
                tracks.append(TranscriptTrack(await stack.enter_async_context(speech_client), speech_options))
            run = BulkRun(tracks, self.out, progress=progress)
            _stop_on_interrupt(run.stop, progress.say)
            return await run.run(self.sources)


def one_of(value: str, allowed: tuple[T, ...], option: str) -> T:
    """The one of `allowed` that `value` is. Raises UsageError."""
    for choice in allowed:
        if value == choice:
            return choice
    raise UsageError(f"{option}: expected one of {', '.join(map(str, allowed))}, got {value!r}")


def _progress(*, quiet: bool, json_log: bool) -> Progress:
    from reelscribe.run.progress import Failures, JsonLines, Lines, TerminalBars

    if json_log:
        return JsonLines()
    if quiet:
        return Failures()
    return TerminalBars() if sys.stderr.isatty() else Lines()


def servers_at(urls: list[str] | None, key_files: list[Path] | None, management: str | None) -> list[Server]:
    """The servers, each with its key file."""
    from reelscribe.client.credentials import Credentials
    from reelscribe.client.endpoint import Server

    urls = urls or [INFERENCE_ADDRESS]
    if key_files is None:
        # The key of the server here is for no other one.
        local = urls == [INFERENCE_ADDRESS] and LOCAL_KEYS.exists()
        key_files, management = ([LOCAL_KEYS], management or MANAGEMENT_ADDRESS) if local else ([], management)
    if management and len(urls) > 1:
        raise UsageError("--management: expected one --server with it; keys of several are not renewed")
    if len(key_files) not in (0, 1, len(urls)):
        raise UsageError(f"--key-file: expected one for all, or one for each --server, got {len(key_files)}")
    keys = [Credentials(path, management) for path in key_files]
    return [Server(url, keys[k % len(keys)] if keys else None) for k, url in enumerate(urls)]


def _stop_on_interrupt(stop: Callable[[], None], say: Callable[[str], None]) -> None:
    """Ctrl-C, or a service manager's SIGTERM, stops kindly; the second one at once."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    signals = (signal.SIGINT, signal.SIGTERM)

    def at_once() -> None:
        task.cancel()

    def kindly() -> None:
        for sig in signals:
            loop.add_signal_handler(sig, at_once)
        say("finishing what is being worked on; interrupt again to stop at once")
        stop()

    for sig in signals:
        loop.add_signal_handler(sig, kindly)
