import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tallymill.engine.numbench.calibration import CalibrationResult, DetectorCalibration, measure
from tallymill.engine.report.canvas import save_figure
from tallymill.engine.report.reliability import reliability_figure


def calibrated(detector: str, n: int = 400, *, identifiable: bool = True, tau: float = 1.5) -> DetectorCalibration:
    rng = np.random.default_rng(n)
    p = rng.uniform(0.05, 1, n).astype(np.float32)
    y = rng.random(n) < p
    after = measure(p, y, tau if identifiable else 1.0)
    return DetectorCalibration(
        detector, tau, 1.0, tau, None, identifiable, 9, 0, 70, n, int(y.sum()), measure(p, y), None, after
    )


def result(*fits: DetectorCalibration) -> CalibrationResult:
    return CalibrationResult("run", "now", "t.jsonl", "0" * 64, 0.05, 0.3, 0.5, 9, 0, 70, 0, (), fits, {})


def texts(figure) -> str:
    return "\n".join(text.get_text() for axes in figure.axes for text in [axes.title, axes._left_title, *axes.texts])


def curves(figure) -> list[np.ndarray]:
    """The points of all curves but the dotted line."""
    lines = [line.get_xydata() for axes in figure.axes for line in axes.lines]
    return [np.asarray(points) for points in lines if np.asarray(points).tolist() != [[0, 0], [1, 1]]]


def test_the_curves_are_the_bins() -> None:
    fit = calibrated("one")
    raw, fitted = curves(reliability_figure(result(fit)))
    for points, measures in ((raw, fit.before), (fitted, fit.after)):
        assert points.tolist() == [[row.confidence, row.accuracy] for row in measures.bins if row.count]


def test_every_detector_has_its_panels() -> None:
    fits = [calibrated(f"detector-{k}", 50 + k) for k in range(4)]
    unknown = calibrated("alike", identifiable=False)
    nothing = dataclasses.replace(calibrated("silent", 0, identifiable=False), positives=0)
    figure = reliability_figure(result(nothing, *fits, unknown))
    shown = texts(figure)
    for words in ("silent", "no boxes", "detector-3", "tau 1.5", "alike: not identifiable"):
        assert words in shown
    assert len(curves(figure)) == 2 * 4 + 1


def test_the_same_calibration_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_figure(reliability_figure(result(calibrated("one"))), tmp_path / f"{name}.svg")
        save_figure(reliability_figure(result(calibrated("one"))), tmp_path / f"{name}.png")
    for form in ("svg", "png"):
        assert (tmp_path / f"a.{form}").read_bytes() == (tmp_path / f"b.{form}").read_bytes()


@pytest.mark.parametrize("name", ["a" * 300, "$x_1$"])
def test_odd_names(tmp_path: Path, name: str) -> None:
    save_figure(reliability_figure(result(calibrated(name))), tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size > 1000
