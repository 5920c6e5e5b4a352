"""Generates tokens in compiled steps: with caches of fixed lengths, and in batches of a few sizes.

Between two tokens, a GPU waits for Python, which starts each kernel of the step. A CUDA graph starts them all at once,
but only for tensors of the shapes, and at the addresses, for which it was recorded. transformers compiles the step that
follows a prompt, and records such graphs, if `generate` has a `StaticCache`. It would make a new one for each call, at
another address, and each time record a graph that is never freed. So the caches here are kept, and share one memory: a
cache of fewer rows or a shorter length is the beginning of the largest one.

Encoders and prompts are not compiled: their shapes vary, and they have work for the whole device.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import (
    CompileConfig,
    EncoderDecoderCache,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    StaticCache,
)

from reelscribe.errors import StartupError

_WARM_UP_TOKENS = 5
"""Tokens for which a shape is compiled, recorded and replayed: the first follows the prompt, all others take a step."""

_PROMPT_INPUTS = ("input_ids", "inputs_embeds", "attention_mask", "mm_token_type_ids", "decoder_input_ids")
"""The inputs of `generate` that have a row for each text and a column for each token of its prompt."""


class CompiledSteps:
    """What a model needs to generate tokens in compiled steps.

    Attributes:
        lengths: The lengths that caches may have, in tokens, shortest first.
        warming_up: The least length of caches while shapes are warmed up, and otherwise None.
        caches: The caches in use, by their rows and lengths.
    """

    def __init__(self, model: Any, lengths: Sequence[int], encoder_length: int | None = None) -> None:
        """Prepare a model: from now on, `generate_tokens` compiles its steps.

        Args:
            model: A model of transformers that generates.
            lengths: The lengths that caches may have, in tokens. A prompt, with the most tokens that may follow it,
                gets the shortest one that it fits. Where it fits none, nothing is compiled. Empty where all prompts
                have one length, which the first call tells.
            encoder_length: The length to which the states of an encoder are padded; None if they have one length.

        Raises:
            StartupError: transformers cannot compile this model.
        """
        if not model._can_compile_fullgraph:
            raise StartupError(
                f"YAML, handler, compile: expected a model with steps that transformers can compile, got a"
                f" {type(model).__name__}; build the archive without --compile"
            )
        self.lengths, self._encoder_length = sorted(set(lengths)), encoder_length
        self.warming_up: int | None = None
        self.caches: dict[tuple[int, int], Any] = {}
        self._largest = (0, 0)
        # On a CPU, only the graph is made, and no code: it shows that shapes recur, and is not faster.
        on_gpu = model.device.type == "cuda"
        self._config: Any = CompileConfig() if on_gpu else CompileConfig(backend="eager", mode="default")
        self._config._compile_all_devices = True  # type: ignore[assignment]  # its class says None, for no
        model.compiled_steps = self

    def length_for(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> int | None:
        """Return the length of the cache for the arguments of a call of `generate`; None if it is not compiled."""
        if options.get("max_new_tokens") is None:
            return None
        needed = max(_prompt(inputs).shape[1] + options["max_new_tokens"], self.warming_up or 0)
        self.lengths = self.lengths or [needed]
        return next((length for length in self.lengths if length >= needed), None)

    def generate(
        self, model: Any, inputs: Mapping[str, Any], options: dict[str, Any], processors: Sequence[LogitsProcessor]
    ) -> Tensor:
        """Generate tokens where `length_for` knows a length; see `generate_tokens`."""
        rows, length = len(_prompt(inputs)), self.length_for(inputs, options)
        assert length is not None, "a call that is compiled"
        inputs = _encoded(model, inputs)
        padded = self._padded(inputs, (1 << (rows - 1).bit_length()) - rows)
        if self.warming_up is not None:
            options = {**options, "min_new_tokens": min(_WARM_UP_TOKENS, options["max_new_tokens"])}
        search: Any = GenerationMixin.generate
        sequences: Tensor = search(
            model,
            **padded,
            **{**options, "cache_implementation": None},
            past_key_values=self._cache(model.config, padded, length),
            compile_config=self._config,
            logits_processor=LogitsProcessorList([_FirstRows(rows, processors)]),
        )
        return sequences[:rows]

    def free(self) -> None:
        """Free the memory of all caches; the next calls make new ones, for which graphs are recorded anew."""
        self.caches.clear()
        self._largest = (0, 0)

    def _padded(self, inputs: Mapping[str, Any], more: int) -> dict[str, Any]:
        """The inputs with more rows. Their prompts repeat a token of text, as an image would need features."""
        padded = dict(inputs)
        for name in [name for name in _PROMPT_INPUTS if name in inputs]:
            rows = inputs[name]
            padded[name] = torch.cat([rows, rows[-1:, -1:].expand(more, *rows.shape[1:])])
        if "encoder_outputs" in inputs:
            output = inputs["encoder_outputs"]
            after = (self._encoder_length or output.last_hidden_state.shape[1]) - output.last_hidden_state.shape[1]
            parts = {name: _lengthened(each, after) for name, each in output.items()}
            parts = {name: torch.cat([each, each[-1:].expand(more, *each.shape[1:])]) for name, each in parts.items()}
            padded["encoder_outputs"] = type(output)(**parts)
            padded["attention_mask"] = parts.get("attention_mask", torch.ones_like(parts["last_hidden_state"][..., 0]))
        return padded

    def _cache(self, config: Any, inputs: Mapping[str, Any], length: int) -> Any:
        """An empty cache for padded inputs."""
        shape = rows, _ = len(_prompt(inputs)), length
        if shape not in self.caches:
            large = self.caches.get(self._largest)
            if large and rows <= self._largest[0] and length <= self._largest[1] and _has_memory(large):
                cache = _beginning(large, rows, length)
            else:
                self.free()  # the others are parts of a memory that is too small
                self._largest = shape
                # transformers makes its tensors while it reads the prompt, when it knows their shapes.
                cache = StaticCache(config, length)
                if "encoder_outputs" in inputs:
                    states = inputs["encoder_outputs"].last_hidden_state
                    cache = EncoderDecoderCache(cache, StaticCache(config, states.shape[1]))
            self.caches[shape] = cache
        self.caches[shape].reset()
        return self.caches[shape]


class _FirstRows(LogitsProcessor):
    """Changes the scores of the first rows; the other ones, which are padding, follow the last of them."""

    def __init__(self, rows: int, processors: Sequence[LogitsProcessor]) -> None:
        self._rows, self._processors = rows, LogitsProcessorList(processors)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        processors: Any = self._processors  # its annotations want other types of tensors than `generate` has
        first: Tensor = processors(input_ids[: self._rows], scores[: self._rows])
        return torch.cat([first, first[-1:].expand(len(scores) - self._rows, -1)])


def generate_tokens(
    model: Any,
    inputs: Mapping[str, Any],
    options: dict[str, Any],
    processors: Sequence[LogitsProcessor],
    search: Callable[..., Tensor] | None = None,
) -> Tensor:
    """Generate tokens greedily or by sampling, in compiled steps if the model has been prepared for them.

    Args:
        model: A model of transformers that generates.
        inputs: The inputs of its `generate`.
        options: Other arguments of it.
        processors: What changes the scores of the next token.
        search: What generates where nothing is compiled; by default `generate` of the model.

    Returns:
        The prompts and the tokens that follow them, as IDs, (B, T).
    """
    steps: CompiledSteps | None = getattr(model, "compiled_steps", None)
    if steps and steps.length_for(inputs, options):
        return steps.generate(model, inputs, options, processors)
    tokens: Tensor = (search or model.generate)(**inputs, **options, logits_processor=LogitsProcessorList(processors))
    return tokens


def _prompt(inputs: Mapping[str, Any]) -> Tensor:
    """The tokens of prompts, (B, T), or what has a row and at least a column for each of them."""
    names = ("decoder_input_ids", "input_ids", "inputs_embeds")
    prompt: Tensor | None = next((inputs[name] for name in names if name in inputs), None)
    return inputs["encoder_outputs"].last_hidden_state if prompt is None else prompt


def _encoded(model: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The inputs with the output of an encoder in place of what it takes, if the model has an encoder."""
    if not model.config.is_encoder_decoder or "encoder_outputs" in inputs:
        return inputs
    prompt = {name: inputs[name] for name in inputs if name.startswith("decoder_")}
    taken = {name: inputs[name] for name in inputs if name not in prompt}
    return {**prompt, "encoder_outputs": model.get_encoder()(**taken, return_dict=True)}


