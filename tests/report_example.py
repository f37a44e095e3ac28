"""An analysis, a gallery and a page made by hand, for tests of the report. See the fixture in conftest.py."""

from __future__ import annotations

import io
from itertools import product
from typing import Any

import numpy as np
from PIL import Image

from tallymill.engine.estimates import Estimate
from tallymill.engine.numbench.analysis import results as r
from tallymill.engine.numbench.calibration import CalibrationResult, DetectorCalibration, measure
from tallymill.engine.numbench.factors import COMPOSITIONS, COUNT_RANGES, LAYOUTS, STRESS_RANGES
from tallymill.engine.report.gallery import GROUPS, Asked, Card, Gallery, Layer
from tallymill.engine.report.page import Page, RunRecord
from tallymill.engine.report.svg import Plot

DETECTORS = ("owl-vit", "grounding-dino")


def estimate(value: float | None) -> Estimate:
    return Estimate(value) if value is None else Estimate(value, value - 0.02, value + 0.02)


SIGNED: list[Any] = [
    *map(estimate, (-3.5, -4.0, -0.2, -0.25)),
    *(40, 5, 3),
    *(estimate(k / 48) for k in (40, 5, 3)),
]


def make_analysis(systems: tuple[str, ...] = ("alpha", "beta"), **changes: Any) -> r.Analysis:
    """Every table has rows; scores fall from range to range."""
    fall = dict(zip(("all", *COUNT_RANGES), (0.4, 0.6, 0.41, 0.26, 0.11), strict=True))
    cells = [
        r.Cell(
            s, c, n, n in STRESS_RANGES, 50, 48, 1, 1, 48,
            estimate(fall[n]), estimate(fall[n] + 0.04), estimate(0.04),
            {d: estimate(fall[n] - 0.1) for d in DETECTORS}, dict.fromkeys(DETECTORS, 40),
            {d: estimate(fall[n] + 0.01) for d in DETECTORS},
        )
        for s, c, n in product(systems, ("all", *COMPOSITIONS), ("all", *COUNT_RANGES))
    ]  # fmt: skip
    tables: dict[str, Any] = {
        "settings": {"range_by": "max", "resamples": 2000, "seed": 0},
        "runs": [],
        "notes": ["Four images a prompt."],
        "systems": [r.SystemRow(s, "RUN", 400, 384, 8, 8, 100, 50, 4, 4, 0, 0, 3) for s in systems],
        "overall": [c for c in cells if (c.composition, c.count_range) == ("all", "all")],
        "cells": [c for c in cells if (c.composition, c.count_range) != ("all", "all")],
        "differences": [
            r.Difference(s, systems[0], c, n, n in STRESS_RANGES, 50, 48, 48, estimate(0.05), estimate(-0.05))
            for s, c, n in product(systems[1:], ("all", *COMPOSITIONS), ("all", *COUNT_RANGES))
        ],
        "losses": [r.Loss(s, c, estimate(0.8), estimate(0.7)) for s, c in product(systems, ("all", *COMPOSITIONS))],
        "levels": [
            r.Level(s, "layout", v, 100, 96, estimate(0.4), estimate(0.5)) for s, v in product(systems, LAYOUTS)
        ],
        "contrasts": [
            r.Contrast(s, "layout", v, "free", 50, estimate(0.1), estimate(-0.1))
            for s, v in product(systems, LAYOUTS[1:])
        ]
        + [r.Contrast(s, "appearance", "modified", "clean", 50, estimate(-0.1), estimate(-0.1)) for s in systems],
        "sensitivity": [
            r.Sensitivity(s, f, Estimate(0.8), Estimate(0.5), 16, 1, 2, chance=0.1)
            for s, f in product(("all", *systems), ("count_range", "layout"))
        ],
        "families": [
            r.Families(s, c, n, n in STRESS_RANGES, 48, 8, 30, 10, *(estimate(k / 48) for k in (8, 30, 10)))
            for s, c, n in product(systems, COMPOSITIONS, COUNT_RANGES)
        ],
        "signed_errors": [
            r.SignedError(s, c, n, n in STRESS_RANGES, 48, *SIGNED)
            for s, c, n in product(systems, COMPOSITIONS, COUNT_RANGES)
        ],
        "curve": [
            r.CurvePoint(s, c, n, n > 50, 4, estimate(1 - n / 110), estimate(1 - n / 120))
            for s, c, n in product(systems, COMPOSITIONS, range(1, 101, 3))
        ],
        "visible": [
            r.VisiblePoint(s, v, n, 4, n * 0.8, n * 0.7) for s, v, n in product(systems, LAYOUTS, range(1, 101, 9))
        ],
        "collision": [
            r.CollisionFit(s, v, "fitted", 40.5, None if v == "free" else 0.25, 1.5, 12, 48)
            for s, v in product(systems, LAYOUTS)
        ],
        "coverage": [r.Coverage(s, c, 3, 200) for s, c in product(systems, ("single", "double"))],
        "saturation": [r.Saturation(s, d, 400, 8, 12, 8000) for s, d in product(systems, DETECTORS)],
        "uncovered": [r.Uncovered(s, "gryphon", 8) for s in systems],
        "failures": [r.Failure(s, "image: a.jpg: not found", 8, "item 7") for s in systems],
    }
    return r.Analysis(**{**tables, **changes})


