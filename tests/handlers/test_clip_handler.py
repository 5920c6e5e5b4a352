"""The handler of clips with real models: the trained demo clip model, and a tiny random one of the other family."""

import io
import json
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import clip_handler
from clips.describer import ClipSettings, Describer
from reelscribe import wire
from reelscribe.contract.clips import Clip, ClipBudget
from reelscribe.contract.descriptions import ClipModelDescription
from reelscribe.errors import StartupError
from support.alike import assert_alike
from support.fake_context import FakeContext, parsed
from support.tiny_models import save_qwen2_5_vl
from synthetic.event_clips import EventClip, random_event_clip
from training.clip_captioner.model import JSON_PROMPT

CPU = torch.device("cpu")
SIZE = (160, 96)


def load(model: str, **settings) -> FakeContext:
    """Start a worker's handler as TorchServe does."""
    context = FakeContext({"model": model, **settings})
    assert clip_handler.handle(None, context) is None
    return context


def packed(tree: object) -> bytes:
    return b"".join(wire.pack(tree))


def drawn(clip: EventClip, count: int = 8, size: tuple[int, int] = SIZE) -> dict:
    moments = [(k + 0.5) / count for k in range(count)]
    frames = [clip.draw(moment, 640, 360).resize(size, Image.Resampling.BICUBIC) for moment in moments]
    return {"frames": np.stack([np.asarray(frame) for frame in frames]), "pts_seconds": [4 * m for m in moments]}


@pytest.fixture(scope="module")
def events() -> list[EventClip]:
    rng = random.Random(1)
    return [random_event_clip(rng) for _ in range(6)]


def test_clips_alone_many_at_once_and_at_full_size_have_their_true_descriptions(clip_model, events):
    context = load(clip_model)
    many = {"clips": [drawn(clip) for clip in events]}
    full = drawn(events[0], size=(640, 360))
    rows = [{"body": packed(many)}, {"body": pickle.dumps(drawn(events[0]))}, {"body": packed(full)}]
    first, second, third = parsed(clip_handler.handle(rows, context))
    assert [answer["text"] for answer in first] == [clip.caption for clip in events]
    assert (second["text"], third["text"]) == (events[0].caption, events[0].caption)
    assert {answer["status"] for answer in [*first, second, third]} == {"complete"}
    assert all(answer["tokens"] > 8 and -0.5 < answer["avg_logprob"] <= 0 for answer in first)


def test_frames_in_the_order_of_fortran_are_described_alike(clip_model, events):
    context, array = load(clip_model), io.BytesIO()
    clip = drawn(events[0])
    frames = np.asfortranarray(clip["frames"])
    np.save(array, frames[0])
    bodies = [pickle.dumps(clip), pickle.dumps(clip | {"frames": frames}), packed(clip["frames"][0]), array.getvalue()]
    rows = [{"body": bytearray(body)} for body in bodies]  # TorchServe's bodies are writable, so nothing is copied
    texts = [answer["text"] for answer in parsed(clip_handler.handle(rows, context))]
    assert texts[1] == texts[0] == events[0].caption
    assert texts[3] == texts[2]


def test_frames_in_reverse_order_are_described_otherwise(clip_model, events):
    describer = Describer(ClipSettings(clip_model), CPU)
    clips = [Clip(**drawn(clip)) for clip in events]
    backwards = [Clip(np.ascontiguousarray(clip.frames[::-1]), clip.pts_seconds) for clip in clips]
    texts = [answer.text for answer in describer.describe([backwards])]
    assert not set(texts) & {clip.caption for clip in events}


def test_a_still_is_described_by_what_it_shows(clip_model, events):
    context = load(clip_model)
    still = io.BytesIO()
    events[0].draw(0.5, 640, 360).save(still, "JPEG")
    frame = np.asarray(events[0].draw(0.5, 160, 96))
    answers = parsed(clip_handler.handle([{"body": still.getvalue()}, {"body": packed(frame)}], context))
    assert [answer["text"] for answer in answers] == [events[0].still_caption(0.5)] * 2


def test_answers_of_a_batch_are_those_of_single_clips(clip_model):
    """In float32, with greedy search: 50 clips of several lengths, sizes and prompts, some of them stills."""
    rng = random.Random(2)
    clips = []
    for _ in range(50):
        count, size = rng.choice([1, 2, 4, 6, 8, 10, 12]), rng.choice([SIZE, (128, 96), (96, 128), (64, 64)])
        drawn_clip = drawn(random_event_clip(rng), count, size)
        clips.append(Clip(**drawn_clip, prompt=rng.choice([None, JSON_PROMPT]) if count > 1 else None))
    describer = Describer(ClipSettings(clip_model, generation={"max_new_tokens": 40, "do_sample": False}), CPU)
    together = [answer for at in range(0, 50, 16) for answer in describer.describe([clips[at : at + 16]])]
    alone = [describer.describe([[clip]])[0] for clip in clips]
    assert [answer.text for answer in together] == [answer.text for answer in alone]
    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]
    logprobs = [(a.avg_logprob, b.avg_logprob) for a, b in zip(together, alone, strict=True)]
    assert all(a == pytest.approx(b, abs=2e-3) for a, b in logprobs)


def test_an_answer_that_is_cut_says_so(clip_model, events):
    settings = ClipSettings(clip_model, generation={"max_new_tokens": 5, "do_sample": False})
    (answer,) = Describer(settings, CPU).describe([[Clip(**drawn(events[0]))]])
    assert (answer.status, answer.tokens) == ("truncated", 5)
    assert events[0].caption.startswith(answer.text)


