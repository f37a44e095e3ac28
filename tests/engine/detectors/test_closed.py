from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors.closed import Closed, best, greatest, synonyms_of
from tallymill.engine.detectors.coco import COCO_80
from tallymill.engine.detectors.pixels import sigmoid
from tallymill.engine.detectors.queries import _reaches
from tallymill.engine.detectors.rf_detr import RfDetr
from tallymill.errors import ModelError

SIZE = (100, 200)
MIDDLE = [0.5, 0.5, 0.2, 0.4]  # centre and size


def bundle_of(family, numbers=None):
    return Bundle(Path("models/x"), "x", family, "onnx", "fp32", {}, numbers or {}, None, "0" * 64)


def boxes_of(count):
    return np.tile(np.array(MIDDLE, np.float32), (count, 1))


def logits_of(rows):
    return np.array(rows, np.float32)


def test_boxes_are_fractions_of_the_window_and_are_not_clipped():
    boxes = np.array([MIDDLE, [0.0, 0.0, 0.5, 0.5]], np.float32)
    found = best(logits_of([[2.0], [1.0]]), boxes, 10, SIZE, np.array([0]), 0.05)
    assert found.boxes.tolist() == [pytest.approx([80, 30, 120, 70]), [-50, -25, 50, 25]]
    assert found.scores.tolist() == pytest.approx([1 / (1 + np.exp(-2)), 1 / (1 + np.exp(-1))])


def test_the_best_pairs_over_all_classes_are_chosen_before_the_classes_asked():
    logits = logits_of([[3, 9, 0], [2, 8, 7], [1, 0, 0]])
    asked = np.array([2, 0])
    two = best(logits, boxes_of(3), 2, SIZE, asked, 0.05)
    assert len(two.scores) == 0
    assert two.saturated
    four = best(logits, boxes_of(3), 4, SIZE, asked, 0.05)
    assert four.request.tolist() == [0, 1]  # class 2 of query 1, then class 0 of query 0
    assert four.scores.tolist() == pytest.approx((1 / (1 + np.exp(-np.array([7.0, 3.0])))).tolist())


def test_a_query_may_be_kept_under_several_classes_and_classes_come_in_the_order_asked():
    logits = logits_of([[1, 2], [4, 3]])
    found = best(logits, boxes_of(2), 100, SIZE, np.array([1, 0]), 0.05)
    assert found.request.tolist() == [0, 0, 1, 1]
    order = 1 / (1 + np.exp(-np.array([2.0, 3.0, 1.0, 4.0])))
    assert found.scores.tolist() == pytest.approx(order.tolist())


@pytest.mark.parametrize(("least", "saturated"), [(0.0, True), (-2.9444, True), (-2.95, False)])
def test_saturated_is_when_all_that_the_model_returns_reach_the_floor_of_whatever_class(least, saturated):
    logits = logits_of([[5, least], [4, -9], [-9, -9]])
    found = best(logits, boxes_of(3), 3, SIZE, np.array([1]), 0.05)
    assert found.saturated is saturated


@pytest.mark.parametrize("reached", [True, False])
def test_a_score_reaches_a_floor_that_only_float64_tells_from_it_where_that_is_less(reached):
    logits = logits_of([[-2.9444]])
    score = float(sigmoid(logits)[0, 0])
    floor = float(np.nextafter(score, 0 if reached else 1))
    assert np.float32(floor) == score
    found = best(logits, boxes_of(1), 1, SIZE, np.array([0]), floor)
    assert (len(found.scores), found.saturated) == (reached, reached)
    assert _reaches(logits[:, 0], floor).tolist() == [reached]


def test_a_hundred_and_fifty_objects_are_a_hundred_and_fifty():
    x = np.linspace(0.003, 0.997, 150, dtype=np.float32)
    boxes = np.stack([x, np.full_like(x, 0.5), np.full_like(x, 0.005), np.full_like(x, 0.1)], 1)
    found = best(np.full((300, 1), -9, np.float32), np.tile(boxes, (2, 1)), 300, SIZE, np.array([0]), 0.05)
    assert len(found.scores) == 0
    logits = np.concatenate([np.full((150, 1), 2), np.full((150, 1), -9)]).astype(np.float32)
    found = best(logits, np.tile(boxes, (2, 1)), 300, SIZE, np.array([0]), 0.05)
    assert len(found.scores) == 150
    assert not found.saturated


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 1])
def test_a_logit_that_is_none_is_an_error_whatever_is_asked(bad, column):
    logits = np.zeros((3, 2), np.float32)
    logits[1, column] = bad
    with pytest.raises(ModelError, match="non-finite scores"):
        best(logits, boxes_of(3), 2, SIZE, np.array([0]), 0.05)


def test_a_model_without_queries_finds_nothing():
    found = best(np.zeros((0, 2), np.float32), np.zeros((0, 4), np.float32), 5, SIZE, np.array([0]), 0.05)
    assert len(found.scores) == 0
    assert not found.saturated


def test_the_greatest_are_those_of_a_stable_sort():
    rng = np.random.default_rng(0)
    for _ in range(200):
        values = rng.integers(-3, 4, rng.integers(1, 40)).astype(np.float32)
        count = int(rng.integers(1, 45))
        expected = np.sort(np.argsort(-values, kind="stable")[:count])
        assert np.flatnonzero(greatest(values[None], count)[0]).tolist() == expected.tolist()


def test_synonyms_are_of_labels_that_a_model_has():
    assert synonyms_of(["couch", "sofa", "tv"])["television"] == "tv"
    assert "sofa" not in synonyms_of(["couch", "sofa", "tv"])
    assert "doughnut" not in synonyms_of(["couch"])


class Plain(Closed):
    inputs = RfDetr.inputs

    def preprocess(self, window):
        raise NotImplementedError


def test_labels_and_logits_must_agree(array_session):
    session = array_session(RfDetr, {})
    Plain(bundle_of("rf_detr"), session, "mine", 4, COCO_80, 300, "toothbrush")
    session.outputs = (replace(session.outputs[0], shape=(None, 300, 91)), session.outputs[1])
    with pytest.raises(ModelError, match="models/x: has 80 labels and 91 columns of logits"):
        Plain(bundle_of("rf_detr"), session, "mine", 4, COCO_80, 300)
    with pytest.raises(ModelError, match="fallback = 'unknown' is none of its labels"):
        Plain(bundle_of("rf_detr"), session, "mine", 4, COCO_80, 300, "unknown")
    with pytest.raises(ModelError, match=r"numbers\.top = 0"):
        Plain(bundle_of("rf_detr"), session, "mine", 4, COCO_80, 0)
