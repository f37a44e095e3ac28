"""A small Swin2SR against the image processor and model of transformers."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import skimage.data
import torch
import transformers

from tallymill.bench.random_models import stirred
from tallymill.engine.bundles import load_bundle
from tallymill.engine.ensemble import open_detector
from tallymill.engine.upscaling.swin2sr import Swin2Sr
from tallymill.errors import ModelError, UsageError
from tallymill.exporters import gate
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.export import export
from tallymill.exporters.precision import histogram

COFFEE = skimage.data.coffee()
RECIPE = recipe_of("swin2sr-x2")
BUCKETS = [(24, 32), (32, 32)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swin2sr")
    config = transformers.Swin2SRConfig(embed_dim=12, depths=[2], num_heads=[2], image_size=16)
    torch.manual_seed(0)
    stirred(transformers.Swin2SRForImageSuperResolution(config), 0.05).save_pretrained(folder)
    transformers.Swin2SRImageProcessor().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bundle(folder, tmp_path_factory):
    return export(RECIPE, folder, out=tmp_path_factory.mktemp("out") / "swin2sr", options={"buckets": BUCKETS})


def original(folder, image):
    """As the documentation of transformers reads it, without what the processor adds."""
    processor = transformers.Swin2SRImageProcessorPil.from_pretrained(folder)
    model = transformers.Swin2SRForImageSuperResolution.from_pretrained(folder).eval()
    with torch.no_grad():
        found = model(**processor(image, return_tensors="pt")).reconstruction.squeeze().clamp(0, 1).numpy()
    height, width = image.shape[:2]
    return np.moveaxis((found * 255.0).round().astype(np.uint8), 0, 2)[: 2 * height, : 2 * width]


@pytest.mark.parametrize("size", [(20, 26), (16, 24), (31, 24)])
def test_an_image_becomes_what_the_original_makes_of_it(bundle, folder, size):
    image = COFFEE[200 : 200 + size[0], 300 : 300 + size[1]]
    found = Swin2Sr(bundle).upscale(image)
    assert (found.shape, found.dtype) == ((2 * size[0], 2 * size[1], 3), np.uint8)
    wanted = original(folder, image)
    assert np.abs(found.astype(int) - wanted).max() <= 1
    assert np.ptp(wanted) > 20


def test_tensors_give_tensors(bundle):
    image = COFFEE[:20, :20]
    found = Swin2Sr(bundle).upscale(torch.from_numpy(image.copy()))
    assert found.dtype == torch.uint8
    assert np.abs(found.numpy().astype(int) - Swin2Sr(bundle).upscale(image)).max() <= 1


def test_the_bundle_says_what_the_gate_found(bundle):
    told = json.loads((bundle.folder / "bundle.json").read_text())
    assert (bundle.family, list(bundle.parts), bundle.numbers["scale"]) == (
        "swin2sr",
        ["image-24x32", "image-32x32"],
        2,
    )
    assert {each["check"] for each in told["gate"] if each["part"] == "whole"} == {
        "picture of 24x20 against the original",
        "picture of 24x28 against the original",
    }
    with pytest.raises(ModelError, match="no detector of the family 'swin2sr'"):
        open_detector(bundle, "swin2sr")


def test_the_gate_sees_another_preparation(bundle, folder):
    class Brighter(Swin2Sr):
        def upscale(self, image):
            return super().upscale(np.minimum(image, 247) + np.uint8(8))

    loaded = RECIPE.load(folder, buckets=BUCKETS)

    def passed(model):
        found = replace(loaded.original, open=lambda bundle: model(bundle).upscale)
        return all(each.passed for each in gate.examine_bundle(replace(loaded, original=found), bundle))

    assert passed(Swin2Sr)
    assert not passed(Brighter)


def test_images_and_buckets_that_it_cannot_take(bundle, folder):
    assert Swin2Sr(load_bundle(bundle.folder)).upscale(COFFEE[:40, :20]).shape == (80, 40, 3)  # in tiles
    with pytest.raises(UsageError, match="--buckets 24x30: multiples of 8"):
        RECIPE.load(folder, buckets=[(24, 30)])
    with pytest.raises(ModelError, match="of the family 'raft', not 'swin2sr'"):
        Swin2Sr(replace(bundle, family="raft"))


def test_halves_are_borne_and_every_product_is_one(folder, bundle, in_halves, tmp_path):
    findings = in_halves(RECIPE.load(folder, buckets=BUCKETS), bundle.folder)
    assert all(finding.passed for finding in findings), findings
    assert {finding.part for finding in findings} == {"image-24x32", "image-32x32", "whole"}
    dtypes = histogram(tmp_path / "halves" / "image-24x32.half.onnx")
    assert set(dtypes["MatMul"]) == {"float16"}
    assert set(dtypes["Softmax"]) == set(dtypes["LayerNormalization"]) == {"float32"}
