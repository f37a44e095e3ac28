"""``tallymill analyse``: the tables of NumBench from one or several RUNs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rich import box
from rich.table import Table
from rich.text import Text

import tallymill
from tallymill.commands.base import DONE, SOME_FAILED, Json, app, print_json
from tallymill.engine.numbench.analysis.results import Analysis
from tallymill.engine.report import tables
from tallymill.errors import UsageError
from tallymill.runners import console

# Of more rows the terminal shows the first ones only.
_MOST_ROWS = 60


@app.command
def analyse(
    *runs: Path,
    out: Path | None = None,
    range_by: Literal["max", "mean", "per-target"] = "max",
    resamples: int = 2_000,
    seed: int = 0,
    prompts: Path | None = None,
    annotations: Path | None = None,
    kappa_width: int = 1,
    workers: int | None = None,
    as_json: Json = False,
) -> int:
    """Scores by count range and factor, failure families and more, with intervals, of one or several systems.

    Parameters
    ----------
    runs
        RUN folders, complete.
    out
        Folder for analysis.json, analysis.md and a CSV a table.
    range_by
        How an image with several counts gets its count range: by the largest, by their mean rounded up, or each target
        by its own.
    resamples
        Bootstrap resamples of cores for the intervals; 0 for none.
    seed
        Of the resamples.
    prompts
        The prompts file: tells which prompts have no image, and brings factors that a RUN does not know.
    annotations
        Counts by people, to compare the detectors with: Parquet, JSONL or CSV with a row an image, category and
        annotator: item_id, category (or target), annotator, count, and perhaps ambiguous and system.
    kappa_width
        Width of the bins of counts for Fleiss' kappa; 1 tells all counts apart.
    workers
        Threads; by default one for each processor.
    """
    if not runs:
        raise UsageError("no RUN given", hint="tallymill analyse RUN…")
    result = tallymill.analyse(
        runs,
        out,
        range_by=range_by,
        resamples=resamples,
        seed=seed,
        prompts=prompts,
        annotations=annotations,
        kappa_width=kappa_width,
        workers=workers,
    )
    if as_json:
        print_json(tables.as_json(result))
    else:
        _show(result, out)
    return SOME_FAILED if any(row.error for row in result.systems) else DONE


def _show(result: Analysis, out: Path | None) -> None:
    scores = tables.scores_table(result)
    for table in (
        tables.systems_table(result),
        scores,
        tables.detectors_table(result),
        tables.sensitivity_table(result),
        tables.families_table(result),
        *([] if result.agreement is None else [tables.agreement_table(result.agreement)]),
    ):
        if table.rows:
            console.out.print(_shown(table, wide=table.title == scores.title))
    for note in [*result.notes, *([] if result.agreement is None else result.agreement.notes)]:
        console.out.print(f"note: {note}", markup=False, soft_wrap=True)
    if out is None:
        console.out.print("all tables: --out FOLDER, or --json", markup=False)
    else:
        console.out.print(f"written to {out}: analysis.json, analysis.md, a CSV a table", markup=False, soft_wrap=True)


def _shown(table: tables.Table, *, wide: bool) -> Table:
    more = len(table.rows) - _MOST_ROWS
    notes = [note for note in (table.note, f"and {more:,} more rows" if more > 0 else None) if note]
    shown = Table(
        box=box.SIMPLE_HEAD,
        title=table.title,
        title_justify="left",
        title_style="bold",
        caption="\n".join(notes) or None,
        caption_justify="left",
    )
    for at, column in enumerate(table.columns):
        shown.add_column(Text(column), justify="left" if at < table.text else "right")
    for row in table.rows[:_MOST_ROWS]:
        # An interval that has no room beside its value stands below it, in every row alike.
        shown.add_row(*(Text(text.replace(" [", "\n[") if wide else text) for text in row))
    return shown
