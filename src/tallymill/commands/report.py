"""``tallymill report``: what an analysis found, as one HTML file."""

from __future__ import annotations

from pathlib import Path

import tallymill
from tallymill.commands.analysis_options import DEFAULTS, Options
from tallymill.commands.base import DONE, SOME_FAILED, Json, app, print_json
from tallymill.errors import UsageError
from tallymill.runners import console


@app.command
def report(
    *runs: Path,
    out: Path,
    calibration: Path | None = None,
    images: int | None = None,
    title: str | None = None,
    options: Options = DEFAULTS,
    as_json: Json = False,
) -> int:
    """Write one HTML file with the scores, figures and images of RUNs; it needs no network when it is opened.

    Parameters
    ----------
    runs
        RUN folders; several RUNs are several systems.
    out
        The file to write, such as report.html.
    calibration
        What `tallymill calibrate --out` wrote: the folder or its calibration.json.
    images
        Images of each kind (worst, typical, random) of each system; 8, or fewer where there are many systems.
    title
        The page's title; by default the names of the systems.
    """
    if not runs:
        raise UsageError("no RUN given", hint="tallymill report RUN… --out report.html")
    written = tallymill.report(runs, out, calibration=calibration, images=images, title=title, **options.arguments())
    if as_json:
        print_json(written.as_dict())
    else:
        console.tell_notes(written.notes)
        gone = f", {written.images_gone} of them gone" if written.images_gone else ""
        console.tell(
            f"{written.scored:,} of {written.items:,} images scored; {written.images} shown{gone}; "
            f"{written.bytes / 1e6:.1f} MB written to {written.out}"
        )
    return SOME_FAILED if written.error else DONE
