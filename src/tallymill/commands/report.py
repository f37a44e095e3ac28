"""``tallymill report``: what an analysis found, as one HTML file."""

from __future__ import annotations

from pathlib import Path

import tallymill
from tallymill.commands.base import DONE, SOME_FAILED, Json, app, print_json
from tallymill.engine.numbench.factors import RangeBy
from tallymill.errors import UsageError
from tallymill.runners import console


@app.command
def report(
    *runs: Path,
    out: Path,
    calibration: Path | None = None,
    annotations: Path | None = None,
    kappa_width: int = 1,
    prompts: Path | None = None,
    images: int | None = None,
    range_by: RangeBy = "max",
    resamples: int = 2000,
    seed: int = 0,
    title: str | None = None,
    workers: int | None = None,
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
    annotations
        Counts by people, as `tallymill analyse` takes them.
    kappa_width
        Width of the bins of counts for Fleiss' kappa; 1 tells all counts apart.
    prompts
        The prompt file, for prompts that have no image and for texts that the RUNs do not know.
    images
        Images of each kind (worst, typical, random) of each system; 8, or fewer where there are many systems.
    range_by
        What gives an image with several counts its range: max, mean or per-target.
    resamples
        Of the bootstrap; 0 for none.
    seed
        Of the bootstrap and of the random images.
    title
        The page's title; by default the names of the systems.
    workers
        Threads; by default one for each processor.
    """
    if not runs:
        raise UsageError("no RUN given", hint="tallymill report RUN… --out report.html")
    written = tallymill.report(
        runs,
        out,
        calibration=calibration,
        annotations=annotations,
        kappa_width=kappa_width,
        prompts=prompts,
        images=images,
        range_by=range_by,
        resamples=resamples,
        seed=seed,
        title=title,
        workers=workers,
    )
    if as_json:
        print_json(written.as_dict())
    else:
        for note in written.notes:
            console.out.print(f"note: {note}", markup=False, soft_wrap=True)
        gone = f", {written.images_gone} of them gone" if written.images_gone else ""
        console.out.print(
            f"{written.scored:,} of {written.items:,} images scored; {written.images} shown{gone}; "
            f"{written.bytes / 1e6:.1f} MB written to {written.out}",
            markup=False,
            soft_wrap=True,
        )
    return SOME_FAILED if written.error else DONE
