"""What figures of rows share: names on the left, marks with their intervals, and the legend's marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tallymill.engine.estimates import Estimate
from tallymill.engine.report.canvas import GRID, Look, key


def name_rows(ax: Any, names: Sequence[str], number: int) -> None:
    """Names of rows on the left, a thin line between rows."""
    ax.set_yticks(range(number), names)
    ax.set_ylim(number - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    for between in range(1, number):
        ax.axhline(between - 0.5, color=GRID, linewidth=0.6)


def interval(
    ax: Any, score: Estimate, at: float, color: str, marker: str, *, size: float = 5, bare: bool = False
) -> None:
    """A mark at the height ``at`` with its interval, where it has one and is not ``bare``."""
    if score.value is None:
        return
    if score.low is not None and score.high is not None and not bare:
        ax.plot([score.low, score.high], [at, at], color=color, linewidth=1.4)
    ax.plot([score.value], [at], color=color, marker=marker, markersize=size, linestyle="none", clip_on=False)


def dot(style: Look) -> Any:
    """A legend's mark of one series."""
    return key(color=style.color, linestyle="none", marker=style.marker)
