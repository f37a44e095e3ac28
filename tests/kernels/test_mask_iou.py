"""Masks and their IoU: every implementation against the reference, packing against NumPy, cases worked by hand."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tallymill.errors import UsageError
from tallymill.kernels import mask_iou as operation
from tallymill.kernels.mask_iou import Masks, mask_iou, panoptic_ids, reference, select

Bools = NDArray[np.bool_]
EACH = pytest.mark.parametrize("impl", ["cpu", "portable", "reference"])

# One mask of area 3, from a public example: as a list, a str and bytes.
COLUMN = [[0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
COUNTS: list[Any] = [[3, 2, 1, 1, 5], "321O4", b"321O4"]


def drawn(rng: np.random.Generator, masks: int, height: int, width: int) -> Bools:
    """Noise, dense or sparse, in boxes that lie anywhere; the first mask is empty and the last one full."""
    arrays = np.zeros((masks, height, width), np.bool_)
    for array in arrays:
        y1, y2 = np.sort(rng.integers(0, height + 1, 2))
        x1, x2 = np.sort(rng.integers(0, width + 1, 2))
        array[y1:y2, x1:x2] = rng.random((y2 - y1, x2 - x1)) < rng.choice([0.02, 0.5, 0.98, 1.0])
    arrays[:1] = False
    arrays[-1:] = True
    return arrays


def runs(array: Bools) -> list[int]:
    """COCO's counts of one mask."""
    pixels = np.concatenate([[False], array.ravel(order="F")])
    changes = np.flatnonzero(np.diff(pixels)).tolist()
    return np.diff([0, *changes, array.size]).tolist()


def compressed(counts: list[int]) -> str:
    """COCO's text for counts."""
    text = ""
    for k, count in enumerate(counts):
        value = count - counts[k - 2] if k > 2 else count
        more = True
        while more:
            group, value = value & 31, value >> 5
            more = value != (-1 if group & 16 else 0)
            text += chr(48 + group + (32 if more else 0))
    return text


def rles(arrays: Bools, form: type = list) -> list[dict[str, Any]]:
    size = list(arrays.shape[1:])
    counts: list[Any] = [runs(array) for array in arrays]
    if form is not list:
        counts = [compressed(own) for own in counts]
    if form is bytes:
        counts = [text.encode() for text in counts]
    return [{"size": size, "counts": own} for own in counts]


def boxes_of(arrays: Bools) -> list[list[int]]:
    found = []
    for array in arrays:
        y, x = np.nonzero(array)
        found.append([int(x.min()), int(y.min()), int(x.max()) + 1, int(y.max()) + 1] if len(y) else [0, 0, 0, 0])
    return found


def assert_packed(masks: Masks, arrays: Bools) -> None:
    assert len(masks) == len(arrays)
    assert (masks.height, masks.width) == arrays.shape[1:]
    assert masks.box.tolist() == boxes_of(arrays)
    assert masks.area.tolist() == arrays.sum(axis=(1, 2)).tolist()
    unpacked = masks.to_arrays()
    assert unpacked.dtype == np.bool_
    np.testing.assert_array_equal(unpacked, arrays)
    assert [masks.words.dtype, masks.start.dtype, masks.area.dtype, masks.box.dtype] == ["u8", "i8", "i8", "i4"]


# Cases worked by hand.


@pytest.mark.parametrize("counts", COUNTS)
def test_the_three_forms_of_a_run_length_mask(counts: Any) -> None:
    masks = Masks.from_rle([{"size": [3, 4], "counts": counts}])
    assert masks.area.tolist() == [3]
    assert masks.box.tolist() == [[1, 0, 3, 2]]
    np.testing.assert_array_equal(masks.to_arrays()[0], np.array(COLUMN, bool))
    assert masks.words.tolist() == [0b00000010_00000110]


def test_the_forms_can_be_mixed() -> None:
    masks = Masks.from_rle([{"size": (3, 4), "counts": counts} for counts in [*COUNTS, np.array(COUNTS[0])]])
    assert_packed(masks, np.array([COLUMN] * 4, bool))


