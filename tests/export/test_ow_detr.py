from __future__ import annotations

import argparse
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import skimage.data
import torch
import transformers

from tallymill.bench.small_models import deformable_detr
from tallymill.engine.bundles import load_bundle
from tallymill.engine.detectors.coco import COCO_80
from tallymill.engine.detectors.ow_detr import OwDetr
from tallymill.engine.sessions.base import stack
from tallymill.errors import ModelError
from tallymill.exporters import gate
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.export import export
from tallymill.exporters.recipes.ow_detr import labels_of_split, load

PHOTOGRAPHS = [
    skimage.data.chelsea(),
    skimage.data.coffee(),
    skimage.data.chelsea()[:, 100:250],
    skimage.data.coffee()[:33, :40],
]
BUCKETS = ((64, 107), (107, 64))
RECIPE = recipe_of("ow-detr")


@pytest.fixture(scope="module")
def model():
    return deformable_detr()


@pytest.fixture(scope="module")
def folder(small_folder):
    return small_folder("ow_detr")


@pytest.fixture(scope="module")
def detector(folder, tmp_path_factory):
    recipe = replace(RECIPE, load=partial(load, buckets=BUCKETS))
    return OwDetr(export(recipe, folder, out=tmp_path_factory.mktemp("out") / "ow-detr"), "ow-detr")


def seen(detector, images, classes, floor=0.0):
    outputs = detector.run(stack([detector.preprocess(image) for image in images]), [classes] * len(images))
    return [detector.decode(outputs, k, image.shape[:2], classes, floor) for k, image in enumerate(images)]


@pytest.mark.parametrize("image", PHOTOGRAPHS, ids=["chelsea", "coffee", "upright", "small"])
def test_boxes_and_confidences_are_those_of_the_original(detector, folder, image):
    model = transformers.DeformableDetrForObjectDetection.from_pretrained(folder).eval()
    processor = transformers.DeformableDetrImageProcessorPil.from_pretrained(folder)
    height, width = (64, 107) if image.shape[1] > image.shape[0] else (107, 64)
    inputs = processor(images=image, return_tensors="pt", pad_size={"height": height, "width": width})
    with torch.no_grad():
        outputs = model(**inputs)
    (wanted,) = processor.post_process_object_detection(outputs, threshold=0.0, target_sizes=[image.shape[:2]])
    (found,) = seen(detector, [image], np.arange(81))
    assert len(wanted["labels"]) == 100
    assert sorted(found.request.tolist()) == sorted(wanted["labels"].tolist())
    for label, box, score in zip(*(wanted[key].numpy() for key in ("labels", "boxes", "scores")), strict=True):
        same = (found.request == label) & (np.abs(found.boxes - box).max(axis=1) < 1)
        assert np.abs(found.scores[same] - score).min() < 1e-3
    assert found.saturated


def test_images_of_one_batch_answer_as_alone(detector):
    images = [PHOTOGRAPHS[0], PHOTOGRAPHS[1], PHOTOGRAPHS[3], PHOTOGRAPHS[1][::-1], PHOTOGRAPHS[0][:200]]
    classes = np.array([3, 80, 41])
    alone = [seen(detector, [image], classes)[0] for image in images]
    for batch in (images[:2], images):
        for one, other in zip(alone, seen(detector, batch, classes), strict=False):
            assert np.array_equal(one.request, other.request)
            np.testing.assert_allclose(one.boxes, other.boxes, atol=1e-2)
            np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)


def test_a_category_is_its_class_of_coco_or_else_unknown(detector):
    spec = detector.spec
    assert spec.class_of("person") == 18
    assert spec.class_of("people") == 18
    assert spec.class_of("couch") == 39
    assert spec.class_of("airplane") == 0
    assert spec.class_of("heron") == 80
    assert spec.class_of("unknown") == 80
    assert spec.query_cap == 100


@pytest.mark.parametrize("split", ["proposed", "owod"])
def test_every_class_of_coco_has_one_column(split):
    labels = labels_of_split(split)
    assert sorted(labels[:-1]) == sorted(COCO_80)
    assert labels[-1] == "unknown"


