"""Plain numbers among the arguments: what is no number is a TypeError that names the argument."""

from __future__ import annotations

import numpy as np
import pytest

from tallymill.kernels import arguments
from tallymill.kernels.count import calibrate
from tallymill.kernels.mask_iou import Masks, mask_iou
from tallymill.kernels.match import assign, match
from tallymill.kernels.nms import nms, soft_nms

BOXES = np.array([[0, 0, 1, 1]], np.float32)
SCORES = np.ones(1, np.float32)
ENDS = np.array([0, 1])


def calls(**options):
    masks = Masks.from_arrays(np.ones((1, 2, 2), np.bool_))
    return {
        "nms": lambda: nms(BOXES, SCORES, ENDS, **options),
        "soft_nms": lambda: soft_nms(BOXES, SCORES, ENDS, **options),
        "match": lambda: match(BOXES, ENDS, BOXES, ENDS, **options),
        "assign": lambda: assign(np.ones((1, 1)), **options),
        "mask_iou": lambda: mask_iou(masks, masks, **options),
    }


@pytest.mark.parametrize("impl", ["cpu", "reference"])
@pytest.mark.parametrize("operation", ["nms", "soft_nms", "match", "assign", "mask_iou"])
@pytest.mark.parametrize("threads", [2.0, "2", None, True, np.float64(1)])
def test_threads_are_an_int(operation, threads, impl):
    with pytest.raises(TypeError, match=f"threads: wanted an int, got {type(threads).__name__}"):
        calls(threads=threads, impl=impl)[operation]()


@pytest.mark.parametrize("operation", ["nms", "soft_nms", "match", "assign", "mask_iou"])
def test_threads_may_be_numpy_s(operation):
    calls(threads=np.int32(2))[operation]()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: nms(BOXES, SCORES, ENDS, "0.5"), "iou_threshold"),
        (lambda: nms(BOXES, SCORES, ENDS, score_threshold="a"), "score_threshold"),
        (lambda: soft_nms(BOXES, SCORES, ENDS, sigma=None), "sigma"),
        (lambda: match(BOXES, ENDS, BOXES, ENDS, gate="0"), "gate"),
        (lambda: calibrate(SCORES, "1"), "tau"),
    ],
)
def test_numbers_are_numbers(call, name):
    with pytest.raises(TypeError, match=f"{name}: wanted a number, got"):
        call()


def test_a_fraction_keeps_its_ends():
    assert (arguments.fraction("x", 0), arguments.fraction("x", np.float32(1))) == (0.0, 1.0)
    for value in (-1e-9, 1.0000001, np.nan, np.inf):
        with pytest.raises(ValueError, match="x: wanted a number in"):
            arguments.fraction("x", value)


def test_a_matrix_is_taken_as_an_array():
    assert assign(np.eye(3).view(np.matrix)).total == 0.0
    assert nms(BOXES.view(np.matrix), SCORES, ENDS).indices.tolist() == [0]


def test_sizes_that_overflow_are_named():
    huge = np.array([2**62, 2**62])
    with pytest.raises(ValueError, match=r"rows: wanted sizes below 2\^31, got 4611686018427387904 at 0"):
        assign(np.empty(0), rows=huge, columns=np.zeros(2, np.int64))
