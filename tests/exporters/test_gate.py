"""The gate on whole detectors that are written here; what it makes of real exports is in tests/export."""

from __future__ import annotations

import numpy as np
import pytest

from tallymill.engine.detectors.base import Candidates, DetectorSpec
from tallymill.exporters import gate
from tallymill.exporters.recipes.bucketed import pictures
from tallymill.exporters.recipes.parts import ArrayOriginal, Loaded

SIDE = 48
NAMES = ("cat", "dog")


def shrunk(picture, smooth=True):
    """To SIDE x SIDE, float32: the mean of what falls on a pixel, or without ``smooth`` its first one."""
    height, width, _ = picture.shape
    rows, columns = (np.arange(SIDE + 1) * side // SIDE for side in (height, width))
    if not smooth:
        return picture[rows[:-1]][:, columns[:-1]].astype(np.float32)
    rows, columns = (np.minimum(each[:-1], each[-1] - 1) for each in (rows, columns))
    sums = np.add.reduceat(np.add.reduceat(picture.astype(np.float64), rows, 0), columns, 1)
    return (sums / np.outer(np.diff([*rows, height]), np.diff([*columns, width]))[..., None]).astype(np.float32)


def boxes_of(image, size, top):
    """A box a block of 4 x 4 pixels, with confidences up to about ``top`` that differ by category."""
    blocks = image.reshape(SIDE // 4, 4, SIDE // 4, 4, 3).mean((1, 3)).reshape(-1, 3)
    y, x = np.divmod(np.arange(len(blocks)), SIDE // 4) / np.float64(SIDE // 4)
    extent = blocks[:, :2] / 2550
    boxes = np.stack([x, y, x + extent[:, 0], y + extent[:, 1]], 1) * [size[1], size[0], size[1], size[0]]
    return [(boxes.astype(np.float32), (top * blocks[:, k] / 255).astype(np.float32)) for k in range(len(NAMES))]


class Fake:
    """A detector of ``boxes_of``; ``change`` spoils what it finds, of a category."""

    def __init__(self, top, change=lambda boxes, scores: (boxes, scores), prepare=shrunk, open_vocabulary=True):
        self.top, self.change, self.prepare = top, change, prepare
        self.spec = DetectorSpec(
            "fake", "fake", () if open_vocabulary else NAMES, open_vocabulary=open_vocabulary, query_cap=2 * 144
        )

    def learn(self, categories):
        assert tuple(categories) == NAMES

    def preprocess(self, window):
        return {"image": self.prepare(window)}

    def run(self, inputs, asked):
        assert [each.tolist() for each in asked] == [[0, 1]]
        return dict(inputs)

    def decode(self, outputs, index, size, classes, floor):
        found = [self.change(*each) for each in boxes_of(outputs["image"][index], size, self.top)]
        boxes, scores = (np.concatenate(each) for each in zip(*found, strict=True))
        request = np.repeat(np.arange(len(classes)), [len(each[1]) for each in found])
        kept = ~(scores < floor)
        return Candidates(boxes[kept], scores[kept], request[kept])


def examined(detector, top, pictures=((240, 320), (100, 50)), bounds=gate.EXACT):
    def original(image, categories):
        assert tuple(categories) == NAMES
        return boxes_of(shrunk(image), image.shape[:2], top)

    return gate.examine_whole(Loaded("fake", {}, {}, original, pictures=pictures), detector, bounds)


def refused(detector, top, **given):
    return {finding.output for finding in examined(detector, top, **given) if not finding.passed}


@pytest.mark.parametrize("top", [0.9, 1e-3])
@pytest.mark.parametrize("open_vocabulary", [True, False])
def test_a_detector_passes_and_its_findings_say_how_many_boxes_were_compared(top, open_vocabulary):
    findings = examined(Fake(top, open_vocabulary=open_vocabulary), top)
    assert all(finding.passed for finding in findings)
    counts = [finding.compared for finding in findings if finding.output == "count at .5"]
    assert len(findings) - len(counts) == 3 * len(NAMES) * 2
    assert bool(counts) == (top > 0.5)  # where nothing reaches one half, no count is said to be right
    assert min(finding.compared for finding in findings if finding.output != "count at .5") >= 50


def test_a_model_that_is_sure_of_nothing_is_still_compared():
    assert "boxes (pixels)" in refused(Fake(1e-3, lambda boxes, scores: (boxes + 3, scores)), 1e-3)
    assert "logarithms of confidences" in refused(Fake(1e-3, lambda boxes, scores: (boxes, scores / 2)), 1e-3)


def test_invented_boxes_are_refused_however_many_and_below_one_half():
    def invent(boxes, scores):
        extra = boxes[:50] + np.float32([200, 300, 210, 310])
        return np.concatenate([boxes, extra]), np.concatenate([scores, np.full(50, 0.49, np.float32)])

    assert {"boxes (pixels)", "confidences"} & refused(Fake(0.4, invent), 0.4)


def test_one_box_in_the_place_of_several_is_refused():
    assert "boxes (pixels)" in refused(Fake(0.4, lambda boxes, scores: (boxes[::2], scores[::2])), 0.4)


def test_in_halves_too_boxes_elsewhere_are_refused_however_small_their_confidences():
    def elsewhere(boxes, scores):
        moved = boxes + 5000 * (np.arange(len(boxes)) % 3 == 0)[:, None]
        return moved.astype(np.float32), scores

    halves = gate.Bounds(2.0, 0.02, half=True)
    assert not refused(Fake(0.03, open_vocabulary=False), 0.03, bounds=halves)
    assert "boxes (pixels)" in refused(Fake(0.03, elsewhere, open_vocabulary=False), 0.03, bounds=halves)


def test_a_box_that_is_no_number_is_refused():
    def spoil(boxes, scores):
        boxes[int(np.argmax(scores))] = np.nan
        return boxes, scores

    assert "boxes (pixels)" in refused(Fake(0.9, spoil), 0.9)


def test_a_whole_in_which_nothing_was_compared_is_refused():
    def nothing(_image, categories):
        return [(np.zeros((0, 4), np.float32), np.zeros(0, np.float32))] * len(categories)

    blind = Fake(0.9, lambda boxes, scores: (boxes[:0], scores[:0]))
    (finding,) = gate.examine_whole(Loaded("fake", {}, {}, nothing, pictures=((64, 64),)), blind)
    assert not finding.passed
    assert str(finding).endswith("nothing was compared  <-- refused")


def test_a_picture_that_is_made_smaller_without_smoothing_is_refused():
    def careless(picture):
        return shrunk(picture, smooth=max(picture.shape) <= 400)

    assert refused(Fake(0.9, prepare=careless), 0.9, pictures=())
    assert not refused(Fake(0.9, prepare=careless), 0.9, pictures=gate.SMALL)


def test_pictures_of_buckets_fill_them_and_are_also_larger_than_they_are():
    for buckets in ([(800, 800), (800, 1333), (1333, 800)], [(64, 107)], [(96, 96)]):
        found = pictures(buckets)
        assert len(found) == 2 * len(buckets)
        for size in buckets:
            for large in (False, True):
                same = [
                    each for each in found if (min(each) > min(size)) == large and np.argmax(each) == np.argmax(size)
                ]
                assert same
    assert pictures([(800, 800)]) == ((320, 320), (1024, 1024))


def test_arrays_say_how_many_numbers_were_compared():
    for answer, compared in ((lambda image: image, 60), (lambda image: image[:0], 0)):
        original = ArrayOriginal(answer, lambda _bundle, answer=answer: answer, 1, "level", 0.0, 0.0)
        (finding,) = gate.examine_arrays(original, answer, [(4, 5)], tolerance=0.0)
        assert finding.compared == compared
        assert finding.passed == (compared > 0)


@pytest.mark.parametrize(("values", "numbers"), [([-np.inf] * 3, 0), ([-2e4, 1.0, np.nan], 1), ([0.0, 2.0, -3.0], 3)])
def test_what_is_masked_is_not_compared(values, numbers):
    wanted = np.array(values, np.float32)
    assert gate.compared(wanted) == numbers
    assert gate.Finding("part", "check", "output", 0.0, 1.0, gate.compared(wanted)).passed == (numbers > 0)
