"""The options for the servers of a run, and for the names of their models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from reelscribe.cli.options.run import speed_option
from reelscribe.cli.parser.help import Heading
from reelscribe.errors import UsageError
from reelscribe.server.start_options import DIRECTORY, INFERENCE_ADDRESS, KEY_FILE_VARIABLE, SERVER_VARIABLE

if TYPE_CHECKING:
    from reelscribe.client.openai_forms import OpenAISettings
    from reelscribe.server.server_discovery import FoundServer

server_option = partial(typer.Option, rich_help_panel=Heading.SERVER)
openai_option = partial(typer.Option, rich_help_panel=Heading.OPENAI)

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
SpeakerModel = Annotated[
    str | None,
    server_option(metavar="NAME", help="Name of the speaker model on the server. By default the only one."),
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
            help="Inference address of a TorchServe; or openai+ and the address of a server with OpenAI's API, such as"
            " openai+http://127.0.0.1:8000/v1. May be repeated to share the load between several servers. By default"
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
            help="Copy of the server's key_file.json, with mode 600; for OpenAI's API, a file with the key alone. Give"
            " one for all servers, or one for each --server in the same order. By default the key of the server in"
            " --directory if --server is its address, or otherwise key_file.json in the working folder if there is one;"
            " for OpenAI's API, the environment variable OPENAI_API_KEY if you name a single such server.",
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
        int | None,
        speed_option(
            min=1,
            metavar="N",
            help="Largest number of unanswered requests for each model.",
            show_default="two calls for each worker that answers, and more if that helps",
        ),
    ] = None

    def find(self, openai: OpenAISettings | None = None) -> list[FoundServer]:
        """Return the servers, each with its key.

        Args:
            openai: How servers with OpenAI's API are asked; None for the defaults.

        Raises:
            UsageError: A key file or an address cannot be used, or their numbers do not fit together.
        """
        from reelscribe.server.server_discovery import find_servers

        return find_servers(self.servers, self.key_files, self.management, self.directory, openai=openai)


ModelRevision = Annotated[
    str | None,
    openai_option(
        metavar="TEXT",
        help="Any text that you change when the weights behind the model's name change, because such servers do not say"
        " so. Results with another text are not used again.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class OpenAIOptions:
    """How servers with OpenAI's API are asked about pictures."""

    model_revision: ModelRevision = None
    family: Annotated[
        str | None,
        openai_option(
            metavar="NAME",
            help="Family of the model, which decides how many frames of a clip are sent and at which size: qwen3-vl,"
            " qwen2.5-vl, internvl, gemma, llava-onevision, minicpm-v or blip2.",
            show_default="what the model's name tells; others get up to 32 frames of a clip",
        ),
    ] = None
    frame_format: Annotated[
        str | None,
        openai_option(
            metavar="png|jpeg:N", help="Send frames as PNG, or as JPEG of a quality up to 100.", show_default="jpeg:95"
        ),
    ] = None
    frame_times: Annotated[
        Literal["video", "prompt"] | None,
        openai_option(
            metavar="video|prompt",
            help="Send the frames of a clip as a video that has their times, which vLLM takes, or as pictures in the"
            " prompt, each after its time, for all servers.",
            show_default="what suits the family",
        ),
    ] = None
    frame_prompt: Annotated[
        str | None,
        openai_option(
            metavar="TEXT",
            help="What to ask the model about each frame, and about clips of one frame.",
            show_default="a description",
        ),
    ] = None
    max_tokens: Annotated[
        int | None,
        openai_option(
            min=1,
            metavar="N",
            help="Largest number of tokens of an answer.",
            show_default="256, or half of what the model takes if less",
        ),
    ] = None

    def settings(self) -> OpenAISettings:
        """Return how such servers are asked. Raises UsageError if the value of an option is invalid."""
        return openai_settings(
            **{name: value for name, value in vars(self).items() if name != "model_revision"},
            revision=self.model_revision,
        )


def openai_settings(**given: Any) -> OpenAISettings:
    """Return how servers with OpenAI's API are asked, from the options that were given; the others are None."""
    from reelscribe.client.openai_forms import OpenAISettings

    return OpenAISettings(**{name: value for name, value in given.items() if value is not None})


def check_used(found: Sequence[FoundServer], settings: OpenAISettings) -> None:
    """Raise UsageError if an option for servers with OpenAI's API is given, and no server of the run is one."""
    if settings != type(settings)() and not any(each.server.speaks_openai for each in found):
        raise UsageError(
            "--model-revision, --family, --frame-format, --frame-times, --frame-prompt, --max-tokens: expected a"
            " server with OpenAI's API (openai+http://...), got none; for TorchServe, the archive of the model decides"
        )
