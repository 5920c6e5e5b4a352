"""The handler with real models: the trained demo captioner, and tiny random ones of other families."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

import caption_handler
from captions.captioner import Captioner, CaptionSettings
from captions.frame_transform import FrameTransform
from reelscribe import wire
from reelscribe.contract.descriptions import CaptionerDescription
from reelscribe.contract.frames import InputSize
from reelscribe.decode.sampling import Sampling
from reelscribe.errors import StartupError
from support.fake_context import FakeContext, parsed
from support.tiny_models import save_blip, save_git
from support.videos import read

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def scenes(media: Path) -> list[tuple[str, np.ndarray]]:
    """The truth and a full-size frame of each scene of one clip."""
    truth = [json.loads(line) for line in (media / "truth.jsonl").read_text().splitlines()]
    frames = read(media / "same-1280x720.mkv", InputSize(1280, 720))
    return [
        (scene["caption"], next(frame for _, seconds, frame in frames if seconds >= scene["start"] + 0.5))
        for scene in truth
        if scene["source"] == "same-1280x720.mkv"
    ]


@pytest.fixture(scope="module")
def blip(tmp_path_factory) -> str:
    return save_blip(tmp_path_factory.mktemp("blip"))


@pytest.fixture(scope="module")
def git(tmp_path_factory) -> str:
    return save_git(tmp_path_factory.mktemp("git"))


def load(model: str, **settings) -> FakeContext:
    """Start a worker's handler as TorchServe does."""
    context = FakeContext({"model": model, **settings})
    assert caption_handler.handle(None, context) is None
    return context


def test_frames_one_by_one_many_at_once_and_scaled_have_their_true_captions(demo_model, scenes):
    context = load(demo_model)
    truth, full = zip(*scenes, strict=True)
    scaled = np.stack([Image.fromarray(frame).resize((224, 224), Image.Resampling.BICUBIC) for frame in full])
    rows = [
        {"body": b"".join(wire.pack({"frames": full[0]}))},
        {"body": b"".join(wire.pack({"frames": np.stack(full)}))},
        {"body": pickle.dumps(scaled)},
        {"body": bytearray(pickle.dumps(np.asfortranarray(scaled)))},
    ]
    one, several, from_pickle, from_fortran = parsed(caption_handler.handle(rows, context))
    assert one["text"] == truth[0]
    assert [caption["text"] for caption in several] == list(truth)
    assert [caption["text"] for caption in from_pickle] == list(truth)
    assert [caption["text"] for caption in from_fortran] == list(truth)
    assert all(-1 < caption["avg_logprob"] <= 0 for caption in [one, *several, *from_pickle])


def test_describe_returns_what_a_client_needs(demo_model):
    context = load(demo_model, device_batch=7)
    context.headers = [{"describe": "True"}]
    (answer,) = parsed(caption_handler.handle([{"body": b""}], context))
    description = CaptionerDescription.from_json(answer)
    assert description.name == demo_model
    assert description.revision.startswith("sha256:")
    assert description.input_size == InputSize(224, 224)
    assert description.device_batch == 7


def test_a_body_is_freed_when_it_has_been_answered(demo_model):
    context = FakeContext({"model": demo_model})
    caption_handler.handle(None, context)
    rows = [
        {"body": bytearray(b"".join(wire.pack({"frames": np.zeros((2, 30, 40, 3), np.uint8)})))},
        {"body": bytearray(pickle.dumps(np.zeros((30, 40, 3), np.uint8)))},
        {"body": bytearray(b"no body")},
    ]
    first, second, _ = parsed(caption_handler.handle(rows, context))
    assert len(first) == 2
    assert second["text"]
    assert context.statuses == {2: 400}
    assert [row["body"] for row in rows] == [b"", b"", b""]


def test_changed_weights_are_another_revision(blip, git):
    revisions = [Captioner(CaptionSettings(model), CPU).description(120).revision for model in (blip, git, blip)]
    assert revisions[0] == revisions[2] != revisions[1]


@pytest.mark.parametrize("family", ["blip", "git"])
@pytest.mark.parametrize("prompt", ["", "a large red"])
def test_other_families_give_what_transformers_gives(request, media, family, prompt):
    directory = request.getfixturevalue(family)
    frames = [frame for _, _, frame in read(media / "old.avi", InputSize(640, 360), Sampling(every=40))]
    options = {"max_new_tokens": 8, "do_sample": False}
    captioner = Captioner(CaptionSettings(directory, prompt=prompt, generation=options), CPU)
    got = [caption.text for caption in captioner.caption([np.stack(frames)])]

    processor = AutoProcessor.from_pretrained(directory)
    model = AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32).eval()
    inputs = processor(images=frames, return_tensors="pt")
    if prompt:
        tokens = processor.tokenizer([prompt] * len(frames), return_tensors="pt").input_ids
        inputs["input_ids"] = tokens[:, :-1] if family == "git" else tokens  # GIT goes on without the end token
    with torch.inference_mode():
        texts = processor.batch_decode(model.generate(**inputs, **options), skip_special_tokens=True)
    assert got == [text.removeprefix(prompt).strip() for text in texts]
    assert any(got)


