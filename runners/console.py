"""What the command line shows: a progress bar, tables, and one-line errors."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from tallymill.engine.detectors.coco import COCO_80, COCO_SYNONYMS
from tallymill.engine.numbench.scores import ERROR, SCORED, UNCOVERED
from tallymill.engine.report import tables
from tallymill.errors import TallymillError
from tallymill.exporters.hub import BundleInfo, ModelInfo
from tallymill.runners.fitting import blocks
from tallymill.runners.score_table import Group, ScoreTable
from tallymill.runners.single import ImageScore
from tallymill.runners.summary import Summary

# Of more systems, or rows of a report's table, the first ones only are shown.
MAX_SYSTEMS, MAX_ROWS = 20, 60


def _console(stream: TextIO | None, *, stderr: bool) -> Console:
    """A pipe or file has no width to respect; lines there are for programs and must not be cut."""
    if stream is None:  # closed before we began, as some daemons do
        return Console(file=Path(os.devnull).open("w", encoding="utf-8"))
    return Console(stderr=stderr, highlight=False, emoji=False, width=None if stream.isatty() else 160)


out = _console(sys.stdout, stderr=False)
err = _console(sys.stderr, stderr=True)


def tell(text: str) -> None:
    """A line for a person, as it is, however long: a path in it stays whole."""
    out.print(text, markup=False, soft_wrap=True)


def tell_notes(notes: Iterable[str]) -> None:
    """What a reader should know of a result, a line each."""
    for note in notes:
        tell(f"note: {note}")


def columns(words: Sequence[str], numbers: Sequence[str] = (), **options: Any) -> Table:
    """A table without rows: columns of words, then columns of numbers; ``options`` are those of ``rich``'s Table."""
    table = Table(**{"box": box.SIMPLE_HEAD, **options})
    for name in words:
        table.add_column(Text(name), overflow="fold")
    for name in numbers:
        table.add_column(Text(name), justify="right", overflow="fold")
    return table


def show_table(table: tables.Table, *, wide: bool = False) -> None:
    """A table of a report, no number cut; where it is ``wide``, every interval stands below its value."""
    more = len(table.rows) - MAX_ROWS
    shown = blocks(replace(table, rows=table.rows[:MAX_ROWS]), out.width, stacked=wide)
    for place, block in enumerate(shown):
        title = table.title if place == 0 else None
        made = columns(
            block.columns[: block.text],
            block.columns[block.text :],
            title=title,
            title_justify="left",
            title_style="bold",
        )
        for column, width in zip(made.columns, block.widths, strict=True):
            column.width = width
        for row in block.rows:
            made.add_row(*map(Text, row))
        out.print(made)
    for note in (table.note, f"and {more:,} more rows" if more > 0 else None):
        if note:
            out.print(Text(note, "table.caption"))
    out.print()


class Bar:
    """A progress bar on standard error: what is done, how many a second, failures, remaining time.

    ``items`` and ``lost`` are the words for what is counted, and for those of them that came to nothing.
    """

    def __init__(
        self, *, show: bool, doing: str = "scoring", unit: str = "images", items: str = "items", lost: str = "failed"
    ) -> None:
        self._doing, self._unit, self._items = doing, unit, items
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn(f"{{task.fields[failed]}} {lost}"),
            TimeRemainingColumn(),
            console=err,
            disable=not show,
        )
        self._task: TaskID | None = None
        self._done = self._failed = 0

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._progress.live.is_started:  # what never began leaves no line behind
            self._progress.stop()

    def beside(self, *, doing: str, unit: str, items: str) -> Bar:
        """A bar for other work, which is drawn under this one and stops with it."""
        other = copy(self)
        other._doing, other._unit, other._items, other._task = doing, unit, items, None
        return other

    def start(self, total: int, done: int) -> None:
        """See ``SweepProgress``. A second sweep gets a bar of its own."""
        self._done = self._failed = 0
        if done and not self._progress.disable:
            self._progress.console.print(f"continuing: {done:,} of {total:,} {self._items} were done before")
        if done == total:
            return
        self._progress.start()
        self._task = self._progress.add_task(self._doing, total=total - done, rate="", failed=0)

    def advance(self, items: int, failed: int) -> None:
        """See ``SweepProgress``."""
        if self._task is None:
            return
        self._done, self._failed = self._done + items, self._failed + failed
        elapsed = self._progress.tasks[self._task].elapsed or 0.0
        rate = f"{self._done / elapsed:,.1f} {self._unit}/s" if elapsed else ""
        self._progress.update(self._task, completed=self._done, rate=rate, failed=self._failed)


def show_error(error: TallymillError) -> None:
    """One line that says what is wrong, and one that says what to do, however long."""
    err.print(f"tallymill: {error.message}", markup=False, soft_wrap=True)
    if error.hint:
        err.print(f"  {error.hint}", markup=False, soft_wrap=True)


def show_summary(summary: Summary) -> None:
    """The counts and means of a RUN."""
    out.print(_summary_table(summary))
    _show_reasons(summary)
    tell(f"written to {summary.run}")


