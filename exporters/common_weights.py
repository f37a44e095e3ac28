"""One file for the weights of several graphs of a model, in which what they have in common is there once."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

_SMALL = 1024  # bytes; what is smaller stays in the graph
_ALIGNED = 64  # bytes; where a weight may begin


class CommonWeights:
    """Weights by their content. The graphs must lie in the folder of the file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._places: dict[tuple[bytes, int], int] = {}

    def take(self, program: Any) -> None:
        """Move the weights of an ``onnx_ir`` model into the file; the model refers to them there."""
        import onnx_ir

        with self.file.open("ab") as stream:
            for value in program.graph.initializers.values():
                tensor = value.const_value
                if tensor is None or tensor.nbytes < _SMALL:
                    continue
                content = tensor.tobytes()
                key = (hashlib.sha256(content).digest(), len(content))
                if key not in self._places:
                    stream.write(bytes(-stream.tell() % _ALIGNED))
                    self._places[key] = stream.tell()
                    stream.write(content)
                value.const_value = onnx_ir.ExternalTensor(
                    self.file.name,
                    self._places[key],
                    len(content),
                    tensor.dtype,
                    shape=tensor.shape,
                    name=value.name,
                    base_dir=self.file.parent,
                )
