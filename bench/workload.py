"""Made-up outputs of detectors: proposals, crowds of jittered boxes around objects, and strays; and raw logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SIDE = 1024.0
AROUND_OBJECTS = 0.55  # the share of proposals that belong to an object


class Workload(NamedTuple):
    """``boxes`` float32 [N, 4] xyxy in pixels; ``scores`` float32 [N, C]; ``offsets`` int64 [I+1] into both."""

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    offsets: NDArray[np.int64]


def detections(images: int, proposals: int, categories: int = 2, seed: int = 0) -> Workload:
    """``proposals`` boxes for each of ``images`` images, scored for ``categories`` categories, in random order.

    An image has nine objects on average, 24 to 320 pixels a side. Proposals around one are shifted by a tenth of its
    size and score high for its category; the others lie anywhere and score low.
    """
    rng = np.random.default_rng(seed)
    drawn = [_image(rng, proposals, categories) for _ in range(images)]
    boxes = np.concatenate([boxes for boxes, _ in drawn]).astype(np.float32)
    scores = np.concatenate([scores for _, scores in drawn]).astype(np.float32)
    return Workload(boxes, scores, np.arange(images + 1, dtype=np.int64) * proposals)


def raw_outputs(windows: int, length: int, width: int, named: int, seed: int = 0) -> dict[str, Any]:
    """Arguments of ``kernels.candidates`` but the floor: two requests a window, each of ``named`` of ``width`` columns.

    One box in fifty answers a request well, with a logit about 0; those of all others are about -7.
    """
    rng = np.random.default_rng(seed)
    logits = rng.normal(-7, 1, (windows, length, width)).astype(np.float32)
    logits += 7 * (rng.random((windows, length, 1), np.float32) < 0.02)
    first = 1 if width > 2 * named else 0  # a text begins with a token that names nothing
    boxes = rng.uniform(0.05, 0.95, (windows, length, 4)) * [1, 1, 0.3, 0.3]
    return {
        "logits": logits,
        "boxes": boxes.astype(np.float32),
        "columns": np.tile(first + np.arange(2 * named, dtype=np.int32), windows),
        "edges": np.arange(2 * windows + 1, dtype=np.int32) * np.int32(named),
        "requests": np.arange(windows + 1, dtype=np.int32) * np.int32(2),
        "scale": np.tile(np.array([640, 480, 640, 480], np.float32), (windows, 1)),
    }


def _image(
    rng: np.random.Generator, proposals: int, categories: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    objects = rng.poisson(8) + 1
    near = int(proposals * AROUND_OBJECTS)
    of_object = rng.integers(0, objects, near)
    category = rng.integers(0, categories, objects)
    size = np.exp(rng.uniform(np.log(24), np.log(320), (objects, 2)))[of_object]
    center = rng.uniform(50, SIDE - 50, (objects, 2))[of_object] + rng.normal(0, 0.1, (near, 2)) * size
    size = size * np.exp(rng.normal(0, 0.15, (near, 2)))
    strays = proposals - near
    center = np.concatenate([center, rng.uniform(0, SIDE, (strays, 2))])
    size = np.concatenate([size, np.exp(rng.uniform(np.log(12), np.log(300), (strays, 2)))])
    boxes = np.clip(np.concatenate([center - size / 2, center + size / 2], axis=1), 0, SIDE)
    boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 1)
    scores = rng.beta(0.6, 6, (proposals, categories))
    scores[np.arange(near), category[of_object]] = np.clip(1 - np.abs(rng.normal(0, 0.35, near)), 0.02, 0.99)
    shuffled = rng.permutation(proposals)
    return boxes[shuffled], scores[shuffled]
