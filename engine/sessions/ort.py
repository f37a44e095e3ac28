"""ONNX Runtime on the CPU, one thread a session: images run in parallel, operators do not (two are slower than one)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tallymill.engine.sessions.base import Array
from tallymill.errors import MissingExtraError, ModelError


class OnnxRuntimeSession:
    """Runs an ONNX file on the CPU execution provider with ``threads`` operator threads."""

    device = "cpu"

    def __init__(self, model: Path, *, threads: int = 1) -> None:
        try:
            import onnxruntime as ort
        except ModuleNotFoundError as exc:
            if exc.name != "onnxruntime":
                raise
            raise MissingExtraError.of("onnxruntime", "cpu") from None
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.model = model
        try:
            self._session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        except Exception as exc:  # ONNX Runtime raises its own types without a common base
            raise ModelError(f"{model}: ONNX Runtime cannot load this model: {exc}") from exc
        self._outputs = [output.name for output in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model once (see ``Session.run``)."""
        try:
            values = self._session.run(self._outputs, dict(inputs))
        except Exception as exc:  # as above
            raise ModelError(f"{self.model}: {exc}") from exc
        return dict(zip(self._outputs, values, strict=True))
