"""Models in two stages: two real processes answer as one does, and end when either is lost."""

import os
import random
import signal
import threading
from multiprocessing.connection import Connection

import numpy as np
import pytest
import torch

import caption_handler
import clip_handler
import speech_handler
from caption_handler import CaptionHandler
from captions.captioner import CaptionSettings
from captions.families.blip2 import Blip2FirstStage, Blip2SecondStage
from clip_handler import ClipHandler
from clips.describer import ClipSettings
from clips.families.qwen3_vl import Qwen3VLFirstStage, Qwen3VLSecondStage
from pipeline.remote_stage import RemoteSecondStage, serve_second_stage
from pipeline.stage_link import StageLink
from pipeline.stage_pair import join_pair
from reelscribe import wire
from reelscribe.contract.descriptions import CaptionerDescription, ClipModelDescription, SpeechDescription, identity_of
from reelscribe.contract.frames import InputSize
from reelscribe.decode.audio import Audio, AudioTask
from reelscribe.errors import RequestError, StartupError
from runtime.device_batches import DeviceBatches
from runtime.second_stage import TensorTree
from speech_handler import SpeechHandler
from support.alike import assert_alike
from support.fake_context import FakeContext, parsed
from support.patience import PATIENCE
from support.stage_processes import Stages, running
from support.tiny_models import save_blip, save_qwen2_5_vl, save_wav2vec2
from support.videos import read
from synthetic.event_clips import random_event_clip
from synthetic.phrases import SAMPLE_RATE
from transcripts.speech_model import SpeechSettings
from transcripts.whisper.torch_engine import WhisperFirstStage, WhisperSecondStage

CPU = torch.device("cpu")
HANDLERS = {"caption": caption_handler, "speech": speech_handler, "clip": clip_handler}
DESCRIPTIONS = {"caption": CaptionerDescription, "speech": SpeechDescription, "clip": ClipModelDescription}


def answer_calls(pipe: Connection, kind: str, settings: dict) -> None:
    """A worker of TorchServe, whatever its rank."""
    context = FakeContext(settings)
    HANDLERS[kind].handle(None, context)
    pipe.send("loaded")
    while True:
        rows, context.headers = pipe.recv()
        pipe.send(parsed(HANDLERS[kind].handle(rows, context)))


def answers_of_one_process(kind: str, settings: dict, calls: list) -> list:
    context = FakeContext(settings)
    HANDLERS[kind].handle(None, context)
    answers = []
    for rows, context.headers in calls:
        answers.append(parsed(HANDLERS[kind].handle(rows, context)))
    return answers


def call(*bodies: dict) -> tuple[list, list]:
    return [{"body": b"".join(wire.pack(body))} for body in bodies], []


DESCRIBE = ([{"body": b""}], [{"describe": "True"}])


def answers_of_two_processes(kind: str, settings: dict, calls: list) -> list:
    """The answers to all calls, which are the same from two processes and from one."""
    expected = answers_of_one_process(kind, settings, [*calls, DESCRIBE])
    with running(answer_calls, answer_calls, kind, {**settings, "stages": 2}) as stages:
        assert [stages.receive(rank) for rank in (0, 1)] == ["loaded", "loaded"]
        *answers, (described,) = [stages.ask(call) for call in [*calls, DESCRIBE]]
    *expected, (alone,) = expected
    assert_alike(answers, expected)
    assert (described["stages"], described["devices"]) == (2, ["cpu", "cpu"])
    assert identity_of(described) == identity_of(alone)
    assert DESCRIPTIONS[kind].from_json(described).stages == 2
    return [answer for call in answers for answer in call]


@pytest.mark.parametrize(("prompt", "dtype"), [("", "auto"), ("a large", "bfloat16")])
def test_captions_equal_those_of_one_process(demo_model, media, prompt, dtype):
    frames = [frame for _, _, frame in read(media / "same-480x270.mp4", InputSize(224, 224))]
    several = call({"frames": np.stack(frames[:9])}, {"frames": frames[20]}, {"frames": np.stack(frames[40:70:2])})
    settings = {"model": demo_model, "device_batch": 4, "prompt": prompt, "dtype": dtype}
    first, *_, last = answers_of_two_processes("caption", settings, [several, call({"frames": frames[-1]})])
    assert len(first) == 9
    assert last not in first


SAMPLED = {"temperatures": [0.5], "no_speech_threshold": None}


@pytest.mark.parametrize(("settings", "temperature", "dtype"), [({}, 0, "bfloat16"), (SAMPLED, 0.5, "auto")])
def test_transcripts_equal_those_of_one_process(demo_speech, media, settings, temperature, dtype):
    with Audio(AudioTask(str(media / "phrases.ogg"), SAMPLE_RATE, 10 * SAMPLE_RATE)) as audio:
        chunks = [chunk.samples for chunk in audio.chunks()][:7]
    settings = {"model": demo_speech, "device_batch": 2, "dtype": dtype, **settings}
    bodies = [{"chunks": chunks[:5], "word_times": True, "task": "both"}, {"chunks": chunks[5:]}]
    calls = [call(*({**body, "sample_rate": SAMPLE_RATE} for body in bodies))]
    several, others = answers_of_two_processes("speech", settings, calls)
    assert {answer["temperature"] for answer in several + others} == {temperature}
    assert len({answer["text"] for answer in several + others}) == 7
    assert several[0]["segments"][0]["words"]
    assert all(("translation" in answer) == (answer in several) for answer in several + others)


