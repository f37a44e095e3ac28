"""``tallymill analyse``: the tables of NumBench from one or several RUNs."""

from __future__ import annotations

from pathlib import Path

import tallymill
from tallymill.commands.analysis_options import DEFAULTS, Options
from tallymill.commands.base import DONE, SOME_FAILED, Json, app, print_json
from tallymill.engine.numbench.analysis.results import Analysis
from tallymill.engine.report import serialize, tables
from tallymill.errors import UsageError
from tallymill.runners import console


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
            console.show_table(table, wide=table.title == scores.title)
    console.tell_notes([*result.notes, *([] if result.agreement is None else result.agreement.notes)])
    if out is None:
        console.tell("all tables: --out FOLDER, or --json")
    else:
        console.tell(f"written to {out}: analysis.json, analysis.md, a CSV a table")
