"""ONNX Runtime, on the CPU or on a card.

On the CPU a session has one thread: images run in parallel, operators do not (two threads are slower than one). The
card's part is written against the documented interface and HAS NOT BEEN RUN ON A CARD: tests run its bindings on
tensors of the CPU, and what is refused.
"""

from __future__ import annotations

import functools
import importlib
import io
import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tallymill.engine.arrays import to_device
from tallymill.engine.sessions.base import TensorSpec, any_tensor, as_ours
from tallymill.engine.words import counted, listed
from tallymill.errors import MissingExtraError, ModelError

CUDA = "CUDAExecutionProvider"
INSTALL = "pip uninstall onnxruntime, then pip install 'tallymill[gpu]': onnxruntime-gpu would lie in the same folder"
LIBRARIES = (
    "onnxruntime-gpu found no card, or not the CUDA and cuDNN it was built for: it wrote which to standard error, and "
    "`python -c 'import onnxruntime; onnxruntime.print_debug_info()'` lists what is there"
)
# Operators that do a model's work. ONNX Runtime places those that compute shapes on the CPU on purpose; where one of
# these is there, it has no kernel for the card, and activations would go to and fro, image by image, unsaid.
WORK = frozenset(
    {
        "Attention",
        "BatchNormalization",
        "BiasGelu",
        "Conv",
        "ConvTranspose",
        "Einsum",
        "FusedConv",
        "FusedGemm",
        "FusedMatMul",
        "Gelu",
        "Gemm",
        "GridSample",
        "GroupNormalization",
        "InstanceNormalization",
        "LayerNormalization",
        "MatMul",
        "MaxPool",
        "MultiHeadAttention",
        "Resize",
        "SimplifiedLayerNormalization",
        "SkipLayerNormalization",
        "Softmax",
    }
)
# ``TensorProto.DataType`` of what a tensor may hold: NumPy has no name for bfloat16.
ONNX_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "bfloat16": 16,
}
# A model of one node, y = x, to find out what can be opened.
_IDENTITY = bytes.fromhex(
    "08081200"  # IR version 8
    "3a370a100a017812017922084964656e7469747912016"
    "75a0f0a0178120a0a08080112040a020801620f0a0179120a0a08080112040a020801"
    "42040a00100d"  # operators of version 13
)


class OnnxRuntimeSession:
    """Runs an ONNX file with ``threads`` operator threads on the CPU, or on the card that ``device`` names.

    There is no falling back: a device that this ONNX Runtime cannot use, or for which it lacks kernels that the model
    needs, is a ``ModelError``. On a card float32 is float32 (no TF32), and the algorithm of a convolution is chosen by
    rule, not by a race.
    """

    def __init__(self, model: Path, *, threads: int = 1, device: str = "cpu") -> None:
        ort = _onnxruntime()
        self.model, self.device = model, device
        self._kind, _, number = device.partition(":")
        self._number = int(number or 0)
        self._stream = None if device == "cpu" else self._own_stream()
        if device != "cpu":
            if CUDA not in ort.get_available_providers():
                raise self._without(ort.get_available_providers(), INSTALL)
            _load_libraries(ort)
        try:
            self._session = ort.InferenceSession(
                str(model), self._options(ort, threads), providers=self._providers(), enable_fallback=0
            )
        except Exception as exc:  # ONNX Runtime raises its own types without a common base
            hint = "it is no ONNX file, is damaged, or needs a newer onnxruntime; fetch or export it anew"
            if device != "cpu":
                hint = f"{LIBRARIES}; or it is the file: try --device cpu"
            raise ModelError(f"{model}: ONNX Runtime cannot load this model: {exc}", hint=hint) from exc
        if device != "cpu":
            if CUDA not in self._session.get_providers():  # ONNX Runtime only logs it
                raise self._without(self._session.get_providers(), LIBRARIES)
            self._require_kernels()
        self.inputs = tuple(map(_spec, self._session.get_inputs()))
        self.outputs = tuple(map(_spec, self._session.get_outputs()))
        self._outputs = [output.name for output in self.outputs]

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run the model once (see ``Session.run``)."""
        with as_ours(self.model, self.device, (Exception,)):  # as above
            if any_tensor(inputs):
                return self._run_tensors(inputs)
            values = self._session.run(self._outputs, dict(inputs))
        return dict(zip(self._outputs, values, strict=True))

    def _run_tensors(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Tensors in and out by their addresses.

        The session works on a stream of its own, since it takes one for life: it waits for what the caller's has been
        given, and the caller's waits for it. So memory that ONNX Runtime hands out anew is not written before the
        caller's work on it, as given by then, is done.
        """
        torch = _torch()
        given = {spec.name: self._sent(torch, spec, inputs.get(spec.name)) for spec in self.inputs}
        if unknown := set(inputs) - set(given):
            raise ModelError(f"{self.model}: it has no input {sorted(unknown)[0]!r}, only {', '.join(given)}")
        binding = self._session.io_binding()
        for name, value in given.items():
            kind = ONNX_TYPES[_name(value.dtype)]
            binding.bind_input(name, self._kind, self._number, kind, tuple(value.shape), value.data_ptr())
        for name in self._outputs:
            binding.bind_output(name, self._kind, self._number)
        if self._stream is None:
            self._session.run_with_iobinding(binding)
        else:
            callers = torch.cuda.current_stream(self.device)
            self._stream.wait_stream(callers)
            self._session.run_with_iobinding(binding)
            callers.wait_stream(self._stream)
        # Each run has memory of its own, which goes back when the tensor is let go.
        return {
            name: torch.from_dlpack(value) for name, value in zip(self._outputs, binding.get_outputs(), strict=True)
        }

    def _sent(self, torch: Any, spec: TensorSpec, value: Any) -> Any:
        """One input as a contiguous tensor on the session's device, checked: an address says nothing of itself."""
        if value is None:
            raise ModelError(f"{self.model}: its input {spec.name!r} is not given")
        if not isinstance(value, torch.Tensor):
            value = to_device(value, self.device)
        if value.device != torch.device(self.device):
            raise ModelError(f"{self.model}: its input {spec.name!r} is on {value.device}; it runs on {self.device}")
        if _name(value.dtype) != spec.dtype or spec.dtype not in ONNX_TYPES:
            raise ModelError(f"{self.model}: its input is {spec}; it was given {_name(value.dtype)}")
        return value.contiguous()

    def _options(self, ort: Any, threads: int) -> Any:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        if self.device != "cpu":
            options.use_deterministic_compute = True
            # (``session.disable_cpu_ep_fallback`` would refuse the nodes that compute shapes, which belong there.)
            options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        return options

    def _providers(self) -> list[Any]:
        if self.device == "cpu":
            return ["CPUExecutionProvider"]
        options = {
            "device_id": str(self._number),
            "use_tf32": "0",
            # The default times the algorithms of a convolution and keeps the fastest, another one in each process.
            "cudnn_conv_algo_search": "HEURISTIC",
            "arena_extend_strategy": "kSameAsRequested",  # a card is shared with other sessions and workers
        }
        if self._stream is not None:
            options["user_compute_stream"] = str(self._stream.cuda_stream)
        return [(CUDA, options)]

    def _own_stream(self) -> Any:
        """A stream of torch's, if it is installed: without it there are no tensors that could come in."""
        if find_spec("torch") is None:
            return None
        torch = _torch()
        return torch.cuda.Stream(self.device) if torch.cuda.is_available() else None

    def _without(self, providers: Sequence[str], hint: str) -> ModelError:
        found = ", ".join(providers)
        return ModelError(
            f"{self.model}: the device {self.device!r} was asked for, and this ONNX Runtime offers only {found}",
            hint=hint,
        )

    def _require_kernels(self) -> None:
        """Refuse a model of which a part that matters would be computed on the CPU."""
        if not hasattr(self._session, "get_provider_graph_assignment_info"):
            return  # an ONNX Runtime that does not tell
        elsewhere = work_on_the_cpu(self._session.get_provider_graph_assignment_info())
        if elsewhere:
            raise ModelError(
                f"{self.model}: on {self.device!r} ONNX Runtime would compute {counted(len(elsewhere), 'node')} on the "
                f"CPU: {listed(elsewhere, 5)}",
                hint="use --device cpu, a newer onnxruntime-gpu, or export the model to another runtime",
            )


