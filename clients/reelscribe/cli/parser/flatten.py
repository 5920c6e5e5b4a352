"""Commands that receive their options as dataclasses.

typer reads the options of a command from the parameters of a function. So that commands which share options need not
repeat them, a function can take groups of options: dataclasses whose fields are annotated with `typer.Option`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import Any, get_type_hints


def flatten(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each field of its dataclass parameters.

    Args:
        command: A function whose parameters are dataclasses or options that typer understands. The names of all
            resulting options must differ.

    Returns:
        A function with one parameter for each option, as typer needs it. It builds the dataclasses and calls `command`.
    """
    hints = get_type_hints(command)
    groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}
    parameters: list[Parameter] = []
    for parameter in signature(command, eval_str=True).parameters.values():
        group = groups.get(parameter.name)
        parameters += _parameters(group) if group else [parameter.replace(kind=Parameter.KEYWORD_ONLY)]

    @wraps(command)
    def flat(**values: Any) -> None:
        built = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**built, **values)

    flat.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]  # for typer
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat


def _parameters(group: type) -> list[Parameter]:
    annotations = get_type_hints(group, include_extras=True)
    return [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=_default(field), annotation=annotations[field.name])
        for field in fields(group)
    ]


def _default(field: Field[Any]) -> Any:
    return Parameter.empty if field.default is MISSING else field.default