@pytest.mark.parametrize(("generation", "dtype"), [({"num_beams": 3}, "auto"), ({}, "bfloat16")])
def test_descriptions_equal_those_of_one_process(clip_model, generation, dtype):
    rng, bodies = random.Random(5), []
    for count in (6, 4, 1, 8, 1, 5):  # two of them are stills
        clip = random_event_clip(rng)
        frames = np.stack([np.asarray(clip.draw(k / count, 160, 96)) for k in range(count)])
        bodies.append({"frames": frames, "pts_seconds": [k / 2 for k in range(count)]} if count > 1 else frames[0])
    options = {"max_new_tokens": 40, "do_sample": False, **generation}
    settings = {"model": clip_model, "device_batch": 4, "dtype": dtype, "generation": options}
    answers = answers_of_two_processes("clip", settings, [call(*bodies[:4]), call(*bodies[4:])])
    assert len({answer["text"] for answer in answers}) == 6


def join(stage_seconds: float = PATIENCE):
    return join_pair(None, stage_seconds=stage_seconds, load_seconds=PATIENCE)


def double(tree: TensorTree) -> TensorTree:
    """A second stage with memory for three items, which fails for some values."""
    values = tree["values"]
    if len(values) > 3:
        raise MemoryError("four are too many")
    if -1 in values:
        raise ValueError("minus one")
    if -2 in values:
        return {"doubled": {-4}}
    return {"doubled": values * 2}


def map_requests(pipe: Connection) -> None:
    second = RemoteSecondStage(join(), PATIENCE)
    batches = DeviceBatches(
        lambda pending: second.result(pending)["doubled"].tolist(),
        8,
        submit=lambda slices: second.submit({"values": torch.tensor([value for part in slices for value in part])}),
        in_flight=2,
    )
    while True:
        results = batches.map(pipe.recv())
        pipe.send([type(each).__name__ if isinstance(each, RequestError) else each for each in results])


def serve_double(pipe: Connection) -> None:
    serve_second_stage(join(), double, PATIENCE)
    pipe.recv()


def serve_double_when_there_is_room(pipe: Connection) -> None:
    to_device, moved = torch.Tensor.to, []

    def full_once(tensor: torch.Tensor, *arguments: object, **options: object) -> torch.Tensor:
        moved.append(len(tensor))
        if len(moved) == 1:
            raise torch.cuda.OutOfMemoryError
        return to_device(tensor, *arguments, **options)

    torch.Tensor.to = full_once
    serve_second_stage(join(), double, PATIENCE)
    pipe.recv()
    pipe.send(moved[0])


def test_batches_that_do_not_fit_the_second_stage_are_halved_and_its_errors_are_those_of_one_request():
    with running(map_requests, serve_double) as stages:
        numbers = list(range(50))
        assert stages.ask([numbers[:7], [], numbers[7:]]) == [[0, 2, 4, 6, 8, 10, 12], [], [n * 2 for n in numbers[7:]]]
        assert stages.ask([[1, 2], [3, 4, -1, 5], [6]]) == [[2, 4], "RequestFailed", [12]]
        assert stages.ask([numbers]) == [[n * 2 for n in numbers]]


def test_batches_that_the_second_stage_cannot_receive_for_want_of_memory_are_halved():
    with running(map_requests, serve_double_when_there_is_room) as stages:
        assert stages.ask([[1, 2], [3]]) == [[2, 4], [6]]
        stages.send(1, "which was it?")
        assert stages.receive(1) == 3


def test_a_tree_that_cannot_be_sent_in_either_direction_fails_its_request():
    with running(map_requests, serve_double) as stages:
        assert stages.ask([[1j], [2]]) == ["WireError", [4]]
        assert stages.ask([[-2], [1]]) == ["RequestFailed", [2]]
        assert stages.ask([[1]]) == [[2]]


def send_two(pipe: Connection) -> None:
    second = RemoteSecondStage(join(), PATIENCE)
    first, other = second.submit({"number": 1}), second.submit({"number": 2})
    pipe.send("both are sent")
    pipe.send([second.result(other)["number"], second.result(first)["number"]])
    pipe.recv()


def serve_on_request(pipe: Connection) -> None:
    def work(tree: TensorTree) -> TensorTree:
        pipe.recv()
        return tree

    serve_second_stage(join(), work, PATIENCE)
    threading.Event().wait()


def test_the_first_stage_continues_while_the_second_computes_and_takes_results_in_any_order():
    with running(send_two, serve_on_request) as stages:
        assert stages.receive(0) == "both are sent"
        stages.send(1, "go on")
        stages.send(1, "go on")
        assert stages.receive(0) == [2, 1]


