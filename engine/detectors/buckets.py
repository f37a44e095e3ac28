"""Images of any shape in graphs of fixed shapes: the size rule of the DETR line, and the bucket an image is put in.

The originals pad a batch to its largest image, so that what an image answers depends on its neighbours. Here the
bucket depends on the image alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from tallymill.errors import ModelError

Size = tuple[int, int]
LONGEST = 8192  # pixels of a side


class Buckets:
    """The sizes (height, width) that the graphs of a model have; the smallest that holds an image is its bucket."""

    def __init__(self, sizes: Sequence[Size]) -> None:
        """Raises ``ValueError`` when there are none, or a side is not positive."""
        if not sizes or min(map(min, sizes)) < 1:
            raise ValueError(f"buckets {list(sizes)!r}: wanted pairs of positive heights and widths")
        self.sizes: tuple[Size, ...] = tuple(sorted(set(sizes), key=lambda size: (size[0] * size[1], size)))

    @staticmethod
    def rule(height: int, width: int, shortest: int, longest: int) -> Size:
        """Size of an image after resizing: its shorter side becomes ``shortest`` unless the longer then passes
        ``longest``, to which it is held.

        Roundings are those of the image processors of transformers: the shorter side to the nearest, the longer down,
        and nothing is done where the shorter is right already. That can leave the longer side a little above
        ``longest`` (268 x 1335 stays) or the shorter without a pixel: here both are held, so that every image has a
        place.
        """
        low, high = min(height, width), max(height, width)
        side: float = shortest
        if high / low * shortest > longest:
            side = longest * low / high
        short = round(side)
        long = high if short == low else int(side * high / low)
        short, long = max(short, 1), min(long, longest)
        return (long, short) if width < height else (short, long)

    def of(self, height: int, width: int) -> Size:
        """The bucket of a resized image. Raises ``ModelError`` when it is larger than each of them."""
        for size in self.sizes:
            if height <= size[0] and width <= size[1]:
                return size
        buckets = ", ".join(name(size) for size in self.sizes)
        raise ModelError(
            f"an image that is resized to {height} x {width} fits none of the sizes exported: {buckets}",
            hint="export the model with --buckets for such images",
        )


def name(size: Size) -> str:
    """Height x width, as buckets are written on the command line and in the names of parts: ``800x1333``."""
    return f"{size[0]}x{size[1]}"


def parse(text: str) -> Size:
    """The reverse of ``name``. Raises ``ValueError`` that says what is wrong."""
    height, _, width = text.strip().partition("x")
    if not (height.isascii() and width.isascii() and height.isdigit() and width.isdigit()):
        raise ValueError(f"{text!r} is not a height and a width in pixels, such as 800x1333")
    if max(len(height), len(width)) > 9 or max(int(height), int(width)) > LONGEST:  # before a number of any length
        raise ValueError(f"{text[:60]!r} has a side above {LONGEST} pixels, more than any of these models takes")
    if not (int(height) and int(width)):
        raise ValueError(f"{text!r} has no pixels")
    return int(height), int(width)
