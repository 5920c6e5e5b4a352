"""Descriptions by the describer's own code, compared with transformers: patches, attention, and tokens."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText

from clips.describer import ClipSettings, Describer
from clips.greedy_qwen import GreedyQwen
from reelscribe.contract.clips import Clip
from runtime.greedy_search import GreedySearch
from support.tiny_models import save_qwen2_5_vl
from synthetic.event_clips import random_event_clip

CPU = torch.device("cpu")
SHAPES = [(8, 3, 5), (8, 3, 5), (5, 4, 3), (1, 3, 5), (2, 2, 2)]
"""Frames of each clip, and its rows and columns of groups of patches; a single frame is a still."""


@pytest.fixture(scope="module", params=["qwen3_vl", "qwen2_5_vl"])
def describer(request, clip_model, tmp_path_factory) -> Describer:
    ours = request.param == "qwen3_vl"
    return Describer(
        ClipSettings(clip_model if ours else save_qwen2_5_vl(tmp_path_factory.mktemp("q"), clip_model)), CPU
    )


@pytest.fixture(scope="module")
def original(describer):
    return AutoModelForImageTextToText.from_pretrained(describer.settings.model, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def inputs(describer) -> dict[str, Tensor]:
    rng, clips = random.Random(1), []
    for count, rows, columns in SHAPES:
        event, size = random_event_clip(rng), (columns * describer.budget.factor, rows * describer.budget.factor)
        frames = [np.asarray(event.draw((k + 0.5) / count, 640, 360).resize(size)) for k in range(count)]
        clips.append(Clip(np.stack(frames), [0.5 * k for k in range(count)]))
    return describer.encode(clips)


def with_pixel_values(describer: Describer, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inputs as transformers' own processors make them."""
    names = [name for name in inputs if name.startswith("pixel_values")]
    return inputs | {name: describer.family.patching.pixel_values(inputs[name]) for name in names}


CASES = [{}, {"max_new_tokens": 1}, {"min_new_tokens": 15}, {"eos_token_id": [446, 300]}, {"temperature": 0.7}]
CASES += [{"repetition_penalty": 1.3}]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_tokens_are_those_of_transformers(describer, original, inputs, options):
    options = {"max_new_tokens": 24, "do_sample": False, **options}
    generated = GreedyQwen(describer.model).generate(inputs, GreedySearch.of(describer.model, options))
    options.pop("temperature", None)  # transformers warns that it has no effect
    with torch.inference_mode():
        expected = original.generate(**with_pixel_values(describer, inputs), **options)
    assert generated["tokens"] == expected[:, inputs["input_ids"].shape[1] :].tolist()
    assert len(set(map(tuple, generated["tokens"]))) > 1 or options["max_new_tokens"] == 1
    assert max(generated["avg_logprobs"]) <= 0


def test_features_are_those_of_transformers(describer, original, inputs):
    with torch.inference_mode():
        theirs = original(**with_pixel_values(describer, inputs), output_hidden_states=True)
        ours = describer.model(**inputs, output_hidden_states=True)
    visible = inputs["attention_mask"].bool()
    for our_layer, their_layer in zip(ours.hidden_states, theirs.hidden_states, strict=True):
        assert torch.allclose(our_layer[visible], their_layer[visible], atol=1e-3, rtol=1e-3)


class OneStep:
    """Stands for a `GreedySearch`: keeps the scores of the token after the first."""

    most = 1
    scores: Tensor

    def __call__(self, prompts, logits, next_logits):
        chosen = logits.argmax(-1)
        self.scores = next_logits(chosen)
        return chosen[:, None], torch.zeros(len(prompts))


def test_in_bfloat16_scores_are_those_of_transformers_but_for_rounding(describer, inputs):
    model, step = Describer(ClipSettings(describer.settings.model, dtype="bfloat16"), CPU).model, OneStep()
    GreedyQwen(model).generate(inputs, step)
    options = {"min_new_tokens": 2, "max_new_tokens": 2, "do_sample": False}
    with torch.inference_mode():
        theirs = model.generate(**inputs, **options, output_logits=True, return_dict_in_generate=True).logits[1]
    assert (step.scores - theirs).abs().mean() < 0.02 * theirs.std()


@pytest.mark.parametrize(
    "options", [{"do_sample": True}, {"num_beams": 2}, {"no_repeat_ngram_size": 2}, {"stop_strings": "."}], ids=str
)
def test_options_that_change_greedy_search_are_left_to_transformers(describer, options):
    assert GreedySearch.of(describer.model, {"max_new_tokens": 5, **options}) is None


@pytest.mark.parametrize("rope", ["dynamic", "yarn"])
def test_other_rotary_embeddings_are_left_to_transformers(describer, monkeypatch, rope):
    monkeypatch.setitem(describer.model.model.language_model.config.rope_parameters, "rope_type", rope)
    assert GreedyQwen.of(describer.model) is None


@pytest.mark.parametrize(("second", "ours"), [("sliding_attention", False), ("full_attention", True)])
def test_sliding_attention_is_left_to_transformers(describer, monkeypatch, second, ours):
    config = describer.model.model.language_model.config
    monkeypatch.setattr(config, "layer_types", ["full_attention", second], raising=False)
    assert (GreedyQwen.of(describer.model) is not None) == ours
