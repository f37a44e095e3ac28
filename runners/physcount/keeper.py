"""Runs a command, and ends it with all its processes when standard input closes: then whoever started us is gone.

A program of its own: `python keeper.py GRACE COMMAND…`, with the standard library alone. The command has GRACE seconds
to end when it is asked to. The exit status is the command's.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_wake_read = _wake_write = -1


def keep(command: Sequence[str], grace: float) -> int:
    """Run a command in a group of processes of its own until it ends or standard input does; its exit status."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, _wake)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_end_with_parent)
    except OSError as exc:
        sys.stderr.write(f"{command[0]}: {exc.strerror}\n")
        return 127
    while child.poll() is None:
        if select.select([sys.stdin.fileno(), _wake_read], [], [], 0.2)[0]:
            _end(child, grace)
    _signal(child, signal.SIGKILL)  # processes that the command left behind
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _wake(*_: object) -> None:
    with suppress(OSError):  # a second signal
        os.close(_wake_write)


def _end(child: subprocess.Popen[bytes], grace: float) -> None:
    """Ask the command and its processes to stop; make them, when that takes too long."""
    _signal(child, signal.SIGTERM)
    try:
        child.wait(grace)
    except subprocess.TimeoutExpired:
        _signal(child, signal.SIGKILL)
        child.wait()


def _signal(child: subprocess.Popen[bytes], name: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, name)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    _wake_read, _wake_write = os.pipe()
    sys.exit(keep(sys.argv[2:], float(sys.argv[1])))
