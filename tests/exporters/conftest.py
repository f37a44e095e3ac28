from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def encode(value: Any) -> dict[str, Any]:
    """A Python value as a tfjs node attribute."""
    if isinstance(value, bool):
        return {"b": value}
    if isinstance(value, int):
        return {"i": str(value)}
    if isinstance(value, float):
        return {"f": value}
    if isinstance(value, str):
        return {"type": value} if value.startswith("DT_") else {"s": base64.b64encode(value.encode()).decode()}
    if value and isinstance(value[0], str):
        return {"list": {"s": [base64.b64encode(item.encode()).decode() for item in value]}}
    return {"list": {"i": [str(item) for item in value]}}


class Graph:
    """A tfjs graph model put together in a test: a placeholder ``x``, constants, and operators."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = [{"name": "x", "op": "Placeholder"}]
        self.weights: list[dict[str, Any]] = []
        self.data = b""

    def constant(self, name: str, value: Any, dtype: Any = np.float32, quantization: Mapping[str, Any] | None = None):
        """``value`` is stored as it is; with ``quantization`` it is the quantised array."""
        value = np.asarray(value, dtype if quantization is None else None)
        kind = np.dtype(dtype).name
        entry: dict[str, Any] = {"name": name, "shape": list(value.shape), "dtype": kind}
        if quantization is not None:
            entry["quantization"] = {"dtype": value.dtype.name, **quantization}
        self.weights.append(entry)
        self.data += value.tobytes()
        self.nodes.append({"name": name, "op": "Const"})
        return name

    def op(self, name: str, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        attr = {key: encode(value) for key, value in attributes.items()}
        self.nodes.append({"name": name, "op": op, "input": list(inputs), "attr": attr})
        return name

    def write(self, folder: Path, shards: int = 1) -> Path:
        """``model.json`` and its shards in ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        size = -(-len(self.data) // shards) if self.data else 0
        paths = [f"shard{i}.bin" for i in range(shards)]
        for i, path in enumerate(paths):
            (folder / path).write_bytes(self.data[i * size : (i + 1) * size])
        document = {
            "format": "graph-model",
            "modelTopology": {"node": self.nodes},
            "weightsManifest": [{"paths": paths, "weights": self.weights}],
        }
        (folder / "model.json").write_text(json.dumps(document))
        return folder / "model.json"


@pytest.fixture
def graph() -> Graph:
    return Graph()