def test_panoptic_id_of_a_colour() -> None:
    rgb = np.zeros((2, 3, 3), np.uint8)
    rgb[1, 2] = 112, 17, 1
    assert panoptic_ids(rgb).tolist() == [[0, 0, 0], [0, 0, 70000]]
    masks = Masks.from_panoptic(rgb, [70000, 0])
    assert masks.area.tolist() == [1, 5]
    assert masks.box.tolist() == [[2, 1, 3, 2], [0, 0, 3, 2]]


@EACH
def test_empty_masks_have_no_overlap(impl: str) -> None:
    arrays = np.zeros((2, 5, 7), bool)
    arrays[1] = True
    masks = Masks.from_arrays(arrays)
    assert mask_iou(masks, masks, impl=impl).tolist() == [[0.0, 0.0], [0.0, 1.0]]


@EACH
def test_quotients_are_of_float64(impl: str) -> None:
    arrays = np.zeros((3, 10, 30), bool)
    arrays[0, :, :20] = arrays[1, :, 10:] = arrays[2, 0, 19:26] = True
    iou = mask_iou(Masks.from_arrays(arrays[:2]), Masks.from_arrays(arrays[1:]), impl=impl)
    assert iou.dtype == np.float64
    assert iou.tolist() == [[1 / 3, 1 / 206], [1.0, 7 / 200]]


@EACH
def test_boxes_that_meet_around_masks_that_do_not(impl: str) -> None:
    diagonal = np.eye(70, dtype=bool)
    masks = Masks.from_arrays(np.stack([diagonal, diagonal[::-1], np.roll(diagonal, 1, axis=1)]))
    assert mask_iou(masks, masks, impl=impl).tolist() == [[1, 0, 0], [0, 1, 2 / 138], [0, 2 / 138, 1]]


# Every implementation against the reference.


@EACH
@pytest.mark.parametrize("width", [*range(1, 18), 63, 64, 65, 71, 72, 73, 127, 128, 129, 130])
def test_widths(width: int, impl: str) -> None:
    rng = np.random.default_rng(width)
    for height in (1, 9, 40):
        for one, other in ((drawn(rng, 6, height, width), drawn(rng, 9, height, width)),) * 2:
            a, b = Masks.from_arrays(one), Masks.from_arrays(other)
            assert_packed(a, one)
            iou = mask_iou(a, b, impl=impl)
            np.testing.assert_array_equal(iou, expected_iou(one, other))
            one, other = one.swapaxes(1, 2), other.swapaxes(1, 2)


def expected_iou(ours: Bools, others: Bools) -> NDArray[np.float64]:
    a, b = (masks.reshape(len(masks), np.prod(masks.shape[1:], dtype=int)).astype(np.int64) for masks in (ours, others))
    common = a @ b.T
    union = a.sum(axis=1)[:, None] + b.sum(axis=1) - common
    return np.where(union > 0, common / np.maximum(union, 1), 0.0)


side = st.integers(1, 40) | st.integers(1, 200)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**32 - 1), side, side, st.integers(0, 6), st.integers(0, 6), st.integers(1, 3))
def test_random_masks(seed: int, height: int, width: int, n: int, m: int, threads: int) -> None:
    rng = np.random.default_rng(seed)
    one, other = drawn(rng, n, height, width), drawn(rng, m, height, width)
    a, b = Masks.from_arrays(one), Masks.from_rle(rles(other, bytes), (height, width))
    expected = mask_iou(a, b, impl="reference")
    np.testing.assert_array_equal(expected, expected_iou(one, other))
    for impl in ("auto", "cpu", "portable"):
        np.testing.assert_array_equal(mask_iou(a, b, impl=impl, threads=threads), expected)


