"""What ``bench/gpu.py`` checks and times: each function of ``CASES`` gives the cases of one operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.bench.kernels.candidates import torch_chain
from tallymill.bench.workload import Workload, detections, raw_outputs
from tallymill.errors import TallymillError
from tallymill.kernels.candidates import candidates
from tallymill.kernels.count import accumulate, calibrate, score, tally, threshold
from tallymill.kernels.mask_iou import Masks, mask_iou
from tallymill.kernels.match import assign, match
from tallymill.kernels.nms import nms, soft_nms

Floats = NDArray[np.float32]
Result = tuple[NDArray[Any], ...]


@dataclass(frozen=True)
class Case:
    """One operation on one size.

    ``run`` queues the work and returns the tensors, ``cpu`` does the same on the CPU. ``check`` is given both as NumPy
    arrays, and raises TallymillError where the first is wrong. ``bytes`` is what has to be read and written at least.
    ``peers`` do the same work with other libraries on the same card.
    """

    operation: str
    size: str
    run: Callable[[], Any]
    cpu: Callable[[], Any]
    check: Callable[[Result, Result], None]
    bytes: int
    peers: Mapping[str, Callable[[], Any]] = field(default_factory=dict)


def match_cases(device: str, small: bool) -> Iterator[Case]:
    """Sets of boxes, most of which have a likeness on the other side."""
    for sets, n, m in ((3, 5, 7), (2, 9, 6)) if small else ((8192, 20, 20), (8192, 30, 50), (4096, 100, 100)):
        rng = np.random.default_rng([n, m])
        a = _boxes(rng, sets * n).reshape(sets, n, 4)
        b = np.concatenate([a[:, : min(n, m)], _boxes(rng, sets * max(m - n, 0)).reshape(sets, -1, 4)], axis=1)
        b = (b + rng.normal(0, 3, b.shape)).astype(np.float32)
        arrays = a.reshape(-1, 4), np.arange(sets + 1) * n, b.reshape(-1, 4), np.arange(sets + 1) * m
        on_card = _sent(arrays, device)
        yield Case(
            "match",
            f"{sets} sets of {n}x{m}",
            partial(match, *on_card, gate=0.3, longest=max(n, m), impl="gpu"),
            partial(match, *arrays, gate=0.3),
            partial(_check_match, arrays[1], arrays[3]),
            sum(array.nbytes for array in arrays) + len(arrays[0]) * 12,
        )


def assign_cases(device: str, small: bool) -> Iterator[Case]:
    """Uniform costs, and those that are tied and partly forbidden."""
    sizes = ((3, 4, 4), (2, 7, 5)) if small else ((8192, 20, 20), (2048, 100, 100), (512, 300, 300), (128, 900, 100))
    for problems, n, m in sizes:
        rng = np.random.default_rng([problems, n, m])
        tied = rng.integers(0, 50, (problems, n, m)).astype(np.float64)
        tied[rng.random(tied.shape) < 0.4] = np.inf
        for kind, costs in (("float32", rng.random((problems, n, m), np.float32)), ("float64, tied", tied)):
            (on_card,) = _sent((costs,), device)
            yield Case(
                "assign",
                f"{problems} of {n}x{m}, {kind}",
                partial(assign, on_card, impl="gpu"),
                partial(assign, costs),
                partial(_check_assign, costs),
                costs.nbytes + problems * (8 * n + 8 + 4 + 8),
            )


def mask_iou_cases(device: str, small: bool) -> Iterator[Case]:
    """Ellipses anywhere in the image."""
    for n, m, side in ((3, 4, 40),) if small else ((30, 50, 256), (100, 100, 1024), (1000, 1000, 256)):
        rng = np.random.default_rng([n, m, side])
        one, other = _ellipses(rng, n, side), _ellipses(rng, m, side)
        a, b = one.to(device), other.to(device)
        yield Case(
            "mask_iou",
            f"{n}x{m} of {side}x{side}",
            partial(mask_iou, a, b, impl="gpu"),
            partial(mask_iou, one, other),
            partial(_check_equal, "mask_iou"),
            one.words.nbytes + other.words.nbytes + (n + m) * 32 + n * m * 8,
        )


def nms_cases(device: str, small: bool) -> Iterator[Case]:
    """What detectors propose, in two categories."""
    for size, work, tensors in _proposals(device, small):
        floor, longest = 0.05, int(np.diff(work.offsets).max())
        yield Case(
            "nms",
            size,
            partial(nms, *tensors, score_threshold=floor, longest=longest, impl="gpu"),
            partial(nms, *work, score_threshold=floor),
            partial(_check_kept, "nms"),
            work.boxes.nbytes + work.scores.nbytes + 8 * work.scores.size,
        )


def soft_nms_cases(device: str, small: bool) -> Iterator[Case]:
    """The same proposals, with both ways to lower scores."""
    for size, work, tensors in _proposals(device, small):
        longest = int(np.diff(work.offsets).max())
        for method in ("linear", "gaussian"):
            settings: Any = {"method": method, "min_score": 0.05}
            yield Case(
                "soft_nms",
                f"{size}, {method}",
                partial(soft_nms, *tensors, **settings, longest=longest, impl="gpu"),
                partial(soft_nms, *work, **settings),
                partial(_check_kept, "soft_nms"),
                work.boxes.nbytes + work.scores.nbytes + 12 * work.scores.size,
            )


def tally_cases(device: str, small: bool) -> Iterator[Case]:
    """The same proposals, from boxes to counts in one kernel."""
    for size, work, tensors in _proposals(device, small):
        rng = np.random.default_rng(0)
        requested = rng.integers(1, 101, (len(work.offsets) - 1, work.scores.shape[1])).astype(np.uint16)
        longest = int(np.diff(work.offsets).max())
        yield Case(
            "tally",
            size,
            partial(tally, *tensors, *_sent((requested,), device), tau=1.42, longest=longest, impl="gpu"),
            partial(tally, *work, requested, tau=1.42),
            partial(_check_kept, "tally"),
            work.boxes.nbytes + work.scores.nbytes + requested.size * (2 + 8 + 8 + 1),
        )


def count_cases(device: str, small: bool) -> Iterator[Case]:
    """Items with one target or two and 40 boxes on average: their sums, then their scores."""
    items = 5 if small else 1_000_000
    rng = np.random.default_rng(items)
    targets = rng.integers(1, 3, items)
    boxes = rng.integers(0, 81, items)
    item_offsets, target_offsets = (np.concatenate([[0], np.cumsum(each)]) for each in (boxes, targets))
    confidence = rng.uniform(0.05, 1, int(boxes.sum())).astype(np.float32)
    target = (rng.integers(0, 2, len(confidence)) % np.repeat(targets, boxes)).astype(np.uint8)
    requested = rng.integers(1, 101, int(targets.sum())).astype(np.uint16)
    ragged = (confidence, target, item_offsets, target_offsets, threshold(requested))
    on_card = _sent(ragged, device)
    size = f"{items} items, {len(confidence)} boxes"
    yield Case(
        "calibrate",
        f"{len(confidence)} confidences",
        partial(calibrate, on_card[0], 1.42, impl="gpu"),
        partial(calibrate, confidence, 1.42),
        partial(_check_equal, "calibrate"),
        2 * confidence.nbytes,
    )

    yield Case(
        "accumulate",
        size,
        partial(_accumulated, on_card, partial(_zeros_on, device, len(requested)), "gpu"),
        partial(_accumulated, ragged, partial(np.zeros, len(requested)), "cpu"),
        partial(_check_equal, "accumulate"),
        sum(array.nbytes for array in ragged) + len(requested) * 2 * 2 * 8,
    )
    soft, hard = rng.random(len(requested)) * 100, rng.integers(0, 100, len(requested))
    sums = (soft, hard, np.full(len(requested), 3, np.uint8), requested, target_offsets)
    yield Case(
        "score",
        f"{items} items",
        partial(score, *_sent(sums, device), impl="gpu"),
        partial(score, *sums),
        partial(_check_equal, "score"),
        sum(array.nbytes for array in sums) + len(requested) * 16 + items * 16,
    )


def candidates_cases(device: str, small: bool) -> Iterator[Case]:
    """Raw outputs of Grounding DINO, OWL-ViT and OW-DETR, for as many candidates as there are."""
    sizes = ((2, 30, 9, 3), (3, 300, 2, 1)) if small else ((32, 900, 256, 3), (32, 576, 2, 1), (32, 100, 81, 1))
    for windows, length, width, named in sizes:
        arguments: Any = raw_outputs(windows, length, width, named)
        found, asked = candidates(**arguments, floor=0.05), 2 * windows * length * named
        for kind in ("float32", "float16"):
            on_card = dict(
                zip(("logits", "boxes"), _sent((arguments["logits"], arguments["boxes"]), device), strict=True)
            )
            on_card["logits"] = half = _as(kind, on_card["logits"])
            rounded = {**arguments, "logits": np.asarray(half.float().cpu())}
            yield Case(
                "candidates",
                f"{windows} windows of {length}x{width}, {kind}",
                partial(
                    candidates, **{**arguments, **on_card}, floor=0.05, impl="gpu", capacity=len(found.scores) + 64
                ),
                partial(candidates, **rounded, floor=0.05),
                _check_candidates,
                asked * half.element_size() + len(found.scores) * (16 + 16 + 4 + 8),
                {"torch": partial(torch_chain, **{**arguments, **on_card}, floor=0.05)},
            )


CASES = (
    match_cases, assign_cases, mask_iou_cases, nms_cases, soft_nms_cases, tally_cases, count_cases, candidates_cases
)  # fmt: skip


def _proposals(device: str, small: bool) -> Iterator[tuple[str, Workload, list[Any]]]:
    for images, each in ((3, 20),) if small else ((4096, 300), (256, 900)):
        work = detections(images, each)
        yield f"{images} images of {each} boxes, 2 categories", work, _sent(tuple(work), device)


def _as(kind: str, tensor: Any) -> Any:
    import torch

    return tensor.to(getattr(torch, kind))


def _accumulated(ragged: Any, zeros: Callable[[str], Any], impl: str) -> tuple[Any, Any]:
    confidence, target, item_offsets, target_offsets, thresholds = ragged
    soft, hard = zeros("float64"), zeros("int64")
    accumulate(confidence, target, item_offsets, target_offsets, thresholds, 1.42, soft, hard, impl=impl)
    return soft, hard


def _zeros_on(device: str, length: int, kind: str) -> Any:
    import torch

    return torch.zeros(length, dtype=getattr(torch, kind), device=device)


def _check_kept(operation: str, found: Result, wanted: Result) -> None:
    """The card's outputs are filled up, and its status comes last."""
    *outputs, status = found
    if status.any():
        raise TallymillError(f"{operation}: a segment has a fault")
    _check_equal(operation, tuple(one[: len(other)] for one, other in zip(outputs, wanted, strict=True)), wanted)