def version() -> str:
    """Of the ONNX Runtime that is installed."""
    return str(_onnxruntime().__version__)


def knows_cuda() -> bool:
    """Whether the ONNX Runtime that is installed was built with CUDA; a card and its libraries are another matter."""
    return CUDA in _onnxruntime().get_available_providers()


@functools.cache
def count_cards() -> int:
    """How many cards ONNX Runtime can open a session on, from the first on: it has no other way to tell."""
    ort = _onnxruntime()
    _load_libraries(ort)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    ort.set_default_logger_severity(4)  # that there is none is no error here
    try:
        return next(number for number in itertools.count() if not _opens(ort, options, number))
    finally:
        ort.set_default_logger_severity(2)


def _opens(ort: Any, options: Any, number: int) -> bool:
    providers = [(CUDA, {"device_id": str(number)})]
    try:
        session = ort.InferenceSession(_IDENTITY, options, providers=providers, enable_fallback=0)
    except Exception:  # ONNX Runtime raises its own types without a common base
        return False
    return CUDA in session.get_providers()


def work_on_the_cpu(assigned: Iterable[Any]) -> list[str]:
    """Names, with operators, of nodes in ``WORK`` among subgraphs that ONNX Runtime assigned to the CPU."""
    return [
        f"{node.name} ({node.op_type})"
        for graph in assigned
        if graph.ep_name == "CPUExecutionProvider"
        for node in graph.get_nodes()
        if node.op_type in WORK
    ]


def _onnxruntime() -> Any:
    with MissingExtraError.unless("onnxruntime", extra="cpu"):
        return importlib.import_module("onnxruntime")


def _torch() -> Any:
    return importlib.import_module("torch")


def _load_libraries(ort: Any) -> None:
    """CUDA and cuDNN from their Python packages, where they are: the system's linker does not look there."""
    if hasattr(ort, "preload_dlls"):
        with redirect_stdout(io.StringIO()):  # it prints what it does not find; the session says what that led to
            ort.preload_dlls()


def _name(dtype: Any) -> str:
    """``torch.float32`` -> ``float32``."""
    return str(dtype).removeprefix("torch.")


def _spec(argument: Any) -> TensorSpec:
    """What ONNX Runtime tells of an input or output: dimensions that vary have a name or None, a scalar no shape."""
    kind = argument.type.removeprefix("tensor(").removesuffix(")")
    shape = tuple(n if isinstance(n, int) else None for n in argument.shape)
    return TensorSpec(argument.name, {"float": "float32", "double": "float64"}.get(kind, kind), shape or None)