@pytest.mark.parametrize("family", ["blip2", "blip", "git"])
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"num_beams": 2, "length_penalty": 0.5}])
def test_the_log_probability_of_a_caption_is_the_mean_of_its_tokens(request, demo_model, media, family, options):
    directory = demo_model if family == "blip2" else request.getfixturevalue(family)
    shown = [frame for _, _, frame in read(media / "old.avi", InputSize(64, 64), Sampling(every=30))]
    frames = np.stack([*shown, *np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), np.uint8)])
    options = {"max_new_tokens": 12, **options}
    captioner = Captioner(CaptionSettings(directory, generation=options), CPU)
    got = [caption.avg_logprob for caption in captioner.caption([frames])]

    model = AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.inference_mode():
        inputs = {"pixel_values": captioner.transform(frames)}
        full = model.generate(**inputs, **options, return_dict_in_generate=True, output_scores=True)
        language_model = {"blip2": "language_model", "blip": "text_decoder", "git": None}[family]
        scoring = getattr(model, language_model) if language_model else model
        beams = full.get("beam_indices")
        scores = scoring.compute_transition_scores(full.sequences, full.scores, beams, normalize_logits=beams is None)
    end = captioner.processor.tokenizer.eos_token_id if family == "blip2" else 3
    for row, tokens, average in zip(scores, full.sequences[:, -scores.shape[1] :].tolist(), got, strict=True):
        length = tokens.index(end) + 1 if end in tokens else len(tokens)
        assert row[:length].mean().item() == pytest.approx(average, abs=1e-4)
    assert len(set(got)) > 1


def test_blip2_continues_a_prompt_without_repeating_it(demo_model, scenes):
    truth, frame = scenes[0]
    captioner = Captioner(CaptionSettings(demo_model, prompt="a large"), CPU)
    (caption,) = captioner.caption([frame[None]])
    assert f"a large {caption.text}" == truth


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (None, "expected model"),
        ({}, "expected model"),
        ({"prompt": "x"}, "expected model and optionally revision, dtype"),
        ({"model": "x", "device_bach": 3}, "device_bach is no option of this handler; did you mean device_batch"),
        ({"model": "x", "zzz": 3}, "zzz is no option of this handler; the options are model, revision"),
        ({"model": "x", "device_batch": -3}, "device_batch: expected null, 1 or more, got -3"),
        ({"model": "/nowhere/x"}, "the folder /nowhere/x is gone; put it back, or build the archive again"),
        ({"model": "MODEL", "dtype": "float31"}, "expected auto or a torch dtype, got 'float31'"),
    ],
)
def test_a_wrong_yaml_has_an_error_that_names_what_is_expected(demo_model, config, reason):
    if config and config.get("model") == "MODEL":
        config["model"] = demo_model
    with pytest.raises(StartupError, match=reason):
        caption_handler.CaptionHandler().load(FakeContext(config))


def test_a_missing_model_is_one_line_in_the_log(tmp_path, caplog):
    with pytest.raises(StartupError, match="no-such-model is gone"):
        load(str(tmp_path / "no-such-model"))
    assert "cannot load: StartupError: " in caplog.text


def resized(mode: str, antialias: bool):
    def resize(self, pixels: torch.Tensor, height: int, width: int) -> torch.Tensor:
        options = {} if mode == "nearest" else {"antialias": antialias, "align_corners": False}
        return torch.nn.functional.interpolate(pixels, (height, width), mode=mode, **options).round().clamp(0, 255)

    return resize


@pytest.mark.parametrize(("mode", "antialias"), [("nearest", False), ("bilinear", True), ("bicubic", False)])
def test_a_processor_that_resizes_in_another_way_is_refused(demo_model, monkeypatch, mode, antialias):
    monkeypatch.setattr(FrameTransform, "_resize", resized(mode, antialias))
    with pytest.raises(StartupError, match="does not support the model's preprocessing"):
        Captioner(CaptionSettings(demo_model), CPU)


def test_a_worker_with_an_assigned_gpu_does_not_silently_use_the_cpu(demo_model, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    context = FakeContext({"model": demo_model})
    context.system_properties["gpu_id"] = 1
    with pytest.raises(StartupError, match="GPU 1, but torch sees none"):
        caption_handler.CaptionHandler().load(context)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_dtypes(demo_model, scenes, dtype):
    captioner = Captioner(CaptionSettings(demo_model, dtype=dtype), CPU)
    assert captioner.description(120).dtype == dtype
    captions = [caption for _, frame in scenes for caption in captioner.caption([frame[None]])]
    assert [caption.text for caption in captions] == [truth for truth, _ in scenes]
