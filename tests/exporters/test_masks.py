from __future__ import annotations

import numpy as np
import pytest

from tallymill.engine.detectors.base import DetectorSpec
from tallymill.engine.detectors.sam3 import Sam3, Segments
from tallymill.exporters.gate import SMALL
from tallymill.exporters.masks import examine_masks, outside
from tallymill.exporters.recipes.parts import Loaded

NAMES = ("cat", "dog")


def masks_of(size, count=3):
    """Of each query a rectangle, the last of them empty."""
    masks = np.zeros((count, *size), np.bool_)
    for query, mask in enumerate(masks[:-1]):
        mask[: size[0] // (query + 2), : size[1] // 2] = True
    return masks


class Fake(Sam3):
    """Answers with what ``spoil`` makes of the masks."""

    def __init__(self, spoil=lambda masks: masks):
        self.spoil = spoil
        self.spec = DetectorSpec("fake", "sam3", (), open_vocabulary=True)

    def learn(self, _categories):
        return {}

    def preprocess(self, window):
        return {"image": window}

    def run(self, inputs, _asked):
        return inputs

    def segment(self, _outputs, _index, _place, size, _floor):
        masks = self.spoil(masks_of(size))
        scores = np.linspace(0.9, 0.8, len(masks), dtype=np.float32)
        return Segments(np.zeros((len(masks), 4), np.float32), scores, masks)


def loaded(original=masks_of):
    def masks(image, categories, undecided):
        assert undecided == 1e-3
        return [(original(image.shape[:2]),) * 2 for _ in categories]

    return Loaded("sam3", {}, {}, None, NAMES, masks=masks)


def test_equal_masks_pass_and_are_all_compared():
    findings = examine_masks(loaded(), Fake())
    assert [finding.compared for finding in findings] == [3] * len(NAMES) * len(SMALL)
    assert all(finding.passed and finding.difference == 0 for finding in findings)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda masks: np.roll(masks, 5, axis=2),
        lambda masks: masks | True,
        lambda masks: masks & False,
        lambda masks: masks[::-1],
    ],
    ids=["moved", "everything", "nothing", "another's"],
)
def test_other_masks_are_refused(spoil):
    findings = examine_masks(loaded(), Fake(spoil))
    assert not any(finding.passed for finding in findings)
    assert "masks (1 - IoU) differs by" in str(findings[0])


def test_a_model_without_queries_is_refused_for_nothing_was_compared():
    findings = examine_masks(loaded(), Fake(lambda masks: masks[:0]))
    assert {str(finding).rpartition(": ")[2] for finding in findings} == {"nothing was compared  <-- refused"}


def test_undecided_pixels_may_be_either():
    sure, possible = np.zeros((2, 10, 10), np.bool_)
    sure[:5] = possible[:6] = True
    for rows, off in ((5, 0), (6, 0), (7, 10 / 70), (4, 10 / 50), (0, 1)):
        found = np.zeros((10, 10), np.bool_)
        found[:rows] = True
        assert outside(found, sure, possible) == pytest.approx(off)
    assert outside(~sure & False, sure & False, possible) == 0


def test_only_what_segments_has_masks():
    assert examine_masks(Loaded("owlvit", {}, {}, None), Fake()) == []
    with pytest.raises(TypeError, match="the family 'owlvit' has no masks"):
        examine_masks(loaded(), type("Other", (), {"spec": DetectorSpec("o", "owlvit", ())})())