def test_large_masks() -> None:
    """Rows of several vectors of tiles, at every distance from the edge of one."""
    rng = np.random.default_rng(1)
    arrays = np.zeros((40, 90, 1100), bool)
    for k, array in enumerate(arrays):
        array[k : 90 - k // 2, 13 * k : 1100 - 5 * k] = rng.random((90 - k // 2 - k, 1100 - 18 * k)) < 0.7
    masks = Masks.from_arrays(arrays)
    for impl in ("cpu", "portable"):
        np.testing.assert_array_equal(mask_iou(masks[:20], masks, impl=impl), expected_iou(arrays[:20], arrays))


def test_threads_give_the_same() -> None:
    masks = Masks.from_arrays(drawn(np.random.default_rng(2), 60, 64, 100))
    one = mask_iou(masks, masks)
    for threads in (2, 3, 256):
        np.testing.assert_array_equal(mask_iou(masks, masks, threads=threads), one)


@EACH
@pytest.mark.parametrize("shape", [(0, 5, 6), (0, 0, 0), (2, 0, 6), (2, 5, 0), (2, 0, 0)])
def test_no_masks_and_no_pixels(shape: tuple[int, int, int], impl: str) -> None:
    arrays = np.zeros(shape, bool)
    size = shape[1:]
    for masks in (
        Masks.from_arrays(arrays),
        Masks.from_rle(rles(arrays), size),
        Masks.from_rle(rles(arrays, str), size),
    ):
        assert_packed(masks, arrays)
        some = Masks.from_arrays(np.ones((3, *size), bool))
        assert mask_iou(masks, some, impl=impl).tolist() == [[0.0] * 3] * shape[0]
        assert mask_iou(some, masks, impl=impl).shape == (3, shape[0])


# Packing.


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**32 - 1), side, side, st.integers(1, 5), st.sampled_from([list, str, bytes]))
def test_random_run_lengths(seed: int, height: int, width: int, masks: int, form: type) -> None:
    arrays = drawn(np.random.default_rng(seed), masks, height, width)
    packed = Masks.from_rle(rles(arrays, form))
    assert_packed(packed, arrays)
    np.testing.assert_array_equal(packed.words, Masks.from_arrays(arrays).words)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 12))
