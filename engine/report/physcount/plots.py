"""Figures of PhysCount: families, true answers, resolutions. Each is None where there is nothing to draw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tallymill.engine.estimates import Estimate
from tallymill.engine.physcount.data import FAMILIES
from tallymill.engine.physcount.published import PublishedRow
from tallymill.engine.physcount.results import CountRow, Scores
from tallymill.engine.report.canvas import (
    INK,
    Look,
    drawn,
    hide_after,
    key,
    legend,
    legend_height,
    looks,
    panels,
)
from tallymill.engine.report.marks import dot, interval, name_rows
from tallymill.engine.report.physcount.sweeps import Sweep
from tallymill.engine.report.physcount.tables import FAMILY_WORDS
from tallymill.engine.report.svg import Plot, svg_of

# Figures show the first models; more would hide one another.
MOST_MODELS = 12


def figures_of(
    found: Sequence[Scores], sweeps: Sequence[Sweep], published: Sequence[PublishedRow] = ()
) -> dict[str, Plot]:
    """Figures by name, of all that have anything to show. ``MissingExtraError`` without matplotlib.

    ``found`` is best first, and so the best ``MOST_MODELS`` are drawn; ``published`` are rows at several resolutions.
    """
    best = found[:MOST_MODELS]
    made: list[tuple[str, Callable[..., Any | None], str, str]] = [
        (
            "families",
            lambda *, broad: None if broad else families_figure(best),
            "Accuracy by question family",
            "Accuracy with intervals, a mark a model. The numbers are in the table below the figure.",
        ),
        (
            "counts",
            lambda *, broad: counts_figure(best, broad=broad),
            "Error and exact answers by true answer",
            "NAE and the share of exact answers against the true answer. The numbers are in the tables below.",
        ),
        (
            "resolution",
            lambda *, broad: resolution_figure(sweeps[:MOST_MODELS], published, broad=broad),
            "Score and Group-Acc by resolution",
            "Against the limit of the images' long edge, beside published values. The numbers are in the table below.",
        ),
    ]
    figures = {}
    for name, make, title, description in made:
        narrow, broad = make(broad=False), make(broad=True)
        if narrow is not None:
            wide = "" if broad is None else svg_of(broad, title, description)
            figures[name] = Plot(svg_of(narrow, title, description), wide)
    return figures


@drawn
def families_figure(found: Sequence[Scores]) -> Any | None:
    """Accuracy of each family with its interval: a row a family, a mark a model."""
    families = [family for family in FAMILIES if any(_accuracy(one, family).value is not None for one in found)]
    if not families:
        return None
    look = looks([one.name for one in found])
    texts = [style.name for style in look.values()]
    many = len(found) > 1
    extra = (legend_height(texts) if many else 0) + 36
    figure, axes = panels([(14.0 + 8 * len(found)) * len(families) + 6], extra=extra)
    ax = axes[0, 0]
    step = 0.76 / len(found)
    for at, family in enumerate(families):
        for place, one in enumerate(found):
            style = look[one.name]
            height = at + step * (place - (len(found) - 1) / 2)
            interval(ax, _accuracy(one, family), height, style.color, style.marker)
    name_rows(ax, [FAMILY_WORDS[family].replace(" ", "\n") for family in families], len(families))
    ax.set(xlim=(0, 100), xlabel="accuracy (100 − NAE), %")
    if many:
        legend(figure, [(style.name, dot(style)) for style in look.values()])
    return figure


def _accuracy(one: Scores, family: str) -> Estimate:
    return next((row.accuracy for row in one.families if row.family == family), Estimate(None))


@drawn
def counts_figure(found: Sequence[Scores], *, broad: bool = False) -> Any | None:
    """NAE, and the share of exact answers, against the true answer, of all families together: a line a model."""
    rows = {one.name: [row for row in one.counts if row.family == "all" and row.questions] for one in found}
    there = {row.answers for own in rows.values() for row in own}
    ranges = [row.answers for one in found[:1] for row in one.counts if row.family == "all"]  # of all sets the same
    answers = [name for name in ranges if name in there]
    if not answers:
        return None
    look = looks([one.name for one in found])
    entries = _entries(look.values()) if len(found) > 1 else []
    numbers = _numbers(rows.values(), answers)
    names = [name.replace("-", "–") for name in answers]
    if numbers is not None:
        names = [f"{name}\n{number:,}" for name, number in zip(names, numbers, strict=True)]
    figure, axes = _two(entries, broad)
    for ax, title, value in zip(axes.flat, ("NAE", "exact answers, %"), (_nae, _exact), strict=True):
        for name, own in rows.items():
            at = [answers.index(row.answers) for row in own]
            _line(ax, at, [value(row) for row in own], look[name])
        ax.set(title=title, ylim=(0, 100), xlim=(-0.3, len(answers) - 0.7))
        ax.set_xticks(range(len(answers)), names)
    hide_after(axes, 2, "true answer" if numbers is None else "true answer, and its number of questions")
    if entries:
        legend(figure, entries)
    return figure


def _numbers(rows: Iterable[Sequence[CountRow]], answers: Sequence[str]) -> list[int] | None:
    """How many questions have each of the true answers; None where that differs between sets."""
    found = {tuple({row.answers: row.questions for row in own}.get(name, 0) for name in answers) for own in rows}
    return list(found.pop()) if len(found) == 1 else None


def _nae(row: CountRow) -> float | None:
    return row.nae


def _exact(row: CountRow) -> float | None:
    return 100.0 * row.exact / row.questions


@drawn
def resolution_figure(
    sweeps: Sequence[Sweep], published: Sequence[PublishedRow] = (), *, broad: bool = False
) -> Any | None:
    """Score and Group-Acc against the limit of the long edge, with intervals; the published rows in ink."""
    if not sweeps:
        return None
    styles = [*looks(_named(sweeps)).values()]
    lines = _paper(published)
    entries = _entries([*styles, *(style for style, _ in lines)])
    figure, axes = _two(entries, broad)
    edges = {edge for sweep in sweeps for edge, _ in sweep.points} | {edge_of_setting(row) for row in published}
    for ax, title, metric in zip(axes.flat, ("Score", "Group-Acc"), ("score", "group_acc"), strict=True):
        for style, sweep in zip(styles, sweeps, strict=True):
            _sweep(ax, sweep, metric, style)
        for style, own in lines:
            _line(ax, [edge_of_setting(row) for row in own], [getattr(row, metric) for row in own], style, hollow=True)
        ax.set_xscale("log", base=2)
        ax.set(title=title, ylim=(0, None), xlim=(min(edges) / 1.2, max(edges) * 1.2))
        ax.set_xticks(sorted(edges), [f"{edge:,}" for edge in sorted(edges)])
        ax.minorticks_off()
    hide_after(axes, 2, "long edge at most, pixels")
    legend(figure, entries)
    return figure


def _named(sweeps: Sequence[Sweep]) -> list[str]:
    """What tells sweeps apart; no two names are alike, for one model may be swept at several temperatures."""
    names: list[str] = []
    for sweep in sweeps:
        name = f"{sweep.model}, joint" if sweep.mode == "joint" else sweep.model
        alike = sum(other == name or other.startswith(f"{name} #") for other in names)
        names.append(f"{name} #{alike + 1}" if alike else name)
    return names


def _paper(published: Sequence[PublishedRow]) -> list[tuple[Look, list[PublishedRow]]]:
    """The published settings as lines: one question at a time, and jointly."""
    lines = []
    for mode, marker in (("independent", "o"), ("joint", "D")):
        own = [row for row in published if ("joint" in row.setting) == (mode == "joint")]
        if own:
            lines.append((Look(f"{own[0].model}, {mode} †", INK, marker, ":"), own))
    return lines


def edge_of_setting(row: PublishedRow) -> int:
    """The long edge of a published setting: ``"1,024 px"``, ``"4,096 px, joint"``."""
    return int(row.setting.split(" px")[0].replace(",", ""))


def _sweep(ax: Any, sweep: Sweep, metric: str, style: Look) -> None:
    values = [(edge, getattr(one.headline, metric)) for edge, one in sweep.points]
    _line(ax, [edge for edge, _ in values], [value.value for _, value in values], style)
    for edge, value in values:
        if value.low is not None and value.high is not None:
            ax.vlines(edge, value.low, value.high, color=style.color, linewidth=1.2)


def _two(entries: Sequence[tuple[str, Any]], broad: bool) -> tuple[Any, Any]:
    """A figure of two panels, abreast where it is broad."""
    height = legend_height([text for text, _ in entries], broad=broad) if entries else 0
    heights = [170.0] if broad else [140.0, 140.0]
    return panels(heights, 2 if broad else 1, extra=height + 38 + 24 * len(heights), broad=broad)


def _line(ax: Any, at: Sequence[float], values: Sequence[float | None], style: Look, *, hollow: bool = False) -> None:
    face = "none" if hollow else style.color
    ax.plot(
        at,
        [float("nan") if value is None else value for value in values],
        color=style.color,
        linestyle=style.dash,
        marker=style.marker,
        markerfacecolor=face,
        clip_on=False,
    )


def _entries(styles: Any) -> list[tuple[str, Any]]:
    return [(style.name, key(color=style.color, linestyle=style.dash, marker=style.marker)) for style in styles]
