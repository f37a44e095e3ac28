"""An analysis as one Markdown document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tallymill.engine.numbench.analysis.results import Analysis
from tallymill.engine.report.tables import Table, tables_of


def markdown(analysis: Analysis) -> str:
    """All tables and notes as one document."""
    settings = analysis.settings
    lines = ["# NumBench analysis", ""]
    lines += [f"- {_escaped(run['run'])}: {_escaped(_detectors(run))}" for run in analysis.runs]
    if settings["resamples"]:
        lines.append(
            f"- In brackets: 95 % percentile bootstrap over cores, {settings['resamples']:,} resamples, "
            f"seed {settings['seed']}"
        )
    lines.append(f"- The range of an image with several counts: {settings['range_by']}")
    notes = [*analysis.notes, *([] if analysis.agreement is None else analysis.agreement.notes)]
    if notes:
        lines += ["", "## Notes", "", *(f"- {_escaped(note)}" for note in notes)]
    for table in tables_of(analysis):
        lines += ["", f"## {table.title}", "", *_grid(table)]
        if table.note:
            lines += ["", _escaped(table.note)]
    return "\n".join(lines) + "\n"


def _detectors(run: Mapping[str, Any]) -> str:
    return ", ".join(f"{detector['name']} (tau {detector['tau']:g})" for detector in run["detectors"])


def _grid(table: Table) -> Iterator[str]:
    yield _line(table.columns)
    yield _line(["---" if at < table.text else "---:" for at in range(len(table.columns))], raw=True)
    yield from map(_line, table.rows)


def _line(texts: Iterable[str], *, raw: bool = False) -> str:
    return "| " + " | ".join(text if raw else _escaped(text) for text in texts) + " |"


def _escaped(text: str) -> str:
    """Text that means nothing to Markdown or HTML, on one line."""
    flat = " ".join(text.split())
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|" else "&amp;" if c == "&" else c for c in flat)
