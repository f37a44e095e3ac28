"""A calibration for a terminal."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.table import Table

from tallymill.engine.numbench.calibration import CalibrationResult, DetectorCalibration, Measures
from tallymill.runners import console


def show_calibration(result: CalibrationResult, out: Path | None) -> None:
    """Each detector at the temperatures that matter, then what a reader should know of the data."""
    console.out.print(calibration_table(result))
    console.tell(
        f"{result.items:,} images ({result.failed:,} failed), {result.objects:,} true objects that were asked for; "
        f"a box is true at IoU {result.iou:g}"
    )
    for fit in result.detectors:
        if fit.refused is not None:
            console.tell(f"{fit.detector}: tau stays {fit.tau_used:g}: {fit.refused}")
    console.tell_notes(result.notes)
    if out is not None:
        console.tell(f"written to {out}: use it with --ensemble {out / 'ensemble.toml'}")


def calibration_table(result: CalibrationResult) -> Table:
    """A row a detector and temperature: raw, the RUN's own where it is another, and the fit."""
    table = console.columns(
        ["detector", "tau", ""],
        ["boxes", "true", "NLL", "ECE", "Brier"],
        title="Temperatures, and how true confidences are with them (the smaller the truer)",
        box=box.HEAVY_HEAD,
    )
    for fit in result.detectors:
        numbers = (f"{fit.proposals:,}", f"{fit.positives:,}")
        for k, (what, measures) in enumerate(_lines(fit)):
            named = (fit.detector, *numbers) if k == 0 else ("", "", "")
            values = [f"{value:.4f}" for value in (measures.nll, measures.ece, measures.brier)]
            table.add_row(named[0], f"{measures.tau:.4f}", what, *named[1:], *values)
        table.add_section()
    return table


def _lines(fit: DetectorCalibration) -> list[tuple[str, Measures]]:
    lines = [("raw" if fit.tau_run != 1.0 else "raw, as in the RUN", fit.before)]
    if fit.present is not None:
        lines.append(("as in the RUN", fit.present))
    if fit.identifiable:
        lines.append(("fitted" if fit.refused is None else "fitted, not used", fit.after))
    return lines
