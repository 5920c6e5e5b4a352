"""The classes of all commands and groups, and the decorator for commands that share options.

typer reads the options of a command from the parameters of a function. So that commands which share options need not
repeat them, a function can take groups of options: dataclasses whose fields are annotated with `typer.Option`, of which
`flatten` makes one parameter for each field. The values come from the command line, the environment and the files
`reelscribe.toml`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Set
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import partial, wraps
from inspect import Parameter, signature
from itertools import chain
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from reelscribe._web_addresses import openai_servers
from reelscribe.cli.messages import EXIT_USAGE, exit_with, warn
from reelscribe.cli.parser.help import help_of, usage_of
from reelscribe.cli.parser.precedence import effective_options
from reelscribe.cli.parser.settings_file import NAME, Settings, read_settings
from reelscribe.errors import UsageError
from reelscribe.server.start_options import API_KEY_VARIABLE, KEY_FILE_VARIABLE


class Group(TyperGroup):
    """A group of commands, with help that cuts no names."""

    def get_help(self, ctx: Any) -> str:
        """Return the help for the width of the terminal."""
        return help_of(self, ctx)


class BareCommand(TyperCommand):
    """A command without options, for which the files `reelscribe.toml` do not matter."""

    def get_help(self, ctx: Any) -> str:
        """Return the help for the width of the terminal."""
        return help_of(self, ctx)

    def get_usage(self, ctx: Any) -> str:
        """Return how the command is called, which is shown above an error."""
        return f"Usage: {usage_of(self, ctx)}"


class Command(BareCommand):
    """A command whose options can also be in the environment and in the files `reelscribe.toml`."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the command line, with the values of the files as defaults.

        Raises:
            typer.BadParameter: A file cannot be used. The parser of typer raises other errors for options.
            typer.Exit: The same, after an event of --json-log has told why.
        """
        if extra.get("resilient_parsing"):  # the shell asks for completions, for which no file may be an obstacle
            return super().make_context(info_name, args, parent, **extra)
        json_log = "--json-log" in args
        try:
            return self._make_context(info_name, args, parent, **extra)
        except TyperException as error:
            if not json_log:
                raise
            raise exit_with(error.format_message(), EXIT_USAGE, json_log=True) from None

    def _make_context(self, info_name: str | None, args: list[str], parent: Any, **extra: Any) -> Any:
        try:
            settings = read_settings(parent.find_root().command, _command_path(parent, info_name))
        except UsageError as error:
            raise typer.BadParameter(str(error)) from None
        context = super().make_context(info_name, args, parent, default_map=settings.values, **extra)
        in_environment = [option.name for option in self.params if os.environ.get(str(option.envvar))]
        on_command_line = [name for name in context.params if _source(context, name) == "COMMANDLINE"]
        others = [{name: context.params[name] for name in names} for names in (in_environment, on_command_line)]
        replaced = set().union(*settings.files, *others) - effective_options(settings.files, others).keys()
        for option in self.params:
            if option.name in replaced:
                context.params[option.name] = option.default
        named_here = {
            name
            for name in settings.in_working_folder
            if _source(context, name) == "DEFAULT_MAP" and context.params.get(name)
        }
        if "media_hosts" in named_here:
            raise typer.BadParameter(
                f"{NAME} of this folder names a media-host, and the folder may be somebody else's; give --media-host"
            )
        _keep_key_from_others(context, settings, named_here)
        _keep_api_key_from_others(context, named_here, json_log="--json-log" in args)
        return context


def _keep_key_from_others(context: Any, settings: Settings, named_here: Set[str]) -> None:
    """Keep the key of the environment from a server that only the file in the working folder names.

    Raises:
        typer.BadParameter: The file names no key of the server either.
    """
    if not named_here & {"servers", "management"} or _source(context, "key_files") != "ENVIRONMENT":
        return
    if "key_files" not in settings.in_working_folder:
        raise typer.BadParameter(
            f"{NAME} of this folder names a server without its key-file, and the key of {KEY_FILE_VARIABLE} is not sent"
            " there, as the folder may be somebody else's; add key-file to it, or give --server"
        )
    (option,) = [each for each in context.command.params if each.name == "key_files"]
    context.params["key_files"] = option.process_value(context, settings.values["key_files"])


def _keep_api_key_from_others(context: Any, named_here: Set[str], *, json_log: bool) -> None:
    """Keep OPENAI_API_KEY from all servers unless the user names a single one that it can be for, and say so.

    Neither this command nor its processes have the variable then, until the command ends.
    """
    addresses = {
        name: [context.params[name]] if isinstance(context.params[name], str) else [*context.params[name]]
        for name, key_file in _KEY_FILES.items()
        if context.params.get(name) and not context.params.get(key_file)
    }
    servers = openai_servers(chain.from_iterable(addresses.values())) if os.environ.get(API_KEY_VARIABLE) else set()
    of_folder = servers and openai_servers(chain.from_iterable(addresses.get(name, ()) for name in named_here))
    if of_folder or len(servers) > 1:
        context.call_on_close(partial(os.environ.__setitem__, API_KEY_VARIABLE, os.environ.pop(API_KEY_VARIABLE)))
        why = (
            f"as {NAME} of this folder, which may be somebody else's, names one; name it with an option"
            if of_folder
            else "as several with OpenAI's API are named"
        )
        warn(
            f"{API_KEY_VARIABLE} is sent to no server, {why}; or give each its key with --key-file, --speech-key-file"
            " or --summary-key-file",
            json_log=json_log,
        )


_KEY_FILES = {
    "servers": "key_files",
    "speech_server": "speech_key_file",
    "summary_server": "summary_key_file",
    "openai_server": "key_file",
}
"""Options for addresses of servers with OpenAI's API, and those for their keys."""


