"""Counts and scores from stored confidences, and calibration, beside NumPy, Arrow and a numba loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallymill.bench.pairs import aligned, in_turns
from tallymill.bench.peers import library
from tallymill.bench.workload import detections
from tallymill.errors import TallymillError
from tallymill.kernels.count import accumulate, calibrate, reference, score, threshold

IMAGES = 200_000
DRAWN = 2000  # images drawn, which then repeat; what is requested is drawn for every image
BOXES = 40  # an image
TAU = 1.15
FLOOR = 0.05


@dataclass(frozen=True, slots=True)
class Stored:
    """What a proposals file holds of images with one or two targets and ``BOXES`` boxes, for one detector."""

    confidence: NDArray[np.float32]
    target: NDArray[np.uint8]
    item_offsets: NDArray[np.int64]
    target_offsets: NDArray[np.int64]
    requested: NDArray[np.uint16]
    thresholds: NDArray[np.float64]
    slot: NDArray[np.int64]  # the target of a box among those of all images

    @property
    def images(self) -> int:
        """How many."""
        return len(self.item_offsets) - 1


def run(images: int = IMAGES, rounds: int = 7) -> dict[str, Any]:
    """Time hard counts, soft counts up to cw-NPS, and calibration; one thread, peers in turns.

    ``hard`` and ``soft`` have rows of nanoseconds an image with their ratio to ours, ``calibrate`` of nanoseconds a
    value. Soft counts start from raw confidences; every peer's are turned into scores by our ``score``. Peers get the
    place of each box among all targets (``slot``) beforehand. ``counting`` is the share of boxes that count.

    Raises:
        TallymillError: a peer or our own result is wrong.
        UsageError: numba is not installed.
    """
    few, many = stored(min(images, DRAWN)), stored(images)
    loop = _numba_loop()
    _right(few, loop, against_reference=True)
    _right(many, loop, against_reference=False)
    threads = pa.cpu_count()
    pa.set_cpu_count(1)
    try:
        per_image, per_value = 1e-9 * many.images, 1e-9 * len(many.confidence)
        hard = in_turns(_hard(many, loop), rounds).rows(per_image, 1)
        soft = in_turns({name: _scored(many, sums) for name, sums in _soft(many, loop).items()}, rounds)
        return {
            "images": many.images,
            "boxes": BOXES,
            "rounds": rounds,
            "counting": {
                "hard": round(float((many.confidence >= 0.5).mean()), 3),
                "soft": round(float((calibrate(many.confidence, TAU) >= many.thresholds[many.slot]).mean()), 3),
            },
            "hard": hard,
            "soft": soft.rows(per_image, 1),
            "calibrate": in_turns(_calibrations(many), rounds).rows(per_value),
        }
    finally:
        pa.set_cpu_count(threads)


def table(result: dict[str, Any]) -> str:
    """The result of ``run`` for reading."""
    rows = [["count, one thread", "ns", "a second", "ratio"]]
    titles = {
        "hard": f"hard counts an image, {result['counting']['hard']:.0%} of {result['boxes']} boxes count",
        "soft": f"soft counts and scores an image, {result['counting']['soft']:.0%} count",
        "calibrate": "calibration of a value",
    }
    for part, title in titles.items():
        rows.append([title, "", "", ""])
        for row in result[part]:
            rate = f"{1e3 / row['time']:.1f} M" if row["time"] else ""
            rows.append([f"  {row['name']}", f"{row['time']:.1f}", rate, f"{row['ratio']:.2f}"])
    return aligned(rows)


def stored(images: int, seed: int = 0) -> Stored:
    """Confidences of detector-like proposals at or above the floor, half of the images with two targets."""
    rng = np.random.default_rng(seed)
    drawn = min(images, DRAWN)
    scores = detections(drawn, BOXES, 2, seed).scores.reshape(drawn, BOXES, 2)
    some = np.arange(images) % drawn
    targets = rng.integers(1, 3, images)
    target = np.where(targets[:, None] == 2, scores.argmax(axis=2)[some], 0).astype(np.uint8)
    target_offsets = np.cumsum([0, *targets], dtype=np.int64)
    requested = rng.integers(1, 101, targets.sum()).astype(np.uint16)
    return Stored(
        np.maximum(scores.max(axis=2), np.float32(FLOOR))[some].ravel(),
        target.ravel(),
        np.arange(images + 1, dtype=np.int64) * BOXES,
        target_offsets,
        requested,
        threshold(requested),
        (target_offsets[:-1, None] + target).ravel(),
    )


def _hard(data: Stored, loop: Any) -> dict[str, Callable[[], NDArray[Any]]]:
    total = len(data.thresholds)

    def ours() -> NDArray[Any]:
        hard = np.zeros(total, np.int64)
        boxes = data.confidence, data.target, data.item_offsets, data.target_offsets
        accumulate(*boxes, None, TAU, None, hard)
        return hard

    def numba() -> NDArray[Any]:
        hard = np.zeros(total, np.int64)
        loop[0](data.confidence, data.target, data.item_offsets, data.target_offsets, hard)
        return hard

    return {
        "tallymill": ours,
        "numba": numba,
        "numpy.bincount": lambda: np.bincount(data.slot[data.confidence >= 0.5], minlength=total),
        "numpy.add.reduceat": lambda: _reduceat(data, (data.confidence >= 0.5).astype(np.int64)),
        "pyarrow group_by": lambda: _group_by(data, pa.array(data.confidence >= 0.5).cast(pa.int64())),
    }


def _soft(data: Stored, loop: Any) -> dict[str, Callable[[], NDArray[Any]]]:
    total = len(data.thresholds)

    def ours() -> NDArray[Any]:
        soft = np.zeros(total)
        boxes = data.confidence, data.target, data.item_offsets, data.target_offsets
        accumulate(*boxes, data.thresholds, TAU, soft, None)
        return soft

    def numba() -> NDArray[Any]:
        soft = np.zeros(total)
        boxes = data.confidence, data.target, data.item_offsets, data.target_offsets
        loop[1](*boxes, data.thresholds, TAU, soft)
        return soft

    def counting() -> NDArray[np.float64]:
        rho = reference.calibrate(data.confidence, TAU).astype(np.float64)
        return np.where(rho >= data.thresholds[data.slot], rho, 0.0)

    return {
        "tallymill": ours,
        "numba": numba,
        "numpy.bincount": lambda: np.bincount(data.slot, counting(), total),
        "numpy.add.reduceat": lambda: _reduceat(data, counting()),
        "pyarrow group_by": lambda: _group_by(data, pa.array(counting())),
    }


def _scored(data: Stored, sums: Callable[[], NDArray[Any]]) -> Callable[[], NDArray[Any]]:
    hard = np.zeros(len(data.thresholds), np.int64)
    covering = np.ones(len(data.thresholds), np.uint8)
    return lambda: score(sums(), hard, covering, data.requested, data.target_offsets).cw_nps


def _calibrations(data: Stored) -> dict[str, Callable[[], NDArray[Any]]]:
    return {
        "tallymill": lambda: calibrate(data.confidence, TAU),
        "numpy": lambda: reference.calibrate(data.confidence, TAU),
    }


def _reduceat(data: Stored, values: NDArray[Any]) -> NDArray[Any]:
    """Sums of each image and target; every image has boxes, and one target or two."""
    starts, first = data.item_offsets[:-1], data.target_offsets[:-1]
    two = np.diff(data.target_offsets) == 2
    sums = np.zeros(len(data.thresholds), values.dtype)
    sums[first] = np.add.reduceat(np.where(data.target == 0, values, 0), starts)
    sums[first[two] + 1] = np.add.reduceat(np.where(data.target == 1, values, 0), starts)[two]
    return sums


def _group_by(data: Stored, values: Any) -> NDArray[Any]:
    grouped = pa.table({"slot": data.slot, "value": values}).group_by("slot", use_threads=False)
    found = grouped.aggregate([("value", "sum")])
    sums = found["value_sum"].to_numpy()
    result = np.zeros(len(data.thresholds), sums.dtype)
    result[found["slot"].to_numpy()] = sums
    return result


def _numba_loop() -> tuple[Any, Any]:
    njit = library("numba").njit

    def hard_loop(confidence: Any, target: Any, item_offsets: Any, target_offsets: Any, hard: Any) -> None:
        for item in range(len(item_offsets) - 1):
            for box in range(item_offsets[item], item_offsets[item + 1]):
                if confidence[box] >= 0.5:
                    hard[target_offsets[item] + target[box]] += 1

    def soft_loop(
        confidence: Any, target: Any, item_offsets: Any, target_offsets: Any, thresholds: Any, tau: float, soft: Any
    ) -> None:
        for item in range(len(item_offsets) - 1):
            for box in range(item_offsets[item], item_offsets[item + 1]):
                p = np.float64(confidence[box])
                rho = np.float64(np.float32(1 / (1 + np.exp(-np.log(p / (1 - p)) / tau))))
                which = target_offsets[item] + target[box]
                if rho >= thresholds[which]:
                    soft[which] += rho

    return njit(hard_loop), njit(soft_loop)


def _right(data: Stored, loop: Any, against_reference: bool) -> None:
    """Everything that is timed must agree to the bit; the reference, which is slow, only on the small case."""
    hard, soft = np.zeros(len(data.thresholds), np.int64), np.zeros(len(data.thresholds))
    boxes = data.confidence, data.target, data.item_offsets, data.target_offsets
    accumulate(*boxes, data.thresholds, TAU, soft, hard, impl="reference" if against_reference else "cpu")
    for peers, expected in ((_hard(data, loop), hard), (_soft(data, loop), soft)):
        for name, peer in peers.items():
            if not np.array_equal(peer(), expected):
                raise TallymillError(f"{name} counts differently")
    if not np.array_equal(calibrate(data.confidence, TAU), reference.calibrate(data.confidence, TAU)):
        raise TallymillError("calibrate differs from the reference")
