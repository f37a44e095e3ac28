"""Intersection over union of bit-packed masks in Triton: one program a mask of ``a`` and a group of masks of ``b``.

The boxes of the whole group are tested at once, and the program leaves at once where none meets. For each of those that
do, the lanes share out the tiles that both boxes touch. All is integers but the one division, so that every result is
that of the CPU to the bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from tallymill.kernels import tensors
from tallymill.kernels.configurations import Configuration

if TYPE_CHECKING:
    from tallymill.kernels.mask_iou.device import DeviceMasks


@triton.jit
def _bits(word):
    """Count the ones of uint64. LLVM knows this idiom, and makes one instruction of it."""
    word = word - ((word >> 1) & 0x5555555555555555)
    word = (word & 0x3333333333333333) + ((word >> 2) & 0x3333333333333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F0F0F0F0F
    return ((word * 0x0101010101010101) >> 56).to(tl.int32)


@triton.jit
def _common_pixels(a_words, a_columns, b_words, b_columns, columns, rows, WORDS: tl.constexpr):
    """Pixels in both of two masks, whose words point to the first common tile."""
    count = tl.zeros([WORDS], tl.int32)
    for first in range(0, columns * rows, WORDS):
        tile = first + tl.arange(0, WORDS)
        inside = tile < columns * rows
        row = tile // columns
        column = tile - row * columns
        a = tl.load(a_words + row * a_columns + column, mask=inside, other=0)
        b = tl.load(b_words + row * b_columns + column, mask=inside, other=0)
        count += _bits((a & b).to(tl.uint64, bitcast=True))
    return tl.sum(count, axis=0)


@triton.jit(do_not_specialize=["b_size"])
def _mask_iou(
    a_words,
    a_start,
    a_area,
    a_box,
    b_words,
    b_start,
    b_area,
    b_box,
    iou,
    b_size: tl.int32,
    GROUP: tl.constexpr,
    WORDS: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, GROUP)
    others = tl.program_id(1) * GROUP + lane
    real = others < b_size
    x1, y1 = tl.load(a_box + 4 * i), tl.load(a_box + 4 * i + 1)
    x2, y2 = tl.load(a_box + 4 * i + 2), tl.load(a_box + 4 * i + 3)
    # The corners of the common boxes; those of masks that are not there have no extent.
    left = tl.maximum(x1, tl.load(b_box + 4 * others, mask=real, other=0))
    top = tl.maximum(y1, tl.load(b_box + 4 * others + 1, mask=real, other=0))
    right = tl.minimum(x2, tl.load(b_box + 4 * others + 2, mask=real, other=0))
    bottom = tl.minimum(y2, tl.load(b_box + 4 * others + 3, mask=real, other=0))
    left_to_do = tl.where((left < right) & (top < bottom), lane, GROUP)

    a_columns = (x2 + 7) // 8 - x1 // 8
    a_first = a_words + tl.load(a_start + i)
    common = tl.zeros([GROUP], tl.int32)
    member = tl.min(left_to_do, axis=0)
    while member < GROUP:
        j = (tl.program_id(1) * GROUP + member).to(tl.int64)
        bx1, by1 = tl.load(b_box + 4 * j), tl.load(b_box + 4 * j + 1)
        bx2, by2 = tl.load(b_box + 4 * j + 2), tl.load(b_box + 4 * j + 3)
        b_columns = (bx2 + 7) // 8 - bx1 // 8
        column, row = tl.maximum(x1, bx1) // 8, tl.maximum(y1, by1) // 8
        columns, rows = (tl.minimum(x2, bx2) + 7) // 8 - column, (tl.minimum(y2, by2) + 7) // 8 - row
        a_tile = (row - y1 // 8) * a_columns + (column - x1 // 8)
        b_tile = (row - by1 // 8) * b_columns + (column - bx1 // 8)
        b_first = b_words + tl.load(b_start + j)
        pixels = _common_pixels(a_first + a_tile, a_columns, b_first + b_tile, b_columns, columns, rows, WORDS)
        common = tl.where(lane == member, pixels, common)
        left_to_do = tl.where(lane == member, GROUP, left_to_do)
        member = tl.min(left_to_do, axis=0)

    either = tl.load(a_area + i) + tl.load(b_area + others, mask=real, other=0) - common
    # Nothing over nothing is 0. Division of float64 is rounded correctly as it is.
    result = common.to(tl.float64) / tl.maximum(either, 1).to(tl.float64)
    tl.store(iou + i * b_size + others, result, mask=real)


def _configuration(group: int) -> Configuration:
    side = {"words": "*i64", "start": "*i64", "area": "*i64", "box": "*i32"}
    sides = {f"{one}_{name}": kind for one in "ab" for name, kind in side.items()}
    return Configuration(
        f"groups of {group}",
        _mask_iou,
        {**sides, "iou": "*fp64", "b_size": "i32"},
        {"GROUP": group, "WORDS": 64},
        num_warps=1,
        divisible=(*sides, "iou"),
    )


# Few masks need many programs to fill a card, many masks a vector of boxes to be tested at once.
SMALL, LARGE = CONFIGURATIONS = (_configuration(2), _configuration(32))
MANY_PAIRS = 1 << 18


def mask_iou(a: DeviceMasks, b: DeviceMasks) -> Any:
    """Float64 [n, m] on the device of the masks."""
    device = tensors.place("mask_iou", a=a.words, b=b.words)
    torch = tensors.torch()
    iou = torch.empty((len(a), len(b)), dtype=torch.float64, device=device)
    configuration = LARGE if len(a) * len(b) >= MANY_PAIRS else SMALL
    if iou.numel():
        grid = (len(a), triton.cdiv(len(b), configuration.constexprs["GROUP"]))
        sides = (a.words, a.start, a.area, a.box, b.words, b.start, b.area, b.box)
        configuration.launch(grid, *sides, iou, len(b))
    return iou
