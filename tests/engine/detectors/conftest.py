from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import skimage.data
from numpy.typing import NDArray

from tallymill.engine.detectors.base import Detector
from tallymill.engine.sessions.base import Array
from tallymill.engine.sessions.ort import OnnxRuntimeSession
from tallymill.exporters import hub

GOLDENS = Path(__file__).parents[2] / "goldens"


@pytest.fixture(scope="session")
def session_of() -> Callable[[str], OnnxRuntimeSession]:
    """A session for a shipped model by name; the first call fetches what is not in the cache."""
    files = {file.parent.name.rpartition("-")[0]: file for file in hub.get("coco-cpu")}
    sessions: dict[str, OnnxRuntimeSession] = {}

    def make(name: str) -> OnnxRuntimeSession:
        if name not in sessions:
            sessions[name] = OnnxRuntimeSession(files[name])
        return sessions[name]

    return make


@pytest.fixture(scope="session", params=["coffee", "chelsea"])
def photograph(request: pytest.FixtureRequest) -> tuple[str, NDArray[np.uint8]]:
    """Name and RGB pixels of one of the photographs that the goldens were made from."""
    return request.param, getattr(skimage.data, request.param)()


@pytest.fixture(scope="session")
def golden() -> Callable[[str, str], Mapping[str, Array]]:
    def load(family: str, image: str) -> Mapping[str, Array]:
        with np.load(GOLDENS / f"{family}_{image}.npz") as archive:
            return dict(archive)

    return load


class ArraySession:
    """Stands in for a model of a family: it declares what the family wants, and returns the arrays it was given."""

    device = "cpu"
    model = Path("arrays.onnx")

    def __init__(self, kind: type[Detector], arrays: Mapping[str, Array]) -> None:
        self.inputs, self.outputs = kind.inputs, kind.outputs
        self.arrays = dict(arrays)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        del inputs
        return self.arrays


@pytest.fixture
def array_session() -> Callable[[type[Detector], Mapping[str, Array]], ArraySession]:
    return ArraySession
