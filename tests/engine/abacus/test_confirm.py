from __future__ import annotations

import numpy as np

from tallymill.engine.abacus.confirm import votes


def boxes(*rows):
    return np.array(rows, np.float32).reshape(-1, 4)


def test_a_vote_needs_confidence_and_overlap():
    candidates = boxes((0, 0, 10, 10), (20, 0, 30, 10), (40, 0, 50, 10), (60, 0, 70, 10))
    seen = boxes((0, 0, 10, 5), (20, 0, 30, 4.9), (40, 0, 50, 10), (61, 0, 71, 10))
    confidence = np.array([0.5, 0.9, 0.499, 0.9], np.float32)
    assert votes(candidates, seen, confidence, 0.5, 0.5).tolist() == [True, False, False, True]


def test_without_boxes_nobody_votes():
    assert votes(boxes((0, 0, 1, 1)), boxes(), np.zeros(0, np.float32), 0.5, 0.5).tolist() == [False]
    assert votes(boxes(), boxes((0, 0, 1, 1)), np.ones(1, np.float32), 0.5, 0.5).tolist() == []


def test_boxes_without_an_area_overlap_nothing():
    seen, sure = boxes((3, 3, 3, 9), (0, 0, 9, 9)), np.ones(2, np.float32)
    assert votes(boxes((3, 3, 3, 9)), seen, sure, 0.5, 1e-9).tolist() == [False]


def test_a_box_may_confirm_several_and_the_share_is_that_of_the_union():
    candidates = boxes((0, 0, 10, 10), (1, 1, 11, 11))  # 81 of 119 pixels
    seen, sure = boxes((0, 0, 10, 10), (500, 500, 510, 510)), np.ones(2, np.float32)
    assert votes(candidates, seen, sure, 0.5, 0.6806).tolist() == [True, True]
    assert votes(candidates, seen, sure, 0.5, 0.6807).tolist() == [True, False]
