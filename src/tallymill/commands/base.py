"""What all commands share: the application, exit codes, and flags that mean the same everywhere."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any, get_args

from cyclopts import App, ArgumentCollection, Parameter

import tallymill
from tallymill.engine.settings import Settings
from tallymill.errors import UsageError
from tallymill.runners import console
from tallymill.runners.summary import Summary

DONE, FAILED, USAGE, SOME_FAILED = 0, 1, 2, 3
# No number that is meant has more, and JSON readers do not agree on what follows.
_MOST_DIGITS = 20


def require_sense(_app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse what cyclopts would take for something else: it rounds 2.5 where a whole number is wanted, and of an empty
    path it makes the current folder.
    """
    for argument in arguments:
        kinds = {argument.hint, *get_args(argument.hint)}
        for token in argument.tokens:
            name, value = token.keyword or argument.name, token.value
            if Path in kinds and not value:
                raise UsageError(f"{name}: is empty; it names a file or a folder")
            if int in kinds and "." in value:
                raise UsageError(f"{name} {value}: must be a whole number")
            if int in kinds and len(value.lstrip("+-")) > _MOST_DIGITS:
                raise UsageError(f"{name} {value[:_MOST_DIGITS]}…: has more than {_MOST_DIGITS} digits")


app = App(
    name="tallymill",
    help="Score counting benchmarks at the scale of ten million images.",
    version=tallymill.__version__,
    help_format="plaintext",
    config=require_sense,
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
Ensemble = Annotated[str, Parameter(help="A shipped name (coco-cpu, numbench) or a TOML file.")]
Unaccepted = Annotated[
    bool, Parameter(negative=(), help="Use engines that were never compared with their model on a card.")
]
Device = Annotated[str, Parameter(help="auto, cpu, cuda, or cards such as cuda:0,1.")]


def print_json(value: Any) -> None:
    """Print a value as JSON, and nothing else."""
    plain = sys.stdout is not None and not (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    console.show_line(json.dumps(value, indent=2, ensure_ascii=plain))


def code_of(summary: Summary) -> int:
    """The exit code of a command that looked at images."""
    return SOME_FAILED if summary.error else DONE