def group(text: str) -> typer.Typer:
    """Make a group of commands.

    Args:
        text: What the commands are for; the first paragraph in one sentence.
    """
    return typer.Typer(
        cls=Group,
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        help=text,
    )


def flatten(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each field of its dataclass parameters.

    Args:
        command: A function whose parameters are dataclasses or options that typer understands. The names of all
            resulting options must differ.

    Returns:
        A function with one parameter for each option, as typer needs it. It builds the dataclasses and calls `command`.
    """
    hints = get_type_hints(command)
    shared = {name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}
    parameters: list[Parameter] = []
    for parameter in signature(command, eval_str=True).parameters.values():
        options = shared.get(parameter.name)
        parameters += _parameters(options) if options else [parameter.replace(kind=Parameter.KEYWORD_ONLY)]

    @wraps(command)
    def flat(**values: Any) -> None:
        built = {
            name: options(**{field.name: values.pop(field.name) for field in fields(options)})
            for name, options in shared.items()
        }
        command(**built, **values)

    flat.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]  # for typer
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat


def on_command_line(context: typer.Context, options: type) -> list[str]:
    """Return the names of those options of a group that the command line gives, such as `--server`.

    Args:
        context: The command with its options.
        options: The dataclass of the group.
    """
    names = {field.name for field in fields(options)}
    return [
        option.opts[0]
        for option in context.command.params
        if option.name in names and _source(context, option.name) == "COMMANDLINE"
    ]


def _command_path(parent: Any, name: str | None) -> tuple[str, ...]:
    """Return the words of a command without the program's name, such as ("server", "start")."""
    words = [name or ""]
    while parent.parent is not None:
        words.append(parent.info_name)
        parent = parent.parent
    return tuple(reversed(words))


def _source(context: Any, name: str) -> str:
    source = context.get_parameter_source(name)
    return source.name if source else ""


def _parameters(options: type) -> list[Parameter]:
    annotations = get_type_hints(options, include_extras=True)
    return [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=_default(field), annotation=annotations[field.name])
        for field in fields(options)
    ]


def _default(field: Field[Any]) -> Any:
    return Parameter.empty if field.default is MISSING else field.default
