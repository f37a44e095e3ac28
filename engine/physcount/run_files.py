"""The files of a RUN that asked: its record, and its answers a line each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tallymill.engine.manifests.base import brief
from tallymill.engine.physcount.parse import LongNumber, json_float, json_integer, no_constant
from tallymill.engine.physcount.request import MODES
from tallymill.engine.words import listed
from tallymill.errors import RunError

ANSWERS, RECORD = "answers.jsonl", "run.json"
# What became of a request, as its record says.
ANSWERED: Final = "answered"
REFUSED: Final = "refused"
FAILED: Final = "failed"
_STATUSES = (ANSWERED, REFUSED, FAILED)


def _held(number: int | float | LongNumber) -> int | float:
    """Settings are told and written again, and none has such a number."""
    if isinstance(number, LongNumber):
        raise ValueError(f"the number {brief(number.text)} is beyond all bounds")
    return number


_DECODER = json.JSONDecoder(
    parse_int=lambda digits: _held(json_integer(digits)),
    parse_float=lambda text: _held(json_float(text)),
    parse_constant=no_constant,
)
# What a server sent among its blocks of text is kept in a RUN, whatever it is; NaN is the text "NaN" then.
_RUN_DECODER = json.JSONDecoder(parse_int=json_integer, parse_float=json_float, parse_constant=str)


def read_record(run: Path) -> dict[str, Any]:
    """What shaped a RUN of ``physcount ask``."""
    path = run / RECORD
    try:
        record = _DECODER.decode(path.read_text("utf-8"))
    except OSError as exc:
        raise RunError(
            f"{path}: {exc.strerror or exc}", hint="a RUN is a folder that `physcount ask --out` made"
        ) from None
    except (ValueError, RecursionError) as exc:
        raise RunError(f"{path}: cannot be read: {exc}", hint="its answers are whole; restore run.json") from None
    if not isinstance(record, dict) or record.get("kind") != "physcount":
        raise RunError(f"{path}: not of PhysCount", hint="a RUN is a folder that `physcount ask --out` made")
    wrong = [*_wrong_keys(record)]
    if wrong:
        raise RunError(f"{path}: {listed(wrong, 3)} is missing or not as it must be", hint="restore run.json")
    return record


def _wrong_keys(record: Mapping[str, Any]) -> Iterator[str]:
    """The keys of a record that are not as its readers need them."""
    data, selection, served = (record.get(key) for key in ("data", "selection", "served"))
    digests = data.get("sha256") if isinstance(data, dict) else None
    chosen = selection.get("group_ids", ()) if isinstance(selection, dict) else ()
    settings, later = record.get("settings"), record.get("continued", [])
    fits = {
        "mode": record.get("mode") in MODES,
        "model": isinstance(record.get("model"), str),
        "endpoint": _text_or_none(record, "endpoint"),
        "settings": isinstance(settings, dict),
        "settings.reasoning_effort": not isinstance(settings, dict) or _text_or_none(settings, "reasoning_effort"),
        "data": isinstance(data, dict),
        "data.questions": not isinstance(data, dict) or type(data.get("questions", 0)) is int,
        "data.sha256": isinstance(digests, dict) and all(isinstance(one, str) for one in digests.values()),
        "selection": isinstance(selection, dict),
        "selection.group_ids": chosen is None or _texts(chosen),
        "served": "served" in record and (served is None or isinstance(served, dict)),
        "served.arguments": not isinstance(served, dict) or "arguments" in served,
        "versions": isinstance(record.get("versions"), dict),
        "continued": isinstance(later, list) and all(map(_is_stage, later)),
    }
    yield from (key for key, as_it_must in fits.items() if not as_it_must)


def _text_or_none(record: Mapping[str, Any], key: str) -> bool:
    return key in record and isinstance(record[key], str | None)


def _is_stage(value: Any) -> bool:
    """Where a RUN was continued: what may have been another server, and the versions."""
    return isinstance(value, dict) and _text_or_none(value, "endpoint") and {"served", "versions"} <= {*value}


def _texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)


def read_answers(run: Path) -> Iterator[dict[str, Any]]:
    """The records of a RUN, oldest first. A last line without its end was being written when the run was killed."""
    path = run / ANSWERS
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                row = _RUN_DECODER.decode(line.decode("utf-8"))
            except (ValueError, RecursionError) as exc:
                row = exc
            fits = isinstance(row, dict) and _texts(row.get("question_ids")) and row.get("status") in _STATUSES
            if not fits:
                raise RunError(f"{path}, line {number}: no answer: {brief(line)}", hint="remove the line and run ask")
            yield row
