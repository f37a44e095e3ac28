"""What all commands share: the application, exit codes, and flags that mean the same everywhere."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Annotated, Any

from cyclopts import App, Parameter

import tallymill
from tallymill.engine.settings import Settings
from tallymill.runners import console
from tallymill.runners.summary import Summary

DONE, FAILED, USAGE, SOME_FAILED = 0, 1, 2, 3

app = App(
    name="tallymill",
    help="Score counting benchmarks at the scale of ten million images.",
    version=tallymill.__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # run() says what an interrupted sweep leaves behind
)

_NAMES = ", ".join(field.name for field in dataclasses.fields(Settings))
Set = Annotated[
    tuple[str, ...],
    Parameter(name="--set", negative=(), show_default=False, help=f"NAME=VALUE, repeatable: change one of {_NAMES}."),
]
SetAgain = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set",
        negative=(),
        show_default=False,
        help="coverage=covered or coverage=all; every other setting shaped the proposals and cannot change here.",
    ),
]
Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print the result as JSON.")]
Ensemble = Annotated[str, Parameter(help="A shipped name (coco-cpu) or a TOML file.")]
Device = Annotated[str, Parameter(help="auto or cpu.")]


def print_json(value: Any) -> None:
    """Print a value as JSON, and nothing else."""
    plain = sys.stdout is not None and not (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    console.show_line(json.dumps(value, indent=2, ensure_ascii=plain))


def code_of(summary: Summary) -> int:
    """The exit code of a command that looked at images."""
    return SOME_FAILED if summary.error else DONE
