"""Ambiguity: the crop of an instance that not both detectors confirmed, and the yes or no question about it.

ABACUS, stage 4. The model that is asked sees one crop; it neither counts nor judges the edit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from tallymill.errors import ModelError

RGB = NDArray[np.uint8]
PROMPT = "Is the main object in this image {article} {category}? Answer with one word: yes or no."
_THOUGHT = re.compile(r".*</think>", re.DOTALL)
_WORD = re.compile(r"\W*(yes|no)\b\W*", re.IGNORECASE)
_MOST_DOUBLINGS = 6
MOST_PIXELS = 1 << 22  # of a crop that is made larger; no model that is asked looks at as many


class Upscaler(Protocol):
    """Makes images larger: ``upscale`` takes RGB uint8 [H, W, 3] and gives its sides times ``scale``."""

    scale: int

    def upscale(self, image: RGB) -> RGB:
        """RGB uint8 [H, W, 3] -> uint8 [scale H, scale W, 3]. Raises ``ModelError`` where it cannot."""
        ...


@dataclass(frozen=True, slots=True)
class Crop:
    """The ``pixels`` to ask about, and why they are not all that the upscaler would have made of them, if so."""

    pixels: RGB
    fault: str | None


def crop(image: RGB, box: NDArray[np.float32], scale: float, side: int, upscaler: Upscaler | None) -> Crop:
    """The part of an image around a box, its sides times ``scale`` and cut at the image's, with a short side of at
    least ``side`` pixels: super-resolved until it is, or bicubic without an upscaler.

    Bicubic interpolation also finishes what the upscaler cannot, and what it would make larger than ``MOST_PIXELS``;
    a crop so thin that the short side would take more pixels than that ends with fewer. ``fault`` says so.
    """
    height, width = image.shape[:2]
    x1, y1, x2, y2 = (float(edge) for edge in box)
    grow = (scale - 1) / 2
    left, right = (int(np.clip(np.rint(x), 0, width)) for x in (x1 - grow * (x2 - x1), x2 + grow * (x2 - x1)))
    top, bottom = (int(np.clip(np.rint(y), 0, height)) for y in (y1 - grow * (y2 - y1), y2 + grow * (y2 - y1)))
    left, top = min(left, width - 1), min(top, height - 1)
    part = np.ascontiguousarray(image[top : max(bottom, top + 1), left : max(right, left + 1)])
    fault = None
    if upscaler is not None:
        part, fault = _super_resolved(part, side, upscaler)
    found = _interpolated(part, side)
    height, width = found.shape[:2]
    if min(height, width) < side:
        fault = f"ends at {height} x {width}: more than {MOST_PIXELS} pixels"
    return Crop(found, fault)


def _super_resolved(part: RGB, side: int, upscaler: Upscaler) -> tuple[RGB, str | None]:
    """As large as asked for, or as the upscaler makes it, and why no larger."""
    for _ in range(_MOST_DOUBLINGS):
        height, width = part.shape[:2]
        if min(height, width) >= side:
            break
        if height * width * upscaler.scale**2 > MOST_PIXELS:
            return part, f"bicubic from {height} x {width}: more than {MOST_PIXELS} pixels"
        try:
            part = upscaler.upscale(part)
        except ModelError as exc:
            return part, f"bicubic from {height} x {width}: {exc.message}"
    return part, None


def _interpolated(part: RGB, side: int) -> RGB:
    height, width = part.shape[:2]
    short = min(height, width)
    if short >= side:
        return part
    size = tuple(max(side, round(length * side / short)) for length in (width, height))
    if size[0] * size[1] > MOST_PIXELS:
        factor = max(MOST_PIXELS / (height * width), 1.0) ** 0.5
        size = (max(int(width * factor), 1), max(int(height * factor), 1))
    return np.asarray(cv2.resize(part, size, interpolation=cv2.INTER_CUBIC), np.uint8)


def question(category: str) -> str:
    """What is asked of a crop."""
    return PROMPT.format(article="an" if category[:1] in "aeiou" else "a", category=category)


def parse_answer(text: str | None) -> bool | None:
    """True for yes, False for no, None for what is neither: an answer is one word, after any thoughts."""
    if not isinstance(text, str):
        return None
    word = _WORD.fullmatch(_THOUGHT.sub("", text).strip())
    return None if word is None else word[1].lower() == "yes"
