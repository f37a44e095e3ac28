"""What a prompt file has to satisfy, condition by condition, and what of it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.numbench.prompts.columns import Prompts

SHOWN_FAILURES = 5
# In this order the table shows them: first those of the paper's Table 2.
DIMENSIONS = (
    "Composition",
    "Count",
    "Category",
    "Spatial layout",
    "Appearance",
    "Total",
    "Cells",
    "Cores",
    "Targets",
    "Modifiers",
    "Levels",
    "Ids",
    "Texts",
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that offends: ``row`` (from 1) and ``prompt_id`` are None where no row shows it, but a lack of rows."""

    row: int | None
    prompt_id: str | None
    value: str


@dataclass(frozen=True, slots=True)
class Condition:
    """One line of the table: what SPEC requires of a ``dimension``, what the file has, and the first that offend.

    ``passed`` is None where the line only tells how far something holds; ``failing`` counts all that offend.
    """

    dimension: str
    name: str
    required: str
    found: str
    passed: bool | None
    failing: int = 0
    failures: list[Failure] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PromptsCheck:
    """Every condition on one prompt file; ``kind`` is full or subset, ``facts`` what its metadata says."""

    file: str
    kind: str
    rows: int
    rows_sha256: str
    passed: bool
    conditions: list[Condition]
    facts: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready form."""
        return asdict(self)


def of_number(dimension: str, name: str, required: int, found: int) -> Condition:
    """A number that must be exactly so."""
    return Condition(dimension, name, f"{required:,}", f"{found:,}", required == found)


def of_rows(
    prompts: Prompts,
    dimension: str,
    name: str,
    bad: NDArray[np.bool_],
    value: Callable[[int], object],
    *,
    required: str = "all rows",
) -> Condition:
    """Something that must hold of each row; ``value`` is what stands in a row where it does not."""
    rows = np.flatnonzero(bad)
    failures = [Failure(row + 1, prompts.prompt_id(row), str(value(row))) for row in rows[:SHOWN_FAILURES].tolist()]
    found = f"not {len(rows):,} of {prompts.n:,}" if len(rows) else "all"
    return Condition(dimension, name, required, found, not len(rows), len(rows), failures)


def of_levels(
    prompts: Prompts,
    dimension: str,
    name: str,
    levels: NDArray[np.int64],
    rows: NDArray[np.int64],
    limits: tuple[float, float],
    labels: Sequence[object],
    *,
    required: str | None = None,
) -> Condition:
    """How often each level stands: ``levels`` int64 [n] of the ``rows`` they stand in, within ``limits`` each.

    ``labels`` names the levels 0 .. L-1, and so says how many there are; negative levels are left out.
    """
    known = levels >= 0
    levels, rows = levels[known], rows[known]
    numbers = np.bincount(levels, minlength=len(labels))
    low, high = limits
    wrong = np.flatnonzero((numbers < low) | (numbers > high))
    failures = []
    for level in wrong[:SHOWN_FAILURES].tolist():
        row = _first_surplus(levels, rows, level, high) if numbers[level] > high else None
        at = None if row is None else prompts.prompt_id(row)
        times = "once" if numbers[level] == 1 else f"{numbers[level]:,} times"
        failures.append(Failure(None if row is None else row + 1, at, f"{labels[level]}: {times}"))
    least, most = int(numbers.min()), int(numbers.max())
    found = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    wanted = f"{low:,.10g}" if low == high else f"{low:,.10g} to {high:,.10g}"
    return Condition(dimension, name, required or wanted, found, not len(wrong), len(wrong), failures)


def _first_surplus(levels: NDArray[np.int64], rows: NDArray[np.int64], level: int, most: float) -> int:
    return int(rows[np.flatnonzero(levels == level)[int(most)]])
