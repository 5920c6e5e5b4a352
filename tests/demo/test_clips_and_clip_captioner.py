"""The demo's clips, the model that describes them, and the scripts that made them."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from make_clips import VIDEOS, encode, truth
from reelscribe.contract.clips import ClipBudget
from reelscribe.contract.source import Span
from reelscribe.decode.clips import ClipCutting, ClipTask, ClipVideo
from reelscribe.decode.video import OpenVideo
from synthetic.event_clips import CHANGES, random_event_clip
from training.clip_captioner.evaluate import evaluate

DEMO = Path(__file__).parents[2] / "demo"


@pytest.mark.parametrize("aspect", [16 / 9, 4 / 3, 3 / 4])
def test_what_happens_in_a_clip_can_be_told_from_its_frames(aspect):
    rng = random.Random(0)
    for clip in (random_event_clip(rng, aspect) for _ in range(50)):
        first, second = clip.events
        assert {first.change, second.change} <= set(CHANGES)
        assert first.noun != second.noun
        before, between, after = (clip.states(at) for at in (0.0, 0.5, 1.0))
        assert before[0] != between[0] == after[0]  # the first object changes in the first half alone
        assert before[1] == between[1] != after[1]


def test_a_clip_is_drawn_the_same_every_time_and_differs_from_its_end():
    clip = random_event_clip(random.Random(1))
    assert np.array_equal(clip.draw(0.0, 64, 36), clip.draw(0.0, 64, 36))
    assert not np.array_equal(clip.draw(0.0, 64, 36), clip.draw(1.0, 64, 36))


def test_truth_jsonl_describes_the_clips_as_they_are_made():
    lines = [json.loads(line) for line in (DEMO / "clips" / "truth.jsonl").read_text().splitlines()]
    assert lines == [clip for video in VIDEOS for clip in truth(video)]
    assert {path.name for path in (DEMO / "clips").iterdir()} == {video.name for video in VIDEOS} | {"truth.jsonl"}


def test_a_video_that_is_made_again_has_the_same_times_and_its_clips_are_its_shots(tmp_path):
    for video in VIDEOS:
        encode(video, tmp_path / video.name)
        task = ClipTask(str(DEMO / "clips" / video.name), ClipBudget(32, 4096, 17408, whole_clip=True), ClipCutting())
        with OpenVideo(str(tmp_path / video.name)) as made, ClipVideo(task) as kept:
            assert made.times.tolist() == kept.times.tolist()
            starts = [read.clip.span.start_seconds for read in kept.read([Span()])]
        assert starts == pytest.approx([start for start, _, _ in video.clips()], abs=0.04)


def test_committed_clips_and_weights_are_small():
    assert sum(path.stat().st_size for path in (DEMO / "clips").iterdir()) <= 3e5
    assert (DEMO / "models" / "clips" / "model.safetensors").stat().st_size <= 8e6


def test_the_clip_model_is_right_about_clips_it_was_not_trained_with_and_uses_the_order_of_frames(clip_model):
    events, texts, backwards = evaluate(clip_model, 12)
    right = sum(clip.caption == text for clip, text in zip(events, texts, strict=True))
    reversed_right = sum(clip.caption == text for clip, text in zip(events, backwards, strict=True))
    assert right >= 11
    assert reversed_right <= right / 2


def test_training_starts_from_nothing_and_saves_what_the_evaluation_loads(tmp_path):
    # In a process of its own, as it starts another one that draws.
    options = ["--steps", "1", "--out", str(tmp_path)]
    command = [sys.executable, "-W", "ignore", "-m", "training.clip_captioner.train", *options]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=True)
    events, texts, _ = evaluate(str(tmp_path), 1)
    assert not any(clip.caption == text for clip, text in zip(events, texts, strict=True))