def show_score_table(result: ScoreTable, *, written: bool) -> None:
    """The counts and means of a RUN that was scored again, and the same by system and count range."""
    table = _summary_table(result)
    own = result.user_score
    if own is not None:
        unscored = result.scored - own["scored"]
        table.add_row(own["name"], _number(own["value"]) + (f" ({unscored:,} without)" if unscored else ""))
    out.print(table)
    _show_reasons(result)
    systems = list(dict.fromkeys(group.system for group in result.groups))
    shown = set(systems[:MAX_SYSTEMS])
    out.print(_group_table(result, [group for group in result.groups if group.system in shown]))
    if len(systems) > MAX_SYSTEMS:
        more = f"  and {len(systems) - MAX_SYSTEMS:,} more systems: --json"
        out.print(f"{more} and summary.json list all" if written else f"{more} lists all")
    if written:
        tell(f"written to {result.run}")


def _group_table(result: ScoreTable, groups: Sequence[Group]) -> Table:
    systems = any(group.system is not None for group in groups)
    own = [] if result.user_score is None else [result.user_score["name"]]
    table = columns(
        [*(["system"] if systems else []), "asked"],
        ["scored", "failed", "uncovered", "cw-NPS", "b-NPS", *own],
        caption="* stress test: more than 50 objects",
        caption_justify="left",
    )
    for group in groups:
        stress = int(group.count_range.partition("-")[0]) > 50
        numbers = [f"{count:,}" for count in (group.scored, group.error, group.uncovered)]
        means = [_number(value) for value in (group.cw_nps, group.b_nps, group.user_score)[: 2 + len(own)]]
        who = [Text(group.system or "-")] if systems else []
        table.add_row(*who, group.count_range + ("*" if stress else ""), *numbers, *means)
    return table


def _summary_table(summary: Summary) -> Table:
    table = Table(show_header=False, box=None)
    table.add_row("items", f"{summary.items:,}" if summary.complete else f"{summary.done:,} of {summary.items:,}")
    for name, count in (("scored", summary.scored), ("failed", summary.error), ("uncovered", summary.uncovered)):
        table.add_row(name, f"{count:,}")
    if summary.prompts is not None:
        table.add_row("prompts", "{used:,} of {rows:,} have an image".format_map(summary.prompts))
    table.add_row("cw-NPS", _number(summary.cw_nps))
    table.add_row("b-NPS", _number(summary.b_nps))
    return table


def _show_reasons(summary: Summary) -> None:
    for reason, count, item in summary.reasons[:10]:
        tell(f"  {count:,} x {reason} (first: {item})")
    for category, count in summary.unknown[:10]:
        tell(f"  {count:,} x no detector knows {category!r}")
    if len(summary.reasons) > 10 or len(summary.unknown) > 10:
        out.print("  and others: --json and summary.json list more")


def show_scores(results: Sequence[ImageScore]) -> None:
    """A table an image: what was asked, and each detector's soft (hard) count beside the ensemble's."""
    for result in results:
        tell(_headline(result))
        if result.status == ERROR:
            continue
        detectors = list(result.proposals)
        table = columns(["asked"], [*detectors, "ensemble"])
        for column in table.columns[1:]:
            column.no_wrap = True  # the two counts of a cell stay side by side
        for target in result.targets:
            counts = [_pair(target.detectors.get(name)) for name in detectors]
            ensemble = _pair(None if target.soft is None or target.hard is None else (target.soft, target.hard))
            table.add_row(f"{target.requested} {target.category}", *counts, ensemble)
        out.print(table)
    if any(result.status != ERROR for result in results):
        out.print("counts: sum of calibrated confidences above T (boxes at confidence 0.5); a dash: not covered")


def _headline(result: ImageScore) -> str:
    if result.status == SCORED:
        return f"{result.image}: cw-NPS {_number(result.cw_nps)}, b-NPS {_number(result.b_nps)}"
    if result.status == UNCOVERED:
        unknown = ", ".join(repr(target.category) for target in result.targets if not target.detectors)
        return f"{result.image}: no score: no detector knows {unknown} (`tallymill models list --categories`)"
    return f"{result.image}: {result.status}: {result.error}"


def show_models(models: Sequence[ModelInfo], bundles: Sequence[BundleInfo]) -> None:
    """The catalogue, and what of it is here; then what has been exported."""
    table = columns(["model", "package", "licence", "size", "where"], box=box.HEAVY_HEAD)
    for model in models:
        size = "" if model.size is None else f"{model.size / 1e6:.1f} MB"
        where = "not fetched" if model.path is None else str(model.path)
        table.add_row(model.name, f"{model.package}@{model.version}", model.licence, size, where)
    out.print(table)
    if bundles:
        table = columns(["exported", "weights", "licence", "for", "size", "where"], box=box.HEAVY_HEAD)
        for bundle in bundles:
            kind = f"{bundle.runtime} {bundle.precision}"
            size = f"{bundle.size / 1e6:.1f} MB"
            table.add_row(bundle.name, bundle.weights, bundle.licence, kind, size, str(bundle.path))
        out.print(table)


def show_categories() -> None:
    """What the shipped detectors know, each with its other names."""
    others: dict[str, list[str]] = {name: [] for name in COCO_80}
    for other, name in COCO_SYNONYMS.items():
        others[name].append(other)
    for name, synonyms in others.items():
        tell(name + (f" ({', '.join(synonyms)})" if synonyms else ""))


def show_bench(result: Mapping[str, object], text: str) -> None:
    """A benchmark's table, then its result as the last line of JSON."""
    out.print(text, markup=False)
    show_line(json.dumps(result))


def show_line(text: str) -> None:
    """Text for a program, as it is."""
    if sys.stdout is not None:
        sys.stdout.write(text + "\n")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _pair(counts: tuple[float, float] | None) -> str:
    return "-" if counts is None else f"{counts[0]:.2f} ({counts[1]:.4g})"
