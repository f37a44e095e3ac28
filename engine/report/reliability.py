"""The reliability plot of a calibration: how often boxes of a confidence are true, before and after."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tallymill.engine.numbench.calibration import CalibrationResult, DetectorCalibration, Measures
from tallymill.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of Okabe and Ito, told apart by line and marker too.
BEFORE, AFTER = "#D55E00", "#0072B2"
COLUMNS = 3
PANEL_WIDTH, PANEL_HEIGHT = 3.3, 4.4  # inches


def reliability_figure(result: CalibrationResult) -> Figure:
    """A panel a detector: the share of true boxes against mean confidence in each of the bins, and how many fell there.

    The raw confidences (tau = 1) beside those of the fit; on the diagonal a confidence is what it says. Raises
    ``MissingExtraError`` without matplotlib. The figure is drawn without pyplot's global state.
    """
    figure_class: type[Figure] = require_matplotlib()
    fits = result.detectors
    columns = min(COLUMNS, len(fits))
    rows = -(-len(fits) // columns)
    figure = figure_class(figsize=(PANEL_WIDTH * columns + 0.4, PANEL_HEIGHT * rows), layout="constrained")
    grid = figure.add_gridspec(2 * rows, columns, height_ratios=[3.2, 1.0] * rows)
    for k, fit in enumerate(fits):
        row, column = divmod(k, columns)
        upper = figure.add_subplot(grid[2 * row, column])
        lower = figure.add_subplot(grid[2 * row + 1, column], sharex=upper)
        _draw_panel(upper, fit)
        _draw_counts(lower, fit)
        if column == 0:
            upper.set_ylabel("share of true boxes")
            lower.set_ylabel("boxes")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    for axes in figure.axes[2::2]:  # the first detector may have found nothing
        more = [pair for pair in zip(*axes.get_legend_handles_labels(), strict=True) if pair[1] not in labels]
        handles, labels = [*handles, *(h for h, _ in more)], [*labels, *(name for _, name in more)]
    figure.legend(handles, labels, loc="outside lower center", ncols=3, columnspacing=1.2, frameon=False)
    return figure


def require_matplotlib() -> Any:
    """Its class ``Figure``; ``MissingExtraError`` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] != "matplotlib":
            raise
        raise MissingExtraError.of("matplotlib", "report") from None
    return Figure


def _draw_panel(axes: Any, fit: DetectorCalibration) -> None:
    axes.set_title(_headline(fit), fontsize="medium")
    axes.plot([0, 1], [0, 1], color="0.5", linewidth=1, linestyle=":", label="perfect")
    if not fit.proposals:
        axes.text(0.7, 0.3, "no boxes", ha="center", va="center")
    else:
        _draw_curve(axes, fit.before, "raw (tau 1)", color=BEFORE, linestyle="--", marker="s", markerfacecolor="none")
        if fit.identifiable:
            _draw_curve(axes, fit.after, "fitted", color=AFTER, linestyle="-", marker="o")
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    axes.tick_params(labelbottom=False)
    axes.grid(color="0.85", linewidth=0.5)
    axes.set_axisbelow(True)


def _headline(fit: DetectorCalibration) -> str:
    if not fit.proposals:
        return f"{fit.detector}\n "
    error = f"ECE {fit.before.ece:.3f}"
    if not fit.identifiable:
        return f"{fit.detector}: not identifiable\n{error}"
    unused = "" if fit.refused is None else " (not used)"
    return f"{fit.detector}: tau {fit.tau:g}{unused}\n{error} → {fit.after.ece:.3f}"


def _draw_curve(axes: Any, measures: Measures, label: str, **style: Any) -> None:
    bins = [row for row in measures.bins if row.count]
    axes.plot([row.confidence for row in bins], [row.accuracy for row in bins], label=label, markersize=4, **style)


def _draw_counts(axes: Any, fit: DetectorCalibration) -> None:
    curves = [(fit.before, BEFORE, "--")] + ([(fit.after, AFTER, "-")] if fit.identifiable else [])
    for measures, color, line in curves if fit.proposals else []:
        edges = [row.low for row in measures.bins] + [measures.bins[-1].high]
        axes.stairs([row.count for row in measures.bins], edges, color=color, linestyle=line)
    most = max((row.count for measures, _, _ in curves for row in measures.bins), default=0)
    axes.set_xlabel("confidence")
    # One detector's low confidences outnumber all others a hundred times.
    axes.set_yscale("symlog", linthresh=10)
    axes.set_ylim(0, 10 ** math.ceil(math.log10(max(most, 10)) + 0.05))
    axes.grid(color="0.85", linewidth=0.5)
    axes.set_axisbelow(True)