def _lengthened(rows: Tensor, more: int) -> Tensor:
    """Rows, (B, T) or (B, T, D), with more columns of zeros."""
    return F.pad(rows, (0, 0) * (rows.dim() - 2) + (0, more))


def _has_memory(cache: Any) -> bool:
    """Return whether a cache has its tensors; it has none if reading the first prompt failed."""
    # All layers have read the prompt, or the last one has not. Its other cache comes last.
    last = cache.cross_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    return bool(last.is_initialized)


def _beginning(large: Any, rows: int, length: float) -> Any:
    """A cache of fewer rows or a shorter length, at the beginning of the memory of a larger one."""
    if isinstance(large, EncoderDecoderCache):
        states = _beginning(large.cross_attention_cache, rows, math.inf)
        return EncoderDecoderCache(_beginning(large.self_attention_cache, rows, length), states)
    cache = copy.copy(large)
    cache.layers = [copy.copy(layer) for layer in large.layers]
    for layer in cache.layers:
        layer.batch_size, layer.max_cache_len = rows, min(length, layer.max_cache_len)
        for name in ("keys", "values"):
            memory = getattr(layer, name)
            shape = (rows, memory.shape[1], layer.max_cache_len, memory.shape[3])
            part = memory.flatten()[: math.prod(shape)].view(shape)
            torch._dynamo.mark_static_address(part)
            setattr(layer, name, part)
    return cache
