"""ONNX Runtime on the CPU, one thread a session: images run in parallel, operators do not (two are slower than one)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tallymill.engine.sessions.base import Array, TensorSpec
from tallymill.errors import MissingExtraError, ModelError


class OnnxRuntimeSession:
    """Runs an ONNX file on the CPU execution provider with ``threads`` operator threads."""

    device = "cpu"

    def __init__(self, model: Path, *, threads: int = 1) -> None:
        with MissingExtraError.unless("onnxruntime", extra="cpu"):
            import onnxruntime as ort
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.model = model
        try:
            self._session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        except Exception as exc:  # ONNX Runtime raises its own types without a common base
            hint = "it is no ONNX file, is damaged, or needs a newer onnxruntime; fetch or export it anew"
            raise ModelError(f"{model}: ONNX Runtime cannot load this model: {exc}", hint=hint) from exc
        self.inputs = tuple(map(_spec, self._session.get_inputs()))
        self.outputs = tuple(map(_spec, self._session.get_outputs()))
        self._outputs = [output.name for output in self.outputs]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model once (see ``Session.run``)."""
        try:
            values = self._session.run(self._outputs, dict(inputs))
        except Exception as exc:  # as above
            raise ModelError(f"{self.model}: {exc}") from exc
        return dict(zip(self._outputs, values, strict=True))


def _spec(argument: Any) -> TensorSpec:
    """What ONNX Runtime tells of an input or output: dimensions that vary have a name or None, a scalar no shape."""
    kind = argument.type.removeprefix("tensor(").removesuffix(")")
    shape = tuple(n if isinstance(n, int) else None for n in argument.shape)
    return TensorSpec(argument.name, {"float": "float32", "double": "float64"}.get(kind, kind), shape or None)
