from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import skimage.data
import torch
import transformers

from tallymill.engine.bundles import load_bundle
from tallymill.engine.detectors.sam3 import Sam3
from tallymill.engine.sessions.base import stack
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.export import export
from tallymill.exporters.masks import examine_masks
from tallymill.exporters.precision import histogram

CATEGORIES = ["cat", "wet dog"]
PHOTOGRAPHS = [skimage.data.chelsea(), skimage.data.coffee(), skimage.data.coffee()[:40, :50]]


@pytest.fixture(scope="module")
def folder(small_folder) -> Path:
    return small_folder("sam3")


@pytest.fixture(scope="module")
def bundle(folder, tmp_path_factory) -> Path:
    return export(recipe_of("sam3"), folder, out=tmp_path_factory.mktemp("out") / "sam3").folder


@pytest.fixture(scope="module")
def detector(bundle) -> Sam3:
    return Sam3(load_bundle(bundle), "sam3")


def look(detector, images, categories=CATEGORIES):
    detector.learn(categories)
    classes = np.arange(len(categories))
    return detector.run(stack([detector.preprocess(image) for image in images]), [classes] * len(images))


@pytest.mark.parametrize("image", PHOTOGRAPHS, ids=["chelsea", "coffee", "small"])
def test_boxes_confidences_and_masks_are_those_of_the_original(folder, detector, image):
    outputs = look(detector, [image])
    model = transformers.Sam3Model.from_pretrained(folder).eval()
    processor = transformers.Sam3ImageProcessor.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for place, name in enumerate(CATEGORIES):
        text = tokenizer([name], padding="max_length", max_length=16, return_tensors="pt")
        pixels = processor(images=image, return_tensors="pt").pixel_values
        with torch.no_grad():
            answer = model(pixels, input_ids=text.input_ids, attention_mask=text.attention_mask)
        (wanted,) = processor.post_process_instance_segmentation(answer, 0.0, target_sizes=[image.shape[:2]])
        found = detector.segment(outputs, 0, place, image.shape[:2], 0.0)
        np.testing.assert_allclose(found.scores, wanted["scores"], atol=1e-3)
        np.testing.assert_allclose(found.boxes, wanted["boxes"], atol=1)
        assert (found.masks == wanted["masks"].numpy().astype(bool)).mean() > 0.999
        assert 0.01 < found.masks.mean() < 0.99
        assert found.saturated


def test_the_masks_of_drawn_pictures_are_those_of_the_original(folder, detector, monkeypatch):
    loaded = recipe_of("sam3").load(folder)
    findings = examine_masks(loaded, detector)
    assert {(finding.passed, finding.compared) for finding in findings} == {(True, 20)}
    assert max(finding.difference for finding in findings) < 1e-3
    monkeypatch.setattr(detector, "preprocess", lambda image: Sam3.preprocess(detector, image // 2))
    assert not all(finding.passed for finding in examine_masks(loaded, detector))


def test_images_of_one_batch_answer_as_alone(detector):
    together = look(detector, PHOTOGRAPHS)
    for k, image in enumerate(PHOTOGRAPHS):
        alone = look(detector, [image])
        for name, value in alone.items():
            np.testing.assert_allclose(together[name][k], value[0], atol=1e-4)


def test_an_image_is_encoded_once_for_all_its_categories(detector, monkeypatch):
    calls = []
    session = detector.session
    monkeypatch.setattr(detector, "session", Counting(session, calls))
    look(detector, PHOTOGRAPHS[:1], ["cat", "dog", "wet dog"])
    assert len(calls) == 1


class Counting:
    def __init__(self, session, calls):
        self.session, self.calls = session, calls

    def run(self, inputs):
        self.calls.append(1)
        return self.session.run(inputs)


def test_nothing_is_found_above_what_the_presence_allows(detector):
    outputs = look(detector, PHOTOGRAPHS[:1])
    outputs["presence"][:] = -20
    found = detector.decode(outputs, 0, PHOTOGRAPHS[0].shape[:2], np.arange(2), 0.05)
    assert not len(found.scores)
    assert not len(detector.segment(outputs, 0, 0, (30, 40), 0.05).masks)


def test_halves_are_borne_and_texts_are_none(folder, bundle, in_halves, tmp_path):
    findings = in_halves(recipe_of("sam3").load(folder), bundle)
    assert all(finding.passed for finding in findings), findings
    assert {finding.output for finding in findings} >= {"fine", "logits", "presence", "boxes", "masks"}
    dtypes = {part: histogram(tmp_path / "halves" / f"{part}.half.onnx") for part in ("vision", "text", "decoder")}
    assert set(dtypes["text"]["MatMul"]) == {"float32"}
    assert "float16" in dtypes["vision"]["MatMul"]
    assert "float16" in dtypes["decoder"]["MatMul"]
