from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import skimage.data
import torch
import transformers
from PIL import Image

from tallymill.engine.bundles import load_bundle
from tallymill.engine.detectors.coco import COCO_80, COCO_IDS
from tallymill.engine.detectors.rf_detr import RfDetr
from tallymill.engine.sessions.base import stack
from tallymill.exporters import gate
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.export import export

CLASSES = np.array([1, 3, 17, 18, 90])  # of the 91: person, car, cat, dog, toothbrush
PHOTOGRAPHS = [skimage.data.chelsea(), skimage.data.coffee()]
QUERIES = 20


@pytest.fixture(scope="module")
def detector(small_folder, tmp_path_factory):
    bundle = export(recipe_of("rf-detr-nano"), small_folder("rf_detr"), out=tmp_path_factory.mktemp("out") / "rf-detr")
    return RfDetr(bundle, "rf-detr")


@pytest.fixture(scope="module")
def original(small_folder):
    """Labels, boxes and scores of transformers: processor, model and post-processing, for one image."""
    model = transformers.RfDetrForObjectDetection.from_pretrained(small_folder("rf_detr")).eval()
    processor = transformers.RfDetrImageProcessor.from_pretrained(small_folder("rf_detr"))

    def look(image):
        inputs = processor(images=Image.fromarray(image), return_tensors="pt")
        with torch.no_grad():
            outputs = model(**inputs)
        (found,) = processor.post_process_object_detection(outputs, threshold=0.0, target_sizes=[image.shape[:2]])
        return found["labels"].numpy(), found["boxes"].numpy(), found["scores"].numpy()

    return look


def seen(detector, images, classes, floor=0.0):
    outputs = detector.run(stack([detector.preprocess(image) for image in images]), [classes] * len(images))
    return [detector.decode(outputs, k, image.shape[:2], classes, floor) for k, image in enumerate(images)]


@pytest.mark.parametrize("image", PHOTOGRAPHS, ids=["chelsea", "coffee"])
def test_boxes_and_confidences_are_those_of_the_original(detector, original, image):
    classes = np.arange(91)
    (found,) = seen(detector, [image], classes)
    labels, boxes, scores = original(image)
    assert len(labels) == QUERIES
    assert sorted(found.request.tolist()) == sorted(labels.tolist())
    for label, box, score in zip(labels, boxes, scores, strict=True):
        same = (found.request == label) & (np.abs(found.boxes - box).max(axis=1) < 1)
        assert np.abs(found.scores[same] - score).min() < 1e-3


def test_the_choice_of_the_original_comes_before_the_classes_that_are_asked(detector):
    (everything,) = seen(detector, PHOTOGRAPHS[:1], np.arange(91))
    asked = np.unique(everything.request)[:3]
    (some,) = seen(detector, PHOTOGRAPHS[:1], asked)
    assert everything.saturated
    assert some.saturated
    for position, label in enumerate(asked):
        mine, its = some.request == position, everything.request == label
        assert np.array_equal(some.boxes[mine], everything.boxes[its])
        assert np.array_equal(some.scores[mine], everything.scores[its])


def test_images_of_one_batch_answer_as_alone(detector):
    images = [*PHOTOGRAPHS, PHOTOGRAPHS[0][:150], PHOTOGRAPHS[1][:40, :30], PHOTOGRAPHS[0][::-1]]
    alone = [seen(detector, [image], CLASSES)[0] for image in images]
    for batch in (images[:2], images):
        for one, other in zip(alone, seen(detector, batch, CLASSES), strict=False):
            assert np.array_equal(one.request, other.request)
            np.testing.assert_allclose(one.boxes, other.boxes, atol=1e-2)
            np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)


def test_columns_without_names_are_the_ids_of_coco(detector):
    assert len(detector.spec.labels) == 91
    assert [detector.spec.labels[k] for k in COCO_IDS] == list(COCO_80)
    assert detector.spec.class_of("stop sign") == 13
    assert detector.spec.class_of("sofa") == 63
    assert detector.spec.class_of("heron") is None
    assert detector.spec.query_cap == QUERIES


def test_the_gate_sees_another_preparation_and_another_choice(detector, small_folder):
    loaded = recipe_of("rf-detr-nano").load(small_folder("rf_detr"))
    bundle = load_bundle(detector.session.model.parent)

    def refused(**numbers):
        changed = RfDetr(replace(bundle, numbers={**bundle.numbers, **numbers}), "changed")
        return {finding.output for finding in gate.examine_whole(loaded, changed) if not finding.passed}

    assert not refused()
    assert refused(**{"mean": [0.0, 0.0, 0.0]})
    assert refused(labels=[*bundle.numbers["labels"][1:], bundle.numbers["labels"][0]])
    assert refused(top=5)
