"""Canary: a Fast Conformer and a decoder, whose prompt names the spoken language and that of the text.

It transcribes 25 languages of Europe, and translates them into English. It cannot detect which one is spoken.
"""

from __future__ import annotations

from torch import Tensor
from transformers import CanaryForConditionalGeneration
from transformers.models.canary.processing_canary import LANGUAGE_CODE_TO_NAME

from reelscribe.contract.speech import BOTH, ENGLISH
from transcripts.prompted_model import PromptedModel
from transcripts.speech_model import Chunk


class CanaryModel(PromptedModel):
    """A loaded Canary with its processor, on one device. It implements `SpeechModel`, in one stage."""

    model_class = CanaryForConditionalGeneration
    prompt_input = "decoder_input_ids"
    languages = tuple(LANGUAGE_CODE_TO_NAME)
    default_language = ENGLISH
    tasks = ("transcribe", "translate", BOTH)

    def inputs(self, chunk: Chunk) -> dict[str, Tensor]:
        """Make the spectrogram of a chunk and its prompt."""
        spoken = self.language_of(chunk)
        prompts = self._processor.apply_transcription_request(
            [chunk.samples],
            source_language=spoken,
            target_language=ENGLISH if chunk.options.task == "translate" else spoken,
            tokenize=False,
        )
        ids: Tensor = self.tokenizer(prompts, return_tensors="pt").input_ids
        return {**self.features([chunk]), self.prompt_input: ids}

    def text(self, chunk: Chunk, tokens: list[int]) -> tuple[str, str | None]:
        """Return the text of a chunk, and the code of the spoken language."""
        return self.tokenizer.decode(tokens, skip_special_tokens=True).strip(), self.language_of(chunk)
