"""Trees of tensors between real processes: equal on arrival, in order, freed when sent; a lost peer is an error."""

import gc
import math
import os
import random
import signal
from contextlib import contextmanager

import psutil
import pytest
import torch
import torch.distributed as dist

from pipeline import stage_link
from pipeline.stage_link import FIRST_BYTES, StageLink
from pipeline.tensor_tree import DTYPES
from reelscribe.errors import StageLost, StartupError
from support.stage_processes import processes

SECONDS = 30
"""Of a transfer; nothing takes so long."""


def join_group(store, rank):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(store), 2), rank=rank, world_size=2)


def run_peer(store, behave):
    join_group(store, 1)
    behave(StageLink(0, seconds=SECONDS))


@contextmanager
def peer_process(tmp_path, behave):
    """A process of its own for rank 1; this one is rank 0."""
    store = tmp_path / "store"
    process = processes.Process(target=run_peer, args=(store, behave))
    process.start()
    try:
        join_group(store, 0)
        yield process
    finally:
        process.kill()
        process.join()
        if dist.is_initialized():
            dist.destroy_process_group()


def echo(link):
    while True:
        link.send_tensor_dict(link.recv_tensor_dict())


@pytest.fixture
def echoing(tmp_path):
    """A link to a process that sends back what it gets, until it is killed."""
    with peer_process(tmp_path, echo):
        yield StageLink(1, seconds=SECONDS)


