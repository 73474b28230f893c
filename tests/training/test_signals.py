"""A process that ends with its parent, however the parent ends."""

import signal
import subprocess
import sys

import pytest

CHILD = """
import sys, time
from anymax.training import signals
if sys.argv[2] == "a pipe":
    signals._ask_kernel = lambda: False
signals.end_with_parent(int(sys.argv[1]), sys.stdin.buffer.read)
with signals.StopSignals() as stop:
    print("ready", flush=True)
    while stop.received is None:
        time.sleep(0.01)
print(stop.received.name)
"""
PARENT = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid()), sys.argv[2]], stdin=subprocess.PIPE).wait()
"""


@pytest.mark.parametrize("notice", ["the kernel", "a pipe"])
def test_a_killed_parent_asks_its_child_to_stop(notice: str):
    command = [sys.executable, "-c", PARENT, CHILD, notice]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        parent.wait()
        # To the end of the pipe, which the child holds as long as it lives.
        assert parent.stdout.read() == "SIGTERM\n"


def test_a_child_whose_parent_ended_before_it_asked_ends_at_once():
    another = 2**30
    child = subprocess.run([sys.executable, "-c", CHILD, str(another), "the kernel"], stdin=subprocess.DEVNULL)
    assert child.returncode == -signal.SIGTERM
