"""Qwen3-ASR: an encoder of audio in front of a language model, whose answer begins with the language that it heard.

It knows 30 languages. Its system message is a context: names and words that may be said, as the user gives them.
"""

from __future__ import annotations

from torch import Tensor
from transformers import Qwen3ASRForConditionalGeneration
from transformers.models.qwen3_asr.processing_qwen3_asr import LANGUAGE_CODE_TO_NAME

from runtime.prompt_text import spelled
from transcripts.prompted_model import PromptedModel
from transcripts.speech_model import Chunk, previous_tokens

MOST_CONTEXT_TOKENS = 1000
"""The most tokens of a context. The model has room for more, but each chunk has to read them."""

_CODES = {name: code for code, name in LANGUAGE_CODE_TO_NAME.items()}


class Qwen3AsrModel(PromptedModel):
    """A loaded Qwen3-ASR with its processor, on one device. It implements `SpeechModel`, in one stage."""

    model_class = Qwen3ASRForConditionalGeneration
    prompt_input = "input_ids"
    left_padded = ("input_ids", "attention_mask")
    languages = tuple(LANGUAGE_CODE_TO_NAME)
    prompt_tokens = MOST_CONTEXT_TOKENS

    def check_previous_text(self, text: str) -> None:
        """Raise PromptError for a text that is too long, or has special tokens."""
        previous_tokens(self.tokenizer, text, self.prompt_tokens)

    def inputs(self, chunk: Chunk) -> dict[str, Tensor]:
        """Make the spectrogram of a chunk and its conversation."""
        request = self._processor.apply_transcription_request(
            [chunk.samples],
            language=self.language_of(chunk),
            prompt=spelled(chunk.options.previous_text) or None,
            device=str(self._device),
        )
        return dict(request)

    def text(self, chunk: Chunk, tokens: list[int]) -> tuple[str, str | None]:
        """Return the text of a chunk, and the code of the language that was named or heard."""
        answer = self._processor.decode(tokens, return_format="parsed")
        return answer["transcription"], self.language_of(chunk) or _CODES.get(answer["language"])
