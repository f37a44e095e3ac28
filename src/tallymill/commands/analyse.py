"""``tallymill analyse``: the tables of NumBench from one or several RUNs."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table
from rich.text import Text

import tallymill
from tallymill.commands.analysis_options import DEFAULTS, Options
from tallymill.commands.base import DONE, SOME_FAILED, Json, app, print_json
from tallymill.engine.numbench.analysis.results import Analysis
from tallymill.engine.report import serialize, tables
from tallymill.errors import UsageError
from tallymill.runners import console

# Of more rows the terminal shows the first ones only.
_MOST_ROWS = 60


@app.command
def analyse(
    *runs: Path,
    out: Path | None = None,
    options: Options = DEFAULTS,
    as_json: Json = False,
) -> int:
    """Scores by count range and factor, failure families and more, with intervals, of one or several systems.

    Parameters
    ----------
    runs
        RUN folders, complete.
    out
        Folder for analysis.json, analysis.md and a CSV a table.
    """
    if not runs:
        raise UsageError("no RUN given", hint="tallymill analyse RUN…")
    result = tallymill.analyse(runs, out, **options.arguments())
    if as_json:
        print_json(serialize.as_json(result))
    else:
        _show(result, out)
    return SOME_FAILED if any(row.error for row in result.systems) else DONE


def _show(result: Analysis, out: Path | None) -> None:
    scores = tables.scores_table(result)
    for table in (
        tables.systems_table(result),
        scores,
        tables.differences_table(result, whole=True),
        tables.detectors_table(result),
        tables.sensitivity_table(result),
        tables.families_table(result),
        *([] if result.agreement is None else [tables.agreement_table(result.agreement)]),
    ):
        if table.rows:
            console.out.print(_shown(table, wide=table.title == scores.title))
    console.tell_notes([*result.notes, *([] if result.agreement is None else result.agreement.notes)])
    if out is None:
        console.tell("all tables: --out FOLDER, or --json")
    else:
        console.tell(f"written to {out}: analysis.json, analysis.md, a CSV a table")


def _shown(table: tables.Table, *, wide: bool) -> Table:
    more = len(table.rows) - _MOST_ROWS
    notes = [note for note in (table.note, f"and {more:,} more rows" if more > 0 else None) if note]
    shown = console.columns(
        table.columns[: table.text],
        table.columns[table.text :],
        title=table.title,
        title_justify="left",
        title_style="bold",
        caption="\n".join(notes) or None,
        caption_justify="left",
    )
    for row in table.rows[:_MOST_ROWS]:
        # An interval that has no room beside its value stands below it, in every row alike.
        shown.add_row(*(Text(text.replace(" [", "\n[") if wide else text) for text in row))
    return shown
