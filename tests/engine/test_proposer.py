from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tallymill.engine.batch import ItemBatch, batch_of
from tallymill.engine.clock import StageClock
from tallymill.engine.detectors.base import Candidates, Detector, DetectorSpec
from tallymill.engine.gathering import Gathering
from tallymill.engine.items import read_items
from tallymill.engine.pipeline import class_of_targets
from tallymill.engine.proposer import DetectOptions, WindowProposer
from tallymill.engine.retained import retained
from tallymill.errors import ModelError

OPTIONS = DetectOptions(floor=0.05, nms_iou=0.5, slices=())


class Scripted(Detector):
    """Stands in for a model: ``see(window, classes)`` gives boxes, scores and requests for a window's pixels."""

    def __init__(self, see: Callable[..., Any], batch: int = 1) -> None:
        self.spec = DetectorSpec("scripted", "fake", ("cat", "dog", "person"), {"people": "person"}, batch=batch)
        self.see = see
        self.asked: list[tuple[int, ...]] = []

    def preprocess(self, window):
        return {"pixels": window[:1, :1]}  # one pixel stands for the window, so that windows of any size can be stacked

    def run(self, inputs, asked):
        self.asked.append(inputs["pixels"].shape)
        assert len(inputs["pixels"]) == len(asked) <= self.spec.batch
        return dict(inputs)

    def decode(self, outputs, index, size, classes, _floor):
        return self.see(outputs["pixels"][index], size, classes)


def found(boxes, scores, request, saturated=False):
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    return Candidates(boxes, np.array(scores, np.float32), np.array(request, np.int64), saturated)


def items(*targets, images=None):
    table = pa.Table.from_pylist(
        [
            {"item_id": f"i{k}", "image": f"{k}.jpg", "targets": [{"category": c, "count": 1} for c in categories]}
            for k, categories in enumerate(targets)
        ]
    )
    batch = batch_of(next(read_items(table)))
    batch.contents = list(images or [np.zeros((50, 100, 3), np.uint8)] * len(targets))
    for i, image in enumerate(batch.contents):
        if image is not None:
            batch.sizes[i] = image.shape[:2]
    return batch


def detect(detector: Detector, batch: ItemBatch, options: DetectOptions = OPTIONS) -> Any:
    classes = class_of_targets(detector.spec, batch.targets)
    gathering = Gathering(WindowProposer(detector), batch, classes, options, StageClock())
    for i, image in enumerate(batch.contents):
        if image is not None:
            gathering.look(i, image)
    return retained(batch, classes, gathering.boxes(), options)


FAR_APART = [[0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10]]


def test_boxes_stand_target_after_target_each_by_falling_confidence():
    detector = Scripted(lambda *_: found(FAR_APART, [0.3, 0.9, 0.6], [1, 0, 1]))
    proposals = detect(detector, items(["cat", "dog"], ["dog", "cat"]))
    assert proposals.offsets.tolist() == [0, 3, 6]
    assert proposals.target.tolist() == [0, 1, 1] * 2
    assert proposals.confidence.tolist() == np.array([0.9, 0.6, 0.3] * 2, np.float32).tolist()
    assert proposals.boxes[:3].tolist() == [FAR_APART[1], FAR_APART[2], FAR_APART[0]]
    assert proposals.covered.all()


def test_a_detector_is_asked_only_for_classes_that_it_has():
    asked = []

    def see(_pixel, _size, classes):
        asked.append(classes.tolist())
        return found(FAR_APART[:1], [0.9], [len(classes) - 1])

    proposals = detect(Scripted(see), items(["zebra", "people", "cat"], ["zebra"], ["dog"]))
    assert asked == [[2, 0], [1]]  # the item of which it knows nothing is not looked at
    assert proposals.covered.tolist() == [False, True, True, False, True]
    assert proposals.target.tolist() == [2, 0]
    assert proposals.errors == [None, None, None]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.5, -0.1])
def test_scores_that_are_none_make_an_error_of_that_image_alone(bad):
    def see(pixel, _size, _classes):
        return found(FAR_APART, [0.9, bad if pixel[0, 0, 0] else 0.8, 0.7], [0, 0, 0])

    images = [np.full((50, 100, 3), value, np.uint8) for value in (0, 1, 0)]
    proposals = detect(Scripted(see), items(["cat"], ["cat"], ["cat"], images=images))
    assert proposals.errors[0] is None
    assert proposals.errors[2] is None
    assert "scripted: scores that are not finite" in proposals.errors[1]
    assert proposals.offsets.tolist() == [0, 3, 3, 6]  # not "zero objects", but an item with an error and no boxes


def test_a_failing_model_is_an_error_of_that_image_alone_in_whatever_window():
    calls = []

    def see(_pixel, size, _classes):
        calls.append(size)
        if len(calls) == 3:  # the third window of the first image
            raise ModelError("out of memory")
        return found([[2, 2, 8, 8]], [0.9], [0])

    proposals = detect(Scripted(see), items(["cat"], ["cat"]), DetectOptions(0.05, 0.5, (2,)))
    assert proposals.errors == ["scripted: out of memory", None]
    assert np.diff(proposals.offsets).tolist() == [0, 4]  # the whole image and the first window agree


