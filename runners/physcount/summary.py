"""What a RUN that asks has come to: answers by status, tokens, reasons of failure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tallymill.engine.physcount.data import MOST_WHOLE
from tallymill.engine.physcount.run_files import ANSWERED, FAILED, REFUSED
from tallymill.runners.physcount.asking import Speed
from tallymill.runners.typed import typed

MAX_REASONS = 50
SUMMARY = "summary.json"


@dataclass(frozen=True, slots=True)
class AskSummary:
    """A RUN in numbers; written to ``summary.json``.

    ``questions`` are those chosen of ``questions_of_set``: ``answered``, ``refused`` for good, ``failed`` (asked again
    by the next call) or ``left``. Tokens are the server's own count over the requests of these: ``cached_tokens`` are
    the prompt tokens that it did not compute anew, None where it never tells. ``reasons`` counts errors, the commonest
    first, each with its text and id where it first struck. ``speed`` is of the call that last asked something.
    """

    run: str
    model: str
    mode: str
    reasoning_effort: str | None
    questions: int
    answered: int
    refused: int
    failed: int
    left: int
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    reasons: list[tuple[str, int, str, str]] = field(default_factory=list)
    speed: Speed | None = None
    questions_of_set: int | None = None

    @property
    def complete(self) -> bool:
        """Whether asking again would send no request."""
        return self.failed == self.left == 0

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready form."""
        names = ("reason", "questions", "first", "text")
        reasons = [dict(zip(names, row, strict=True)) for row in self.reasons]
        return {**asdict(self), "complete": self.complete, "reasons": reasons}


def last_of_each(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The record that counts, by question: the last one, for what failed may have been asked again.

    Without its texts, which of all questions together can be long.
    """
    last: dict[str, dict[str, Any]] = {}
    for row in rows:
        short = {name: value for name, value in row.items() if name not in ("response", "reasoning")}
        last.update(dict.fromkeys(row["question_ids"], short))
    return last


def is_over(row: dict[str, Any], *, retry_refused: bool = False) -> bool:
    """Whether a record stands: its questions are not asked again."""
    return row["status"] == ANSWERED or (row["status"] == REFUSED and not retry_refused)


def summarise(
    run: Path, record: dict[str, Any], questions: list[str], rows: dict[str, dict[str, Any]], speed: Speed | None
) -> AskSummary:
    """Add up the records of the chosen questions."""
    asked = {question: rows[question] for question in questions if question in rows}
    statuses = [row["status"] for row in asked.values()]
    requests = list({id(row): row for row in asked.values()}.values())
    return AskSummary(
        run=str(run),
        model=record["model"],
        mode=record["mode"],
        reasoning_effort=record["settings"]["reasoning_effort"],
        questions=len(questions),
        answered=statuses.count(ANSWERED),
        refused=statuses.count(REFUSED),
        failed=statuses.count(FAILED),
        left=len(questions) - len(statuses),
        prompt_tokens=_total(requests, "prompt_tokens"),
        completion_tokens=_total(requests, "completion_tokens"),
        cached_tokens=_total(requests, "cached_tokens"),
        reasons=_reasons(asked),
        speed=speed,
        questions_of_set=record["data"].get("questions"),
    )


def last_speed(run: Path) -> Speed | None:
    """What an earlier call took, where this one has nothing to ask; None where the file is not as it was written."""
    try:
        speed: Speed = typed(Speed, json.loads((run / SUMMARY).read_text("utf-8"))["speed"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return speed if all(0 <= value <= MOST_WHOLE for value in asdict(speed).values()) else None


def _total(requests: Iterable[dict[str, Any]], name: str) -> int | None:
    """The sum of what was told. Records come from a disk, so a usage may be anything."""
    usages = [row["usage"] for row in requests if isinstance(row.get("usage"), dict)]
    told = [usage[name] for usage in usages if type(usage.get(name)) is int]
    return sum(told) if told else None


def _reasons(asked: dict[str, dict[str, Any]]) -> list[tuple[str, int, str, str]]:
    """Errors by what comes before the first colon, for what follows often names the request."""
    counts: dict[str, int] = {}
    first: dict[str, tuple[str, str]] = {}
    for question, row in asked.items():
        if row["status"] == ANSWERED:
            continue
        text = str(row.get("error"))
        reason = text.partition(":")[0]
        counts[reason] = counts.get(reason, 0) + 1
        first.setdefault(reason, (question, text))
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return [(reason, count, *first[reason]) for reason, count in ordered[:MAX_REASONS]]
