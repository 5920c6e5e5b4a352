"""The text of a user that a speech model reads beside the audio: it is checked before it becomes part of a prompt."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from reelscribe.errors import PromptError

MAX_LETTERS = 10_000
"""The most letters that are read; no prompt has room for the tokens of so many."""


def spelled(text: str) -> str:
    """Return a text as tokenizers take it: lone surrogates are no letters, and become question marks."""
    return text.encode("utf-8", "replace").decode()


def text_tokens(tokenizer: Any, text: str, most: int, special: Container[int]) -> list[int]:
    """Make the tokens of an initial prompt and hot words.

    Args:
        tokenizer: The tokenizer of the model.
        text: The text, with the space before it if the model wants one.
        most: The most tokens that the model has room for.
        special: IDs of tokens that tell the model more than text does.

    Returns:
        The IDs of the tokens.

    Raises:
        PromptError: The text is too long, or has special tokens of the model.
    """
    letters = len(text.strip())
    if letters > MAX_LETTERS:
        raise PromptError(f"initial_prompt, hotwords: expected at most {MAX_LETTERS:,} letters, got {letters:,}")
    ids: list[int] = tokenizer(spelled(text), add_special_tokens=False).input_ids
    if any(token in special for token in ids):
        raise PromptError(
            "initial_prompt, hotwords: expected no special tokens of the model, such as <|en|>, got some; leave"
            " them out"
        )
    if len(ids) > most:
        raise PromptError(
            f"initial_prompt, hotwords: expected at most {most} tokens together, as many as the model has room for, got"
            f" {len(ids)}; leave out what is least likely to be said"
        )
    return ids
