"""The demo: a small labelled sweep over real photographs, with what came out of it as tables and pictures."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from tallymill.engine.ensemble import load_ensemble
from tallymill.engine.numbench.calibration import DetectorCalibration
from tallymill.engine.numbench.draw import BoxLayer, draw_boxes
from tallymill.engine.numbench.scores import SCORED
from tallymill.engine.numbench.truth import Truth, read_truth
from tallymill.errors import UsageError
from tallymill.exporters import hub
from tallymill.kernels.count import calibrate, threshold
from tallymill.runners import files
from tallymill.runners.demo.collages import MARK, MOST_IMAGES, make_collages
from tallymill.runners.files import appearing, without_nan
from tallymill.runners.numbench.calibrate import calibrate as fit_temperatures
from tallymill.runners.numbench.report import report
from tallymill.runners.outputs import require_folder
from tallymill.runners.rescore import rescore
from tallymill.runners.run import Run, load
from tallymill.runners.summary import Summary
from tallymill.runners.sweep import SweepProgress, sweep

IMAGES = 64
# Shards of four keep every processor of a laptop busy with so few images.
SHARD_ITEMS = 4
# One picture of each kind is drawn with its boxes: few, many at random, and as many as there are in a grid.
PICTURED = (("1-25", "random"), ("26-50", "random"), ("51-75", "grid"))

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CountRow:
    """Means over the images of one count range and layout.

    ``requested``, ``visible`` (objects seen by 30 % or more) and ``soft`` (n^) are means a target, over scored images.
    """

    count_range: str
    layout: str
    images: int
    not_scored: int
    requested: float
    visible: float
    soft: float
    cw_nps: float
    b_nps: float


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the demo found, and where it lies."""

    out: Path
    summary: Summary
    rows: tuple[CountRow, ...]
    rescored: tuple[CountRow, ...]
    fits: tuple[DetectorCalibration, ...]
    pictures: tuple[Path, ...]
    report: Path


def run_demo(
    out: Path,
    *,
    workers: int | None = None,
    ensemble: str = "coco-cpu",
    images: int | None = None,
    seed: int = 0,
    tell: Tell | None = None,
    progress: SweepProgress | None = None,
) -> DemoResult:
    """Make collages, sweep them, fit temperatures on a part of their own, score again, and report.

    ``images`` in all (64 when None, 4 to 70), a quarter of them for calibration. Everything lies under ``out``:
    the collages with manifests, prompts and truth, ``run``, ``calibration`` and ``rescored`` (RUN folders),
    ``temperatures``, ``pictures``, ``report.html`` and ``demo.json``. A demo that was stopped continues when it is
    called again. ``tell`` is given a line a step, and ``progress`` follows the two sweeps. Raises ``MissingExtraError``
    without an extra of ``[demo]``.
    """
    say = tell or _quiet
    scored, calibration = _split(IMAGES if images is None else images)
    _require_place(out)
    _fetch_models(ensemble, say)
    say(f"drawing {scored} collages to score and {calibration} to calibrate with")
    collages = make_collages(out, seed=seed, scored=scored, calibration=calibration)
    truth = read_truth(collages.truth)
    options: dict[str, Any] = {"ensemble": ensemble, "workers": workers, "progress": progress}
    options |= {"prompts": collages.prompts, "system": "collages"}
    say(f"scoring {scored} images")
    swept = sweep(collages.score, out / "run", shard_items=SHARD_ITEMS, **options)
    say(f"finding boxes in {calibration} images to calibrate with")
    sweep(collages.calibration, out / "calibration", shard_items=SHARD_ITEMS, **options)
    run = load(out / "run")
    fitted = fit_temperatures(out / "calibration", collages.truth, out / "temperatures", scored=[run])
    say("scoring again with the fitted temperatures")
    rescore(out / "run", out / "rescored", taus={fit.detector: fit.tau_used for fit in fitted.detectors})
    say("writing the report")
    page = out / "report.html"
    report(out / "rescored", page, calibration=out / "temperatures", title="The demo's collages")
    result = DemoResult(
        out=out,
        summary=swept,
        rows=tuple(count_rows(run.scores, truth)),
        rescored=tuple(count_rows(load(out / "rescored").scores, truth)),
        fits=fitted.detectors,
        pictures=tuple(draw_pictures(out, run)),
        report=page,
    )
    write_json(result, out / "demo.json")
    return result


def _require_place(out: Path) -> None:
    """Refuse a folder with other things than a demo: its files could be replaced."""
    require_folder(out)
    if out.is_dir() and not (out / MARK).exists():
        other = next((entry.name for entry in out.iterdir() if not entry.name.startswith(".")), None)
        if other is not None:
            raise UsageError(f"--out {out} is not empty ({other}) and has no demo", hint="choose another folder")


def _quiet(_: str) -> None:
    pass


