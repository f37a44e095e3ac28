"""Bit-packed masks, and how they come from arrays, COCO run lengths and panoptic images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.kernels import arguments
from tallymill.kernels.mask_iou import cpu, reference, rle
from tallymill.kernels.mask_iou.device import DeviceMasks, moved

MAX_SIDE = 2**31 - 8


@dataclass(frozen=True, slots=True, eq=False)
class Masks:
    """K masks of one size, each kept only inside its box, as tiles of 8x8 pixels of one bit each.

    ``words`` uint64 [N]: pixel (x, y) is bit 8*(y%8) + x%8 of the word of tile (x//8, y//8); the tiles that the box
    touches follow one another row by row from ``start`` int64 [K] on. ``area`` int64 [K] in pixels. ``box`` int32
    [K, 4]: x1, y1, x2, y2 in pixels, the ends excluded, as tight as can be; zeros for an empty mask. ``height`` and
    ``width`` of the image in pixels. The arrays are read-only. ``masks[index]``, with what indexes a NumPy array of
    one dimension, is a set of masks that shares the words. Not checked is that words hold no bit outside a box, and as
    many as ``area`` says. What masks are made from must not be changed by other threads meanwhile.
    """

    words: NDArray[np.uint64]
    start: NDArray[np.int64]
    area: NDArray[np.int64]
    box: NDArray[np.int32]
    height: int
    width: int

    def __post_init__(self) -> None:
        # Once checked, they need no checks in the operations: native code reads where these say. So what says where is
        # our own; a word that somebody changes later changes a mask, and nothing else.
        _check_size(self.height, self.width)
        start = arguments.array("start", self.start, np.int64, None).copy()
        words = arguments.array("words", self.words, np.uint64, None)
        area = arguments.array("area", self.area, np.int64, len(start)).copy()
        box = arguments.array("box", self.box, np.int32, len(start), 4).copy()
        extent = box.astype(np.int64)
        most = (extent[:, 2] - extent[:, 0]) * (extent[:, 3] - extent[:, 1])
        if ((area < 0) | (area > most)).any():
            at = int(((area < 0) | (area > most)).argmax())
            raise ValueError(f"area: {area[at]} pixels cannot be mask {at}'s, whose box is {box[at].tolist()}")
        at = cpu.misplaced(box, start, len(words), self.height, self.width)
        if at >= 0:
            raise ValueError(
                f"box, start: {box[at].tolist()} in an image of {self.height}x{self.width}, "
                f"with words from {start[at]} on, cannot be mask {at} of {len(words)} words"
            )
        for name, value in (("words", words), ("start", start), ("area", area), ("box", box)):
            view = value.view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and what comes out of a pickle are checked, and read-only, as well."""
        return Masks, (self.words, self.start, self.area, self.box, self.height, self.width)

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, index: Any) -> Masks:
        chosen = np.atleast_1d(np.arange(len(self))[index])
        return Masks(self.words, self.start[chosen], self.area[chosen], self.box[chosen], self.height, self.width)

    @classmethod
    def from_arrays(cls, arrays: NDArray[Any]) -> Masks:
        """Pack ``arrays`` bool or uint8 [K, H, W], where any value but 0 is inside."""
        if isinstance(arrays, np.ndarray) and arrays.dtype == np.bool_:
            arrays = arrays.view(np.uint8)
        arrays = arguments.array("arrays", arrays, np.uint8, None, None, None)
        _check_size(*arrays.shape[1:])
        # Nothing to look through where an image has no pixels, however long its other side is.
        box = cpu.measure_arrays(arrays) if arrays.size else np.zeros((len(arrays), 4), np.int32)
        start, words = cpu.lay_out(box)
        return cls(words, start, cpu.pack_arrays(arrays, box, start, words), box, *arrays.shape[1:])

    @classmethod
    def from_boxes(cls, boxes: NDArray[Any], height: int, width: int) -> Masks:
        """Pack rectangles: ``boxes`` int64 [K, 4] in pixels of an image, as in ``box``. One without pixels is empty.

        No image is laid out. A box that is not inside the image is a ValueError.
        """
        boxes = arguments.array("boxes", boxes, np.int64, None, 4)
        _check_size(height, width)
        outside = (boxes < 0).any(axis=1) | (boxes[:, 2:] > [width, height]).any(axis=1)
        if outside.any():
            at = int(outside.argmax())
            raise ValueError(f"boxes: {boxes[at].tolist()}, box {at}, is not inside an image of {height}x{width}")
        sides = np.clip(boxes[:, 2:] - boxes[:, :2], 0, None)
        area = sides.prod(axis=1)
        box = np.where(area[:, None] > 0, boxes, 0).astype(np.int32)
        start, words = cpu.lay_out(box)
        for first, (x1, y1, x2, y2) in zip(start.tolist(), box.tolist(), strict=True):
            if x1 < x2:
                # A bit a row of a tile, eight apart, times a bit a column: a bit a pixel.
                tiles = np.multiply.outer(_inside(y1, y2, 8), _inside(x1, x2, 1)).ravel()
                words[first : first + len(tiles)] = tiles
        return cls(words, start, area, box, height, width)

    @classmethod
    def from_rle(cls, rles: Sequence[dict[str, Any]], size: tuple[int, int] | None = None) -> Masks:
        """Pack COCO run lengths: dicts of ``size`` [H, W] and ``counts``.

        ``counts`` are runs down the columns from the left to the right, outside first, as a list or integer array, or
        compressed as a str or bytes. All sizes must be equal, and equal to ``size`` (H, W) where it is given; it is
        needed for no masks at all. ValueError names the mask that is wrong.
        """
        height, width = rle.size_of(rles, size)
        _check_size(height, width)
        counts, offsets = rle.counts_of(rles, height * width)
        box, area, wrong = cpu.measure_rle(counts, offsets, height, width)
        if wrong >= 0:
            raise rle.uncovered(wrong, counts[offsets[wrong] : offsets[wrong + 1]], height, width)
        start, words = cpu.lay_out(box)
        cpu.pack_rle(counts, offsets, height, box, start, words)
        return cls(words, start, area, box, height, width)

    @classmethod
    def from_panoptic(
        cls, image: NDArray[Any], ids: Sequence[int] | NDArray[Any], allow_missing: bool = False
    ) -> Masks:
        """Pack one mask for each of ``ids``: the pixels that have it.

        ``image`` is a panoptic PNG as uint8 [H, W, 3] (see :func:`panoptic_ids`) or a map of ids, uint32 [H, W]. An
        id that is named twice, or that no pixel has, is a ValueError; with ``allow_missing`` the latter gives an empty
        mask.
        """
        if isinstance(image, np.ndarray) and image.ndim == 3:
            image = arguments.array("image", image, np.uint8, None, None, 3)
        else:
            image = arguments.array("image", image, np.uint32, None, None)
        height, width = image.shape[:2]
        _check_size(height, width)
        wanted = _ids(ids)
        order = np.argsort(wanted)
        rising = wanted[order]
        if (rising[1:] == rising[:-1]).any():
            raise ValueError(f"ids: {rising[1:][rising[1:] == rising[:-1]][0]} is named twice")
        box, area = cpu.measure_ids(image, rising)
        if not allow_missing and not area.all():
            raise ValueError(f"ids: no pixel of the image has {rising[int(area.argmin())]}")
        start, words = cpu.lay_out(box)
        cpu.pack_ids(image, rising, box, start, words)
        place = np.argsort(order)
        return cls(words, start[place], area[place], box[place], height, width)

    def to_arrays(self) -> NDArray[np.bool_]:
        """Unpack to bool [K, H, W]."""
        return reference.unpack(self.words, self.start, self.box, self.height, self.width)

    def to_rle(self) -> list[dict[str, Any]]:
        """COCO run lengths, compressed: dicts of ``size`` [H, W] and ``counts`` as str (see ``from_rle``)."""
        size = [self.height, self.width]
        return [
            {"size": size, "counts": rle.compressed(rle.runs_of(self[k].to_arrays()[0], box))}
            for k, box in enumerate(self.box)
        ]

    def to(self, device: Any) -> DeviceMasks:
        """Copy to the memory of ``device``, as torch names it ("cuda", "cuda:1"), for ``impl="gpu"``."""
        return moved(self, device)


