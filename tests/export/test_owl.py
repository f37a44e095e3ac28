from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
import safetensors.torch
import skimage.data

from tallymill.engine.bundles import load_bundle
from tallymill.engine.detectors.owl import Owl
from tallymill.engine.sessions.base import stack
from tallymill.errors import ModelError
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.export import export

CATEGORIES = ["cat", "dog", "wet dog"]
PHOTOGRAPHS = [skimage.data.chelsea(), skimage.data.coffee(), skimage.data.coffee()[:40, :50]]


MODELS = {"owlvit": "owlvit-base-patch32", "owlv2": "owlv2-base-patch16"}


@pytest.fixture(scope="module", params=["owlvit", "owlv2"])
def family(request):
    return request.param


@pytest.fixture(scope="module")
def detector(family, small_folder, tmp_path_factory):
    bundle = export(recipe_of(MODELS[family]), small_folder(family), out=tmp_path_factory.mktemp("out") / family)
    return Owl(bundle, "owl")


@pytest.fixture(scope="module")
def original(family, small_folder):
    return recipe_of(MODELS[family]).load(small_folder(family)).original


def seen(detector, images, categories):
    """Boxes and confidences of a batch of images, all patches, class after class."""
    detector.learn(categories)
    classes = np.arange(len(categories))
    outputs = detector.run(stack([detector.preprocess(image) for image in images]), [classes] * len(images))
    return [detector.decode(outputs, k, image.shape[:2], classes, 0.0) for k, image in enumerate(images)]


@pytest.mark.parametrize("image", PHOTOGRAPHS, ids=["chelsea", "coffee", "small"])
def test_boxes_and_confidences_are_those_of_the_original(detector, original, image):
    (found,) = seen(detector, [image], CATEGORIES)
    for place, (boxes, scores) in enumerate(original(image, CATEGORIES)):
        mine = found.request == place
        np.testing.assert_allclose(found.scores[mine], scores, atol=1e-3)
        np.testing.assert_allclose(found.boxes[mine], boxes, atol=1)


def test_images_of_one_batch_answer_as_alone_whatever_is_asked_of_each(detector):
    alone = [seen(detector, [image], CATEGORIES)[0] for image in PHOTOGRAPHS]
    together = seen(detector, PHOTOGRAPHS, CATEGORIES)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one.boxes, other.boxes, atol=1e-2)
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)


def test_a_category_is_encoded_once(detector):
    before = detector.learned.encoded
    for _ in range(3):
        detector.learn(["heron", "stork", None, "heron"])
    assert detector.learned.encoded == before + 2


def test_a_category_that_is_too_long_is_told_by_place(detector):
    faults = detector.learn(["cat", "abcdefghijklmnop", "dog"])
    assert list(faults) == [1]
    assert "'abcdefghijklmnop'" in faults[1]


def test_the_bundle_says_what_it_is(family, detector):
    bundle = load_bundle(detector.session.model.parent)
    assert bundle.family == family
    assert set(bundle.parts) == {"vision", "text"}


def test_weights_that_lack_something_are_refused(family, small_folder, tmp_path):
    """transformers would make up the rest at random, and the graph would be compared with that."""
    folder = shutil.copytree(small_folder(family), tmp_path / "part")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    lost = next(name for name in tensors if name.startswith("class_head"))
    del tensors[lost]
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=f"these weights lack {re.escape(lost)}, which Owl"):
        recipe_of(MODELS[family]).load(folder)
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:5000])
    with pytest.raises(ModelError, match="transformers cannot load it"):
        recipe_of(MODELS[family]).load(folder)


def test_weights_of_the_sister_model_are_refused(small_folder):
    with pytest.raises(ModelError, match=r"config\.json: model_type = 'owlvit'; wanted 'owlv2'"):
        recipe_of("owlv2-base-patch16").load(small_folder("owlvit"))
