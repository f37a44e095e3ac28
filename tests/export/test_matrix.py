"""The table of families by runtimes, of one family and of a runtime that refuses it."""

from __future__ import annotations

import json

from tallymill.bench import matrix
from tallymill.exporters.to_tensorrt import Target


def test_a_family_is_a_row_and_a_runtime_a_column():
    result = matrix.run(["owlvit"], ["onnx"])
    assert json.loads(json.dumps(result)) == result
    cell = result["families"]["owlvit"]["onnx"]
    assert 0 < cell["parts"] < 1e-3
    assert cell["pixels"] < 1
    assert cell["confidence"] < 1e-3
    assert cell["bytes"] > 10_000
    assert "| `owlvit` | " in matrix.table(result)


def test_what_is_refused_says_why(monkeypatch):
    monkeypatch.setitem(matrix.WAYS, "neither", {"programs": matrix.Programs("fp32"), "engines": Target("fp16", "89")})
    result = matrix.run(["owlvit"], ["neither"])
    assert result["families"]["owlvit"]["neither"] == {
        "refused": "a bundle has engines of TensorRT or programs of torch, not both"
    }
    assert matrix.table(result).splitlines()[-1] == "| `owlvit` | refused |"