def send_two_and_receive_nothing(pipe: Connection, _: float) -> None:
    second = RemoteSecondStage(join(), PATIENCE)
    for number in (1, 2):
        second.submit({"number": number})
    threading.Event().wait()


def report_work(pipe: Connection, answer_seconds: float) -> None:
    def work(tree: TensorTree) -> TensorTree:
        pipe.send(tree["number"])
        return tree

    serve_second_stage(join(), work, answer_seconds)
    threading.Event().wait()


def test_the_second_stage_continues_while_its_result_is_not_received():
    with running(send_two_and_receive_nothing, report_work, PATIENCE) as stages:
        assert [stages.receive(1), stages.receive(1)] == [1, 2]


def test_a_result_that_is_not_received_in_time_ends_both():
    with running(send_two_and_receive_nothing, report_work, 0.5) as stages:
        assert [stages.exit_code(rank) for rank in (1, 0)] == [1, 1]


def have_no_memory_for_a_result(pipe: Connection) -> None:
    second = RemoteSecondStage(join(), PATIENCE)
    pending = second.submit({"values": torch.tensor([1])})

    def receive(*_: object) -> None:
        raise MemoryError("none left")

    StageLink.recv_tensor_dict = receive
    second.result(pending)


def test_a_result_that_cannot_be_received_ends_both():
    with running(have_no_memory_for_a_result, serve_double) as stages:
        assert [stages.exit_code(rank) for rank in (0, 1)] == [1, 1]
        log = stages.log.read_text()
    assert "stage 1 of 2 ends: results of the second stage: MemoryError: none left" in log


def wait_for_a_result(pipe: Connection, stage_seconds: float, answer_seconds: float) -> None:
    second = RemoteSecondStage(join(stage_seconds), answer_seconds)
    pending = second.submit({"number": 1})
    pipe.send("waiting")
    second.result(pending)


def never_answer(pipe: Connection, stage_seconds: float, _: float) -> None:
    def work(tree: TensorTree) -> TensorTree:
        pipe.send("working")
        threading.Event().wait()
        return tree

    serve_second_stage(join(stage_seconds), work, PATIENCE)
    threading.Event().wait()


def waiting(stages: Stages) -> None:
    assert (stages.receive(0), stages.receive(1)) == ("waiting", "working")


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP])
def test_a_stage_that_loses_the_other_ends(lost, sig):
    with running(wait_for_a_result, never_answer, 1.0, PATIENCE) as stages:
        waiting(stages)
        os.kill(stages.processes[lost].pid, sig)
        assert stages.exit_code(1 - lost) == 1


def test_a_result_that_does_not_arrive_in_time_ends_both():
    with running(wait_for_a_result, never_answer, PATIENCE, 0.5) as stages:
        waiting(stages)
        assert [stages.exit_code(rank) for rank in (0, 1)] == [1, 1]


def test_each_stage_has_its_own_weights_and_no_others(demo_model, demo_speech, clip_model):
    def names(model: torch.nn.Module) -> set[str]:
        return {name for name, _ in model.named_parameters()}

    for encoder, writer, whole, weights in (
        (Blip2FirstStage, Blip2SecondStage, Blip2FirstStage.__base__, demo_model),
        (WhisperFirstStage, WhisperSecondStage, WhisperFirstStage.__base__, demo_speech),
        (Qwen3VLFirstStage, Qwen3VLSecondStage, Qwen3VLFirstStage.__base__, clip_model),
    ):
        parts = [names(part.from_pretrained(weights)) for part in (encoder, writer)]
        assert parts[0] | parts[1] == names(whole.from_pretrained(weights))
        assert not parts[0] & parts[1]
        assert all(parts)


def test_models_that_have_no_two_stages_are_refused(tmp_path, clip_model):
    blip, wav2vec2 = save_blip(tmp_path / "blip"), save_wav2vec2(tmp_path / "ctc", masked=True)
    qwen2_5 = save_qwen2_5_vl(tmp_path / "qwen", clip_model)
    second = object()
    for handler, settings, reason in (
        (CaptionHandler(), CaptionSettings(blip, stages=2), "expected BLIP-2 .*, got blip;.* without --stages"),
        (SpeechHandler(), SpeechSettings(wav2vec2, stages=2), "expected Whisper.*, got Wav2Vec2ForCTC.* without --st"),
        (ClipHandler(), ClipSettings(qwen2_5, stages=2), "expected a Qwen3-VL .*, got a Qwen25VL;.* without --st"),
    ):
        with pytest.raises(StartupError, match=reason):
            handler.load_second_stage(settings, CPU)
        with pytest.raises(StartupError, match=reason):
            handler.load_model(settings, CPU, 120, second)


def test_a_worker_that_torchrun_did_not_start_reports_how_to_build_its_archive(demo_model):
    with pytest.raises(StartupError, match=r"2 stages are two processes of torchrun, .* archive with --stages 2"):
        CaptionHandler().handle(None, FakeContext({"model": demo_model, "stages": 2}))