def random_tensor(rng):
    dtype = rng.choice(list(DTYPES.values()))
    shape = [rng.choice([0, 1, 2, 3, 5, 17]) for _ in range(rng.randrange(5))]
    if rng.random() < 0.02:
        shape = [rng.randrange(100_000)]
    values = torch.randint(0, 2 if dtype == torch.bool else 256, (math.prod(shape) * dtype.itemsize,))
    tensor = values.to(torch.uint8).view(dtype).view(shape)
    if tensor.ndim and rng.random() < 0.5:
        axis = rng.randrange(tensor.ndim)
        views = [tensor.transpose(0, axis), tensor.narrow(axis, 0, tensor.shape[axis] // 2), tensor[..., ::2]]
        tensor = rng.choice([*views, tensor.unsqueeze(axis).expand(*tensor.shape[:axis], 3, *tensor.shape[axis:])])
    return tensor


def random_value(rng, depth=0):
    kind = rng.randrange(9 if depth < 3 else 7)
    if kind == 7:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 8:
        return random_tree(rng, depth + 1)
    floats = [rng.gauss(0, 1e9), 5e-324, -0.0, math.nan, math.inf, -math.inf, 1.0]
    text = "".join(chr(rng.choice([rng.randrange(0xD800), rng.randrange(128)])) for _ in range(rng.randrange(9)))
    plain = [rng.randrange(-(1 << 63), 1 << 63), rng.choice(floats), text, None, rng.random() < 0.5]
    return plain[kind] if kind < 5 else random_tensor(rng)


def random_tree(rng, depth=0):
    return {f"{rng.choice('aé{')}{n}": random_value(rng, depth) for n in range(rng.randrange(8))}


def to_bytes(tensor):
    return tensor.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


def same(sent, got):
    """Whether they are equal to the bit and of the same types."""
    if isinstance(sent, torch.Tensor):
        alike = isinstance(got, torch.Tensor) and (sent.dtype, sent.shape) == (got.dtype, got.shape)
        return alike and torch.equal(to_bytes(sent), to_bytes(got))
    if type(sent) is not type(got):
        return False
    if isinstance(sent, dict):
        return list(sent) == list(got) and all(same(sent[name], got[name]) for name in sent)
    if isinstance(sent, list):
        return len(sent) == len(got) and all(map(same, sent, got))
    return repr(sent) == repr(got)


def test_random_trees_arrive_equal(echoing):
    rng = random.Random(8)
    torch.manual_seed(8)
    for _ in range(60):
        trees = [random_tree(rng) for _ in range(4)]
        sendings = [echoing.isend_tensor_dict(tree) for tree in trees]
        assert all(same(tree, echoing.recv_tensor_dict()) for tree in trees)
        for sending in sendings:
            sending.wait()


def test_parameters_and_inference_tensors_can_be_sent(echoing):
    with torch.inference_mode():
        inferred = torch.arange(3.0) * 2
    echoing.send_tensor_dict({"weight": torch.nn.Parameter(torch.ones(2)), "inferred": inferred})
    got = echoing.recv_tensor_dict()
    assert same({"weight": torch.ones(2), "inferred": torch.tensor([0.0, 2.0, 4.0])}, got)
    assert not got["weight"].requires_grad


def test_descriptions_of_any_length_arrive_equal(echoing):
    for length in [0, *range(FIRST_BYTES - 150, FIRST_BYTES - 50), 2 * FIRST_BYTES, 1_000_000]:
        tree = {"text": "x" * length, "values": torch.arange(3)}
        echoing.send_tensor_dict(tree)
        assert same(tree, echoing.recv_tensor_dict())


def live_tensors():
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def test_tensors_live_until_they_are_sent_and_no_longer(echoing):
    echoing.send_tensor_dict({})
    echoing.recv_tensor_dict()  # from now on, the link asks for what comes next
    before = live_tensors()
    sending = echoing.isend_tensor_dict(
        {"strided": torch.arange(250_000).view(500, 500).T, "deep": {"a": torch.ones(999)}}
    )
    overwriting = [torch.full((500, 500), 7), torch.full((999,), 7.0)]  # what was freed would be used for these
    got = echoing.recv_tensor_dict()
    assert same({"strided": torch.arange(250_000).view(500, 500).T, "deep": {"a": torch.ones(999)}}, got)
    sending.wait()
    del overwriting, got
    assert live_tensors() == before


def test_memory_does_not_grow_with_the_number_of_messages(echoing):
    def send(count):
        for _ in range(count):
            sending = echoing.isend_tensor_dict({"states": torch.ones(1 << 21), "mask": torch.ones(100, 100).T})
            echoing.recv_tensor_dict()
            sending.wait()
        return psutil.Process().memory_info().rss

    before = send(10)
    tensors = live_tensors()
    assert send(100) - before < 100 << 20  # 800 MiB were sent, some of which the heap keeps
    assert live_tensors() == tensors


def receive_two_at_once(link):
    first, second = link.irecv_tensor_dict(), link.irecv_tensor_dict()
    later = second.wait()
    link.send_tensor_dict({"first": first.wait(), "second": later})
    link.recv_tensor_dict()


def test_two_messages_in_flight_do_not_mix(tmp_path):
    with peer_process(tmp_path, receive_two_at_once):
        link = StageLink(1, seconds=SECONDS)
        first = {"name": "first", "a": torch.full((1 << 22,), 1), "b": torch.full((9,), 2)}
        second = {"name": "second", "a": torch.full((1 << 22,), 3), "b": torch.full((9,), 4)}
        sendings = [link.isend_tensor_dict(first), link.isend_tensor_dict(second)]
        assert same({"first": first, "second": second}, link.recv_tensor_dict())
        for sending in reversed(sendings):
            sending.wait()


SEVERAL = {f"tensor {n}": torch.full((1 << 18,), n) for n in range(4)}


def transfer_one_by_one():
    """Make this process transfer the tensors of a message one by one, the last one first.

    Each transfer ends only if the other rank has issued its own, so they all end only if it issues all of them at once.
    """
    issue = dist.batch_isend_irecv

    def issue_one_by_one(transfers):
        if len(transfers) == 1:
            return issue(transfers)  # a description
        for transfer in reversed(transfers):
            for work in issue([transfer]):
                work.wait()
        return []

    dist.batch_isend_irecv = issue_one_by_one


def send_one_by_one(link):
    transfer_one_by_one()
    link.send_tensor_dict(SEVERAL)
    link.recv_tensor_dict()


def test_all_receives_of_a_message_are_issued_at_once(tmp_path):
    with peer_process(tmp_path, send_one_by_one):
        assert same(SEVERAL, StageLink(1, seconds=SECONDS).recv_tensor_dict())


def echo_one_by_one(link):
    transfer_one_by_one()
    received = link.recv_tensor_dict()
    link.send_tensor_dict({"all": torch.cat(list(received.values()))})
    link.recv_tensor_dict()


def test_all_sends_of_a_message_are_issued_at_once(tmp_path):
    with peer_process(tmp_path, echo_one_by_one):
        link = StageLink(1, seconds=SECONDS)
        sending = link.isend_tensor_dict(SEVERAL)
        assert same({"all": torch.cat(list(SEVERAL.values()))}, link.recv_tensor_dict())
        sending.wait()


def no_json(link):
    stage_link.flatten = lambda tree: (b'{"version": 1, "tree": {"dict": ', [])
    link.send_tensor_dict({})


def wrong_checksum(link):
    stage_link.crc32 = lambda metadata: 7
    link.send_tensor_dict({})


def foreign_header(link):
    stage_link._MAGIC = b"RSSTAGE0"
    link.send_tensor_dict({})


def header_alone(link):
    issue = dist.batch_isend_irecv
    dist.batch_isend_irecv = lambda transfers: issue(transfers) if transfers[0].tag == 0 else []
    link.send_tensor_dict({"a": torch.ones(3)})
    signal.pause()


@pytest.mark.parametrize(
    ("behave", "reason"),
    [
        (no_json, "something other than a tree .* expected JSON"),
        (wrong_checksum, "damaged"),
        (foreign_header, "magic=b'RSSTAGE0'"),
        (header_alone, "did not respond in time"),
    ],
)
def test_a_message_that_is_damaged_or_stops_half_way_is_an_error(tmp_path, behave, reason):
    error = pytest.raises(StageLost, match=f"rank 1 of the model .*{reason}.*; both ranks have to restart")
    with peer_process(tmp_path, behave), error:
        StageLink(1, seconds=1).recv_tensor_dict()


def greet_and_wait(link):
    link.send_tensor_dict({"pid": os.getpid()})
    signal.pause()


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("do", ["send", "receive"])
def test_a_peer_that_is_killed_or_stopped_is_an_error(tmp_path, signal_number, do):
    with peer_process(tmp_path, greet_and_wait) as peer:
        link = StageLink(1, seconds=1)
        assert link.recv_tensor_dict() == {"pid": peer.pid}
        sending = link.isend_tensor_dict({"a": torch.ones(1 << 20)})
        os.kill(peer.pid, signal_number)
        # One that is killed is noticed without a limit, too.
        limit = None if signal_number == signal.SIGKILL else 0.5
        with pytest.raises(StageLost, match="rank 1 of the model is gone, or did not respond in time"):
            sending.wait() if do == "send" else link.recv_tensor_dict(limit)


def send_two_that_take_memory(link):
    link.send_tensor_dict({"a": torch.ones(3)})
    link.send_tensor_dict({"a": torch.zeros(3)})
    link.recv_tensor_dict()


def test_too_little_device_memory_fails_one_message_alone(tmp_path, monkeypatch):
    to_device, attempts = torch.Tensor.to, []

    def full_once(tensor, *arguments, **options):
        attempts.append(tensor)
        if len(attempts) == 1:
            raise torch.cuda.OutOfMemoryError
        return to_device(tensor, *arguments, **options)

    with peer_process(tmp_path, send_two_that_take_memory):
        link = StageLink(1, seconds=SECONDS)
        monkeypatch.setattr(torch.Tensor, "to", full_once)
        first, second = link.irecv_tensor_dict(), link.irecv_tensor_dict()
        with pytest.raises(torch.cuda.OutOfMemoryError):
            first.wait()
        assert same({"a": torch.zeros(3)}, second.wait())


def test_a_process_group_without_gloo_for_the_cpu_is_refused(monkeypatch):
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cuda:nccl")
    with pytest.raises(StartupError, match='use init_process_group\\("cpu:gloo,cuda:nccl"\\)'):
        StageLink(1, seconds=1)
