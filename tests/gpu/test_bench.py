"""The GPU benchmark's cases, at small sizes: that they check what they time, with or without a card."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from tallymill.bench import gpu, gpu_cases
from tallymill.errors import TallymillError, UsageError

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = [case for cases in gpu_cases.CASES for case in cases(DEVICE, True)]
EACH = pytest.mark.parametrize("case", SMALL, ids=lambda case: f"{case.operation} {case.size}")


@EACH
def test_a_case_is_right(case: gpu_cases.Case) -> None:
    case.check(gpu.arrays(case.run()), gpu.arrays(case.cpu()))
    assert case.bytes > 0


@EACH
def test_a_wrong_result_is_refused(case: gpu_cases.Case) -> None:
    found = gpu.arrays(case.run())
    wrong = tuple(np.flip(output) + 1 for output in found)
    with pytest.raises(TallymillError):
        case.check(wrong, gpu.arrays(case.cpu()))


def test_the_result_is_json_and_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    class Card:
        """A card of which only the memory's speed is known."""

        def __getattr__(self, name: str) -> Any:
            return {"memory_clock_rate": 10**6, "memory_bus_width": 5120, "major": 9, "minor": 0}.get(name, "made up")

    monkeypatch.setattr(gpu, "_torch", lambda: torch)
    monkeypatch.setattr(gpu, "_time", lambda _, call: 10.0 if call() is not None else 0.0)
    monkeypatch.setattr(gpu, "_copy_gb_s", lambda _: 1000.0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Card())
    monkeypatch.setattr(gpu, "CASES", [lambda *_: SMALL])
    result = gpu.run()
    assert result["card"]["bandwidth_gb_s"] == 1280
    assert json.loads(json.dumps(result)) == result
    assert len(gpu.table(result).splitlines()) >= len(SMALL) + 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_without_a_card_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="no GPU"):
        gpu.run()
    assert gpu.main() == 2
    assert "no GPU" in capsys.readouterr().err
