"""Hostile pickles: whatever they ask for, they only raise a WireError."""

import os
import pickle
import re
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
def test_hostile_pickles_take_little_time(body, reason):
    start = time.process_time()
    with pytest.raises(WireError, match=re.escape(reason)):
        load(memoryview(body))
    assert time.process_time() - start < 10  # some take a tenth of a second; without the limits they would take hours


@pytest.mark.parametrize(("body", "reason"), CASES)
def test_hostile_pickles_take_little_memory(body, reason):
    with peak_memory() as peak, pytest.raises(WireError, match=re.escape(reason)):
        load(memoryview(body))
    assert peak() < 2 * len(body) + 64e6


def test_the_hostile_pickles_are_hostile():
    """The standard library does call the function that such a pickle names."""
    assert pickle.loads(HOSTILE["it names"]["eval"]) == 2


def test_a_huge_memo_index_takes_no_memory():
    assert load(memoryview(b"\x80\x02Nr\xff\xff\xff\xff.")) is None


@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris has no build for this kind of machine")
def test_coverage_guided_fuzzing_finds_nothing():
    """This is a short run with a fixed seed; tests/fuzz_bodies.py says how to start a long one."""
    command = [sys.executable, str(Path(__file__).parents[1] / "fuzz_bodies.py"), "-runs=20000", "-seed=1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Done 20000 runs" in done.stderr


def test_error_messages_show_only_the_beginning_of_long_values():
    with pytest.raises(WireError) as error:
        load(memoryview(pickle.dumps(Calls(os.system, ("x" * 1000,)))))
    assert len(str(error.value)) < 200
