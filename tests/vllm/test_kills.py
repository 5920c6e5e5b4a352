"""Whatever is killed, of the client or of a real vLLM, the descriptions are those of a quiet run."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from reelscribe.errors import OutputError
from reelscribe.results.ledger_reader import LedgerReader
from servers.torchserve import CAPTIONER, CLIPS, ROOT
from servers.vllm import CLIPS_OPTIONS, OUR_CLIPS, ServedVLLM, captioner_template
from support.commands import reelscribe
from support.servers import assert_same_records, read_records, wait_until
from synthetic.video_files import empty_box

FILES = 24
CLIPS_PER_FILE = 4

KILLS_OF_CLIENT = 10
KILLS_OF_SERVER = 3


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """Many files with the content of a demo clip, and with digests of their own."""
    folder = tmp_path_factory.mktemp("library") / "library"
    folder.mkdir()
    for k in range(FILES):
        (folder / f"{k}.mp4").write_bytes((ROOT / "demo" / "clips" / "events.mp4").read_bytes() + empty_box(k))
    return folder


def command(server: ServedVLLM, library: Path, out: Path) -> list[str]:
    words = ("--clips", "shots", "--requests-in-flight", "4", *OUR_CLIPS)
    return reelscribe("caption", library, *words, "--server", server.url, "--out", out)


def saved(out: Path) -> int:
    """How many clips the ledger of a run has."""
    try:
        with LedgerReader(out) as reader:
            return sum(1 for job in range(1, FILES + 1) for _ in reader.clip_results(job))
    except OutputError:
        return 0


@pytest.fixture(scope="module")
def quiet(clips, library, tmp_path_factory) -> Path:
    """The output folder of a run in which nothing is killed."""
    out = tmp_path_factory.mktemp("quiet")
    subprocess.run(command(clips, library, out), check=True)
    return out


def test_a_client_that_is_killed_ten_times_makes_the_records_of_a_quiet_run(clips, library, quiet, tmp_path):
    asked = command(clips, library, tmp_path)
    step = FILES * CLIPS_PER_FILE // (KILLS_OF_CLIENT + 2)
    for kill in range(1, KILLS_OF_CLIENT + 1):
        with subprocess.Popen(asked) as run:
            wait_until(lambda least=kill * step: saved(tmp_path) >= least, run)
            run.kill()
    subprocess.run(asked, check=True)
    assert_same_records(tmp_path, quiet)


def test_a_run_waits_for_a_vllm_that_is_killed_three_times(clips, library, quiet, tmp_path):
    step = FILES * CLIPS_PER_FILE // (KILLS_OF_SERVER + 1)
    with subprocess.Popen(command(clips, library, tmp_path)) as run:
        for kill in range(1, KILLS_OF_SERVER + 1):
            wait_until(lambda least=kill * step: saved(tmp_path) >= least, run)
            clips.kill()
            clips.start()
        assert run.wait() == 0
    assert_same_records(tmp_path, quiet)


@pytest.fixture
def own(vllm_folder, tmp_path) -> Iterator[ServedVLLM]:
    """A server with the demo clip model that a test may end."""
    server = ServedVLLM(vllm_folder, CLIPS, "clips", tmp_path / "vllm.log", CLIPS_OPTIONS)
    server.start()
    yield server
    server.kill()


def test_what_another_model_at_the_same_address_answers_is_not_taken(own, library, quiet, tmp_path):
    out = tmp_path / "out"
    with subprocess.Popen(command(own, library, out), stderr=subprocess.PIPE, text=True) as run:
        wait_until(lambda: saved(out) >= FILES, run)
        own.kill()
        own.model, own.options = CAPTIONER, captioner_template(tmp_path)
        own.start()
        next(line for line in run.stderr if "it serves another model now" in line)
        run.send_signal(signal.SIGINT)
        run.stderr.read()
    assert run.returncode == 130
    texts = {clip["text"] for line in quiet.splitlines() for clip in json.loads(line)["clips"]}
    assert {clip["text"] for record in read_records(out) for clip in record["clips"]} <= texts
