"""RAFT of small widths against torchvision's own preparation and model."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import pytest
import skimage.data
import torch
from torchvision.models.optical_flow import raft
from torchvision.transforms._presets import OpticalFlow

from tallymill.engine.bundles import load_bundle
from tallymill.engine.ensemble import DetectorConfig, build_proposer, open_detector
from tallymill.engine.flow.raft import Raft
from tallymill.engine.sessions.ort import OnnxRuntimeSession
from tallymill.errors import ModelError, UsageError
from tallymill.exporters import gate
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.export import export
from tallymill.exporters.precision import histogram
from tallymill.exporters.recipes.raft import load, published
from tallymill.exporters.to_onnx import export_part

CHELSEA, COFFEE = skimage.data.chelsea(), skimage.data.coffee()  # 300 x 451 and 400 x 600
UPDATES = 2


def tiny():
    """RAFT of torchvision with a twentieth of the channels."""
    encoder = partial(raft.FeatureEncoder, layers=(4, 4, 6, 8, 24))
    correlation = raft.CorrBlock(num_levels=4, radius=2)
    motion = raft.MotionEncoder(in_channels_corr=100, corr_layers=(8, 8), flow_layers=(8, 8), out_channels=16)
    memory = raft.RecurrentBlock(input_size=24, hidden_size=16)
    return raft.RAFT(
        feature_encoder=encoder(norm_layer=torch.nn.InstanceNorm2d),
        context_encoder=encoder(norm_layer=torch.nn.BatchNorm2d),
        corr_block=correlation,
        update_block=raft.UpdateBlock(
            motion_encoder=motion, recurrent_block=memory, flow_head=raft.FlowHead(in_channels=16, hidden_size=16)
        ),
        mask_predictor=raft.MaskPredictor(in_channels=16, hidden_size=16),
    )


RECIPE = replace(recipe_of("raft-large"), load=partial(load, build=tiny, updates=UPDATES))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return tiny().eval()


@pytest.fixture(scope="module")
def weights(model, tmp_path_factory):
    file = tmp_path_factory.mktemp("weights") / "raft.pth"
    torch.save(model.state_dict(), file)
    return file


@pytest.fixture(scope="module")
def bundle(weights, tmp_path_factory):
    return export(RECIPE, weights, out=tmp_path_factory.mktemp("out") / "raft")


def original(model, first, second, padding):
    """What torchvision makes of two images that are padded: left, right, top, bottom."""
    pair = OpticalFlow()(*(torch.from_numpy(each.copy()).permute(2, 0, 1)[None] for each in (first, second)))
    with torch.no_grad():
        flow = model(*(torch.nn.functional.pad(each, padding, mode="replicate") for each in pair), UPDATES)[-1]
    left, _, top, _ = padding
    return flow[0, :, top : top + first.shape[0], left : left + first.shape[1]].permute(1, 2, 0).numpy()


@pytest.mark.parametrize(
    ("image", "padding"),
    [
        (CHELSEA, (2, 3, 2, 2)),
        (COFFEE, (0, 0, 0, 0)),
        (COFFEE[:64, :64], (32, 32, 32, 32)),
        (np.tile(COFFEE, (1, 2, 1))[:130, :854], (1, 1, 3, 3)),
    ],
    ids=["chelsea", "coffee", "64x64", "854 wide"],
)
def test_the_flow_is_that_of_the_original(bundle, model, image, padding):
    second = np.roll(image, (4, -3), (0, 1))
    found = Raft(bundle).flow(image, second)
    assert (found.shape, found.dtype) == ((*image.shape[:2], 2), np.float32)
    np.testing.assert_allclose(found, original(model, image, second, padding), atol=0.01)
    assert np.isfinite(found).all()
    assert found.std(axis=(0, 1)).min() > 0.01


def test_tensors_give_tensors(bundle):
    first, second = CHELSEA[:130, :140], CHELSEA[10:140, :140]
    raft_ = Raft(bundle)
    found = raft_.flow(torch.from_numpy(first.copy()), torch.from_numpy(second.copy()))
    assert isinstance(found, torch.Tensor)
    np.testing.assert_allclose(found.numpy(), raft_.flow(first, second), atol=1e-4)


def test_the_bundle_says_what_the_gate_found(bundle):
    told = json.loads((bundle.folder / "bundle.json").read_text())
    assert (bundle.family, list(bundle.parts), bundle.numbers["updates"]) == ("raft", ["flow"], UPDATES)
    checks = {each["check"] for each in told["gate"]}
    assert {
        "batch of 5 against torch",
        "slot 4 of 5 against alone",
        "picture of 320x240 against the original",
    } <= checks
    assert {each["output"] for each in told["gate"] if each["part"] == "whole"} == {"flow (pixels)"}


def test_it_is_no_detector(bundle, weights):
    with pytest.raises(ModelError, match="no detector of the family 'raft'"):
        open_detector(bundle, "raft")
    with pytest.raises(UsageError, match="family 'raft' is not one of"):
        DetectorConfig("r", "raft", "raft-large")
    with pytest.raises(ModelError, match="is of the family 'raft'; the detector 'o' is 'owlvit'"):
        build_proposer(DetectorConfig("o", "owlvit", str(bundle.folder)), bundle.folder)
    with pytest.raises(TypeError, match="no family of detectors"):
        gate.examine_whole(RECIPE.load(weights), None)


def test_graphs_of_fixed_sizes_without_grid_sample_are_the_same(weights, tmp_path):
    loaded = RECIPE.load(weights, buckets=[(128, 136)])
    part = loaded.parts["flow-128x136"]
    for grid_sample in (True, False):
        export_part(part, tmp_path / "flow.onnx", grid_sample=grid_sample)
        kinds = {node.op_type for node in onnx.load(tmp_path / "flow.onnx").graph.node}
        assert ("GridSample" in kinds) == grid_sample
        findings = gate.examine("flow", part, OnnxRuntimeSession(tmp_path / "flow.onnx"))
        assert all(finding.passed for finding in findings)
        assert len(findings) == 8


@pytest.mark.parametrize("numbers", [{"mean": [0.0] * 3}, {"std": [1.0] * 3}])
def test_the_gate_sees_another_preparation(bundle, weights, numbers):
    changed = replace(bundle, numbers={**bundle.numbers, **numbers})
    assert not all(finding.passed for finding in gate.examine_bundle(RECIPE.load(weights), changed))
    assert all(finding.passed for finding in gate.examine_bundle(RECIPE.load(weights), load_bundle(bundle.folder)))


def test_what_is_no_state_dict_is_told(weights, tmp_path):
    with pytest.raises(ModelError, match="the weights of RAFT are a file") as caught:
        load("raft", build=tiny)
    assert "https://download.pytorch.org/models/raft_large_C_T_SKHT_V2-ff5fadd5.pth" in (caught.value.hint or "")
    (tmp_path / "text.pth").write_bytes(b"hello")
    torch.save({"state": 1}, tmp_path / "other.pth")
    torch.save([1], tmp_path / "list.pth")
    torch.save({"code": pytest.raises}, tmp_path / "code.pth")
    for name, said in [
        ("text.pth", "torch cannot read it"),
        ("code.pth", "torch cannot read it"),
        ("other.pth", "not those of this RAFT"),
        ("list.pth", "not those of this RAFT"),
    ]:
        with pytest.raises(ModelError, match=said):
            load(tmp_path / name, build=tiny)
    with pytest.raises(ModelError, match="not those of this RAFT"):
        load(weights, build=partial(published, "raft_small"))


def test_buckets_that_it_cannot_take(weights):
    for size in [(120, 128), (128, 132)]:
        with pytest.raises(UsageError, match="multiples of 8 from 128"):
            load(weights, buckets=[size], build=tiny)


@pytest.mark.parametrize("name", ["raft_large", "raft_small"])
def test_published_state_dicts_are_read(name, tmp_path):
    made = published(name)
    torch.save(made.state_dict(), tmp_path / "raft.pth")
    loaded = recipe_of(name.replace("_", "-")).load(tmp_path / "raft.pth")
    read = loaded.parts["flow"].module.model.state_dict()
    assert all(torch.equal(value, read[key]) for key, value in made.state_dict().items())
    assert loaded.numbers["updates"] == 12


def test_encoders_in_halves_are_borne(weights, bundle, in_halves, tmp_path):
    findings = in_halves(RECIPE.load(weights), bundle.folder)
    assert all(finding.passed for finding in findings), findings
    assert {finding.part for finding in findings} == {"flow", "whole"}
    # Two encoders, and the updates after them.
    assert set(histogram(tmp_path / "halves" / "flow.half.onnx")["Conv"]) == {"float16", "float32"}
