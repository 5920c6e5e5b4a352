"""Specifications of the tracks of a run: each kind of annotations with its options, before any connection is open.

A specification can be pickled, so it can be opened on another machine, beside other servers. The clients of models are
imported when one of them is opened, because a command that begins soon should import no more than it needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reelscribe.client.models import ModelClient
    from reelscribe.contract.descriptions import ModelDescription
    from reelscribe.run.tracks.medium import Options
    from reelscribe.run.tracks.track import Track
    from reelscribe.server.server_discovery import FoundServer


class TrackSpec(ABC):
    """One kind of annotations that a run shall make."""

    @abstractmethod
    async def resolved(self) -> TrackSpec:
        """Find what is not named: the models on the servers.

        Returns:
            An equal specification in which every model has its name.

        Raises:
            UsageError: The servers have no such model, or several.
            ServerError: No server answers.
        """

    @abstractmethod
    async def open(self, stack: AsyncExitStack) -> Track:
        """Return the track, with its client open until the stack is closed. Raises the errors of `resolved`, too."""

    @abstractmethod
    def on(self, servers: Sequence[FoundServer]) -> TrackSpec:
        """Return the specification with other servers."""

    @property
    @abstractmethod
    def servers(self) -> Sequence[FoundServer]:
        """The servers of its model; none if it needs no model."""

    @property
    @abstractmethod
    def decode_processes(self) -> int | None:
        """Number of decode processes of the track; None if each node decides it by its cores."""

    @property
    def needs_audio(self) -> bool:
        """True if recordings without pictures are sources, too."""
        return False


@dataclass(frozen=True)
class ModelSpec(TrackSpec):
    """One kind of annotations that a run shall make with a model."""

    options: Options
    """The options, whose type says of which medium the track is."""
    found: Sequence[FoundServer]
    """The servers that share its requests."""
    name: str | None = None
    """The name under which the servers registered it; None if it is their only one of its kind."""
    requests_in_flight: int | None = None
    """Largest number of unanswered requests; None for as many as the servers take."""

    async def resolved(self) -> ModelSpec:
        """Find the name of the model, or check the one that was given; see `TrackSpec.resolved`."""
        from reelscribe.server.model_discovery import find_model

        server, kind, second = self.found[0], self._description_type, self.options.second_model
        if second is not None:
            await find_model(server, kind, second)
        return replace(self, name=await find_model(server, kind, self.name, besides=second))

    async def open(self, stack: AsyncExitStack) -> Track:
        """Open the client of the model; see `TrackSpec.open`."""
        from reelscribe.run.tracks.track import Track

        return Track(self.options, await self._client(stack))

    async def _client(self, stack: AsyncExitStack) -> ModelClient[Any]:
        from reelscribe.client.models import ModelClient

        name = self.name or (await self.resolved()).name
        servers = [each.server for each in self.found]
        client = ModelClient(servers, name or "", self._description_type, requests_in_flight=self.requests_in_flight)
        return await stack.enter_async_context(client)

    def on(self, servers: Sequence[FoundServer]) -> ModelSpec:
        """Return the specification with other servers."""
        return replace(self, found=servers)

    @property
    def servers(self) -> Sequence[FoundServer]:
        """The servers of the model."""
        return self.found

    @property
    def decode_processes(self) -> int | None:
        """Number of processes that decode video, or audio; None if each node decides it by its cores."""
        return self.options.workers

    @property
    def needs_audio(self) -> bool:
        """True if recordings without pictures are sources, too."""
        return self.options.medium.needs_audio()

    @property
    def _description_type(self) -> type[ModelDescription]:
        description_type = self.options.medium.description_type
        assert description_type, "a model is needed"
        return description_type


@dataclass(frozen=True)
class SummarySpec(ModelSpec):
    """The summaries of sources, with a chat model."""

    async def open(self, stack: AsyncExitStack) -> Track:
        """Open the client of the model; see `TrackSpec.open`."""
        from reelscribe.run.tracks.summaries import SummaryOptions, SummaryTrack

        assert isinstance(self.options, SummaryOptions)
        return SummaryTrack(await self._client(stack), self.options)

    def on(self, servers: Sequence[FoundServer]) -> ModelSpec:
        """Return the specification with other servers; a node's TorchServe has no chat, so its own stay then."""
        return super().on(servers) if all(each.server.speaks_openai for each in servers) else self


@dataclass(frozen=True)
class PictureSpec(TrackSpec):
    """The annotations of pictures, with the captioner that is served, or else with the clip model."""

    captions: ModelSpec
    clips: ModelSpec

    async def resolved(self) -> ModelSpec:
        """Find out which of the two models is served, or has the name; see `TrackSpec.resolved`."""
        from reelscribe.contract.descriptions import ClipModelDescription
        from reelscribe.server.model_discovery import kind_of_video_model

        kind = await kind_of_video_model(self.captions.found[0], self.captions.name)
        return await (self.clips if kind is ClipModelDescription else self.captions).resolved()

    async def open(self, stack: AsyncExitStack) -> Track:
        """Open the client of the model; see `TrackSpec.open`."""
        return await (await self.resolved()).open(stack)

    def on(self, servers: Sequence[FoundServer]) -> PictureSpec:
        """Return the specification with other servers."""
        return PictureSpec(self.captions.on(servers), self.clips.on(servers))

    @property
    def servers(self) -> Sequence[FoundServer]:
        """The servers of the model."""
        return self.captions.found

    @property
    def decode_processes(self) -> int | None:
        """Number of processes that decode video; None if each node decides it by its cores."""
        return self.captions.decode_processes


@dataclass(frozen=True)
class ShotSpec(TrackSpec):
    """The search for shots, which needs no model."""

    options: Options

    async def resolved(self) -> ShotSpec:
        """Return the specification itself, as nothing is to be found."""
        return self

    async def open(self, stack: AsyncExitStack) -> Track:  # noqa: ARG002 - nothing is opened
        """Return the track."""
        from reelscribe.run.tracks.track import Track

        return Track(self.options)

    def on(self, servers: Sequence[FoundServer]) -> ShotSpec:  # noqa: ARG002 - it needs none
        """Return the specification itself, as it needs no servers."""
        return self

    @property
    def servers(self) -> Sequence[FoundServer]:
        """No servers."""
        return ()

    @property
    def decode_processes(self) -> int | None:
        """Number of processes that decode video; None if each node decides it by its cores."""
        return self.options.workers
