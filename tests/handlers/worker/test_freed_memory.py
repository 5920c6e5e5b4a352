"""Freed memory stays with a worker."""

import os
import subprocess
import sys

MEASURE = """
import resource, sys
from worker import handler

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "keep":
    handler.keep_freed_memory()
counts = []
for _ in range(10):
    before = faults()
    b"x" * (20 << 20)
    counts.append(faults() - before)
print(counts[0], max(counts[1:]))
"""


def first_and_later_page_faults(how: str) -> list[int]:
    command = [sys.executable, "-c", MEASURE, how]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return [int(count) for count in subprocess.check_output(command, env=environment, text=True).split()]


def test_freed_memory_is_reused_without_the_kernel():
    first, later = first_and_later_page_faults("keep")
    assert later * 5 < first
    first, later = first_and_later_page_faults("as glibc does")
    assert later * 5 > first
