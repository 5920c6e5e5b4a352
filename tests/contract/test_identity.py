"""What makes two models the same."""

import json
from dataclasses import replace

import pytest

from reelscribe.contract.model import CaptionerDescription, SpeechDescription, identity_of
from support.fake_torchserve import DESCRIPTION, SPEECH


@pytest.mark.parametrize(("description", "kind"), [(DESCRIPTION, CaptionerDescription), (SPEECH, SpeechDescription)])
def test_a_handler_and_its_clients_see_the_same_identity(description, kind):
    sent = json.loads(json.dumps(description.to_json()))
    assert kind.from_json(sent).identity == identity_of(description.to_json())


def test_how_much_it_takes_at_a_time_is_another_matter():
    assert (
        replace(DESCRIPTION, workers=4, device_batch=8, max_frames=9, response_seconds=1).identity
        == DESCRIPTION.identity
    )


@pytest.mark.parametrize("change", [{"revision": "124"}, {"prompt": "a"}, {"generation": {"num_beams": 5}}])
def test_what_decides_the_answers_makes_another_model(change):
    assert replace(DESCRIPTION, **change).identity != DESCRIPTION.identity
