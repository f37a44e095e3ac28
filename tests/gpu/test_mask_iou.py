"""The Triton kernel of mask_iou: equal to the reference to the bit, interpreted or on a card."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tallymill.errors import UsageError
from tallymill.kernels.mask_iou import Masks, gpu, mask_iou, reference, select

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EACH = pytest.mark.parametrize("configuration", gpu.CONFIGURATIONS, ids=lambda one: one.name)


def drawn(rng: np.random.Generator, masks: int, height: int, width: int) -> NDArray[np.bool_]:
    """Noise in boxes that lie anywhere; the first mask is empty and the last one full."""
    arrays = np.zeros((masks, height, width), np.bool_)
    for array in arrays:
        y1, y2 = np.sort(rng.integers(0, height + 1, 2))
        x1, x2 = np.sort(rng.integers(0, width + 1, 2))
        array[y1:y2, x1:x2] = rng.random((y2 - y1, x2 - x1)) < rng.choice([0.02, 0.5, 1.0])
    arrays[:1] = False
    arrays[-1:] = True
    return arrays


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs hold NaN until they are written."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(torch.nan))


def assert_equal(a: Masks, b: Masks) -> None:
    iou = mask_iou(a.to(DEVICE), b.to(DEVICE), impl="gpu")
    assert iou.dtype == torch.float64
    assert iou.device.type == DEVICE
    np.testing.assert_array_equal(iou.cpu().numpy(), reference.mask_iou(a, b, 1))


@EACH
@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 2), (4, 33), (2, 65)])
def test_equals_the_reference(n: int, m: int, configuration: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "SMALL", configuration)
    rng = np.random.default_rng([n, m])
    assert_equal(Masks.from_arrays(drawn(rng, n, 37, 90)), Masks.from_arrays(drawn(rng, m, 37, 90)))


@pytest.mark.parametrize(("height", "width"), [(1, 1), (8, 8), (9, 17), (7, 600), (300, 5)])
def test_sizes_about_the_edges_of_tiles_and_blocks(height: int, width: int) -> None:
    rng = np.random.default_rng([height, width])
    assert_equal(Masks.from_arrays(drawn(rng, 5, height, width)), Masks.from_arrays(drawn(rng, 4, height, width)))


@pytest.mark.parametrize(("n", "m"), [(0, 0), (0, 3), (3, 0)])
def test_no_masks(n: int, m: int) -> None:
    rng = np.random.default_rng(0)
    assert_equal(Masks.from_arrays(drawn(rng, n, 9, 9)), Masks.from_arrays(drawn(rng, m, 9, 9)))


def test_an_empty_mask_has_iou_0_with_itself() -> None:
    empty = Masks.from_arrays(np.zeros((1, 5, 5), np.bool_))
    assert_equal(empty, empty)


def test_some_masks_of_many() -> None:
    masks = Masks.from_arrays(drawn(np.random.default_rng(1), 9, 40, 40))
    assert_equal(masks[[7, 2, 2]], masks[1::3])


def test_many_pairs_take_the_large_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "MANY_PAIRS", 4)
    monkeypatch.setattr(gpu, "SMALL", None)
    masks = Masks.from_arrays(drawn(np.random.default_rng(2), 2, 20, 20))
    assert_equal(masks, masks)


def test_what_is_chosen() -> None:
    assert select("gpu") == select("auto", "cuda") == "gpu"
    masks = Masks.from_arrays(np.ones((1, 3, 3), np.bool_))
    with pytest.raises(TypeError, match="a: wanted DeviceMasks"):
        mask_iou(masks, masks, impl="gpu")
    with pytest.raises(TypeError, match="a: wanted Masks"):
        mask_iou(masks.to("cpu"), masks.to("cpu"), impl="cpu")
    with pytest.raises(ValueError, match="3x3 pixels like"):
        mask_iou(masks.to(DEVICE), Masks.from_arrays(np.ones((1, 3, 4), np.bool_)).to(DEVICE), impl="gpu")


def test_tensors_on_a_cpu_want_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallymill.kernels.tensors._interpreted", lambda: False)
    masks = Masks.from_arrays(np.ones((1, 3, 3), np.bool_)).to("cpu")
    with pytest.raises(UsageError, match="wants tensors on a GPU"):
        mask_iou(masks, masks, impl="gpu")