def _check_candidates(found: Result, wanted: Result) -> None:
    """The card's first outputs are filled up, and scores may differ by the two libraries' exp."""
    boxes, scores, request, *others = found
    there = len(wanted[1])
    if not (np.abs(scores[:there] - wanted[1]) <= 1e-6).all() or not np.isnan(scores[there:]).all():
        raise TallymillError("candidates: scores are not those of the CPU")
    _check_equal("candidates", (boxes[:there], request[:there], *others), (wanted[0], *wanted[2:]))


def _check_match(ends_a: NDArray[np.int64], ends_b: NDArray[np.int64], found: Result, wanted: Result) -> None:
    partner, iou = found
    paired = np.flatnonzero(partner >= 0)
    if len(np.unique(partner[paired])) != len(paired):
        raise TallymillError("match: a box has two partners")
    sets = np.searchsorted(ends_a, paired, side="right") - 1
    if (partner[paired] < ends_b[sets]).any() or (partner[paired] >= ends_b[sets + 1]).any():
        raise TallymillError("match: a partner is of another set")
    sums, best = (np.add.reduceat(values, ends_a[:-1], dtype=np.float64) for values in (iou, wanted[1]))
    _check_close("match", sums, best)


def _check_assign(costs: NDArray[Any], found: Result, wanted: Result) -> None:
    column, total, complete, undefined = found
    problem, row = np.nonzero(column >= 0)
    chosen = column[problem, row]
    if (chosen >= costs.shape[2]).any():
        raise TallymillError("assign: a column is beyond the matrix")
    if len(np.unique(problem * costs.shape[2] + chosen)) != len(chosen):
        raise TallymillError("assign: two rows have the same column")
    sums = np.zeros(len(costs))
    np.add.at(sums, problem, costs[problem, row, chosen])
    _check_close("assign", sums, wanted[1])
    _check_close("assign", total, wanted[1])
    counts = [np.count_nonzero(one >= 0, axis=1) for one in (column, wanted[0])]
    _check_equal("assign", (complete, undefined, counts[0]), (*wanted[2:], counts[1]))


