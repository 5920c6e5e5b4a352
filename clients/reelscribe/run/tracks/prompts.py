"""Questions to models: a prompt whose fields are filled in for each clip, and schemas for answers."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from reelscribe.contract.outcomes import Utterance
from reelscribe.contract.source import Section
from reelscribe.errors import AnswerRefused, UsageError

FIELDS = ("start", "end", "name", "transcript", "schema")
"""The fields that a prompt may have, in braces. Other braces stay as they are, because prompts that ask for JSON show
examples of it, at which `str.format` would fail."""

_FIELD = re.compile("{(" + "|".join(FIELDS) + ")}")
_FENCE = re.compile(r"\A```\w*\s|\s```\Z")
_SPECIAL_TOKEN = re.compile(r"<(?=\||/?(?:think|tool_call|tool_response)>)")
MOST_ANSWER_CHARACTERS = 2**17
"""Largest answer that is parsed as JSON, in characters; models write a tenth of it. It is checked in the event loop,
which would wait for some minutes until millions of keywords are compared with a schema."""
_QUOTED_LETTERS = 2000
"""The most letters of an answer that are quoted to the model."""
_MOST_LEVELS = 100
"""The most arrays and objects of an answer inside each other. SQLite, which reads the ledger, takes 1000."""
_TOO_DEEP = f"it has more than {_MOST_LEVELS} arrays and objects inside each other"


def has_field(prompt: str | None, field: str) -> bool:
    """Return whether a prompt has a field, one of FIELDS."""
    return prompt is not None and f"{{{field}}}" in prompt


def fill(
    prompt: str, path: str, span: Section, utterances: Sequence[Utterance], schema: Mapping[str, Any] | None = None
) -> str:
    """Fill the fields of a prompt for one clip.

    Args:
        prompt: The prompt.
        path: The source.
        span: The clip.
        utterances: What is said in the source, in the order of time; empty if nobody knows.
        schema: The JSON schema of answers; None if there is none.

    Returns:
        The prompt with `{start}` and `{end}` in seconds, the file name without its suffix as `{name}`, the words of the
        clip as `{transcript}`, and the schema as `{schema}`.
    """
    said = words_between(utterances, span.start_seconds, span.end_seconds)
    values = {
        "start": f"{span.start_seconds:g}",
        "end": f"{span.end_seconds:g}",
        "name": without_special_tokens(os.path.splitext(os.path.basename(path))[0]),
        "transcript": without_special_tokens(said),
        "schema": "" if schema is None else json.dumps(schema, ensure_ascii=False),
    }
    return _FIELD.sub(lambda match: values[match[1]], prompt)


def without_special_tokens(text: str) -> str:
    """Return a text in which nothing looks like a special token of a model, which would be refused or read as one."""
    return _SPECIAL_TOKEN.sub("< ", text)


def words_between(utterances: Sequence[Utterance], start: float, end: float) -> str:
    """Return what is said in a stretch of time: by the times of words if they are known, or else by those of segments.

    The name of a speaker is before what they say, where it is known.

    Args:
        utterances: What is said, in the order of time.
        start: Presentation time at which the stretch starts, in seconds.
        end: Presentation time at which it ends.
    """
    said, speaker = list[str](), None
    for utterance in utterances:
        if words := _words_between(utterance, start, end):
            if utterance.speaker != speaker:
                speaker = utterance.speaker
                said += [f"{speaker}:"] if speaker else []
            said.append(words)
    return " ".join(said)


def _words_between(utterance: Utterance, start: float, end: float) -> str:
    if utterance.end <= start or utterance.start >= end:
        return ""
    if utterance.words:
        words = [word.text.strip() for word in utterance.words if start <= (word.start + word.end) / 2 < end]
        return " ".join(filter(None, words))
    inside = min(utterance.end, end) - max(utterance.start, start)
    return utterance.text.strip() if 2 * inside >= min(utterance.end - utterance.start, end - start) else ""


def check_schema(schema: Any) -> None:
    """Raise UsageError for something that is no JSON schema, or refers to something that it does not have."""
    import jsonschema  # imported late, because few runs have a schema
    import referencing
    import referencing.jsonschema

    if not isinstance(schema, dict):
        raise UsageError('JSON schema: expected an object, such as {"type": "object"}, got something else')
    try:
        jsonschema.validators.validator_for(schema).check_schema(schema)
    except jsonschema.SchemaError as error:
        raise UsageError(
            f"JSON schema: expected a valid one, got an error at {error.json_path}: {error.message}; correct it"
        ) from None
    specification = referencing.jsonschema.specification_with(
        str(schema.get("$schema", "")), default=referencing.jsonschema.DRAFT202012
    )
    resource = specification.create_resource(schema)
    base = resource.id() or ""
    _check_references(resource, referencing.Registry().with_resource(base, resource).crawl().resolver(base))


def _check_references(resource: Any, resolver: Any) -> None:
    """Raise UsageError if a part of a schema refers to something that the schema does not have."""
    contents = resource.contents
    references = [contents.get(name) for name in ("$ref", "$dynamicRef")] if isinstance(contents, dict) else []
    for reference in filter(None, references):
        try:
            resolver.lookup(reference)
        except Exception:  # noqa: BLE001 - referencing lets errors of many types pass
            raise UsageError(f"JSON schema: expected references to parts of itself, got {reference}") from None
    for part in resource.subresources():
        _check_references(part, resolver.in_subresource(part))


def read_answer(text: str, schema: Mapping[str, Any]) -> Any:
    """Parse an answer that must fit a schema.

    Args:
        text: The answer; fences of three backticks at its ends are no part of it.
        schema: The JSON schema.

    Returns:
        The parsed JSON.

    Raises:
        AnswerRefused: It is too long, no JSON, or does not fit.
        UsageError: The schema refers to something that it does not have.
    """
    import jsonschema
    import referencing.exceptions

    if len(text) > MOST_ANSWER_CHARACTERS:
        raise AnswerRefused(f"it has {len(text)} characters; expected at most {MOST_ANSWER_CHARACTERS}")
    try:
        # Python reads numbers that JSON does not have, and SQLite would not read the ledger any more.
        value = json.loads(_FENCE.sub("", text.strip()), parse_float=_finite, parse_constant=_finite)
    except ValueError as error:
        raise AnswerRefused(f"it is no JSON: {error}") from None
    except RecursionError:
        raise AnswerRefused(_TOO_DEEP) from None
    if _levels(value) > _MOST_LEVELS:
        raise AnswerRefused(_TOO_DEEP)
    # With a registry, jsonschema fetches nothing.
    validator = jsonschema.validators.validator_for(schema)(schema, registry=referencing.Registry())
    try:
        problem = jsonschema.exceptions.best_match(validator.iter_errors(value))
    except referencing.exceptions.Unresolvable as error:
        raise UsageError(f"JSON schema: expected references to parts of itself, got {error.ref}") from None
    if problem:
        raise AnswerRefused(f"it does not fit the schema: {problem.json_path}: {problem.message[:200]}")
    return value


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is no number")
    return value


def _levels(value: Any) -> int:
    """Return how many arrays and objects are inside each other."""
    level, count = [value], -1
    while level:
        nested = [each for each in level if isinstance(each, (list, dict))]
        level = [item for each in nested for item in (each.values() if isinstance(each, dict) else each)]
        count += 1
    return count


def ask_again(prompt: str, answer: str, why: str) -> str:
    """Return the prompt for one more try after a refused answer."""
    return (
        f"{prompt}\n\nYour last answer was:\n{without_special_tokens(answer[:_QUOTED_LETTERS])}\n\nIt cannot be used,"
        f" because {without_special_tokens(why)}. Answer with JSON that can be used, and with nothing else."
    )
