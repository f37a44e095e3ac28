"""Retained boxes drawn over an image, for a person to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from tallymill.kernels.floats import float_not_below

Colour = tuple[int, int, int]

# Okabe and Ito's palette without its yellow and black: told apart by colour-blind readers, visible on photographs.
PALETTE: tuple[Colour, ...] = (
    (213, 94, 0),
    (86, 180, 233),
    (0, 158, 115),
    (204, 121, 167),
    (230, 159, 0),
    (0, 114, 178),
)
PAPER, INK = (255, 255, 255), (20, 20, 20)


@dataclass(frozen=True, slots=True)
class BoxLayer:
    """One detector's boxes: float [P, 4] xyxy in pixels of the image, with confidence float [P]."""

    name: str
    boxes: NDArray[np.float32]
    confidence: NDArray[np.float32]


def draw_boxes(
    rgb: NDArray[np.uint8], layers: Sequence[BoxLayer], title: str, *, threshold: float = 0.5
) -> Image.Image:
    """The image under a strip with the title and a legend, with each layer's boxes in a colour of its own.

    ``rgb`` uint8 [H, W, 3]. Only boxes with confidence >= ``threshold`` are drawn, and the legend says how many.
    Layers after the sixth start the colours again.
    """
    height, width = rgb.shape[:2]
    text = max(11, width // 52)
    line = max(2, round(min(height, width) / 400))
    strip = round(3.6 * text)
    page = Image.new("RGB", (width, height + strip), PAPER)
    page.paste(Image.fromarray(rgb), (0, strip))
    pen = ImageDraw.Draw(page)
    font = ImageFont.load_default(text)
    pen.text((text // 2, round(0.3 * text)), title, fill=INK, font=font)
    left = float(text // 2)
    for k, layer in enumerate(layers):
        colour = PALETTE[k % len(PALETTE)]
        kept = layer.boxes[layer.confidence >= float_not_below(threshold)]
        for box in kept:
            _outline(pen, box, strip, (width, height), colour, line)
        left = _legend(pen, left, strip, text, f"{layer.name}: {len(kept)} boxes", colour, font)
    return page


def _outline(
    pen: ImageDraw.ImageDraw,
    box: NDArray[np.float32],
    strip: int,
    size: tuple[int, int],
    colour: Colour,
    line: int,
) -> None:
    # Boxes may reach past the image; what is drawn stays inside it, so that every edge can be seen.
    x1, x2 = (min(max(round(float(v)), 0), size[0] - 1) for v in (box[0], box[2]))
    y1, y2 = (min(max(round(float(v)), 0), size[1] - 1) for v in (box[1], box[3]))
    if x1 <= x2 and y1 <= y2:
        pen.rectangle((x1, y1 + strip, x2, y2 + strip), outline=colour, width=line)


def _legend(
    pen: ImageDraw.ImageDraw,
    left: float,
    strip: int,
    text: int,
    words: str,
    colour: Colour,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
) -> float:
    top = strip - round(1.7 * text)
    pen.rectangle((left, top + text // 6, left + text, top + text + text // 6), fill=colour)
    pen.text((left + 1.5 * text, top), words, fill=INK, font=font)
    return left + 3 * text + pen.textlength(words, font=font)
