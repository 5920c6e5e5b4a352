"""The options for the servers of a run, and for the names of their models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reelscribe.cli.options.run import speed_option
from reelscribe.cli.parser.help import Heading
from reelscribe.server.start_options import DIRECTORY, INFERENCE_ADDRESS, KEY_FILE_VARIABLE, SERVER_VARIABLE

if TYPE_CHECKING:
    from reelscribe.server.server_discovery import FoundServer

server_option = partial(typer.Option, rich_help_panel=Heading.SERVER)

CaptionModel = Annotated[
    str | None,
    server_option(
        "--model",
        metavar="NAME",
        help="Name of the captioner or video-language model on the server. By default the only one.",
    ),
]
ClipModel = Annotated[
    str | None,
    server_option(metavar="NAME", help="Name of the video-language model on the server. By default the only one."),
]
SpeechModel = Annotated[
    str | None,
    server_option(metavar="NAME", help="Name of the speech model on the server. By default the only one."),
]
ShotModel = Annotated[
    str | None,
    server_option(metavar="NAME", help="Name of the shot model on the server. By default the only one."),
]
TranscribingModel = Annotated[
    str | None,
    server_option("--model", metavar="NAME", help="Name of the speech model on the server. By default the only one."),
]


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The options for the servers of a run."""

    servers: Annotated[
        list[str] | None,
        server_option(
            "--server",
            metavar="URL",
            envvar=SERVER_VARIABLE,
            help="Inference address of a server. May be repeated to share the load between several servers. By default"
            " the server that runs in --directory, or otherwise the address below.",
            show_default=INFERENCE_ADDRESS,
        ),
    ] = None
    key_files: Annotated[
        list[Path] | None,
        server_option(
            "--key-file",
            metavar="FILE",
            envvar=KEY_FILE_VARIABLE,
            help="Copy of the server's key_file.json, with mode 600. Give one for all servers, or one for each --server"
            " in the same order. By default the key of the server in --directory if --server is its address, or"
            " otherwise key_file.json in the working folder if there is one.",
        ),
    ] = None
    directory: Annotated[
        Path | None,
        server_option(
            metavar="FOLDER",
            help="Folder of a server on this machine, with its address and key.",
            show_default=str(DIRECTORY),
        ),
    ] = None
    management: Annotated[
        str | None,
        server_option(
            metavar="URL",
            help="Management address, at which the key of a single --server is renewed before it expires.",
        ),
    ] = None
    requests_in_flight: Annotated[
        int,
        speed_option(
            min=1,
            metavar="N",
            help="Largest number of unanswered requests for each model. The client uses fewer if more do not help.",
        ),
    ] = 64

    def find(self) -> list[FoundServer]:
        """Return the servers, each with its key.

        Raises:
            UsageError: A key file or an address cannot be used, or their numbers do not fit together.
        """
        from reelscribe.server.server_discovery import find_servers

        return find_servers(self.servers, self.key_files, self.management, self.directory)
