"""The demo's scenes, media and captioner, and the scripts that made them."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import make_talks
from make_media import CLIPS, RECORDING_SECONDS, RECORDING_SEED, encode, truth, truth_of_recording
from reelscribe.contract.frames import InputSize
from support.videos import read
from synthetic.espeak import speak
from synthetic.phrases import recording
from synthetic.scenes import BACKGROUNDS, all_captions, draw, random_scene
from training.captioner.evaluate import evaluate

DEMO = Path(__file__).parents[2] / "demo"


@pytest.mark.parametrize("aspect", [16 / 9, 4 / 3, 3 / 4])
def test_every_scene_has_a_caption_of_the_grammar(aspect):
    captions = set(all_captions())
    rng = random.Random(0)
    assert {random_scene(rng, aspect).caption for _ in range(300)} <= captions


def test_a_scene_is_drawn_the_same_every_time_and_a_plain_one_has_one_colour():
    plain = random_scene(random.Random(0), count=0)
    colours = np.asarray(draw(plain, 64, 36)).reshape(-1, 3)
    assert np.array_equal(np.unique(colours, axis=0), [BACKGROUNDS[plain.background]])
    scene = random_scene(random.Random(1), count=2)
    assert np.array_equal(np.asarray(draw(scene, 64, 36)), np.asarray(draw(scene, 64, 36)))


def test_truth_jsonl_describes_the_media_as_they_are_made(media):
    lines = [json.loads(line) for line in (media / "truth.jsonl").read_text().splitlines()]
    spoken = recording(random.Random(RECORDING_SEED), RECORDING_SECONDS, held_out=True)
    assert lines == [*(scene for clip in CLIPS for scene in truth(clip)), *truth_of_recording(spoken)]
    assert {scene["source"] for scene in lines} == {path.name for path in media.iterdir()} - {"truth.jsonl"}


def test_truth_jsonl_describes_the_talks_as_they_are_made():
    lines = [json.loads(line) for line in (DEMO / "talks" / "truth.jsonl").read_text().splitlines()]
    assert lines == make_talks.truth()
    assert {turn["source"] for turn in lines} == {path.name for path in (DEMO / "talks").glob("*.ogg")}


def test_a_clip_that_is_made_again_has_the_same_times(tmp_path, media):
    clip = next(clip for clip in CLIPS if clip.variable_rate)
    encode(clip, tmp_path / clip.name)
    made, kept = (read(directory / clip.name, InputSize(64, 64)) for directory in (tmp_path, media))
    assert [seconds for _, seconds, _ in made] == [seconds for _, seconds, _ in kept]


def test_text_is_synthesized_as_speech_that_is_loud_enough():
    samples, rate = speak("red circle")
    assert 0.5 < len(samples) / rate < 3
    assert np.abs(samples.astype(int)).max() > 1000


def test_committed_media_and_weights_are_small(media):
    assert sum(path.stat().st_size for path in media.iterdir()) <= 3e6
    assert (DEMO / "models" / "captioner" / "model.safetensors").stat().st_size <= 5e6


def test_the_captioner_is_right_about_scenes_it_was_not_trained_with(demo_model):
    assert sum(caption == scene.caption for scene, caption in evaluate(demo_model, 50)) >= 48


def test_training_starts_from_nothing_and_saves_what_the_evaluation_loads(tmp_path):
    # In a process of its own, as it starts another one that draws.
    command = [sys.executable, "-W", "ignore", "-m", "training.captioner.train", "--steps", "1", "--out", str(tmp_path)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=True)
    assert not any(caption == scene.caption for scene, caption in evaluate(str(tmp_path), 1))
