"""Prints api.md: all public names of the package, as their docstrings say them. `scripts/docs --api` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import griffe

CLIENTS = Path(__file__).resolve().parents[1] / "clients"

SECTIONS = {
    "Files and arrays": (
        "caption",
        "describe",
        "transcribe",
        "annotate",
        "caption_async",
        "describe_async",
        "transcribe_async",
        "annotate_async",
        "caption_file",
        "describe_file",
        "transcribe_file",
    ),
    "Bulk runs": ("Run", "CaptionTrack", "ClipTrack", "TranscriptTrack", "ShotTrack", "SourceList", "Summary"),
    "Options": (
        "CaptionOptions",
        "Sampling",
        "ClipOptions",
        "ClipCutting",
        "ShotOptions",
        "ShotDetection",
        "SpeechOptions",
        "TranscriptionOptions",
        "Cutting",
        "SpeakerOptions",
        "SpeakerBounds",
    ),
    "Results": (
        "Results",
        "SavedRecord",
        "Caption",
        "Failure",
        "DescribedClip",
        "ClipFailure",
        "Utterance",
        "Translation",
        "Turn",
        "Silence",
        "SpeechFailure",
    ),
    "Servers": (
        "Server",
        "Credentials",
        "CaptionClient",
        "ClipClient",
        "SpeechClient",
        "ManagementClient",
        "ServerAddresses",
    ),
    "Errors": ("ReelscribeError", "UsageError", "MediaError", "ServerError", "RequestRefused", "OutputError"),
}
"""The public names, in the order of the page."""

CALLED = ("Run", "Results", "SavedRecord", "CaptionClient", "ClipClient", "SpeechClient", "ManagementClient")
"""Classes whose methods and properties are described; of the others, users need only what they are made of."""

WIDTH = 110
"""Most characters of a signature in one line."""


def cell(text: str) -> str:
    """Return a text as a cell of a table.

    Args:
        text: The text.
    """
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def default(parameter: griffe.Parameter, function: griffe.Function) -> str:
    """Return the default of a parameter; that of a constant is its value.

    Args:
        parameter: The parameter.
        function: Its function; that of a class may take fields of another one.
    """
    field = function.parent.all_members.get(parameter.name) if function.parent else None
    module = (field.final_target if isinstance(field, griffe.Alias) else field or function).module
    constant = module.members.get(str(parameter.default))
    constant = constant.final_target if isinstance(constant, griffe.Alias) else constant
    return str(constant.value if isinstance(constant, griffe.Attribute) else parameter.default)


def signature(name: str, function: griffe.Function, *, with_types: bool = True) -> str:
    """Return a signature, over several lines where it is long.

    Args:
        name: What is called.
        function: The function, or the `__init__` of a class.
        with_types: Whether it has the types of arguments and of what is returned.
    """
    is_method = function.parent is not None and function.parent.is_class
    parts = []
    parameters = [each for each in function.parameters if not each.name.startswith("_")]
    for each in parameters[int(is_method) :]:
        if each.kind is griffe.ParameterKind.keyword_only and "*" not in parts:
            parts.append("*")
        annotation = f": {each.annotation}" if with_types else ""
        equals = " = " if with_types else "="
        parts.append(f"{each.name}{annotation}" + (f"{equals}{default(each, function)}" if each.default else ""))
    returns = f" -> {function.returns}" if with_types and function.name != "__init__" else ""
    call = f"await {name}" if "async" in function.labels and not with_types else name
    line = f"{call}({', '.join(parts)}){returns}"
    if len(line) <= WIDTH or not with_types:
        return line
    return f"{call}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"


def summary(value: griffe.Object | griffe.Alias) -> str:
    """Return the first paragraph of a docstring.

    Args:
        value: What it describes.
    """
    text = value.docstring.value if value.docstring else ""
    return " ".join(text.partition("\n\n")[0].split())


def described(value: griffe.Object) -> Iterator[tuple[str, str]]:
    """Yield the names and meanings of the arguments in a docstring.

    Args:
        value: A function or class.
    """
    for section in value.docstring.parsed if value.docstring else ():
        if section.kind is griffe.DocstringSectionKind.parameters:
            yield from ((each.name, each.description) for each in section.value)


def said(value: griffe.Object, kind: griffe.DocstringSectionKind) -> str:
    """Return what a docstring says of what is returned or yielded, or nothing.

    Args:
        value: A function.
        kind: The section of the docstring.
    """
    sections = value.docstring.parsed if value.docstring else ()
    return " ".join(each.description for section in sections if section.kind is kind for each in section.value)


def table(rows: list[tuple[str, str]]) -> Iterator[str]:
    """Yield the lines of a table of names and their meanings; none without rows.

    Args:
        rows: Names and meanings.
    """
    if rows:
        yield "\n| | |\n|---|---|\n"
        yield from (f"| `{name}` | {cell(text)} |\n" for name, text in rows)


def lines_of_function(function: griffe.Function) -> Iterator[str]:
    """Yield the lines about a function; of an asynchronous form, which has the same arguments, only what it does.

    Args:
        function: The function.
    """
    if not function.name.endswith("_async"):
        yield f"\n```\n{signature(function.name, function)}\n```\n"
    yield f"\n{summary(function)}\n"
    yield from table(list(described(function)))
    for kind in (griffe.DocstringSectionKind.returns, griffe.DocstringSectionKind.yields):
        if text := said(function, kind):
            yield f"\n{kind.value.capitalize()}: {' '.join(text.split())}\n"


def lines_of_class(name: str, value: griffe.Class, *, is_made_by_users: bool) -> Iterator[str]:
    """Yield the lines about a class: how it is made, what it holds, and how it is used.

    Args:
        name: Its name.
        value: The class.
        is_made_by_users: Whether the page says how it is made.
    """
    init = value.all_members["__init__"] if is_made_by_users else value.members.get("__init__", value)
    init = init.final_target if isinstance(init, griffe.Alias) else init
    if is_made_by_users and isinstance(init, griffe.Function):
        yield f"\n```\n{signature(name, init)}\n```\n"
    yield f"\n{summary(value)}\n"
    rows = {**dict(described(value)), **dict(described(init))}
    members = {key: each for key, each in value.members.items() if not key.startswith("_") and each.docstring}
    for key, each in members.items():
        if each.is_attribute and (name in CALLED or "property" not in each.labels):
            rows.setdefault(key, summary(each))
    for each in init.parameters if isinstance(init, griffe.Function) else ():
        if field := value.all_members.get(each.name):
            rows.setdefault(each.name, summary(field))
    yield from table([row for row in rows.items() if row[1]])
    if name in CALLED:
        methods = [each for each in members.values() if isinstance(each, griffe.Function)]
        yield from table([(signature(each.name, each, with_types=False), summary(each)) for each in methods])


def lines() -> Iterator[str]:
    """Yield the lines of the page."""
    options = griffe.GoogleOptions(returns_multiple_items=False, returns_named_value=False)
    package = griffe.load(
        "reelscribe",
        search_paths=[CLIENTS],
        docstring_parser="google",
        docstring_options=options,
        allow_inspection=False,
    )
    yield "# Python API\n\nThese are all public names of the package `reelscribe`, as their docstrings have them.\n"
    yield "`help(reelscribe.caption)` also tells the exceptions; [python.md](python.md) shows how to use them.\n"
    for heading, names in SECTIONS.items():
        yield f"\n## {heading}\n"
        for name in names:
            value = package[name].final_target
            yield f"\n### {name}\n"
            if isinstance(value, griffe.Class):
                yield from lines_of_class(name, value, is_made_by_users=heading != "Errors")
            else:
                yield from lines_of_function(value)


if __name__ == "__main__":
    print("".join(lines()), end="")
