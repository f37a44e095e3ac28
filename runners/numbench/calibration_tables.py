"""A calibration for a terminal."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from tallymill.engine.numbench.calibration import CalibrationResult, DetectorCalibration, Measures
from tallymill.runners import console


def show_calibration(result: CalibrationResult, out: Path | None) -> None:
    """Each detector at the temperatures that matter, then what a reader should know of the data."""
    print_line = console.out.print
    print_line(calibration_table(result))
    print_line(
        f"{result.items:,} images ({result.failed:,} failed), {result.objects:,} true objects that were asked for; "
        f"a box is true at IoU {result.iou:g}",
        soft_wrap=True,
    )
    for fit in result.detectors:
        if fit.refused is not None:
            print_line(f"{fit.detector}: tau stays {fit.tau_used:g}: {fit.refused}", markup=False, soft_wrap=True)
    for note in result.notes:
        print_line(f"note: {note}", markup=False, soft_wrap=True)
    if out is not None:
        print_line(f"written to {out}: use it with --ensemble {out / 'ensemble.toml'}", markup=False, soft_wrap=True)


def calibration_table(result: CalibrationResult) -> Table:
    """A row a detector and temperature: raw, the RUN's own where it is another, and the fit."""
    table = Table(title="Temperatures, and how true confidences are with them (the smaller the truer)")
    for name in ("detector", "tau", ""):
        table.add_column(name)
    for name in ("boxes", "true", "NLL", "ECE", "Brier"):
        table.add_column(name, justify="right")
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
