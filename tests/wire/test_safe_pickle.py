"""Hostile pickles: whatever they ask for, a WireError is all that happens."""

import os
import pickle
import re
import resource
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from reelscribe.errors import WireError
from reelscribe.wire._safe_pickle import load
from support.hostile_pickles import CASES, HOSTILE, Calls
from support.memory import peak_memory


@pytest.mark.parametrize(("body", "reason"), CASES)
def test_hostile_pickles_do_not_keep_a_worker_busy(body, reason):
    start = time.process_time()
    with pytest.raises(WireError, match=re.escape(reason)):
        load(memoryview(body))
    assert time.process_time() - start < 10  # some take a tenth of a second; without limits they would take hours


@pytest.mark.parametrize(("body", "reason"), CASES)
def test_hostile_pickles_take_little_memory(body, reason):
    with peak_memory() as peak, pytest.raises(WireError, match=re.escape(reason)):
        load(memoryview(body))
    assert peak() < 2 * len(body) + 64e6


def test_the_corpus_is_hostile():
    """Guards the tests above: what they hold does make the standard library call what it names."""
    assert pickle.loads(HOSTILE["it names"]["eval"]) == 2


def test_a_memo_index_out_of_this_world_costs_nothing():
    assert load(memoryview(b"\x80\x02Nr\xff\xff\xff\xff.")) is None


@pytest.mark.slow
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris has no build for this kind of machine")
def test_coverage_guided_fuzzing_finds_nothing():
    """A short run that is always the same; tests/fuzz_bodies.py says how to start a long one."""
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests.parent / "handlers"), os.environ.get("PYTHONPATH", "")])
    # A new process inherits the peak of memory of the one that starts it, which libFuzzer takes for its own.
    megabytes = 2048 + resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    command = [sys.executable, str(tests / "fuzz_bodies.py"), "-runs=2000", "-seed=1", f"-rss_limit_mb={megabytes}"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Done 2000 runs" in done.stderr


def test_messages_stay_short():
    with pytest.raises(WireError) as error:
        load(memoryview(pickle.dumps(Calls(os.system, ("x" * 1000,)))))
    assert len(str(error.value)) < 200