def test_an_image_that_cannot_be_prepared_is_an_error_of_that_image_alone():
    detector = Scripted(lambda *_: found(FAR_APART, [0.9, 0.8, 0.7], [0, 0, 0]), batch=2)
    prepare = detector.preprocess

    def preprocess(window):
        if window.shape[1] > 100:
            raise ModelError("too wide")
        return prepare(window)

    detector.preprocess = preprocess
    images = [np.zeros((50, width, 3), np.uint8) for width in (100, 101, 100)]
    proposals = detect(detector, items(["cat"], ["cat"], ["cat"], images=images))
    assert proposals.errors == [None, "scripted: too wide", None]
    assert np.diff(proposals.offsets).tolist() == [3, 0, 3]


def test_degenerate_boxes_are_dropped_and_counted_before_nms():
    boxes = [[0, 0, 0, 10], [0, 5, 10, 5], [9, 0, 2, 8], [0, 0, np.inf, 10], [np.nan, 0, 10, 10], [0, 0, 10, 10]]
    detector = Scripted(lambda *_: found(boxes, [0.9] * 5 + [0.4], [0] * 6))
    proposals = detect(detector, items(["cat"]))
    assert proposals.dropped == 5
    assert proposals.errors == [None]
    assert proposals.boxes.tolist() == [[0, 0, 10, 10]]


def test_nms_is_per_item_and_target():
    same = [[0, 0, 10, 10]] * 3
    detector = Scripted(lambda *_: found(same, [0.9, 0.8, 0.7], [0, 0, 1]))
    proposals = detect(detector, items(["cat", "dog"], ["cat", "dog"]))
    assert proposals.target.tolist() == [0, 1, 0, 1]
    assert proposals.confidence.tolist() == np.array([0.9, 0.7] * 2, np.float32).tolist()


def test_equal_scores_keep_the_first():
    boxes = [[0, 0, 10, 10], [0, 0, 10, 10.5], [0, 0, 10.5, 10]]
    proposals = detect(Scripted(lambda *_: found(boxes, [1, 1, 1], [0] * 3)), items(["cat"]))
    assert proposals.boxes.tolist() == [boxes[0]]


def test_suppressed_boxes_follow_those_of_their_target():
    boxes = [[0, 0, 10, 9], [0, 0, 10, 10], [50, 0, 60, 10], [0, 0, 10, 9.5]]
    detector = Scripted(lambda *_: found(boxes, [0.2, 0.9, 0.3, 0.8], [1, 1, 0, 1]))
    proposals = detect(detector, items(["cat", "dog"]), DetectOptions(0.05, 0.5, (), keep_suppressed=True))
    assert proposals.target.tolist() == [0, 1, 1, 1]
    assert proposals.confidence.tolist() == np.array([0.3, 0.9, 0.2, 0.8], np.float32).tolist()
    assert proposals.kept.tolist() == [True, True, False, False]
    plain = detect(detector, items(["cat", "dog"]))
    kept = proposals.survivors()
    assert kept.to_arrow().to_pylist() == plain.to_arrow().to_pylist()


@pytest.mark.parametrize("at", [0, 3, None])
def test_an_image_is_saturated_when_any_window_is(at):
    calls = []

    def see(_pixel, size, _classes):
        calls.append(size)
        return found([], [], [], saturated=len(calls) - 1 == at)

    proposals = detect(Scripted(see), items(["cat"], ["cat"]), DetectOptions(0.05, 0.5, (2,)))
    assert proposals.saturated.tolist() == [at is not None, False]


def test_boxes_of_windows_are_moved_to_the_image_and_cut_ones_dropped():
    # 70 x 70, k = 2: windows of 40 at 0 and 30. A box at [1, 1] of a window is cut unless the image ends there.
    detector = Scripted(lambda *_: found([[1, 1, 9, 9]], [0.9], [0]))
    proposals = detect(
        detector, items(["cat"], images=[np.zeros((70, 70, 3), np.uint8)]), DetectOptions(0.05, 0.5, (2,))
    )
    assert proposals.boxes.tolist() == [[1, 1, 9, 9]]  # whole image and first window agree; the others saw a cut one
    shifted = Scripted(lambda *_: found([[5, 5, 9, 9]], [0.9], [0]))
    proposals = detect(
        shifted, items(["cat"], images=[np.zeros((70, 70, 3), np.uint8)]), DetectOptions(0.05, 0.5, (2,))
    )
    assert proposals.boxes.tolist() == [[5, 5, 9, 9], [35, 5, 39, 9], [5, 35, 9, 39], [35, 35, 39, 39]]


