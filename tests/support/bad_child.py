"""A child process of `reelscribe._child_process` that does not do what it should."""

import os
import signal
from threading import Event

from reelscribe import _child_process


def misbehave(request, send):
    if "tell" in request["do"]:
        send(pid=os.getpid())
    if request["do"] == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if request["do"] == "fill":
        bytearray(8 * 2**30)
    Event().wait()


if __name__ == "__main__":
    _child_process.serve(misbehave)
