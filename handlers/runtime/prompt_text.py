"""The texts of strangers that a model reads: prompts of clips, initial prompts and hot words, and words to align.

A tokenizer reads the names of its special tokens in any text, such as <|im_end|>, which ends a turn, or <|video_pad|>,
which stands for a part of a clip. Whoever writes one could speak for somebody else, or ask for frames that are not
there. So all texts from outside are checked here, by what the tokenizer itself makes of them. A client replaces what
looks like such a token in texts that are data, such as transcripts, before it makes a prompt of them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from reelscribe.errors import PromptError


def spelled(text: str) -> str:
    """Return a text as tokenizers take it: lone surrogates are no letters, and become question marks."""
    return text.encode("utf-8", "replace").decode()


@lru_cache(maxsize=4)
def special_ids(tokenizer: Any) -> frozenset[int]:
    """Return the IDs of the tokens that tell a model more than text does."""
    return frozenset([*tokenizer.get_added_vocab().values(), *tokenizer.all_special_ids])


def plain_tokens(tokenizer: Any, name: str, text: str, most_letters: int) -> list[int]:
    """Make the tokens of a text from outside.

    Args:
        tokenizer: The tokenizer of the model.
        name: What messages call the text.
        text: The text, with the space before it if the model wants one.
        most_letters: The most letters of the text, without space around it.

    Returns:
        The IDs of the tokens, none of which is special.

    Raises:
        PromptError: The text is too long, or has special tokens of the model.
    """
    letters = len(text.strip())
    if letters > most_letters:
        raise PromptError(f"{name}: expected at most {most_letters:,} letters, got {letters:,}; shorten it")
    ids: list[int] = tokenizer(spelled(text), add_special_tokens=False).input_ids
    if found := special_ids(tokenizer).intersection(ids):
        token = tokenizer.convert_ids_to_tokens(min(found))
        raise PromptError(f"{name}: expected no special tokens of the model, got {token}; leave them out")
    return ids
