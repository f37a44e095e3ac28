from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import skimage.data

from tallymill.engine.arrays import Picture, to_host
from tallymill.engine.batch import batch_of
from tallymill.engine.clock import StageClock
from tallymill.engine.ensemble import open_detector
from tallymill.engine.gathering import Gathering
from tallymill.engine.items import read_items
from tallymill.engine.pipeline import class_of_targets
from tallymill.engine.proposer import DetectOptions, WindowProposer
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.export import export

PHOTOGRAPHS = [skimage.data.chelsea(), skimage.data.coffee(), skimage.data.coffee()[:33, :40]]


@pytest.mark.parametrize("name", ["owlvit-base-patch32", "owlv2-base-patch16-ensemble"])
def test_a_session_that_is_given_tensors_finds_what_it_finds_in_arrays(name, small_folder, tmp_path):
    bundle = export(recipe_of(name), small_folder(recipe_of(name).family), out=tmp_path / "bundle")
    targets = [{"category": category, "count": 1} for category in ("cat", "dog")]
    table = [{"item_id": str(k), "image": f"{k}.jpg", "targets": targets} for k in range(len(PHOTOGRAPHS))]
    found = []
    for place in (None, "cpu"):
        detector = open_detector(bundle, name)
        batch = batch_of(next(read_items(pa.Table.from_pylist(table))))
        classes = class_of_targets(detector.spec, batch.targets)
        options = DetectOptions(0.05, 0.5, (2,))
        gathering = Gathering(WindowProposer(detector, place=place), batch, classes, options, StageClock())
        for item, image in enumerate(PHOTOGRAPHS):
            gathering.look(item, Picture(image).at(place))
        raw = gathering.boxes()
        assert raw.errors == [None] * 3
        found.append([to_host(each) for each in (raw.segment, raw.boxes, raw.scores)])
    (segment, boxes, scores), (segment_there, boxes_there, scores_there) = found
    assert len(scores) > 50
    assert segment.tolist() == segment_there.tolist()
    np.testing.assert_allclose(boxes_there, boxes, atol=1e-2)
    np.testing.assert_allclose(scores_there, scores, atol=1e-4)
