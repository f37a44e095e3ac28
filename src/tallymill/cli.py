"""The command line: each command calls one function of the Python interface and shows what it gives.

Exit codes: 0 done; 3 done, but some items failed; 2 wrong use; 1 anything else.
"""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Sequence
from types import FrameType

import cyclopts

# Importing a command's module adds it; help lists them in this order.
from tallymill.commands import (  # noqa: F401
    abacus,
    analyse,
    bench,
    calibrate,
    collision,
    demo,
    export,
    images,
    models,
    physcount,
    physcount_ask,
    prompts,
    report,
    runs,
)
from tallymill.commands.base import DONE, FAILED, USAGE, app
from tallymill.errors import TallymillError, UsageError
from tallymill.runners import console
from tallymill.runners.writing import told


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code."""
    signal.signal(signal.SIGTERM, _interrupt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal without UTF-8 cannot show is written as \u2021
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(argv))


def run(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code. Errors that a user can mend are shown in a line or two."""
    try:
        code = app(argv, exit_on_error=False, print_error=False, result_action="return_value")
        return code if isinstance(code, int) else DONE
    except cyclopts.CycloptsError as exc:
        command = " ".join(("tallymill", *(exc.command_chain or ())))
        console.show_error(UsageError(" ".join(str(exc).split()), hint=f"{command} --help tells what it takes"))
        return USAGE
    except TallymillError as exc:
        console.show_error(exc)
        return USAGE if isinstance(exc, UsageError) else FAILED
    except OSError as exc:  # a file that may not be read, a network that is gone
        console.show_error(TallymillError(told(exc)))
        return FAILED
    except KeyboardInterrupt as exc:
        console.err.print(f"stopped: {exc}" if exc.args else "stopped", soft_wrap=True)
        return FAILED


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
