"""What Whisper takes for what was said before a window: an initial prompt and hot words.

Whisper was trained with the text of the window before in front of that of a window. Names in it are spelled the same
way again, so a text of the user's own in this place tells the model which words to expect.
"""

from __future__ import annotations

from typing import Any

from reelscribe.errors import PromptError
from transcripts.speech_model import previous_tokens

_START = "<|startofprev|>"


class PreviousText:
    """Makes the tokens of what was said before.

    Attributes:
        most_tokens: The most tokens of a text: half of the decoder's positions less one, as in openai/whisper; 0 for a
            model without <|startofprev|>.
    """

    def __init__(self, tokenizer: Any, positions: int) -> None:
        """Read a tokenizer.

        Args:
            tokenizer: The tokenizer of the Whisper.
            positions: Number of the decoder's positions.
        """
        self._tokenizer = tokenizer
        self._start: int | None = tokenizer.get_added_vocab().get(_START)
        self.most_tokens = 0 if self._start is None else positions // 2 - 1

    def tokens(self, text: str) -> list[int]:
        """Make the tokens that stand in front of the prompt of a window.

        Args:
            text: What was said before; may be empty.

        Returns:
            The IDs of <|startofprev|> and of the text; nothing for an empty text.

        Raises:
            PromptError: The model takes no such text, or it is too long or has special tokens of the model.
        """
        if not text:
            return []
        if self._start is None:
            raise PromptError("initial_prompt, hotwords: expected none, as this model takes none; leave them out")
        # Whisper's words begin with their space, and so does a text.
        return [self._start, *previous_tokens(self._tokenizer, f" {text}", self.most_tokens)]
