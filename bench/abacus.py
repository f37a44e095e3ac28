"""The example set from end to end, beside a plain script that looks at one edit after another."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from tallymill.bench.pairs import Timing, aligned, in_turns
from tallymill.bench.peers import library
from tallymill.engine.abacus.consistency import consistency
from tallymill.engine.abacus.settings import EditSettings
from tallymill.engine.abacus.suite import DEFAULT, load_suite
from tallymill.engine.detectors.base import Detector
from tallymill.engine.ensemble import build_proposer
from tallymill.engine.proposer import WindowProposer
from tallymill.errors import TallymillError
from tallymill.exporters import hub
from tallymill.kernels.nms import nms
from tallymill.runners.abacus.example import example
from tallymill.runners.abacus.score import score

RGB = NDArray[np.uint8]
Boxes = NDArray[np.float32]
Verdicts = list[list[int]]
LAPS = 4


def run(rounds: int = 3) -> dict[str, Any]:
    """Edits a second of the example set: ours with two workers and with one, the script in two processes and in one.

    The script opens its models once, and then, for each edit, decodes both images, segments each category in both,
    takes DIS flow, matches by pycocotools and SciPy, inpaints, has both detectors look at each clean image, and
    compares the rest of the scene by our own function (no library has a masked MS-SSIM). As it stands it looks at one
    edit after another in this process; its models have one thread each, as ours have, so that is one core. In two
    processes, which are started and have their models before anything is timed, edits are dealt one by one. Ours
    includes processes that start, models that are opened, files that are written, and the table.

    So ours with two workers beside the script as it stands shows mostly what a second process is worth; what else ours
    is worth is shown by one worker beside one process, and by two beside two. Raises ``TallymillError`` where d, lost
    or originals differ.
    """
    hub.get(DEFAULT)
    with tempfile.TemporaryDirectory(prefix="tallymill-") as scratch:
        root = Path(scratch)
        made = example(root / "DATA", laps=LAPS)
        rows = [json.loads(line) for line in made.truth.read_text("utf-8").splitlines()]
        runs = iter(range(1000))

        def ours(workers: int) -> Verdicts:
            out = root / f"RUN-{next(runs)}"
            score(made.manifest, out, panoptic=made.panoptic, resamples=0, workers=workers)
            columns = pq.read_table(out / "scores.parquet", columns=["delivered", "lost", "originals"])
            return [list(row.values()) for row in columns.to_pylist()]

        with _pool(made.panoptic) as pool:
            script = Script(made.panoptic)
            peers: dict[str, Callable[[], Verdicts]] = {
                "tallymill, 2 workers": partial(ours, 2),
                "tallymill, 1 worker": partial(ours, 1),
                "script, 2 processes": lambda: list(pool.map(_edit, repeat(root / "DATA"), rows)),
                "script, 1 process": lambda: [script.edit(root / "DATA", row) for row in rows],
            }
            first, *others = (peer() for peer in peers.values())
            if any(other != first for other in others):
                raise TallymillError("the script comes to other verdicts")
            timing = in_turns(peers, rounds)
    return {"rounds": rounds, "edits": len(rows), "rows": _rows(timing, len(rows))}


def _rows(timing: Timing, edits: int) -> list[dict[str, Any]]:
    """A row a peer: edits a second, and how many times as long it took as each of the peers."""
    ratios = {name: timing.ratios_to(name) for name in timing.seconds}
    return [
        {
            "name": name,
            "edits_per_second": round(edits / seconds, 2),
            "ratios": {other: round(ratios[other][name], 3) for other in ratios},
        }
        for name, seconds in timing.seconds.items()
    ]


def table(result: dict[str, Any]) -> str:
    """The result of ``run`` for reading: under each letter, how many times as long as that row."""
    letters = "ABCD"
    rows = [[f"{result['edits']} edits", "edits/s", *(f"time/{letter}" for letter in letters)]]
    for letter, row in zip(letters, result["rows"], strict=True):
        ratios = [f"{ratio:.2f}" for ratio in row["ratios"].values()]
        rows.append([f"  {letter}  {row['name']}", f"{row['edits_per_second']:.2f}", *ratios])
    return aligned(rows)


_script: Script | None = None  # of a process of the pool


def _pool(panoptic: Path) -> ProcessPoolExecutor:
    """Two processes that open a script each; both are there once it has answered."""
    pool = ProcessPoolExecutor(2, get_context("spawn"), _open, (panoptic,))
    list(pool.map(time.sleep, (1, 1)))
    return pool


def _open(panoptic: Path) -> None:
    global _script
    _script = Script(panoptic)


def _edit(root: Path, row: dict[str, Any]) -> list[int]:
    assert _script is not None, "the pool opens it"
    return _script.edit(root, row)


class Script:
    """What somebody would write in an afternoon: the same models and rules, an edit at a time."""

    def __init__(self, panoptic: Path) -> None:
        self._coco, self._optimize = library("pycocotools.mask"), library("scipy.optimize")
        suite = load_suite(DEFAULT)
        self._detectors: list[Detector] = []
        for config in suite.detectors:
            proposer = build_proposer(config, hub.path(str(config.model)))
            assert isinstance(proposer, WindowProposer)
            self._detectors.append(proposer.detector)
        self._flow: Any = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)
        document = json.loads(panoptic.read_text("utf-8"))
        self._annotations = {entry["file_name"]: entry for entry in document["annotations"]}
        self._names = {entry["id"]: entry["name"] for entry in document["categories"]}
        self._folder = panoptic.with_suffix("")
        self._settings = EditSettings()

    def edit(self, root: Path, row: dict[str, Any]) -> list[int]:
        """d, lost and originals of one edit."""
        source, edited = (
            np.asarray(Image.open(root / f"images/{row['edit_id']}-{image}.jpg").convert("RGB"))
            for image in ("source", "edited")
        )
        gray = [cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) for image in (edited, source)]
        flow = self._flow.calc(gray[0], gray[1], None)
        categories = [name for name in (row["category"], row["target"]) if name is not None]
        sides = {name: self._sides(row, name, source, edited, flow) for name in categories}
        everything = [mask for own in sides.values() for side in own[:2] for mask in _masks(side, source.shape)]
        covered = np.any(everything, axis=0) if everything else np.zeros(source.shape[:2], np.bool_)
        free = cv2.dilate(covered.astype(np.uint8), np.ones((17, 17), np.uint8)) == 0
        consistency(source, edited, flow, np.asarray(free, np.bool_))
        return self._counts(row, sides, source, edited)

    def _sides(
        self, row: dict[str, Any], category: str, source: RGB, edited: RGB, flow: NDArray[np.float32]
    ) -> tuple[Boxes, Boxes, NDArray[np.int64]]:
        """Boxes in both images, and the partner of each in the source."""
        before = self._annotated(row, category)
        found = [self._see(self._detectors[0], image, category) for image in (source, edited)]
        missed = [box for box in found[0] if not len(before) or _overlap(box[None], before).max() < 0.5]
        before = np.concatenate([before, np.array(missed, np.float32).reshape(-1, 4)])
        masks = [_masks(boxes, source.shape) for boxes in (before, found[1])]
        height, width = source.shape[:2]
        x = np.floor(np.arange(width) + flow[..., 0] + 0.5).astype(int)
        y = np.floor(np.arange(height)[:, None] + flow[..., 1] + 0.5).astype(int)
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        masks[0] = [inside & mask[y.clip(0, height - 1), x.clip(0, width - 1)] for mask in masks[0]]
        partner = np.full(len(before), -1, np.int64)
        if masks[0] and masks[1]:
            rles = [self._coco.encode(np.asfortranarray(np.stack(each, 2).astype(np.uint8))) for each in masks]
            similarity = self._coco.iou(rles[0], rles[1], [0] * len(masks[1]))
            similarity[similarity < 0.3] = 0
            rows, columns = self._optimize.linear_sum_assignment(similarity, maximize=True)
            partner[rows] = np.where(similarity[rows, columns] > 0, columns, -1)
        return before, found[1], partner

    def _annotated(self, row: dict[str, Any], category: str) -> Boxes:
        entry = self._annotations[f"{row['edit_id']}.png"]
        ids = np.asarray(Image.open(self._folder / entry["file_name"]).convert("RGB")).astype(np.uint32)
        ids = ids[..., 0] + 256 * ids[..., 1] + 65536 * ids[..., 2]
        boxes = []
        for info in entry["segments_info"]:
            if self._names[info["category_id"]] == category:
                y, x = np.nonzero(ids == info["id"])
                boxes.append([x.min(), y.min(), x.max() + 1, y.max() + 1])
        return np.array(boxes, np.float32).reshape(-1, 4)

    def _see(self, detector: Detector, image: RGB, category: str) -> Boxes:
        """Boxes of a category with a confidence of one half and more."""
        classes = [np.array([detector.spec.class_of(category)], np.int64)]
        inputs = {name: value[None] for name, value in detector.preprocess(image).items()}
        found = detector.read(detector.run(inputs, classes), [image.shape[:2]], classes, 0.5)
        kept = nms(found.boxes, found.scores, np.array([0, len(found.scores)]), 0.5).indices
        return np.asarray(found.boxes[kept], np.float32)

    def _confirmed(self, image: RGB, boxes: Boxes, kept: NDArray[np.bool_], category: str) -> Boxes:
        """Boxes of those that are not kept and that both detectors see in the clean image."""
        if kept.all():
            return boxes[:0]
        clean, old = image, _masks(boxes[kept], image.shape)
        if old:
            erased = cv2.dilate(np.any(old, axis=0).astype(np.uint8), np.ones((7, 7), np.uint8))
            erased[np.any(_masks(boxes[~kept], image.shape), axis=0)] = 0
            clean = np.asarray(cv2.inpaint(np.ascontiguousarray(image), erased, 3, cv2.INPAINT_TELEA), np.uint8)
        seen = [self._see(detector, clean, category) for detector in self._detectors[1:]]
        sure = [all(len(one) and _overlap(box[None], one).max() >= 0.5 for one in seen) for box in boxes[~kept]]
        return boxes[~kept][np.array(sure, np.bool_)]

    def _counts(
        self, row: dict[str, Any], sides: dict[str, tuple[Boxes, Boxes, NDArray[np.int64]]], source: RGB, edited: RGB
    ) -> list[int]:
        before, after, partner = sides[row["category"]]
        kept = np.isin(np.arange(len(after)), partner)
        if row["operation"] == "add":
            new = self._confirmed(edited, after, kept, row["category"])
            return [len(new), int((partner < 0).sum()), len(before)]
        gone = self._confirmed(source, before, partner >= 0, row["category"])
        if row["operation"] == "remove":
            return [len(gone), len(self._confirmed(edited, after, kept, row["category"])), len(before)]
        others, there, matched = sides[row["target"]]
        new = self._confirmed(edited, there, np.isin(np.arange(len(there)), matched), row["target"])
        pairs = 0
        if len(gone) and len(new):
            overlap = _overlap(gone, new)
            overlap[overlap < 0.5] = 0
            rows, columns = self._optimize.linear_sum_assignment(overlap, maximize=True)
            pairs = int((overlap[rows, columns] > 0).sum())
        return [pairs, len(gone) - pairs + int((matched < 0).sum()), len(before) + len(others)]


def _masks(boxes: Boxes, shape: Sequence[int]) -> list[NDArray[np.bool_]]:
    found = []
    for x1, y1, x2, y2 in np.rint(np.clip(boxes, 0, [shape[1], shape[0]] * 2)).astype(int).tolist():
        mask = np.zeros(shape[:2], np.bool_)
        mask[y1:y2, x1:x2] = True
        found.append(mask)
    return found


def _overlap(a: Boxes, b: Boxes) -> NDArray[np.float64]:
    """IoU of boxes."""
    sides = np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2])
    shared = np.clip(sides, 0, None).prod(axis=2)
    areas = [(boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) for boxes in (a, b)]
    return np.asarray(shared / (areas[0][:, None] + areas[1] - shared), np.float64)
