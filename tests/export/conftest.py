"""Small models with random weights in folders that transformers can load: they need torch, and no downloads."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

from tallymill.bench.small_models import write_small
from tallymill.exporters import sampling, to_onnx, to_tensorrt
from tallymill.exporters.gate import Finding
from tallymill.exporters.recipes.parts import Loaded, Part


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's small model, one of ``SMALL``; nobody writes into it."""
    return cache(lambda family: write_small(family, tmp_path_factory.mktemp("weights") / family))


@pytest.fixture(scope="session", autouse=True)
def traced_once() -> Iterator[None]:
    """A part is traced once in a session of tests, which takes most of the time: the same module with the same weights,
    inputs and sizes is the same graph, whatever becomes of it afterwards.
    """
    graphs: dict[str, Any] = {}
    trace = to_onnx.trace

    def once(part: Part, *, grid_sample: bool = True) -> Any:
        key = _fingerprint(part, grid_sample)
        if key not in graphs:
            graphs[key] = trace(part, grid_sample=grid_sample)
        return graphs[key].clone()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(to_onnx, "trace", once)
        yield


@pytest.fixture
def in_halves(tmp_path: Path) -> Callable[[Loaded, Path], list[Finding]]:
    """What the gate finds of the graphs of a bundle in a folder, when they compute in float16 what bears it."""

    def examine(loaded: Loaded, folder: Path) -> list[Finding]:
        copy = Path(shutil.copytree(folder, tmp_path / "halves"))
        return to_tensorrt.halved(loaded, copy, ".half.onnx", lambda _line: None)

    return examine


_PLAIN = (bool, int, float, str, tuple, list, type(None))


def _fingerprint(part: Part, grid_sample: bool) -> str:
    told = [repr(part.module), sorted(part.dynamic.items()), grid_sample, repr(sampling.grid_sample)]
    told += [(name, value.shape, value.dtype) for name, value in part.inputs.items()]
    for module in part.module.modules():
        told.append({name: value for name, value in vars(module).items() if isinstance(value, _PLAIN)})
    digest = hashlib.sha256(repr(told).encode())
    for name, value in [*part.module.named_parameters(), *part.module.named_buffers()]:
        digest.update(name.encode())
        digest.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
