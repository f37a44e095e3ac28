"""Candidates against the chains of NumPy and torch, and the benchmark that times them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from tallymill.bench.kernels import candidates as bench
from tallymill.bench.workload import raw_outputs
from tallymill.errors import TallymillError
from tallymill.kernels.candidates import candidates


@pytest.mark.parametrize(("windows", "length", "width", "named"), [(1, 1, 2, 1), (3, 70, 9, 3), (5, 300, 20, 1)])
@pytest.mark.parametrize("floor", [0.0005, 0.05, 0.6])
def test_both_chains_find_the_same(windows: int, length: int, width: int, named: int, floor: float) -> None:
    arguments = raw_outputs(windows, length, width, named)
    found = candidates(**arguments, floor=floor)
    for name, expected in zip(found._fields, bench.numpy_chain(**arguments, floor=floor), strict=False):
        np.testing.assert_array_equal(getattr(found, name), expected)
    tensors = {name: torch.from_numpy(arguments[name]) for name in ("logits", "boxes")}
    for name, tensor in zip(found._fields, bench.torch_chain(**{**arguments, **tensors}, floor=floor), strict=False):
        tolerance = 1e-6 if name == "scores" else 0
        np.testing.assert_allclose(tensor.numpy(), getattr(found, name), rtol=0, atol=tolerance)


def test_the_result_is_json_and_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SCENES", (("small", 2, 30, 9, 3),))
    result = bench.run(rounds=1)
    assert json.loads(json.dumps(result)) == result
    assert len(bench.table(result).splitlines()) == 5


@pytest.mark.parametrize("part", range(3))
def test_what_is_wrong_is_not_timed(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    right = bench.numpy_chain

    def wrong(**arguments: Any) -> tuple[Any, ...]:
        parts = list(right(**arguments))
        parts[part] = parts[part] + 1
        return tuple(parts)

    monkeypatch.setattr(bench, "numpy_chain", wrong)
    with pytest.raises(TallymillError, match="numpy gives other candidates"):
        bench.run(rounds=1)
