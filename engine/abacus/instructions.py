"""Reading "change 4 cars to trucks" as an operation, a number and categories; what is not plain is an error."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tallymill.engine.numbench.natural import parse_prompt, singular
from tallymill.errors import ManifestError

ADD, REMOVE, CHANGE = OPERATIONS = ("add", "remove", "change")
_VERBS = {"add": ADD, "remove": REMOVE, "delete": REMOVE, "erase": REMOVE, "change": CHANGE, "turn": CHANGE}
_VERBS |= {"replace": CHANGE, "transform": CHANGE, "convert": CHANGE}
_FORM = re.compile(rf"(?:please )?({'|'.join(_VERBS)})\s+(.+?)(?:\s+(?:to|into|with|by)\s+(.+?))?\s*\.?", re.IGNORECASE)
_NONE = re.compile(r"(?:0+|zero|no)\s+(.+)", re.IGNORECASE)
_HINT = 'such as "add 3 boats", "remove 5 bottles", "change 4 cars to trucks"'


@dataclass(frozen=True, slots=True)
class Instruction:
    """``count`` K of ``category`` to add, remove, or change into ``target`` (None unless changed)."""

    operation: str
    category: str
    count: int
    target: str | None = None


def parse_instruction(text: str) -> Instruction:
    """Read an instruction. What cannot be read is a ``ManifestError`` that quotes it and says why."""
    form = _FORM.fullmatch(" ".join(text.split()))
    if form is None:
        raise _error(text, "not an instruction to add, remove or change")
    operation = _VERBS[form[1].lower()]
    if (form[3] is not None) != (operation == CHANGE):
        raise _error(text, "a change names what to change to" if operation == CHANGE else f"what does it {operation}?")
    category, count = _counted(form[2], text)
    if operation != CHANGE:
        return Instruction(operation, category, count)
    target = _target(form[3], text)
    if target == category:
        raise _error(text, f"it changes {category!r} to itself")
    return Instruction(operation, category, count, target)


def _counted(phrase: str, text: str) -> tuple[str, int]:
    """A category and how many of it. None is a number too: such a row is told by its count, like one in figures."""
    none = _NONE.fullmatch(phrase)
    try:
        targets = parse_prompt(f"2 {none[1]}" if none else phrase)
    except ManifestError as exc:
        raise _error(text, exc.message.partition("': ")[2]) from None
    if len(targets) != 1:
        raise _error(text, "an edit is of one category")
    [(category, count)] = targets
    return category, 0 if none else count


def _target(phrase: str, text: str) -> str:
    """What things are changed to, in the singular: "trucks", "a truck", "4 trucks"."""
    name = phrase.lower()
    if re.match(r"(?:an?|the|\d+)\s", name):
        return _counted(re.sub(r"^the ", "a ", name), text)[0]
    return singular(name) or name


def _error(text: str, what: str) -> ManifestError:
    quoted = text if len(text) <= 200 else text[:199] + "…"
    return ManifestError(f"instruction {quoted!r}: {what}", hint=_HINT)