def test_runs_of_no_length(counts: list[int], height: int) -> None:
    pixels = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
    short = -len(pixels) % height
    counts = [*counts, *([0] if len(counts) % 2 == 1 else []), 0, short] if len(counts) % 2 else [*counts, short]
    array = np.concatenate([pixels, np.full(short, len(counts) % 2 == 0)]).reshape(height, -1, order="F")
    for form in (counts, compressed(counts), np.array(counts, np.uint32)):
        assert_packed(Masks.from_rle([{"size": list(array.shape), "counts": form}]), array[None])


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**32 - 1), side, side, st.integers(0, 400))
def test_random_panoptic_images(seed: int, height: int, width: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    named = np.unique(rng.integers(0, 2**24, count + 1).astype(np.uint32))
    ids = rng.permutation(named)[: rng.integers(0, len(named) + 1)]
    run_of = np.cumsum(rng.random((height, width)) < 0.2, axis=1) + rng.integers(0, 5, (height, 1))
    image = named[run_of % len(named)]
    arrays = image == ids[:, None, None]
    rgb = np.stack([image & 255, image >> 8 & 255, image >> 16], axis=2).astype(np.uint8)
    np.testing.assert_array_equal(panoptic_ids(rgb), image)
    for form in (image, rgb):
        assert_packed(Masks.from_panoptic(form, ids, allow_missing=True), arrays)
    missing = [k for k, array in enumerate(arrays) if not array.any()]
    if missing:
        with pytest.raises(ValueError, match="ids: no pixel of the image has"):
            Masks.from_panoptic(rgb, ids.tolist())


@pytest.mark.parametrize("value", [1, 2, 127, 128, 254, 255])
def test_any_byte_but_zero_is_inside(value: int) -> None:
    arrays = drawn(np.random.default_rng(value), 4, 30, 45)
    assert_packed(Masks.from_arrays(arrays.astype(np.uint8) * np.uint8(value)), arrays)


def test_strided_misaligned_and_read_only_inputs() -> None:
    arrays = drawn(np.random.default_rng(3), 5, 20, 33)
    wide = np.ones((5, 20, 66), bool)
    wide[:, :, ::2] = arrays
    assert_packed(Masks.from_arrays(wide[:, :, ::2]), arrays)
    assert_packed(Masks.from_arrays(np.asfortranarray(arrays)), arrays)
    assert_packed(Masks.from_arrays(arrays[::-1]), arrays[::-1])
    image = np.repeat(arrays[2].astype(np.uint32) * 9, 2, axis=1)[:, ::2]
    assert_packed(Masks.from_panoptic(image, [9]), arrays[2:3])
    arrays.setflags(write=False)
    assert_packed(Masks.from_arrays(arrays), arrays)


def test_index() -> None:
    arrays = drawn(np.random.default_rng(4), 6, 30, 21)
    masks = Masks.from_arrays(arrays)
    for index in ([3, 1, 1], slice(1, None, 2), np.arange(6) % 2 == 0, np.array([-1]), np.array([], int)):
        assert_packed(masks[index], arrays[index])
        assert np.shares_memory(masks[index].words, masks.words)
    assert_packed(masks[2], arrays[2:3])
    expected = mask_iou(masks, masks)
    np.testing.assert_array_equal(mask_iou(masks[[4, 0]], masks[1:4]), expected[[4, 0], 1:4])
    with pytest.raises(IndexError):
        masks[6]


def test_masks_cannot_be_changed() -> None:
    masks = Masks.from_arrays(np.ones((1, 3, 3), bool))
    for name in ("words", "start", "area", "box"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(masks, name)[0] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        masks.width = 9  # type: ignore[misc]


# Arguments.


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ([[[1]]], TypeError, "arrays: wanted a NumPy array of uint8, got list"),
        (np.zeros((1, 2, 3)), TypeError, "arrays: wanted dtype uint8, got float64"),
        (np.zeros((2, 3), bool), ValueError, r"arrays: wanted shape \[any, any, any\], got \[2, 3\]"),
    ],
)
def test_wrong_arrays(value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Masks.from_arrays(value)


GOOD = {"size": [3, 4], "counts": "321O4"}


@pytest.mark.parametrize(
    ("rle", "error", "message"),
    [
        (
            {"size": [3, 4], "counts": [3, 2, 1, 1, 4]},
            ValueError,
            "mask 1: counts add up to 11 pixels, wanted 3x4 = 12",
        ),
        ({"size": [3, 4], "counts": [3, 2, 1, 1, 6]}, ValueError, "mask 1: counts add up to 13 pixels"),
        ({"size": [3, 4], "counts": []}, ValueError, "mask 1: counts add up to 0 pixels"),
        ({"size": [3, 4], "counts": ""}, ValueError, "mask 1: counts add up to 0 pixels"),
        ({"size": [3, 4], "counts": [3, -2, 5, 1, 5]}, ValueError, "mask 1: counts has -2, which is negative"),
        ({"size": [3, 4], "counts": [2**63 - 1, 2**63 - 1]}, ValueError, "mask 1: counts add up to 184467440737095516"),
        ({"size": [3, 4], "counts": [2**64 - 1]}, ValueError, "mask 1: wanted counts as integers"),
        ({"size": [3, 4], "counts": [2**70]}, ValueError, "mask 1: wanted counts as integers"),
        ({"size": [3, 4], "counts": [3.0, 9.0]}, ValueError, "mask 1: wanted counts as integers"),
        ({"size": [3, 4], "counts": [[12]]}, ValueError, "mask 1: wanted counts as integers"),
        ({"size": [3, 4], "counts": [True, False]}, ValueError, "mask 1: wanted counts as integers"),
        ({"size": [3, 4], "counts": None}, ValueError, "mask 1: wanted counts as integers"),
        ({"size": [3, 4], "counts": "321O"}, ValueError, "mask 1: counts add up to 7 pixels"),
        ({"size": [3, 4], "counts": "321O44"}, ValueError, "mask 1: counts add up to"),
        ({"size": [3, 4], "counts": "321OT"}, ValueError, "mask 1: counts '321OT' is cut off"),
        ({"size": [3, 4], "counts": b"T"}, ValueError, "mask 1: counts b'T' is cut off"),
        ({"size": [3, 4], "counts": "32 O4"}, ValueError, "mask 1: .* has a character that"),
        ({"size": [3, 4], "counts": "32\u00e9O4"}, ValueError, "mask 1: .* has a character that"),
        ({"size": [3, 4], "counts": b"32\xe9O4"}, ValueError, "mask 1: .* has a character that"),
        ({"size": [3, 4], "counts": "O"}, ValueError, "mask 1: .* negative or above the number of pixels"),
        ({"size": [3, 4], "counts": "=0"}, ValueError, "mask 1: .* negative or above the number of pixels"),
        ({"size": [3, 4], "counts": "P" * 40 + "1"}, ValueError, "mask 1: .* negative or above the number of pixels"),
        (
            {"size": [4, 3], "counts": "321O4"},
            ValueError,
            r"mask 1: wanted size \[3, 4\] like the others, got \[4, 3\]",
        ),
        ({"size": [3], "counts": "321O4"}, ValueError, r"mask 1: wanted a size of height and width, got \[3\]"),
        ({"size": None, "counts": "321O4"}, ValueError, "mask 1: wanted a size of height and width, got None"),
        ({"counts": "321O4"}, TypeError, "mask 1: wanted a dict of size and counts"),
        ([3, 2, 1, 1, 5], TypeError, "mask 1: wanted a dict of size and counts"),
    ],
)
def test_wrong_run_lengths(rle: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Masks.from_rle([GOOD, rle])
    with pytest.raises(error, match=message):
        Masks.from_rle([{"size": [3, 4], "counts": COUNTS[0]}, rle, GOOD])


def test_wrong_sizes() -> None:
    with pytest.raises(ValueError, match="size: wanted the height and width, because there is no mask"):
        Masks.from_rle([])
    with pytest.raises(ValueError, match=r"mask 0: wanted size \[4, 3\] like the others, got \[3, 4\]"):
        Masks.from_rle([GOOD], (4, 3))
    with pytest.raises(ValueError, match="size: wanted sides of 0 to"):
        Masks.from_rle([], (-1, 3))
    with pytest.raises(ValueError, match="size: wanted sides of 0 to"):
        Masks.from_rle([{"size": [1, 2**31], "counts": [2**31]}])


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=30) | st.text("0123456789OPQT`abo", max_size=30), st.integers(0, 9), st.integers(0, 9))
def test_any_text_is_read_or_refused(text: Any, height: int, width: int) -> None:
    try:
        masks = Masks.from_rle([{"size": [height, width], "counts": text}])
    except ValueError as refused:
        assert str(refused).startswith("mask 0: counts")  # noqa: PT017
    else:
        assert masks.area[0] == masks.to_arrays().sum()