def in_original_names(model):
    """A state dict as the repository writes it: fused query, key and value, and every name of its own."""
    weights = {}
    for name, value in model.state_dict().items():
        name = name.removeprefix("model.")
        stage = re.match(r"backbone\.model\.encoder\.stages\.(\d)\.layers\.(\d+)\.(.+)", name)
        if name.startswith("backbone.model.embedder.embedder."):
            rest = name.removeprefix("backbone.model.embedder.embedder.")
            rest = rest.replace("convolution", "conv1").replace("normalization", "bn1")
            name = f"backbone.0.body.{rest}"
        elif stage:
            rest = re.sub(r"^shortcut\.convolution", "downsample.0", stage[3])
            rest = re.sub(r"^shortcut\.normalization", "downsample.1", rest)
            rest = re.sub(r"^layer\.(\d)\.convolution", lambda m: f"conv{int(m[1]) + 1}", rest)
            rest = re.sub(r"^layer\.(\d)\.normalization", lambda m: f"bn{int(m[1]) + 1}", rest)
            name = f"backbone.0.body.layer{int(stage[1]) + 1}.{stage[2]}.{rest}"
        elif name.startswith("query_position_embeddings"):
            name = name.replace("query_position_embeddings", "query_embed")
        elif not name.startswith(("class_embed", "bbox_embed", "input_proj")):
            name = f"transformer.{name}".replace(".mlp.fc", ".linear")
            if ".encoder." in name:
                name = name.replace("self_attn_layer_norm", "norm1").replace("final_layer_norm", "norm2")
            name = name.replace("encoder_attn_layer_norm", "norm1").replace("self_attn_layer_norm", "norm2")
            name = name.replace("final_layer_norm", "norm3").replace("encoder_attn.", "cross_attn.")
            name = name.replace(".o_proj.", ".out_proj.")
        weights[name] = value.clone()
    for layer in range(model.config.decoder_layers):
        for kind in ("weight", "bias"):
            at = f"transformer.decoder.layers.{layer}.self_attn"
            pieces = [weights.pop(f"{at}.{letter}_proj.{kind}") for letter in "qkv"]
            weights[f"{at}.in_proj_{kind}"] = torch.cat(pieces)
        weights[f"nc_class_embed.{layer}.weight"] = torch.zeros(1, 32)
    weights["backbone.0.body.bn1.num_batches_tracked"] = torch.tensor(3)
    return weights


@pytest.mark.parametrize(
    ("layer_type", "options"), [("basic", {}), ("bottleneck", {}), ("basic", {"with_box_refine": True})]
)
def test_a_checkpoint_of_the_original_repository_is_the_same_model(tmp_path, layer_type, options):
    model = deformable_detr(layer_type, **options)
    args = argparse.Namespace(PREV_INTRODUCED_CLS=60, CUR_INTRODUCED_CLS=20, num_classes=81, nheads=8, lr=2e-4)
    file = tmp_path / "checkpoint0109.pth"
    torch.save({"model": in_original_names(model), "args": args, "epoch": 109, "optimizer": {"state": {}}}, file)
    image = torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 64, 96, dtype=torch.bool)
    mask[1, 40:] = mask[1, :, 70:] = False
    for weights in (file, tmp_path):
        loaded = load(weights)
        with torch.no_grad():
            found = loaded.parts["image-800x800"].module(image, mask)
            wanted = model(pixel_values=image, pixel_mask=mask.long())
        assert torch.equal(found["logits"], wanted.logits)
        assert torch.equal(found["boxes"], wanted.pred_boxes)
        assert loaded.numbers["labels"] == labels_of_split("proposed")
        assert (loaded.numbers["shortest"], loaded.numbers["longest"]) == (800, 1333)


def test_classes_that_a_checkpoint_had_not_yet_met_fall_on_unknown(model, tmp_path):
    args = argparse.Namespace(PREV_INTRODUCED_CLS=0, CUR_INTRODUCED_CLS=19)
    torch.save({"model": in_original_names(model), "args": args}, tmp_path / "t1.pth")
    labels = load(tmp_path / "t1.pth").numbers["labels"]
    assert labels[:19] == labels_of_split("proposed")[:19]
    assert labels[19:] == [""] * 61 + ["unknown"]


