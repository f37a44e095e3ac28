from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from tallymill.engine.abacus.clean import union
from tallymill.engine.abacus.data import FOUND, REPAIRED, TRUTH, Instances, joined
from tallymill.engine.abacus.match import match, moved, of_crowds, repaired
from tallymill.kernels.mask_iou import Masks

SIZE = (60, 80)


def rectangles(*edges):
    return Masks.from_boxes(np.array(edges, np.int64).reshape(-1, 4), *SIZE)


def shift(x, y):
    return np.broadcast_to(np.array([x, y], np.float32), (*SIZE, 2))


def by_definition(mask, flow):
    """Each pixel reads the one that it came from."""
    found = np.zeros_like(mask)
    for y, x in np.ndindex(mask.shape):
        column, row = int(np.floor(x + flow[y, x, 0] + 0.5)), int(np.floor(y + flow[y, x, 1] + 0.5))
        if 0 <= row < mask.shape[0] and 0 <= column < mask.shape[1]:
            found[y, x] = mask[row, column]
    return found


@pytest.mark.parametrize("spread", [0.2, 3.0, 40.0, 500.0])
def test_masks_move_as_they_are_defined_to(spread):
    rng = np.random.default_rng(0)
    arrays = rng.random((3, *SIZE)) < np.array([0.05, 0.5, 0.0])[:, None, None]
    flow = rng.normal(0, spread, (*SIZE, 2)).astype(np.float32)
    found = moved(Masks.from_arrays(arrays), flow).to_arrays()
    np.testing.assert_array_equal(found, [by_definition(mask, flow) for mask in arrays])


def test_a_flow_out_of_the_image_leaves_nothing():
    assert moved(rectangles((0, 0, 80, 60)), shift(1000, 0)).area.tolist() == [0]


def test_instances_are_matched_where_they_came_from():
    source = rectangles((5, 5, 25, 25), (40, 10, 60, 30))
    edited = rectangles((52, 14, 72, 34), (17, 9, 37, 29), (2, 40, 12, 50))
    still, drifting = match(source, edited, None, 0.3), match(source, edited, shift(-12, -4), 0.3)
    assert still.partner.tolist() == [-1, -1]
    assert drifting.partner.tolist() == [1, 0]
    assert drifting.back(3).tolist() == [1, 0, -1]
    np.testing.assert_allclose(drifting.similarity, [1, 1])


def test_what_is_less_alike_than_asked_is_not_paired():
    source, edited = rectangles((0, 0, 10, 10)), rectangles((5, 0, 15, 10))
    assert match(source, edited, None, 0.33).partner.tolist() == [0]
    below = match(source, edited, None, 0.34)
    assert below.partner.tolist() == [-1]
    assert below.similarity.tolist() == [0]


def test_the_sum_of_similarities_decides_not_the_best_pair():
    # One with the first is .9; but then the other two are left with nothing.
    source = rectangles((0, 0, 20, 10), (0, 0, 12, 10))
    edited = rectangles((0, 0, 18, 10), (8, 0, 20, 10))
    assert match(source, edited, None, 0.3).partner.tolist() == [1, 0]


@pytest.mark.parametrize(("n", "m"), [(0, 0), (0, 2), (2, 0)])
def test_no_instances_on_a_side(n, m):
    edges = [(0, 0, 5, 5), (10, 10, 15, 15)]
    found = match(rectangles(*edges[:n]), rectangles(*edges[:m]), None, 0.3)
    assert found.partner.tolist() == [-1] * n
    assert found.back(m).tolist() == [-1] * m


def instances(origin, *edges):
    return Instances.of_masks(rectangles(*edges), origin)


