"""Interrupts: the first signal is a request, seen even while the main thread is busy; Ctrl-C after it ends the process."""

import signal
import subprocess
import sys
import textwrap

import pytest

PROGRAM = textwrap.dedent(
    """
    import os, threading, time
    from agentjax.interrupts import Interrupts

    say = lambda text: os.write(1, text.encode() + b"\\n")  # whole lines, from any thread
    with Interrupts() as interrupts:
        interrupts.on_request = lambda: say("heard")
        say("ready")
        {busy}
        say("saved" if interrupts.requested else "undisturbed")
    say("left")
    """
)
WAITING = "while not interrupts.requested: time.sleep(0.01)"
BUSY = "threading.Event().wait(0.1); sum(range(10**10))"  # one call that runs no signal handler of Python's


def start(busy: str) -> subprocess.Popen:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM.format(busy=busy)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_a_request(number):
    process = start(WAITING)
    process.send_signal(number)
    assert sorted(process.communicate(timeout=20)[0].split()) == ["heard", "left", "saved"]
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ctrl_c_after_a_request_ends_a_busy_process_at_once(number):
    process = start(BUSY)
    process.send_signal(number)
    assert process.stdout.readline() == "heard\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[0] == ""
    assert process.returncode == 130


def test_a_scheduler_may_ask_again():
    process = start("time.sleep(0.3)")
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "heard\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[0] == "saved\nleft\n"
    assert process.returncode == 0


def test_handlers_are_put_back():
    from agentjax.interrupts import Interrupts

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        assert not interrupts.requested
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