@pytest.mark.parametrize(
    ("image", "ids", "error", "message"),
    [
        (np.zeros((2, 2), np.int32), [0], TypeError, "image: wanted dtype uint32, got int32"),
        (np.zeros((2, 2, 3), np.uint32), [0], TypeError, "image: wanted dtype uint8, got uint32"),
        (np.zeros((2, 2, 4), np.uint8), [0], ValueError, r"image: wanted shape \[any, any, 3\], got \[2, 2, 4\]"),
        (np.zeros(4, np.uint32), [0], ValueError, r"image: wanted shape \[any, any\], got \[4\]"),
        (np.zeros((2, 2), np.uint32), [0, 7], ValueError, "ids: no pixel of the image has 7"),
        (np.zeros((2, 2), np.uint32), [0, 7, 0], ValueError, "ids: 0 is named twice"),
        (np.zeros((2, 2), np.uint32), [-1], ValueError, r"ids: wanted values in \[0, 2\^32\), got -1 at 0"),
        (np.zeros((2, 2), np.uint32), [2**32], ValueError, r"ids: wanted values in \[0, 2\^32\), got 4294967296 at 0"),
        (np.zeros((2, 2), np.uint32), [0.0], TypeError, "ids: wanted integers in a sequence, got float64"),
        (np.zeros((2, 2), np.uint32), [[0]], TypeError, "ids: wanted integers in a sequence, got int64"),
    ],
)
def test_wrong_panoptic_images(image: Any, ids: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Masks.from_panoptic(image, ids)


def test_panoptic_ids_refuses_what_is_no_image() -> None:
    with pytest.raises(ValueError, match=r"image: wanted shape \[any, any, 3\], got \[2, 3\]"):
        panoptic_ids(np.zeros((2, 3), np.uint8))
    with pytest.raises(TypeError, match="image: wanted dtype uint8, got float32"):
        panoptic_ids(np.zeros((2, 2, 3), np.float32))


def parts(**changes: Any) -> dict[str, Any]:
    masks = Masks.from_arrays(np.ones((2, 9, 9), bool))
    fields = {field.name: getattr(masks, field.name) for field in dataclasses.fields(masks)}
    return fields | changes


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"words": np.zeros(7, np.uint64)}, ValueError, "with words from 4 on, cannot be mask 1 of 7 words"),
        ({"words": np.zeros(8, np.int64)}, TypeError, "words: wanted dtype uint64, got int64"),
        ({"start": np.array([-1, 4])}, ValueError, "cannot be mask 0"),
        ({"start": np.array([0, 5])}, ValueError, "cannot be mask 1"),
        ({"start": np.array([0, 2**63 - 1])}, ValueError, "cannot be mask 1"),
        ({"start": np.array([0])}, ValueError, r"area: wanted shape \[1\], got \[2\]"),
        ({"box": np.array([[0, 0, 9, 9], [0, 0, 10, 9]], np.int32)}, ValueError, "cannot be mask 1"),
        ({"box": np.array([[0, 0, 9, 10], [0, 0, 9, 9]], np.int32)}, ValueError, "cannot be mask 0"),
        ({"box": np.array([[-8, 0, 1, 9], [0, 0, 9, 9]], np.int32)}, ValueError, "cannot be mask 0"),
        ({"box": np.array([[0, -8, 9, 1], [0, 0, 9, 9]], np.int32)}, ValueError, "cannot be mask 0"),
        ({"box": np.array([[5, 0, 5, 9], [0, 0, 9, 9]], np.int32)}, ValueError, "cannot be mask 0"),
        ({"box": np.array([[0, 9, 9, 8], [0, 0, 9, 9]], np.int32)}, ValueError, "cannot be mask 0"),
        ({"box": np.zeros((2, 4))}, TypeError, "box: wanted dtype int32, got float64"),
        ({"height": 8}, ValueError, "cannot be mask 0"),
        ({"width": -1}, ValueError, "size: wanted sides of 0 to"),
    ],
)
def test_masks_that_are_put_together_wrongly(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    Masks(**parts())
    with pytest.raises(error, match=message):
        Masks(**parts(**changes))


def test_wrong_arguments_of_mask_iou() -> None:
    masks = Masks.from_arrays(np.ones((2, 9, 8), bool))
    with pytest.raises(TypeError, match=r"a: wanted Masks \(see Masks.from_arrays\), got ndarray"):
        mask_iou(masks.to_arrays(), masks)
    with pytest.raises(TypeError, match="b: wanted Masks"):
        mask_iou(masks, None)
    with pytest.raises(ValueError, match="b: wanted masks of 9x8 pixels like those of a, got 8x9"):
        mask_iou(masks, Masks.from_arrays(np.ones((2, 8, 9), bool)))
    for threads in (0, -1, 257):
        with pytest.raises(ValueError, match=f"threads: wanted 1 to 256, got {threads}"):
            mask_iou(masks, masks, threads=threads)


def test_select() -> None:
    assert [select(name) for name in operation.IMPLEMENTATIONS] == list(operation.IMPLEMENTATIONS)
    assert (select("auto"), select("auto", "cuda")) == ("cpu", "gpu")
    with pytest.raises(UsageError, match="mask_iou: no implementation 'avx2'"):
        select("avx2", "cuda")


def test_a_named_implementation_runs_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = Masks.from_arrays(np.ones((1, 2, 2), bool))
    ran: list[str] = []
    original, native = reference.mask_iou, operation.cpu._native.mask_iou

    def recorded(*args: Any) -> Any:
        ran.append("reference")
        return original(*args)

    def recorded_native(*args: Any) -> Any:
        ran.append("portable" if args[8] else "cpu")
        return native(*args)

    monkeypatch.setattr(reference, "mask_iou", recorded)
    monkeypatch.setattr(operation.cpu._native, "mask_iou", recorded_native)
    for impl in ("auto", "cpu", "portable", "reference"):
        mask_iou(masks, masks, impl=impl)
    assert ran == ["cpu", "cpu", "portable", "reference"]
    with pytest.raises(TypeError, match="a: wanted DeviceMasks"):
        mask_iou(masks, masks, impl="gpu")
    with pytest.raises(UsageError, match="no implementation 'avx2'"):
        mask_iou(masks, masks, impl="avx2")


def test_what_masks_were_made_from_can_change_without_harm():
    made = Masks.from_arrays(np.ones((2, 9, 9), np.bool_))
    start, area, box = made.start.copy(), made.area.copy(), made.box.copy()
    masks = Masks(made.words, start, area, box, 9, 9)
    start[:], area[:], box[:] = 10**12, -1, 10**6
    np.testing.assert_array_equal(mask_iou(masks, made), np.ones((2, 2)))


def test_copies_are_read_only_too():
    masks = Masks.from_arrays(np.ones((2, 9, 9), np.bool_))
    for other in (pickle.loads(pickle.dumps(masks)), copy.deepcopy(masks)):
        assert not any(getattr(other, name).flags.writeable for name in ("words", "start", "area", "box"))
        np.testing.assert_array_equal(mask_iou(other, masks), np.ones((2, 2)))


@pytest.mark.parametrize("area", [-1, 82])
def test_an_area_that_does_not_fit_its_box_is_refused(area):
    made = Masks.from_arrays(np.ones((1, 9, 9), np.bool_))
    with pytest.raises(ValueError, match=f"area: {area} pixels cannot be mask 0's"):
        Masks(made.words, made.start, np.array([area]), made.box, 9, 9)


def test_images_without_pixels_take_no_time():
    masks = Masks.from_arrays(np.empty((1000, 0, 2**30), np.bool_))
    assert (len(masks), masks.area.sum()) == (1000, 0)


# Masks to run lengths.


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 40))
def test_run_lengths_come_back(seed: int, height: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = rng.random((4, height, width)) < rng.random((4, 1, 1))
    arrays[0], arrays[1] = False, True
    written = Masks.from_arrays(arrays).to_rle()
    assert [rle["size"] for rle in written] == [[height, width]] * 4
    np.testing.assert_array_equal(Masks.from_rle(written).to_arrays(), arrays)


def test_run_lengths_are_written_as_coco_does() -> None:
    [rle] = Masks.from_arrays(np.array([COLUMN], bool)).to_rle()
    assert rle == {"size": [3, 4], "counts": "321O4"}


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), height=st.integers(0, 40), width=st.integers(0, 40), count=st.integers(0, 5))
def test_boxes_are_packed_as_their_arrays_are(seed: int, height: int, width: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    boxes = rng.integers(0, [width + 1, height + 1] * 2, (count, 4))
    arrays = np.zeros((count, height, width), np.bool_)
    for mask, (x1, y1, x2, y2) in zip(arrays, boxes.tolist(), strict=True):
        mask[y1:y2, x1:x2] = True
    wanted, found = Masks.from_arrays(arrays), Masks.from_boxes(boxes, height, width)
    for name in ("words", "start", "area", "box"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    assert (found.height, found.width) == (height, width)


@pytest.mark.parametrize("box", [(-1, 0, 3, 3), (0, 0, 11, 3), (0, 0, 3, 6), (12, 0, 3, 3 + 3), (0, -9, 0, 0)])
def test_boxes_that_are_not_inside_the_image(box: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"boxes: .* box 1, is not inside an image of 5x10"):
        Masks.from_boxes(np.array([(0, 0, 10, 5), box], np.int64), 5, 10)
    with pytest.raises(TypeError, match="boxes"):
        Masks.from_boxes(np.array([box], np.float32), 5, 10)


def test_boxes_of_large_images_take_no_room_of_theirs() -> None:
    tracemalloc.start()
    found = Masks.from_boxes(np.array([(5, 5, 305, 305)] * 40, np.int64), 30_000, 40_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.area.tolist() == [300 * 300] * 40
    assert peak < 8 << 20  # as arrays they would be 48 GB
