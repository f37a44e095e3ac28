"""``tallymill demo``."""

from __future__ import annotations

import json
from pathlib import Path

from tallymill.commands.base import Json, app, code_of, print_json
from tallymill.runners import console


@app.command
def demo(
    *,
    out: Path = Path("demo"),
    workers: int | None = None,
    images: int | None = None,
    as_json: Json = False,
) -> int:
    """Make a small labelled sweep out of real photographs, score it, and show what came out.

    Parameters
    ----------
    out
        Folder for images, RUNs, pictures and the report.
    workers
        Processes; by default one for each processor.
    images
        Images in all, at most 70.
    """
    from tallymill.runners.demo.demo import run_demo
    from tallymill.runners.demo.tables import NOTES, demo_tables

    with console.Bar(show=not as_json) as bar:
        tell = None if as_json else lambda line: console.err.print(line, markup=False)
        result = run_demo(out, workers=workers, images=images, tell=tell, progress=bar)
    if as_json:
        print_json(json.loads((out / "demo.json").read_text("utf-8")))
        return code_of(result.summary)
    for table in demo_tables(result):
        console.out.print(table)
    console.tell(NOTES)
    for picture in result.pictures:
        console.tell(f"picture: {picture}")
    console.tell(f"report, for a browser: {result.report}")
    console.tell(f"numbers: {out / 'demo.json'}; scores: {result.summary.run}")
    return code_of(result.summary)
