from __future__ import annotations

import re
import shutil

import numpy as np
import onnx
import pytest
import safetensors.torch
import skimage.data
import torch
import transformers

from tallymill.engine.detectors.coco import COCO_80
from tallymill.engine.detectors.rt_detr import RtDetr
from tallymill.engine.sessions.base import stack
from tallymill.engine.sessions.ort import OnnxRuntimeSession
from tallymill.errors import ModelError
from tallymill.exporters import gate
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.export import export

MODELS = {"rt_detr": "rt-detr-v2-r18", "d_fine": "d-fine-nano"}
PHOTOGRAPHS = [skimage.data.chelsea(), skimage.data.coffee(), skimage.data.coffee()[:40, :30]]
QUERIES = 20


@pytest.fixture(scope="module", params=MODELS)
def made(request, small_folder):
    """Name of the family, and the folder of its small model."""
    return request.param, small_folder(request.param)


@pytest.fixture(scope="module")
def detector(made, tmp_path_factory):
    family, folder = made
    return RtDetr(export(recipe_of(MODELS[family]), folder, out=tmp_path_factory.mktemp("out") / family), family)


def seen(detector, images, classes):
    outputs = detector.run(stack([detector.preprocess(image) for image in images]), [classes] * len(images))
    return [detector.decode(outputs, k, image.shape[:2], classes, 0.0) for k, image in enumerate(images)]


@pytest.mark.parametrize("image", PHOTOGRAPHS, ids=["chelsea", "coffee", "small"])
def test_boxes_and_confidences_are_those_of_the_original(detector, made, image):
    family, folder = made
    outputs = detector.run(stack([detector.preprocess(image)]), [np.arange(80)])
    found = detector.decode(outputs, 0, image.shape[:2], np.arange(80), 0.0)
    wanted = recipe_of(MODELS[family]).load(folder).following(image, COCO_80, outputs)
    assert len(found.scores) == sum(len(scores) for _, scores in wanted) == QUERIES
    for place, (boxes, scores) in enumerate(wanted):
        mine = found.request == place
        assert mine.sum() == len(scores)
        for box, score in zip(boxes, scores, strict=True):
            near = np.abs(found.boxes[mine] - box).max(axis=1) < 1
            assert np.abs(found.scores[mine][near] - score).min() < 1e-3


def test_images_of_one_batch_answer_as_alone(detector):
    images = [*PHOTOGRAPHS, PHOTOGRAPHS[0][::-1], PHOTOGRAPHS[1][:, ::-1]]
    classes = np.arange(80)
    alone = [seen(detector, [image], classes)[0] for image in images]
    for batch in (images[:2], images):
        for one, other in zip(alone, seen(detector, batch, classes), strict=False):
            assert np.array_equal(one.request, other.request)
            np.testing.assert_allclose(one.boxes, other.boxes, atol=1e-2)
            np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)


def test_labels_are_those_of_the_config(detector):
    assert detector.spec.labels == COCO_80
    assert detector.spec.class_of("sofa") == COCO_80.index("couch")


def test_a_processor_without_a_fixed_size_is_refused(made, tmp_path):
    family, folder = made
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "preprocessor_config.json").unlink()
    transformers.RTDetrImageProcessor(size={"shortest_edge": 64, "longest_edge": 80}).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="wanted height and width"):
        recipe_of(MODELS[family]).load(tmp_path)


def test_the_original_follows_near_ties_and_nothing_else(made):
    family, folder = made
    loaded = recipe_of(MODELS[family]).load(folder)
    image = PHOTOGRAPHS[0]
    own = loaded.original(image, COCO_80)
    with torch.no_grad():
        picks = loaded.parts["image"].module(torch.zeros(1, 3, 128, 128))["proposals"].numpy()
    for proposals in (np.zeros_like(picks), picks[:, ::-1].copy()):
        after = loaded.following(image, COCO_80, {"proposals": proposals})
        assert all(np.array_equal(a, b) for pair in zip(own, after, strict=True) for a, b in zip(*pair, strict=True))


@pytest.fixture
def without(made, tmp_path):
    """Copy the folder of the small model without those tensors whose names end so; which they were."""
    folder = shutil.copytree(made[1], tmp_path / "part")

    def leave_out(*ends):
        tensors = safetensors.torch.load_file(folder / "model.safetensors")
        lost = sorted(name for name in tensors if name.endswith(ends))
        kept = {name: value for name, value in tensors.items() if name not in lost}
        safetensors.torch.save_file(kept, folder / "model.safetensors", {"format": "pt"})
        return folder, lost

    return leave_out


@pytest.mark.parametrize("end", ["running_var", "running_mean"])
def test_weights_that_lack_the_statistics_of_a_batch_norm_are_refused(made, without, end):
    """transformers would go on with those of a layer that was never trained, on both sides of the gate."""
    folder, lost = without(end)
    with pytest.raises(ModelError, match=f"these weights lack {re.escape(lost[0])} and {len(lost) - 1} more, which"):
        recipe_of(MODELS[made[0]]).load(folder)


def test_weights_without_what_follows_from_the_config_are_taken(made, without):
    folder, lost = without("num_batches_tracked", "points_scale")
    assert any(name.endswith("points_scale") for name in lost)
    image = PHOTOGRAPHS[0]
    whole, rest = (recipe_of(MODELS[made[0]]).load(each).original(image, COCO_80) for each in (made[1], folder))
    assert all(
        np.array_equal(a, b) for one, other in zip(whole, rest, strict=True) for a, b in zip(one, other, strict=True)
    )


def test_a_first_stage_that_takes_the_worst_is_refused(made, detector, tmp_path):
    """A TopK that gives the right values and other places, as engines have been seen to."""
    loaded = recipe_of(MODELS[made[0]]).load(made[1])
    graph = onnx.load(detector.session.model)
    best = next(node for node in graph.graph.node if node.op_type == "TopK")
    worst = onnx.helper.make_node("TopK", best.input, ["least", best.output[1]], axis=1, largest=0, name="worst")
    best.output[1] = "right_places"
    graph.graph.node.insert(list(graph.graph.node).index(best) + 1, worst)
    onnx.save(graph, tmp_path / "image.onnx")
    for file in detector.session.model.parent.glob("*.weights"):
        shutil.copyfile(file, tmp_path / file.name)
    findings = gate.examine("image", loaded.parts["image"], OnnxRuntimeSession(tmp_path / "image.onnx"))
    assert "best" in {finding.output for finding in findings if not finding.passed}
