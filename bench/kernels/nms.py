"""Suppression beside torchvision, OpenCV, supervision and a numba loop; soft-NMS, and the call that also counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.bench.pairs import Timing, aligned, in_turns
from tallymill.bench.peers import library
from tallymill.bench.workload import Workload, detections
from tallymill.errors import TallymillError
from tallymill.kernels import paths
from tallymill.kernels.count import accumulate, tally, threshold
from tallymill.kernels.nms import Kept, nms, soft_nms

CASES = ((4096, 300), (256, 900))  # images, proposals of each
CATEGORIES = 2
FLOOR = 0.05
IOU = 0.5
TAU = 1.15
SLOW = 16  # the slowest peers get one image in so many
ROUNDING = 0.005  # OpenCV and supervision round otherwise: this share of boxes may come out differently

Call = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Segments:
    """One segment an image and category, already without what is below FLOOR: what all peers but one call are given."""

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    offsets: NDArray[np.int64]

    def pieces(self) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """The boxes and scores of each."""
        edges = self.offsets[1:-1]
        return list(zip(np.split(self.boxes, edges), np.split(self.scores, edges), strict=True))


def run(cases: tuple[tuple[int, int], ...] = CASES, rounds: int = 5) -> dict[str, Any]:
    """Time ours and every peer on the same images, one thread, in turns; microseconds an image, ratios to ours.

    ``segments``: all are given the same arrays, already cut to what reaches the floor. ``scores``: all are given the
    scores [N, C] of whole images and cut them themselves. ``soft``: soft-NMS of the segments. ``tally``: from scores
    to counts.

    Raises:
        TallymillError: a peer or a path of ours keeps other boxes.
        UsageError: a peer is not installed.
    """
    return {"rounds": rounds, "cases": [_case(images, proposals, rounds) for images, proposals in cases]}


def table(result: dict[str, Any]) -> str:
    """The result of ``run`` for reading."""
    rows = [["nms, one thread: us an image (times ours)", *(f"{case['proposals']} x 2" for case in result["cases"])]]
    titles = {
        "segments": f"proposals from {FLOOR} on",
        "scores": "proposals and scores, cut within",
        "soft": "soft-NMS, linear",
        "tally": "proposals to counts",
    }
    for part, title in titles.items():
        rows.append([title, *("" for _ in result["cases"])])
        for column in zip(*(case[part] for case in result["cases"]), strict=True):
            rows.append([f"  {column[0]['name']}", *(f"{cell['time']:.1f} ({cell['ratio']:.2f})" for cell in column)])
    return aligned(rows)


def _case(images: int, proposals: int, rounds: int) -> dict[str, Any]:
    load = detections(images, proposals, CATEGORIES)
    parts = segments(load)
    few = max(images // SLOW, 1)
    some = segments(Workload(load.boxes[: few * proposals], load.scores[: few * proposals], load.offsets[: few + 1]))
    _right(parts, some)
    whole = {**_paths(parts), "torchvision": _torchvision(parts), "numba": _numba(parts)}
    slow = {"cv2 NMSBoxesBatched": _opencv(some), "supervision": _supervision(some)}
    return {
        "images": images,
        "proposals": proposals,
        "segments": _rows(in_turns(whole | slow, rounds), images, dict.fromkeys(slow, few)),
        "scores": _rows(in_turns(_from_scores(load), rounds), images, {}),
        "soft": _rows(in_turns(_soft(some), rounds), few, {}),
        "tally": _rows(in_turns(_tallies(load), rounds), images, {}),
    }


def segments(load: Workload) -> Segments:
    """Cut a workload to what reaches the floor."""
    boxes, scores, offsets = [], [], [0]
    for start, stop in zip(load.offsets[:-1].tolist(), load.offsets[1:].tolist(), strict=True):
        for column in load.scores[start:stop].T:
            reaching = column >= np.float32(FLOOR)
            boxes.append(load.boxes[start:stop][reaching])
            scores.append(column[reaching])
            offsets.append(offsets[-1] + len(scores[-1]))
    return Segments(np.concatenate(boxes), np.concatenate(scores), np.array(offsets, np.int64))


def _rows(timing: Timing, images: int, fewer: dict[str, int]) -> list[dict[str, Any]]:
    rows = []
    for name, seconds in timing.seconds.items():
        given = fewer.get(name, images)
        ratio = timing.ratios[name] * images / given
        rows.append({"name": name, "time": round(1e6 * seconds / given, 2), "ratio": round(ratio, 3)})
    return rows


def _paths(parts: Segments) -> dict[str, Call]:
    def on(path: str) -> Call:
        return lambda: nms(parts.boxes, parts.scores, parts.offsets, IOU, impl=path)

    return {path: on(path) for path in paths.supported()}


def _torchvision(parts: Segments) -> Call:
    torch, ops = library("torch"), library("torchvision").ops
    torch.set_num_threads(1)
    tensors = [(torch.from_numpy(boxes), torch.from_numpy(scores)) for boxes, scores in parts.pieces()]
    return lambda: [ops.nms(boxes, scores, IOU) for boxes, scores in tensors]


def _numba(parts: Segments) -> Call:
    loop, pieces = _loops()[0], parts.pieces()
    return lambda: [loop(boxes, scores, IOU) for boxes, scores in pieces]


def _opencv(parts: Segments) -> Call:
    batched = library("cv2").dnn.NMSBoxesBatched
    images = []
    for boxes, scores, category in _by_image(parts):
        images.append((np.hstack([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]]).astype(np.float64), scores, category))
    return lambda: [batched(boxes, scores, category, 0.0, IOU) for boxes, scores, category in images]


def _supervision(parts: Segments) -> Call:
    suppress = library("supervision").detection.utils.iou_and_nms.box_non_max_suppression
    images = [np.column_stack([boxes, scores, category]) for boxes, scores, category in _by_image(parts)]
    return lambda: [suppress(predictions, IOU) for predictions in images]


def _by_image(parts: Segments) -> list[tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int32]]]:
    images = []
    for first in range(0, len(parts.offsets) - 1, CATEGORIES):
        edges = parts.offsets[first : first + CATEGORIES + 1]
        category = np.repeat(np.arange(CATEGORIES, dtype=np.int32), np.diff(edges))
        images.append((parts.boxes[edges[0] : edges[-1]], parts.scores[edges[0] : edges[-1]], category))
    return images


def _from_scores(load: Workload) -> dict[str, Call]:
    torch, ops = library("torch"), library("torchvision").ops
    edges = list(zip(load.offsets[:-1].tolist(), load.offsets[1:].tolist(), strict=True))
    images = [(torch.from_numpy(load.boxes[a:b]), torch.from_numpy(load.scores[a:b])) for a, b in edges]

    def cut() -> list[Any]:
        kept = []
        for boxes, scores in images:
            for column in scores.unbind(1):
                reaching = torch.nonzero(column >= FLOOR)[:, 0]
                kept.append(reaching[ops.nms(boxes[reaching], column[reaching], IOU)])
        return kept

    return {"tallymill": lambda: nms(*load, IOU, score_threshold=FLOOR), "torchvision": cut}


def _soft(parts: Segments) -> dict[str, Call]:
    loop, pieces = _loops()[1], parts.pieces()
    given = parts.boxes, parts.scores, parts.offsets
    return {
        "tallymill": lambda: soft_nms(*given),
        "numba": lambda: [loop(boxes, scores, 0.3, 0.001) for boxes, scores in pieces],
        "tallymill, gaussian": lambda: soft_nms(*given, method="gaussian"),
    }


def _tallies(load: Workload) -> dict[str, Call]:
    images = len(load.offsets) - 1
    requested = np.random.default_rng(0).integers(1, 21, (images, CATEGORIES)).astype(np.uint16)

    def in_two_calls() -> Any:
        kept = nms(*load, IOU, score_threshold=FLOOR)
        target = np.tile(np.arange(CATEGORIES, dtype=np.uint8), images).repeat(np.diff(kept.offsets))
        soft, hard = np.zeros(images * CATEGORIES), np.zeros(images * CATEGORIES, np.int64)
        items, targets = kept.offsets[::CATEGORIES], np.arange(0, len(soft) + 1, CATEGORIES)
        confidence = load.scores[kept.indices, target]
        accumulate(confidence, target, items, targets, threshold(requested.ravel()), TAU, soft, hard)
        return soft.reshape(requested.shape), hard.reshape(requested.shape)

    def in_one() -> Any:
        return tally(*load, requested, tau=TAU, iou_threshold=IOU, floor=FLOOR)

    for one, two in zip(in_one(), in_two_calls(), strict=True):
        if not np.array_equal(one, two):
            raise TallymillError("tally: not what nms and accumulate count")
    return {"tally": in_one, "nms and accumulate": in_two_calls}


def _right(parts: Segments, some: Segments) -> None:
    """Refuse to time anything that keeps other boxes than the reference or, for all images, than torchvision."""
    oracle = nms(some.boxes, some.scores, some.offsets, IOU, impl="reference")
    for peer, kept in ((parts, _kept(parts, _torchvision(parts)())), (some, oracle)):
        for path, call in _paths(peer).items():
            ours = call()
            if not (np.array_equal(ours.indices, kept.indices) and np.array_equal(ours.offsets, kept.offsets)):
                raise TallymillError(f"nms: {path} does not keep what the reference and torchvision keep")
    if not np.array_equal(_kept(some, _numba(some)()).indices, oracle.indices):
        raise TallymillError("nms: the numba loop does not keep what the reference keeps")
    counts = {
        "OpenCV": sum(map(len, _opencv(some)())),
        "supervision": sum(int(kept.sum()) for kept in _supervision(some)()),
    }
    for name, count in counts.items():
        if abs(count - len(oracle.indices)) > ROUNDING * len(oracle.indices):
            raise TallymillError(f"nms: {name} keeps {count} boxes, the reference {len(oracle.indices)}")
    ours = soft_nms(some.boxes, some.scores, some.offsets)
    loop = _loops()[1]
    if sum(len(loop(boxes, scores, 0.3, 0.001)) for boxes, scores in some.pieces()) != len(ours.indices):
        raise TallymillError("soft_nms: the numba loop does not take as many boxes")


def _kept(parts: Segments, local: list[Any]) -> Kept:
    """Indices within each segment as those into all boxes."""
    indices = [start + np.asarray(kept) for start, kept in zip(parts.offsets[:-1].tolist(), local, strict=True)]
    return Kept(np.concatenate(indices), np.cumsum([0, *map(len, local)]))


@cache
def _loops() -> tuple[Any, Any]:
    """What one writes with numba: suppression, and linear soft-NMS, of one segment."""
    numba = library("numba")

    @numba.njit(cache=False)  # type: ignore[untyped-decorator]
    def iou(a: Any, b: Any) -> Any:
        width = max(np.float32(0), min(a[2], b[2]) - max(a[0], b[0]))
        height = max(np.float32(0), min(a[3], b[3]) - max(a[1], b[1]))
        shared = width * height
        return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)

    @numba.njit(cache=False)  # type: ignore[untyped-decorator]
    def suppress(boxes: Any, scores: Any, limit: Any) -> Any:
        order = np.argsort(-scores, kind="mergesort")
        gone = np.zeros(len(boxes), np.bool_)
        kept = np.empty(len(boxes), np.int64)
        count = 0
        for place in range(len(order)):
            head = order[place]
            if gone[head]:
                continue
            kept[count] = head
            count += 1
            for other in order[place + 1 :]:
                if not gone[other] and iou(boxes[head], boxes[other]) > limit:
                    gone[other] = True
        return kept[:count]

    @numba.njit(cache=False)  # type: ignore[untyped-decorator]
    def lower(boxes: Any, scores: Any, limit: Any, least: Any) -> Any:
        score = scores.copy()
        kept = np.empty(len(boxes), np.int64)
        for count in range(len(boxes)):
            head = np.argmax(score)
            if score[head] < least:
                return kept[:count]
            kept[count] = head
            score[head] = -1
            for other in range(len(boxes)):
                if score[other] >= least:
                    overlap = iou(boxes[head], boxes[other])
                    if overlap >= limit:
                        score[other] *= np.float32(1) - overlap
        return kept

    return suppress, lower