def test_how_near_an_edge_a_box_is_cut_is_a_setting():
    detector = Scripted(lambda *_: found([[5, 5, 9, 9]], [0.9], [0]))
    batch = items(["cat"], images=[np.zeros((70, 70, 3), np.uint8)])
    counts = [len(detect(detector, batch, DetectOptions(0.05, 0.5, (2,), window_edge=e)).boxes) for e in (4.9, 5.0)]
    assert counts == [4, 1]


def test_windows_are_run_in_groups_with_the_same_result():
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (60 + 7 * k, 90, 3)).astype(np.uint8) for k in range(3)]

    def see(pixel, _size, _classes):
        value = int(pixel[0, 0, 0])
        return found([[5 + value % 7, 5, 15 + value % 11, 15]], [0.1 + value / 512], [0])

    options = DetectOptions(0.05, 0.5, (2, 3))
    one, eight = Scripted(see), Scripted(see, batch=8)
    alone = detect(one, items(["cat"], ["cat"], ["cat"], images=images), options).to_arrow().to_pylist()
    grouped = detect(eight, items(["cat"], ["cat"], ["cat"], images=images), options).to_arrow().to_pylist()
    assert alone == grouped
    assert [shape[0] for shape in eight.asked] == [8, 8, 8, 8, 8, 2]  # across images
    assert [shape[0] for shape in one.asked] == [1] * 42


def test_items_with_errors_are_not_looked_at_and_keep_them():
    batch = items(["cat"], ["cat"])
    batch.errors[0], batch.contents[0] = "image: cut short", None
    batch.hashes = ["h0", None]
    detector = Scripted(lambda *_: found(FAR_APART, [0.9] * 3, [0] * 3))
    proposals = detect(detector, batch)
    assert proposals.errors == ["image: cut short", None]
    assert proposals.image_hash.to_pylist() == ["h0", None]
    assert proposals.offsets.tolist() == [0, 0, 3]
    assert len(detector.asked) == 1


def test_nothing_found_anywhere():
    proposals = detect(Scripted(lambda *_: found([], [], [])), items(["cat"], ["dog"]))
    assert proposals.offsets.tolist() == [0, 0, 0]
    assert proposals.covered.tolist() == [True, True]
    assert proposals.errors == [None, None]


def test_a_model_that_fails_on_a_batch_fails_only_on_the_image_that_is_to_blame():
    class Choking(Scripted):
        def run(self, inputs, asked):
            outputs = super().run(inputs, asked)
            if (inputs["pixels"] == 2).any():
                raise ModelError("cannot swallow this")
            return outputs

    detector = Choking(lambda *_: found(FAR_APART, [0.9, 0.8, 0.7], [0, 0, 0]), batch=4)
    images = [np.full((50, 100, 3), value, np.uint8) for value in range(4)]
    proposals = detect(detector, items(*[["cat"]] * 4, images=images))
    assert proposals.errors == [None, None, "scripted: cannot swallow this", None]
    assert np.diff(proposals.offsets).tolist() == [3, 3, 0, 3]
    assert [shape[0] for shape in detector.asked] == [4, 1, 1, 1, 1]


def test_windows_of_different_shapes_are_never_in_one_batch_and_come_out_in_their_order():
    class Shaped(Scripted):
        def preprocess(self, window):
            return {"pixels": window[: 1 + window[0, 0, 0] % 2, :1]}

    def see(pixel, _size, _classes):
        return found([[pixel[0, 0, 0], 0, 90, 50]], [0.5], [0])

    images = [np.full((50, 100, 3), value, np.uint8) for value in range(7)]
    detector = Shaped(see, batch=2)
    proposals = detect(detector, items(*[["cat"]] * 7, images=images))
    assert proposals.boxes[:, 0].tolist() == list(range(7))
    assert sorted(shape[0] for shape in detector.asked) == [1, 2, 2, 2]
    assert {shape[1] for shape in detector.asked} == {1, 2}


def test_classes_that_do_not_fit_one_call_are_asked_in_several():
    class Narrow(Scripted):
        def split(self, classes):
            return [np.arange(len(classes))[k::2] for k in range(2)]

    def see(_pixel, _size, classes):
        return found([[20 * c, 0, 20 * c + 10, 10] for c in classes], [0.9] * len(classes), np.arange(len(classes)))

    proposals = detect(Narrow(see, batch=2), items(["dog", "cat", "person"]))
    assert proposals.boxes[:, 0].tolist() == [20, 0, 40]  # dog is class 1, cat 0, person 2
    assert proposals.target.tolist() == [0, 1, 2]


def test_a_category_that_a_text_model_cannot_take_is_an_error_of_the_items_that_ask_for_it():
    class Reading(Scripted):
        def learn(self, categories):
            return {place: "too long" for place, name in enumerate(categories) if name == "zebra"}

    detector = Reading(lambda *_: found(FAR_APART[:1], [0.9], [0]))
    detector.spec = replace(detector.spec, open_vocabulary=True)
    proposals = detect(detector, items(["cat"], ["cat", "zebra"], ["dog"]))
    assert proposals.errors == [None, "scripted: too long", None]
    assert np.diff(proposals.offsets).tolist() == [1, 0, 1]
