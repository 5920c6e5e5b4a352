"""Descriptions of models: how they travel as JSON, which models count as the same, and several servers as one."""

import json
from dataclasses import replace

import pytest

from reelscribe.contract.descriptions import CaptionerDescription, SpeechDescription, identity_of
from reelscribe.contract.frames import InputSize, PixelBudget
from reelscribe.errors import ServerError
from reelscribe.run.tracks.transcripts import SpeechOptions
from support.fake_torchserve import DESCRIPTION, SPEECH

CAPTIONER_JSON = DESCRIPTION.to_json()
SPEECH_JSON = SPEECH.to_json()


def as_received(value):
    return json.loads(json.dumps(value))


@pytest.mark.parametrize(
    "description",
    [
        DESCRIPTION,
        replace(DESCRIPTION, input_size=InputSize(200, 224, "bilinear", 224)),
        replace(DESCRIPTION, input_size=PixelBudget(factor=28, min_pixels=56 * 56, max_pixels=1280 * 28 * 28)),
        replace(DESCRIPTION, stages=2, devices=("cuda:0", "cuda:1")),
        SPEECH,
        replace(SPEECH, languages=(), tasks=("transcribe",)),
        replace(SPEECH, language="fr"),
    ],
)
def test_a_description_is_the_same_after_it_was_sent(description):
    assert type(description).from_json(as_received(description.to_json())) == description


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        *((CaptionerDescription, value) for value in (None, "text", {})),
        (CaptionerDescription, {**CAPTIONER_JSON, "more": 1}),
        (CaptionerDescription, {**CAPTIONER_JSON, "frame": {"width": 1}}),
        (CaptionerDescription, {**CAPTIONER_JSON, "frame": {"width": 1, "height": 1, "resample": "magic"}}),
        (CaptionerDescription, {**CAPTIONER_JSON, "frame": {"factor": 28, "width": 1, "height": 1}}),
        *((SpeechDescription, value) for value in (None, [], "text", 5, {}, {"languages": [], "tasks": []})),
        (SpeechDescription, {**SPEECH_JSON, "tasks": 5}),
        (SpeechDescription, {**SPEECH_JSON, "frame": {"width": 8, "height": 8}}),
    ],
)
def test_any_other_value_is_refused_with_an_error_that_shows_it(expected, value):
    reason = rf"expected the description of a {expected.kind} handler, got .*; is the model"
    with pytest.raises(ServerError, match=reason):
        expected.from_json(as_received(value))


@pytest.mark.parametrize(
    ("expected", "other", "message"),
    [
        (CaptionerDescription, SPEECH_JSON, "expected a caption model, got the speech model a/whisper; give the name"),
        (SpeechDescription, CAPTIONER_JSON, "expected a speech model, got the caption model a/b; give the name"),
    ],
)
def test_a_model_of_the_other_kind_is_named_and_not_shown(expected, other, message):
    with pytest.raises(ServerError, match=message) as error:
        expected.from_json(as_received(other))
    assert "{" not in str(error.value)


@pytest.mark.parametrize("description", [DESCRIPTION, SPEECH])
def test_handler_and_client_compute_the_same_identity(description):
    received = type(description).from_json(as_received(description.to_json()))
    assert received.identity == identity_of(description.to_json())


@pytest.mark.parametrize(
    ("description", "changes"),
    [
        (DESCRIPTION, {"workers": 4, "device_batch": 8, "max_frames": 9, "response_seconds": 1}),
        (DESCRIPTION, {"max_side": 9, "stages": 2, "devices": ("cpu", "cpu")}),
        (SPEECH, {"workers": 8, "device_batch": 1, "max_chunks": 3, "response_seconds": 5.0}),
    ],
)
def test_limits_workers_and_devices_do_not_change_the_identity(description, changes):
    assert replace(description, **changes).identity == description.identity


@pytest.mark.parametrize(
    ("description", "changes"),
    [
        (DESCRIPTION, {"revision": "124"}),
        (DESCRIPTION, {"prompt": "a"}),
        (DESCRIPTION, {"generation": {"num_beams": 5}}),
        (SPEECH, {"revision": "other"}),
        (SPEECH, {"dtype": "bfloat16"}),
        (SPEECH, {"chunk_seconds": 10.0}),
        (SPEECH, {"language": "en"}),
        (SPEECH, {"generation": {}}),
    ],
)
def test_whatever_decides_the_answers_changes_the_identity(description, changes):
    assert replace(description, **changes).identity != description.identity


def test_several_servers_have_the_sum_of_the_workers_and_the_smallest_limits():
    servers = [replace(SPEECH, workers=2, max_chunks=8), replace(SPEECH, workers=3, max_chunks=4, device_batch=1)]
    assert SpeechDescription.merge(servers) == replace(SPEECH, workers=5, max_chunks=4)
    servers = [replace(DESCRIPTION, max_frames=8), replace(DESCRIPTION, max_frames=9, max_side=100)]
    assert CaptionerDescription.merge(servers) == replace(DESCRIPTION, workers=2, max_frames=8, max_side=100)


def test_another_engine_is_another_model_and_another_job():
    other = replace(SPEECH, engine="ctranslate2")
    assert other.identity != SPEECH.identity
    assert SpeechOptions().settings(other) == {**SpeechOptions().settings(SPEECH), "engine": "ctranslate2"}


@pytest.mark.parametrize(
    ("joined", "items", "requests"),
    [
        (1, 32, 2),  # one is computed while another one waits
        (128, 32, 32),  # no more than a call takes
        (128, 1, 256),
        (8, 200, 6),
    ],
)
def test_a_worker_is_kept_busy_by_the_requests_of_two_calls(joined, items, requests):
    description = replace(DESCRIPTION, joined_requests=joined, max_frames=512)
    assert description.requests_for_each_worker(items) == requests


def test_of_several_servers_the_smallest_number_of_joined_requests_counts():
    servers = [replace(DESCRIPTION, workers=2, joined_requests=joined) for joined in (128, 1)]
    merged = CaptionerDescription.merge(servers)
    assert (merged.workers, merged.joined_requests) == (4, 1)