def _fetch_models(ensemble: str, say: Tell) -> None:
    models = [detector.model for detector in load_ensemble(ensemble).detectors]
    for name in [ensemble] if ensemble in hub.ENSEMBLES else models:
        if name is not None and not name.endswith(".onnx"):
            hub.get(name, log=say)


def _split(images: int) -> tuple[int, int]:
    if not 4 <= images <= MOST_IMAGES:
        raise UsageError(f"images={images}: must lie in 4..{MOST_IMAGES}")
    return images - images // 4, images // 4


def count_rows(scores: pa.Table, truth: Truth) -> list[CountRow]:
    """Means by count range and layout from a scores table (columns ``count_range`` and ``layout``), small counts first.

    Images without a score are counted and left out of the means; a cell without any has NaN means.
    """
    cells: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in scores.to_pylist():
        cells[row["count_range"], row["layout"]].append(row)
    ordered = sorted(cells, key=lambda key: (int(key[0].partition("-")[0]), key[1]))
    return [_count_row(count_range, layout, cells[count_range, layout], truth) for count_range, layout in ordered]


def _count_row(count_range: str, layout: str, rows: Sequence[dict[str, Any]], truth: Truth) -> CountRow:
    scored = [row for row in rows if row["status"] == SCORED]
    targets = [(row["item_id"], k, target) for row in scored for k, target in enumerate(row["targets"])]
    return CountRow(
        count_range=count_range,
        layout=layout,
        images=len(rows),
        not_scored=len(rows) - len(scored),
        requested=_mean(target["requested"] for _, _, target in targets),
        visible=_mean(_visible(truth, item, k) for item, k, _ in targets),
        soft=_mean(target["soft"] for _, _, target in targets),
        cw_nps=_mean(row["cw_nps"] for row in scored),
        b_nps=_mean(row["b_nps"] for row in scored),
    )


def _visible(truth: Truth, item: str, target: int) -> int:
    code = truth.items.get(item)
    return 0 if code is None else int((truth.target[truth.starts[code] : truth.starts[code + 1]] == target).sum())


def _mean(values: Iterable[float]) -> float:
    every = list(values)
    return math.fsum(every) / len(every) if every else math.nan


def draw_pictures(out: Path, run: Run) -> list[Path]:
    """Draw the boxes that count towards n^ over an image of each kind in ``PICTURED`` that was scored."""
    rows = run.scores.to_pylist()
    proposals = {name: run.proposals(name) for name in run.detectors}
    folder = out / "pictures"
    written = []
    for count_range, layout in PICTURED:
        cell = [r for r in rows if (r["count_range"], r["layout"], r["status"]) == (count_range, layout, SCORED)]
        if cell:
            layers = [counted(name, table, cell[0], run.taus[name]) for name, table in proposals.items()]
            with Image.open(out / "images" / f"{cell[0]['item_id']}.jpg") as opened:
                drawn = draw_boxes(np.asarray(opened.convert("RGB")), layers, caption(cell[0]), threshold=0.0)
            written.append(folder / f"{count_range}-{layout}.png")
            with appearing(written[-1]) as temporary:
                drawn.save(temporary, "PNG")
    return written


def counted(detector: str, proposals: pa.Table, score: Mapping[str, Any], tau: float) -> BoxLayer:
    """One detector's boxes of a scored image that count towards n^: rho >= T(n) of their own target."""
    row = proposals.filter(pc.equal(proposals["item_id"], score["item_id"])).to_pylist()[0]
    confidence, target = np.array(row["confidence"], np.float32), np.array(row["target"], np.int64)
    least = threshold(np.array([t["requested"] for t in score["targets"]], np.uint16))
    kept = calibrate(confidence, tau).astype(np.float64) >= least[target]
    kept &= np.array(row.get("kept") or [True] * len(kept), np.bool_)
    return BoxLayer(detector, np.array(row["box"], np.float32).reshape(-1, 4)[kept], confidence[kept])


def caption(score: Mapping[str, Any]) -> str:
    """What was asked, what was counted, and the score, in a line."""
    asked = ", ".join(f"{t['requested']} x {t['category']} (counted {t['soft']:.1f})" for t in score["targets"])
    return f"{asked}, {score['layout']}: cw-NPS {score['cw_nps']:.2f}; drawn: boxes that count"


def write_json(result: DemoResult, path: Path) -> None:
    """The whole result as JSON, paths relative to its folder, NaN as null."""
    document = {
        "run": result.summary.as_dict(),
        "counts": [asdict(row) for row in result.rows],
        "counts_rescored": [asdict(row) for row in result.rescored],
        "calibration": [asdict(fit) for fit in result.fits],
        "pictures": [str(p.relative_to(result.out)) for p in result.pictures],
        "report": str(result.report.relative_to(result.out)),
    }
    files.write_json(path, without_nan(document))