def panoptic_ids(rgb: NDArray[Any]) -> NDArray[np.uint32]:
    """Return the segment id of each pixel of a COCO panoptic PNG: uint32 [H, W], R + 256 G + 65536 B.

    ``rgb`` uint8 [H, W, 3].
    """
    return cpu.ids_of_colours(arguments.array("image", rgb, np.uint8, None, None, 3))


def _inside(first: int, last: int, step: int) -> NDArray[np.uint64]:
    """Of each run of eight rows or columns that ``first`` to ``last`` touch, those inside: bit ``step`` * place."""
    places = np.arange(first // 8 * 8, -(-last // 8) * 8).reshape(-1, 8)
    bits = np.uint64(1) << np.arange(0, 8 * step, step, dtype=np.uint64)
    inside = (places >= first) & (places < last)
    return np.asarray(np.where(inside, bits, np.uint64(0)).sum(axis=1), np.uint64)


def _ids(ids: Sequence[int] | NDArray[Any]) -> NDArray[np.uint32]:
    values = np.asarray(ids)
    if values.size == 0:
        return np.empty(0, np.uint32)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise TypeError(f"ids: wanted integers in a sequence, got {values.dtype} of shape {list(values.shape)}")
    arguments.within("ids", values, 0, 2**32 - 1, "[0, 2^32)")
    return values.astype(np.uint32)


def _check_size(height: int, width: int) -> None:
    if not (0 <= height <= MAX_SIDE and 0 <= width <= MAX_SIDE):
        raise ValueError(f"size: wanted sides of 0 to {MAX_SIDE} pixels, got {height}x{width}")
