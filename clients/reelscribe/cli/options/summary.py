"""The options for summaries of sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reelscribe.cli.options.servers import openai_settings
from reelscribe.cli.parser.help import Heading
from reelscribe.errors import UsageError

if TYPE_CHECKING:
    from reelscribe._track_specs import SummarySpec
    from reelscribe.cli.options.run import RunOptions
    from reelscribe.server.server_discovery import FoundServer

summary_option = partial(typer.Option, rich_help_panel=Heading.SUMMARY)


@dataclass(frozen=True, kw_only=True)
class SummaryOptions:
    """The options for summaries of sources."""

    summary: Annotated[
        bool,
        summary_option(
            "--summary/--no-summary",
            help="Also ask a chat model for a title, a summary and keywords of each source, made of the texts that this"
            " command makes of it.",
        ),
    ] = False
    summary_model: Annotated[
        str | None,
        summary_option(
            metavar="NAME",
            help="Name of the chat model on its server. By default that of --model or --clip-model on the same server,"
            " or the only one there.",
        ),
    ] = None
    summary_server: Annotated[
        list[str] | None,
        summary_option(
            metavar="URL",
            help="Address of a server with OpenAI's API for the chat model, such as openai+http://127.0.0.1:8000/v1."
            " May be repeated. By default --server, if it has this API.",
        ),
    ] = None
    summary_key_file: Annotated[
        list[Path] | None,
        summary_option(
            metavar="FILE",
            help="Key file for --summary-server. By default the key in the environment variable OPENAI_API_KEY, if this"
            " is the only server with OpenAI's API that you name.",
        ),
    ] = None

    def servers(self, of_pictures_or_speech: Sequence[FoundServer], revision: str | None) -> list[FoundServer]:
        """Return the servers of the chat model; none if no summaries are wanted.

        Args:
            of_pictures_or_speech: The servers of `--server`.
            revision: The text that changes when the weights behind the name of a model do; None for none.

        Raises:
            UsageError: None of them has OpenAI's API, or an option needs another one that is not given.
        """
        from reelscribe.server.server_discovery import find_servers

        self._check()
        if not self.summary:
            return []
        settings = openai_settings(revision=revision)  # what is said about frames and clips is not about texts
        if self.summary_server:
            found = find_servers(self.summary_server, self.summary_key_file, find_keys=False, openai=settings)
        else:
            found = [replace(each, server=replace(each.server, openai=settings)) for each in of_pictures_or_speech]
        if not found or not found[0].server.speaks_openai:
            raise UsageError(
                "--summary: expected a server with OpenAI's API, as no handler on a TorchServe answers texts; name one"
                " with --summary-server openai+http://HOST:PORT/v1"
            )
        return found

    def specs(
        self, run: RunOptions, servers: Sequence[FoundServer], model: str | None, requests_in_flight: int | None
    ) -> list[SummarySpec]:
        """Return what makes the summaries; nothing if none are wanted.

        Args:
            run: Whether sources are tried again that have failed.
            servers: The servers of the chat model, from `servers`.
            model: Name of the model of pictures on the servers of `--server`; None if none was given.
            requests_in_flight: Largest number of unanswered requests; None for what the servers take.
        """
        from reelscribe._track_specs import SummarySpec
        from reelscribe.run.tracks.summaries import SummaryOptions

        if not servers:
            return []
        name = self.summary_model or (None if self.summary_server else model)
        return [SummarySpec(SummaryOptions(retry_failed=run.retry_failed), servers, name, requests_in_flight)]

    def _check(self) -> None:
        given = {"--summary-model": self.summary_model, "--summary-server": self.summary_server}
        for option, value in given.items():
            if value and not self.summary:
                raise UsageError(f"{option}: expected --summary with it, which asks for summaries")
        if self.summary_key_file and not self.summary_server:
            raise UsageError("--summary-key-file: expected --summary-server with it, as --key-file is for --server")