@pytest.mark.parametrize(
    ("step", "root", "split", "other"),
    [
        ((0, 20), "../data/OWOD", "owod", "proposed"),
        ((20, 20), "", "owod", "proposed"),
        ((0, 19), "", "proposed", "owod"),
        ((19, 21), "../data/OWDETR", "proposed", "owod"),
        ((40, 20), "../data/OWOD", "owod", "proposed"),
        (None, "../data/OWDETR/", "proposed", "owod"),
    ],
)
def test_a_checkpoint_of_the_other_split_is_refused(model, tmp_path, step, root, split, other):
    args = argparse.Namespace(data_root=root)
    if step is not None:
        args.PREV_INTRODUCED_CLS, args.CUR_INTRODUCED_CLS = step
    torch.save({"model": in_original_names(model), "args": args}, tmp_path / "t.pth")
    known = 80 if step is None else sum(step)
    assert load(tmp_path / "t.pth", split=split).numbers["labels"] == labels_of_split(split, known)
    with pytest.raises(ModelError, match="tell of the other split") as caught:
        load(tmp_path / "t.pth", split=other)
    assert "ow-detr" in (caught.value.hint or "")


@pytest.mark.parametrize(("step", "root"), [((0, 30), ""), ((0, 20), "../data/OWDETR"), ((19, 21), "../data/OWOD")])
def test_a_checkpoint_of_no_split_is_refused(model, tmp_path, step, root):
    args = argparse.Namespace(PREV_INTRODUCED_CLS=step[0], CUR_INTRODUCED_CLS=step[1], data_root=root)
    torch.save({"model": in_original_names(model), "args": args}, tmp_path / "t.pth")
    with pytest.raises(ModelError, match="are of no split of OW-DETR"):
        load(tmp_path / "t.pth")


def test_what_is_no_checkpoint_is_told(model, tmp_path):
    with pytest.raises(ModelError, match="of OW-DETR are on no hub"):
        load("akshitac8/OW-DETR")
    with pytest.raises(ModelError, match="no such folder or file"):
        load(tmp_path / "none.pth")
    with pytest.raises(ModelError, match=r"has 0 checkpoints \(\.pth\) and no config\.json"):
        load(tmp_path)
    weights = in_original_names(model)
    introduced = argparse.Namespace(PREV_INTRODUCED_CLS="20", CUR_INTRODUCED_CLS=20)
    for name, content, said in [
        ("text.pth", b"hello", "torch cannot read it"),
        ("list.pth", [1, 2], r"no transformer\.level_embed"),
        ("detr.pth", {"model": {"class_embed.weight": torch.zeros(2)}}, r"no transformer\.level_embed"),
        ("lacks.pth", {"model": {k: v for k, v in weights.items() if k != "query_embed.weight"}}, "query_embed"),
        ("lacks2.pth", {"model": {k: v for k, v in weights.items() if "norm3" not in k}}, "final_layer_norm"),
        ("more.pth", {"model": {**weights, "extra.weight": torch.zeros(1)}}, r"extra\.weight"),
        ("code.pth", {"model": weights, "args": pytest.raises}, "torch cannot read it"),
        ("flat.pth", {"model": {**weights, "transformer.level_embed": torch.ones(3)}}, "its shapes are others"),
        ("args.pth", {"model": weights, "args": introduced}, "PREV_INTRODUCED_CLS = '20' and CUR_INTRODUCED_CLS = 20"),
        ("text.pth", {"model": {**weights, "query_embed.weight": "x"}}, "its shapes are others"),
    ]:
        file = tmp_path / name
        file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
        with pytest.raises(ModelError, match=said) as caught:
            load(file)
        assert str(caught.value).startswith(str(file))


def test_the_gate_sees_another_preparation_and_another_choice(detector, folder):
    loaded = RECIPE.load(folder, buckets=BUCKETS)
    bundle = load_bundle(detector.session.model.parent)

    def refused(**numbers):
        changed = OwDetr(replace(bundle, numbers={**bundle.numbers, **numbers}), "changed")
        return {finding.output for finding in gate.examine_whole(loaded, changed) if not finding.passed}

    assert not refused()
    assert refused(**{"shortest": 40})
    assert refused(labels=[*bundle.numbers["labels"][1:], bundle.numbers["labels"][0]])
    assert refused(top=5)
