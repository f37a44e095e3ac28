"""Ambiguity: the crop of an instance that not both detectors confirmed, and the yes or no question about it.

ABACUS, stage 4. The model that is asked sees one crop; it neither counts nor judges the edit.
"""

from __future__ import annotations

import re
from typing import Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

RGB = NDArray[np.uint8]
PROMPT = "Is the main object in this image {article} {category}? Answer with one word: yes or no."
_THOUGHT = re.compile(r".*</think>", re.DOTALL)
_WORD = re.compile(r"\W*(yes|no)\b\W*", re.IGNORECASE)
_MOST_DOUBLINGS = 6


class Upscaler(Protocol):
    """Makes images larger: ``upscale`` takes RGB uint8 [H, W, 3] and gives its sides times ``scale``."""

    scale: int

    def upscale(self, image: RGB) -> RGB:
        """RGB uint8 [H, W, 3] -> uint8 [scale H, scale W, 3]."""
        ...


def crop(image: RGB, box: NDArray[np.float32], scale: float, side: int, upscaler: Upscaler | None) -> RGB:
    """The part of an image around a box, its sides times ``scale`` and cut at the image's, with a short side of at
    least ``side`` pixels: super-resolved until it is, or bicubic without an upscaler.
    """
    height, width = image.shape[:2]
    x1, y1, x2, y2 = (float(edge) for edge in box)
    grow = (scale - 1) / 2
    left, right = (int(np.clip(np.rint(x), 0, width)) for x in (x1 - grow * (x2 - x1), x2 + grow * (x2 - x1)))
    top, bottom = (int(np.clip(np.rint(y), 0, height)) for y in (y1 - grow * (y2 - y1), y2 + grow * (y2 - y1)))
    left, top = min(left, width - 1), min(top, height - 1)
    part = np.ascontiguousarray(image[top : max(bottom, top + 1), left : max(right, left + 1)])
    return _enlarged(part, side, upscaler)


def _enlarged(part: RGB, side: int, upscaler: Upscaler | None) -> RGB:
    if upscaler is not None:
        for _ in range(_MOST_DOUBLINGS):
            if min(part.shape[:2]) >= side:
                return part
            part = upscaler.upscale(part)
    short = min(part.shape[:2])
    if short >= side:
        return part
    size = tuple(max(side, round(length * side / short)) for length in part.shape[1::-1])
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