def make_agreement(**changes: Any) -> r.Agreement:
    """The last range lacks what cannot be computed."""
    rows = [
        r.AgreementRow("alpha", n, n in STRESS_RANGES, 40, 38, 60, 0.8, None, 0.85, 0.8, None, 0.5, 0.45, 0.1, 5, 2)
        for n in ("all", *COUNT_RANGES[:3])
    ]
    nothing = r.AgreementRow(
        "alpha", "76-100", True, 1, 1, 1, None, "chance agreement is 1", None, None, "fewer than three images",
        0.1, 0.1, 0.0, None, None,
    )  # fmt: skip
    values = {"annotations": "a.csv", "annotations_sha256": "ab" * 32, "annotators": 3, "bin_width": 1}
    return r.Agreement(**{**values, "range_by": "max", "rows": [*rows, nothing], "notes": ["Two are new."], **changes})


def make_calibration(**changes: Any) -> CalibrationResult:
    """One detector that is fitted, and one whose fit is refused."""
    confidence, label = np.linspace(0.05, 0.95, 60), np.arange(60) % 3 > 0
    raw, fitted = measure(confidence, label), measure(confidence, label, 1.4)
    fits = [
        DetectorCalibration(
            detector=name, tau=1.4, tau_run=0.93, tau_used=0.93 if refused else 1.4, refused=refused, identifiable=True,
            items=20, failed=0, objects=90, proposals=60, positives=40, before=raw, present=None, after=fitted,
        )
        for name, refused in zip(DETECTORS, (None, "needs a lower floor"), strict=True)
    ]  # fmt: skip
    values: dict[str, Any] = {
        "run": "CAL", "run_created": "", "truth": "t.jsonl", "truth_sha256": "", "floor": 0.05, "lowest_threshold": 0.3,
        "iou": 0.5, "items": 20, "failed": 1, "objects": 90, "without_objects": 2, "notes": ("A note.",),
        "detectors": tuple(fits), "images": {},
    }  # fmt: skip
    return CalibrationResult(**{**values, **changes})


def make_card(group: str = "worst", **changes: Any) -> Card:
    """An image of 200 x 100 pixels with two targets and two detectors."""
    picture = io.BytesIO()
    Image.new("RGB", (40, 20), (90, 120, 60)).save(picture, "WEBP")
    boxes = np.array([[10, 10, 60, 90], [80, 20, 120, 60], [150, 5, 230, 50]], np.float32)
    values: dict[str, Any] = {
        "system": "alpha", "group": group, "item_id": f"item {group}", "composition": "double", "count_range": "1-25",
        "stress_test": False, "factors": ("grid", "clean"), "prompt": "generate 3 cats and 2 dogs", "cw_nps": 0.5,
        "b_nps": 0.6, "asked": (Asked("cat", 3, 1.5, 2.0), Asked("dog", 2, 0.5, 1.0)),
        "layers": tuple(Layer(d, boxes, np.array([0, 0, 1]), (1.6, 0.9)) for d in DETECTORS),
        "width": 200, "height": 100, "thumbnail": picture.getvalue(), "thumbnail_size": (40, 20),
    }  # fmt: skip
    return Card(**{**values, **changes})


def make_page(**changes: Any) -> Page:
    record = {
        "ensemble": {
            "name": "numbench",
            "detectors": [
                {"name": d, "family": "owl", "model": f"{d}.onnx", "model_sha256": "0f" * 32, "tau": 0.93}
                for d in DETECTORS
            ],
        },
        "manifest": {"rows": 400},
    }
    cards = tuple(make_card(group) for group in GROUPS)
    values: dict[str, Any] = {
        "title": "alpha and beta",
        "version": "0.1.0",
        "analysis": make_analysis(),
        "runs": (RunRecord("RUN", record, (("manifest, SHA-256", "ab" * 32),)),),
        "gallery": Gallery(cards, DETECTORS, 8, 8),
        "figures": {"curve": Plot('<svg role="img" viewBox="0 0 10 10"><title>Curve</title></svg>')},
    }
    return Page(**{**values, **changes})
