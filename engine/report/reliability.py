"""The reliability plot of a calibration: how often boxes of a confidence are true, before and after."""

from __future__ import annotations

import math
from typing import Any

from tallymill.engine.numbench.calibration import CalibrationResult, DetectorCalibration, Measures
from tallymill.engine.report.canvas import INK, SERIES, drawn, panels, shortened

# Told apart by line and marker too.
BEFORE, AFTER = SERIES[1], SERIES[0]
COLUMNS, MOST_COLUMNS = 2, 4
SHARES, COUNTS = 150.0, 62.0  # heights in points


@drawn
def reliability_figure(result: CalibrationResult, *, broad: bool = False) -> Any:
    """A panel a detector: the share of true boxes against mean confidence in each of the bins, and how many fell there.

    The raw confidences (tau = 1) beside those of the fit; on the diagonal a confidence is what it says. Raises
    ``MissingExtraError`` without matplotlib. The figure is drawn without pyplot's global state.
    """
    fits = result.detectors
    columns = min(MOST_COLUMNS if broad else COLUMNS, len(fits))
    rows = -(-len(fits) // columns)
    figure, axes = panels([SHARES, COUNTS] * rows, columns, extra=46 + 28 * rows, broad=broad)
    for k in range(rows * columns):
        row, column = divmod(k, columns)
        upper, lower = axes[2 * row, column], axes[2 * row + 1, column]
        if k >= len(fits):
            upper.set_visible(False)
            lower.set_visible(False)
            continue
        _draw_panel(upper, fits[k])
        _draw_counts(lower, fits[k])
        if column == 0:
            upper.set_ylabel("share of true boxes")
            lower.set_ylabel("boxes")
    handles: dict[str, Any] = {}
    for each in axes[::2].flat:  # the first detector may have found nothing
        found, labels = each.get_legend_handles_labels()
        handles |= {label: handle for label, handle in zip(labels, found, strict=True) if label not in handles}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
    return figure


def _draw_panel(axes: Any, fit: DetectorCalibration) -> None:
    axes.set_title(_headline(fit), fontweight="normal")
    axes.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle=":", label="perfect")
    if not fit.proposals:
        axes.text(0.7, 0.3, "no boxes", ha="center", va="center")
    else:
        _draw_curve(axes, fit.before, "raw (tau 1)", color=BEFORE, linestyle="--", marker="s", markerfacecolor="none")
        if fit.identifiable:
            _draw_curve(axes, fit.after, "fitted", color=AFTER, linestyle="-", marker="o")
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    axes.tick_params(labelbottom=False)


def _headline(fit: DetectorCalibration) -> str:
    name = shortened([fit.detector], 20)[0]
    if not fit.proposals:
        return f"{name}\n "
    error = f"ECE {fit.before.ece:.3f}"
    if not fit.identifiable:
        return f"{name}: not identifiable\n{error}"
    unused = "" if fit.refused is None else ", not used"
    return f"{name}: tau {fit.tau:g}\n{error} → {fit.after.ece:.3f}{unused}"


def _draw_curve(axes: Any, measures: Measures, label: str, **style: Any) -> None:
    bins = [row for row in measures.bins if row.count]
    axes.plot([row.confidence for row in bins], [row.accuracy for row in bins], label=label, markersize=4, **style)


def _draw_counts(axes: Any, fit: DetectorCalibration) -> None:
    curves = [(fit.before, BEFORE, "--")] + ([(fit.after, AFTER, "-")] if fit.identifiable else [])
    for measures, color, line in curves if fit.proposals else []:
        edges = [row.low for row in measures.bins] + [measures.bins[-1].high]
        axes.stairs([row.count for row in measures.bins], edges, color=color, linestyle=line)
    most = max((row.count for measures, _, _ in curves for row in measures.bins), default=0)
    axes.set(xlabel="confidence", xlim=(0, 1))
    # One detector's low confidences outnumber all others a hundred times.
    axes.set_yscale("symlog", linthresh=10)
    top = math.ceil(math.log10(max(most, 10)) + 0.05)
    axes.set_ylim(0, 10**top)
    # Plain figures: powers would be set by a mathematics that names of detectors must not go through.
    ticks = [0, *(10**power for power in range(1, top + 1, 1 + top // 4))]
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