def _check_close(operation: str, found: NDArray[np.float64], wanted: NDArray[np.float64]) -> None:
    wrong = ~(np.abs(found - wanted) <= 1e-6 * np.maximum(np.abs(wanted), 1))
    if wrong.any():
        at = int(wrong.argmax())
        raise TallymillError(f"{operation}: problem {at} sums to {found[at]}, wanted {wanted[at]}")


def _check_equal(operation: str, found: Result, wanted: Result) -> None:
    for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if not np.array_equal(one, other):
            raise TallymillError(f"{operation}: output {place} is not that of the CPU")


def _sent(arrays: tuple[NDArray[Any], ...], device: str) -> list[Any]:
    import torch

    return [torch.from_numpy(array).to(device) for array in arrays]


def _boxes(rng: np.random.Generator, n: int) -> Floats:
    """Boxes of 10 to 100 pixels a side in an image of 1024x1024."""
    corner, size = rng.uniform(0, 900, (n, 2)), rng.uniform(10, 100, (n, 2))
    return np.concatenate([corner, corner + size], axis=1).astype(np.float32)


def _ellipses(rng: np.random.Generator, n: int, side: int) -> Masks:
    y, x = np.mgrid[:side, :side]
    centre, radius = rng.uniform(0, side, (n, 2)), rng.uniform(0.025, 0.2, (n, 2)) * side
    both = zip(centre, radius, strict=True)
    return Masks.from_arrays(np.array([((y - v) / h) ** 2 + ((x - u) / w) ** 2 <= 1 for (u, v), (w, h) in both]))
