"""``tallymill calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import tallymill
from tallymill.commands.base import DONE, SOME_FAILED, Json, app, print_json
from tallymill.runners.numbench.calibration_files import as_dict
from tallymill.runners.numbench.calibration_tables import show_calibration


@app.command
def calibrate(
    run: Path,
    *,
    truth: Path,
    out: Path | None = None,
    scored: Annotated[
        tuple[Path, ...],
        Parameter(
            negative=(),
            show_default=False,
            help="A RUN that will be scored with the temperatures, repeatable: no image of it may be among those here.",
        ),
    ] = (),
    as_json: Json = False,
) -> int:
    """Fit each detector's temperature to a RUN over images whose objects are known.

    The RUN is one of its own: its images must not be among those that are scored, which --scored checks.

    Parameters
    ----------
    run
        The RUN over the labelled images.
    truth
        Parquet, JSONL or CSV with a row a true object: item_id, category (or target), box. Images that it does not name
        have none.
    out
        Folder for calibration.json, the ensemble with the fitted temperatures (ensemble.toml) and the reliability plot.
    """
    result = tallymill.calibrate(run, truth, out, scored=scored)
    if as_json:
        print_json(as_dict(result))
    else:
        show_calibration(result, out)
    return SOME_FAILED if result.failed else DONE