FRAMES = np.zeros((4, 96, 160, 3), np.uint8)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (packed({"clips": []}), 422, "clips: expected a list of at least one clip"),
        (packed({"clips": [FRAMES] * 65}), 413, "clips: at most 64 a request, got 65"),
        (packed({"frames": FRAMES.astype(np.float32)}), 422, "frames: expected uint8"),
        (packed({"frames": FRAMES, "fps": 2}), 422, "prompt, got a dict with other names, too"),
        (packed({"frames": FRAMES, "pts_seconds": [0.0, 1.0]}), 422, "pts_seconds: expected a list of 4"),
        (packed({"frames": FRAMES, "pts_seconds": [0.0, 2.0, 1.0, 3.0]}), 422, "times that ascend"),
        (packed({"frames": FRAMES, "pts_seconds": [0.0, 1.0, 2.0, float("nan")]}), 422, "finite numbers"),
        (packed({"frames": FRAMES, "prompt": " "}), 422, "prompt: expected a text that is not empty"),
        (packed({"frames": FRAMES, "prompt": "a <|video_pad|> b"}), 422, "no special tokens"),
        (packed(np.zeros((769, 1, 1, 3), np.uint8)), 413, "frames: at most 768 a clip, got 769"),
        (packed(np.zeros((4, 1, 300, 3), np.uint8)), 422, "at most 200 times the other"),
        (b"GIF89a", 415, "expected clips or frames"),
    ],
)
def test_a_bad_body_gets_a_clear_error_and_costs_others_nothing(clip_model, body, status, message):
    context = load(clip_model)
    good = {"body": packed({"frames": FRAMES})}
    answers = parsed(clip_handler.handle([good, {"body": body}, good], context))
    assert context.statuses == {1: status}
    assert message in json.dumps(answers[1])
    assert_alike(answers[0], answers[2])
    assert answers[0]["status"] == "complete"


def test_a_model_with_a_prompt_of_its_own_takes_no_other(clip_model):
    context = load(clip_model, allow_prompts=False)
    rows = [{"body": packed({"frames": FRAMES, "prompt": "What is this?"})}, {"body": packed(FRAMES)}]
    refused, answered = parsed(clip_handler.handle(rows, context))
    assert "prompt: expected none" in json.dumps(refused)
    assert answered["text"]


def test_the_description_has_all_that_a_client_needs(clip_model):
    context = load(clip_model)
    context.headers = [{"describe": "true"}]
    (value,) = parsed(clip_handler.handle([{"body": b""}], context))
    description = ClipModelDescription.from_json(value)
    assert description.budget.frame_size(8, 1920, 1080).scaled_size(1920, 1080) == SIZE
    assert (description.max_clips, description.allow_prompts) == (64, True)


def test_a_wish_over_a_limit_is_told_and_not_obeyed(clip_model, caplog):
    settings = ClipSettings(clip_model, max_frames=5000, total_pixels=10**9, fps=1)
    budget = Describer(settings, CPU).budget
    assert (budget.max_frames, budget.total_pixels, budget.fps) == (768, 13_333_333, 1)
    assert "max_frames: 5000 is over the limit of the model, so it is 768" in caplog.text
    assert "total_pixels: 1000000000 is over the limit" in caplog.text


@pytest.mark.parametrize(
    ("limit", "most"),
    [
        ({"max_pixels": 602_112}, 126),
        ({"max_pixels": 602_112, "whole_clip": True}, 126),
        ({"total_pixels": 25_165_824, "whole_clip": True}, 768),
    ],
)
@pytest.mark.parametrize("size", [(1920, 1080), (120, 90), (2000, 64), (4000, 20)])
def test_a_clip_fits_a_request_however_long_it_is(clip_model, limit, most, size):
    budget = ClipSettings(clip_model).budget(ClipBudget(28, 100_352, **limit))  # the least size is that of a Qwen2.5-VL
    count = budget.fitting_count(most, *size)
    assert budget.frame_count(10**6, 3600.0) == most
    assert 100 < count <= most
    assert count * budget.frame_size(count, *size).nbytes < 50 * 2**20


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fps": 0}, "fps: expected a number over 0"),
        ({"resized_width": 64}, "expected resized_width and resized_height together"),
    ],
)
def test_settings_that_cannot_be_are_refused(clip_model, settings, message):
    with pytest.raises(StartupError, match=message):
        ClipSettings(clip_model, **settings)


def test_a_model_of_another_family_does_not_load(demo_model):
    with pytest.raises(StartupError, match="expected one of qwen3_vl, qwen2_5_vl, got blip-2"):
        Describer(ClipSettings(demo_model), CPU)


@pytest.mark.parametrize("mean", [0.1, 0.48])
def test_a_model_whose_processor_does_something_else_does_not_load(clip_model, tmp_path, mean):
    for path in Path(clip_model).iterdir():
        (tmp_path / path.name).symlink_to(path)
    config = json.loads((tmp_path / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").unlink()
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**config, "image_mean": [mean] * 3}))
    with pytest.raises(StartupError, match=r"expected pixel values within 0\.0078 of those of Qwen2VLImageProcessor"):
        Describer(ClipSettings(str(tmp_path)), CPU)


def test_answers_of_a_qwen2_5_are_those_of_single_clips(tmp_path, clip_model):
    directory = save_qwen2_5_vl(tmp_path, clip_model)
    options = {"max_new_tokens": 6, "do_sample": False}
    describer = Describer(ClipSettings(directory, generation=options), CPU)
    rng = np.random.default_rng(0)
    clips = [Clip(rng.integers(0, 256, (n, 56, 84, 3), np.uint8), [0.5 * k for k in range(n)]) for n in (4, 6, 1)]
    together, alone = describer.describe([clips]), [describer.describe([[clip]])[0] for clip in clips]
    assert [answer.text for answer in together] == [answer.text for answer in alone]
