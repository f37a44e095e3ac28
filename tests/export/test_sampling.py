from __future__ import annotations

import importlib

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymill.engine.sessions.ort import OnnxRuntimeSession
from tallymill.errors import ModelError
from tallymill.exporters import to_onnx
from tallymill.exporters.gate import examine
from tallymill.exporters.recipes.parts import Part
from tallymill.exporters.sampling import grid_sample, without_grid_sample

FAMILIES = ("grounding_dino", "mm_grounding_dino", "deformable_detr", "rf_detr")
SHAPES = [(5, 7), (3, 4)]  # of the levels
HEADS, WIDTH, QUERIES, POINTS = 2, 4, 6, 3


@given(
    st.integers(1, 9),
    st.integers(1, 9),
    st.lists(
        st.tuples(*[st.floats(-3, 3, width=32) | st.floats(-(2**30), 2**30, width=32)] * 2), min_size=1, max_size=8
    ),
    st.integers(0, 99),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_every_place_is_sampled_as_torch_does(height, width, places, seed, corners):
    values = torch.from_numpy(np.random.default_rng(seed).standard_normal((2, 3, height, width), np.float32))
    grid = torch.tensor(places)[None, :, None].expand(2, -1, 1, 2)
    wanted = torch.nn.functional.grid_sample(values, grid, align_corners=corners)
    torch.testing.assert_close(grid_sample(values, grid, align_corners=corners), wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("side", [1, 2, 7])
def test_borders_and_centres_of_pixels(side, corners):
    values = torch.randn(1, 2, side, side)
    edges = [-1 - 2 / side, -1 - 1 / side, -1.0, -1 + 1 / side, 0.0, 1 - 1 / side, 1.0, 1 + 1 / side, 1 + 2 / side]
    grid = torch.cartesian_prod(torch.tensor(edges), torch.tensor(edges))[None, :, None]
    wanted = torch.nn.functional.grid_sample(values, grid, align_corners=corners)
    torch.testing.assert_close(grid_sample(values, grid, align_corners=corners), wanted, atol=1e-5, rtol=0)


def test_what_is_not_finite_reads_nothing_that_is_not_there():
    grid = torch.tensor([[[[float("nan"), 0.0]], [[float("inf"), 0.0]], [[0.0, 0.0]]]])
    found = grid_sample(torch.ones(1, 1, 2, 2), grid).flatten()
    assert torch.isnan(found[0])
    assert found[1:].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("options", [{"mode": "nearest"}, {"padding_mode": "border"}, {"mode": "bicubic"}])
def test_other_samplings_are_refused(options):
    with pytest.raises(ValueError, match="only bilinear"):
        grid_sample(torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 1, 2), **options)


def attention(family):
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    return module.MultiScaleDeformableAttention()


def inputs(batch, seed):
    rng = np.random.default_rng(seed)
    size = sum(height * width for height, width in SHAPES)
    return {
        "values": rng.standard_normal((batch, size, HEADS, WIDTH), np.float32),
        "places": rng.uniform(-0.3, 1.3, (batch, QUERIES, HEADS, len(SHAPES), POINTS, 2)).astype(np.float32),
        "weights": rng.random((batch, QUERIES, HEADS, len(SHAPES), POINTS), np.float32),
    }


class Attention(torch.nn.Module):
    def __init__(self, family):
        super().__init__()
        self.attention = attention(family)

    def forward(self, values, places, weights):
        shapes = torch.tensor(SHAPES)
        start = torch.tensor([0, SHAPES[0][0] * SHAPES[0][1]])
        return {"attended": self.attention(values, shapes, SHAPES, start, places, weights, 64)}


@pytest.mark.parametrize("family", FAMILIES)
def test_deformable_attention_of_every_family_is_the_same(family):
    module = Attention(family).eval()
    given = {key: torch.from_numpy(value) for key, value in inputs(3, 1).items()}
    wanted = module(**given)["attended"]
    with without_grid_sample():
        torch.testing.assert_close(module(**given)["attended"], wanted, atol=1e-5, rtol=0)


@pytest.fixture
def part():
    examples = {key: torch.from_numpy(value) for key, value in inputs(2, 0).items()}
    return Part(
        Attention("rf_detr").eval(), examples, dict.fromkeys(examples, (0,)), inputs, tolerance={"attended": 1e-5}
    )


def nodes(file):
    return onnx.load(file).graph.node


def test_the_graph_has_no_grid_sample_and_passes_the_gate(part, tmp_path):
    to_onnx.export_part(part, tmp_path / "with.onnx")
    assert "GridSample" in {node.op_type for node in nodes(tmp_path / "with.onnx")}
    to_onnx.export_part(part, tmp_path / "without.onnx", grid_sample=False)
    kinds = {node.op_type for node in nodes(tmp_path / "without.onnx")}
    assert {"Pad", "Floor", "GatherElements"} <= kinds
    assert "GridSample" not in kinds
    assert all(node.name.startswith("attention/") for node in nodes(tmp_path / "without.onnx") if node.op_type == "Pad")
    findings = examine("attention", part, OnnxRuntimeSession(tmp_path / "without.onnx"))
    assert len(findings) == 8
    assert all(finding.passed for finding in findings)


def test_a_grid_sample_that_is_left_is_refused(part, tmp_path, monkeypatch):
    monkeypatch.setattr("tallymill.exporters.sampling.grid_sample", torch.nn.functional.grid_sample)
    with pytest.raises(ModelError, match="samples with GridSample"):
        to_onnx.export_part(part, tmp_path / "left.onnx", grid_sample=False)
