"""What a gallery of scored images shows: one ``Card`` an image, with the boxes that count towards its score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

WORST, TYPICAL, RANDOM = GROUPS = ("worst", "typical", "random")


@dataclass(frozen=True, slots=True)
class Layer:
    """One detector's boxes of an image that count towards n^ (rho >= T).

    ``boxes`` float [P, 4] xyxy in pixels of the upright image, ``target`` int [P] from 0. For each target ``soft`` is
    the sum of their calibrated confidences, None where the detector does not cover the category.
    """

    detector: str
    boxes: NDArray[np.float32]
    target: NDArray[np.int64]
    soft: tuple[float | None, ...]

    def number(self, target: int) -> int:
        """How many boxes of one target there are."""
        return int((self.target == target).sum())


@dataclass(frozen=True, slots=True)
class Asked:
    """One target of an image: what was asked for, and the ensemble's soft and hard counts."""

    category: str | None
    requested: int
    soft: float | None
    hard: float | None


@dataclass(frozen=True, slots=True)
class Card:
    """One image of the gallery. ``width`` and ``height`` are those of the upright original, which boxes refer to.

    ``thumbnail`` is the bytes of a WebP file; None where the image could not be read, and then ``reason`` says why.
    """

    system: str
    group: str
    item_id: str
    composition: str
    count_range: str
    stress_test: bool
    factors: tuple[str, ...]
    prompt: str | None
    cw_nps: float
    b_nps: float
    asked: tuple[Asked, ...]
    layers: tuple[Layer, ...]
    width: int
    height: int
    thumbnail: bytes | None = None
    thumbnail_size: tuple[int, int] = (0, 0)
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Gallery:
    """The cards of all systems with what a reader must know about them.

    ``detectors`` are those of all RUNs in order of appearance. ``wanted`` is the number of images a group and system
    that was asked for, ``shown`` the number that the limit on the whole report left of it; ``left_out`` are systems
    that have no gallery because of that limit.
    """

    cards: tuple[Card, ...] = ()
    detectors: tuple[str, ...] = ()
    wanted: int = 0
    shown: int = 0
    left_out: tuple[str, ...] = field(default=())


def outline(boxes: NDArray[np.float32], size: tuple[int, int], scale: float) -> str:
    """SVG path data of boxes [P, 4], each cut at the border of an image of ``size`` (width, height) pixels.

    Coordinates are multiplied by ``scale`` and rounded to whole units. Boxes outside the image leave nothing.
    """
    limit = np.array([*size, *size], np.float64)
    cut = np.clip(np.asarray(boxes, np.float64).reshape(-1, 4), 0.0, limit)
    inside = (cut[:, 2] > cut[:, 0]) & (cut[:, 3] > cut[:, 1])
    whole = np.rint(cut[inside] * scale).astype(np.int64).tolist()
    return "".join(f"M{x1} {y1}H{x2}V{y2}H{x1}z" for x1, y1, x2, y2 in whole)


def box_paths(card: Card, detectors: Sequence[str], units: int = 1000) -> list[tuple[int, int, str]]:
    """(place of the detector, target, path data) of every layer and target that has boxes.

    The longer side of the image is ``units`` long.
    """
    longest = max(card.width, card.height, 1)
    paths = []
    for layer in card.layers:
        place = detectors.index(layer.detector)
        for target in range(len(card.asked)):
            path = outline(layer.boxes[layer.target == target], (card.width, card.height), units / longest)
            if path:
                paths.append((place, target, path))
    return paths