def test_segmented_instances_that_nobody_annotated_are_added():
    truth = instances(TRUTH, (0, 0, 20, 20), (30, 30, 50, 50))
    segmented = instances(FOUND, (1, 1, 20, 20), (60, 5, 75, 20), (30, 30, 44, 44))
    found = repaired(truth, segmented, 0.5)
    assert found.origin == (TRUTH, TRUTH, REPAIRED, REPAIRED)  # 14 x 14 of 20 x 20 is less than a half
    assert found.masks.box[2:].tolist() == [[60, 5, 75, 20], [30, 30, 44, 44]]
    assert repaired(truth, instances(FOUND), 0.5) is truth
    assert repaired(instances(TRUTH), segmented, 0.5).origin == (REPAIRED,) * 3


def test_boxes_become_masks_within_the_image():
    boxes = np.array([[-5, -5, 10.4, 9.6], [79.7, 0, 200, 60], [90, 0, 100, 10], [5, 5, 5, 9]], np.float32)
    found = Instances.of_boxes(boxes, np.ones(4, np.float32), FOUND, *SIZE)
    assert found.masks.box.tolist() == [[0, 0, 10, 10]]
    assert len(found) == 1
    np.testing.assert_array_equal(found.boxes, boxes[:1])


def test_sets_of_masks_are_joined_and_chosen_from():
    a, b = rectangles((0, 0, 3, 3), (5, 5, 9, 9)), rectangles((20, 20, 30, 40))
    found = joined([a, b, a[:0]])
    np.testing.assert_array_equal(found.to_arrays(), np.concatenate([a.to_arrays(), b.to_arrays()]))
    chosen = instances(TRUTH, (0, 0, 3, 3), (5, 5, 9, 9)).only(np.array([1]))
    assert chosen.masks.box.tolist() == [[5, 5, 9, 9]]


def test_annotated_masks_as_boxes():
    disc = np.hypot(*np.mgrid[-30:30, -40:40]) < 12
    found = Instances.of_masks(Masks.from_arrays(disc[None]), TRUTH).as_boxes()
    x1, y1, x2, y2 = found.masks.box[0].tolist()
    assert found.masks.area.tolist() == [(x2 - x1) * (y2 - y1)]


def test_many_masks_of_a_large_image_are_held_one_at_a_time():
    """40 masks at 6 megapixels: as arrays, 240 MB."""
    size = (2000, 3000)
    boxes = np.array([[40 * k, 30 * k, 40 * k + 300, 30 * k + 300] for k in range(40)], np.float32)
    flow = np.broadcast_to(np.array([12, -7], np.float32), (*size, 2))
    tracemalloc.start()
    found = Instances.of_boxes(boxes, np.ones(40, np.float32), FOUND, *size).as_boxes()
    made = tracemalloc.get_traced_memory()[1]
    there = moved(found.masks, flow)
    covered = union(there)
    whole = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert there.box[3].tolist() == [108, 97, 408, 397]
    assert covered.any()
    assert made < 4 << 20
    assert whole < 20 * size[0] * size[1]  # of which two maps of places, and what makes them, are 16 bytes a pixel


def test_half_of_the_pixels_make_one_of_a_crowd():
    masks = rectangles((0, 0, 10, 10), (0, 20, 10, 30), (40, 20, 50, 30), (0, 0, 10, 10), (20, 20, 20, 20))
    crowds = rectangles((0, 0, 3, 60), (3, 0, 5, 60), (40, 20, 50, 24))  # a half of the first, by two of them together
    which = np.array([True, True, True, False, True])
    assert of_crowds(masks, which, crowds).tolist() == [True, True, False, False, False]
    assert not of_crowds(masks, which, crowds[:0]).any()


def test_partners_are_counted_anew_when_others_are_set_aside():
    found = match(
        rectangles((0, 0, 10, 10), (20, 0, 30, 10), (40, 0, 50, 10)),
        rectangles((60, 0, 70, 10), (40, 0, 50, 10), (60, 20, 70, 30), (0, 0, 10, 10)),
        None,
        0.3,
    )
    assert found.partner.tolist() == [3, -1, 1]
    assert found.without(np.array([True, False, True, False])).partner.tolist() == [1, -1, 0]
