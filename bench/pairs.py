"""Times peers on the same work in one process, in turns, so that what slows the machine slows them all."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

WARM_UP_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds a call of each peer (medians over the rounds), and how many times slower than the first each was
    (medians of the ratios within one round). ``spent`` are the seconds of each round.
    """

    seconds: dict[str, float]
    ratios: dict[str, float]
    spent: dict[str, list[float]] = field(default_factory=dict)

    def ratios_to(self, name: str) -> dict[str, float]:
        """How many times slower than ``name`` each was."""
        return ratios_to(self.spent, name)

    def rows(self, unit: float, digits: int = 2) -> list[dict[str, Any]]:
        """One row a peer: ``name``, ``time`` in units of ``unit`` seconds, ``ratio`` to the first."""
        return [
            {"name": name, "time": round(self.seconds[name] / unit, digits), "ratio": round(self.ratios[name], 3)}
            for name in self.seconds
        ]


def in_turns(peers: Mapping[str, Callable[[], object]], rounds: int = 7) -> Timing:
    """Call every peer once a round, starting with another one each round.

    A peer that is quick is called once untimed right before each timed call, a slow one only before the first round: so
    none finds in the caches what another left there.
    """
    names = list(peers)
    quick = {name: _seconds(peers[name]) < WARM_UP_SECONDS for name in names}
    spent: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            if quick[name]:
                peers[name]()
            spent[name].append(_seconds(peers[name]))
    medians = {name: median(times) for name, times in spent.items()}
    return Timing(medians, ratios_to(spent, names[0]), spent)


def ratios_to(spent: Mapping[str, list[float]], name: str) -> dict[str, float]:
    """Medians of the ratios within one round, of the times of each peer to those of ``name``."""
    return {each: median(b / a for a, b in zip(spent[name], times, strict=True)) for each, times in spent.items()}


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def aligned(rows: list[list[str]]) -> str:
    """Rows of cells as text: the first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
