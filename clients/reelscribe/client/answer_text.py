"""The text of an answer: what a model says to the question, without what it thinks before that.

Servers that know a reasoning model put its thoughts elsewhere. Others leave them in the text, between marks of the
model's own, of which the first may stand in the prompt, and the last be missing where the answer was cut off.
"""

from __future__ import annotations

import re

from reelscribe.contract.clips import ClipStatus
from reelscribe.errors import RequestRefused

MOST_CHARACTERS = 2**20
"""Longest answer that is read, in characters; long thoughts of models have a tenth. A hostile one takes a second."""

_NAME = "think(?:ing)?|thoughts?|reasoning|reflection|scratchpad"
_MARK = re.compile(
    rf"""
    (?=[<◁\[])(?:  # which tells quickly that most characters begin none
    (?P<begins>
        <(?:[\w-]+:)?(?:{_NAME})(?:\s[^<>]*)?(?<!/)>  # DeepSeek, Qwen, GLM and most others; <seed:think>
      | ◁think▷ | (?-i:\[THINK\])                  # Kimi, Mistral
      | <\|(?:begin_of_|begin_|start_)?(?:{_NAME})(?:_start|_begin)?\|>   # Command, Sky-T1
      | <\|channel>\s*thought\b | <unused94>       # Gemma
      | (?:<\|start\|>assistant)?<\|channel\|>\s*(?:analysis|commentary)\b  # gpt-oss
    )
  | (?P<ends>
        </(?:[\w-]+:)?(?:{_NAME})\s*> | <(?:{_NAME})\s*/>
      | ◁/think▷ | (?-i:\[/THINK\])
      | <\|(?:end_of_|end_|/)(?:{_NAME})\|> | <\|(?:{_NAME})_end\|>
      | <channel\|> | <unused95>
    )
  | (?P<answers>
        <\|channel\|>\s*final\b[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>
      | <\|(?:begin_of_solution|start_response)\|>
    ))
    """,
    re.IGNORECASE | re.VERBOSE,
)
_IN_PLAIN_WORDS = re.compile(
    r"""
    \A\s*(?:
        analysis(?=[A-Z]).*?(?:assistantfinal|\Z)  # gpt-oss without its special tokens
      | Here(?:\ is|'s)\ my\ thought\ process:.*?(?:Here(?:\ is|'s)\ my\ response:|\Z)  # Granite
      | <SUMMARY>.*?<CONCLUSION>        # LLaVA-CoT
    )
    """,
    re.DOTALL | re.VERBOSE,
)
"""Thoughts between words that an answer may have, too, so that they count only at its beginning."""

_AROUND = r"(?:<\|[\w/ ]*\|>|</?(?:answer|response|solution|conclusion)>|</?s>)"
_BEFORE, _AFTER = re.compile(rf"\A{_AROUND}", re.IGNORECASE), re.compile(rf"{_AROUND}\Z", re.IGNORECASE)
"""What may be around an answer that follows thoughts."""


def answer_text(text: str, status: ClipStatus = "complete") -> str:
    """Return what an answer says: without thoughts, or else as it is but for white space around it.

    Args:
        text: All that a model has written.
        status: Whether it was stopped at its limit of tokens, maybe in a thought.

    Raises:
        RequestRefused: It says nothing, or is too long.
    """
    if len(text) > MOST_CHARACTERS:
        why = f"expected a text of at most {MOST_CHARACTERS} characters, got {len(text)}"
        raise RequestRefused(200, why, permanent=True)
    said = without_thoughts(text, is_whole=status == "complete").strip()
    if not _is_visible(said):
        raise no_text(status, has_thoughts=_is_visible(text))
    return said


def _is_visible(text: str) -> bool:
    return any(character.isprintable() and not character.isspace() for character in text)


def no_text(status: ClipStatus, *, has_thoughts: bool) -> RequestRefused:
    """Return the failure of an item for which a model has written nothing, or thoughts alone."""
    content = "thoughts alone" if has_thoughts else "none"
    advice = ", up to the limit of tokens; raise that (--max-tokens with OpenAI's API), or turn thinking off"
    return RequestRefused(
        200, f"expected an answer with a text, got {content}{advice if status == 'truncated' else ''}", permanent=True
    )


def without_thoughts(text: str, *, is_whole: bool = True) -> str:
    """Return a text without the thoughts at its beginning. What looks like thoughts behind that is what it says.

    Args:
        text: Any text.
        is_whole: False if it was cut off, maybe in a thought.
    """
    told = _IN_PLAIN_WORDS.sub("", text)
    depth, named, at, has_begun = 0, 0, 0, False
    for mark in _MARK.finditer(told):
        if mark["begins"]:
            has_begun = has_begun or (not depth and bool(told[at : mark.start()].strip()))
            depth, named = (depth, named + 1) if has_begun else (depth + 1, named)
        elif mark["ends"] and named:
            named -= 1
        else:  # all before were thoughts, of which the first mark may have been in the prompt
            depth, named, at, has_begun = max(0, depth - 1) if mark["ends"] else 0, 0, mark.end(), False
    if not (at or depth or told != text):
        return text
    said = told[at:]
    if depth:  # either it ends in a thought, or one has named the mark
        said = _MARK.split(said, maxsplit=1)[0] if at and is_whole else ""
    return _bare(said)


def _bare(text: str) -> str:
    """Return a text without the marks of an answer around it, of which there are few."""
    text = text.strip()
    for _ in range(4):
        text = _BEFORE.sub("", _AFTER.sub("", text)).strip()
    return text
