"""Engines of TensorRT, or of TensorRT for RTX, on a card.

It is written against the documented interface of TensorRT 11 and HAS NOT BEEN RUN ON A CARD: the tests show how batches
are cut, in what order engines are launched and captured, with stand-ins for their contexts, and what is refused where
there is no card. Treat its first answers as unproven, and compare them with those of the graphs on ONNX Runtime.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tallymill.engine.arrays import to_device
from tallymill.engine.sessions.base import AFTER_A_FAILURE, OF_TORCH, TensorSpec, any_tensor, as_ours
from tallymill.engine.sessions.cuda_graphs import CudaGraphs
from tallymill.engine.words import listed
from tallymill.errors import DeviceError, MissingExtraError, ModelError

ALIGNMENT = 256  # bytes: that of an address that TensorRT takes
_LOG = logging.getLogger(__name__)


class TensorRtSession:
    """One part of a model: ``engines`` maps each batch size to its file.

    All rows go through one engine, for others compute in another order, and a row's answer must not depend on its place
    in a batch: the smallest that holds ``batch`` rows, as many as a run usually has (default: the largest). What is
    short of its batch is filled with its last row, whose answers are dropped. Work is on a stream of its own.
    ``graphs``: capture CUDA graphs; ``eager`` says why there are none, if so. Raises ``MissingExtraError`` without the
    runtime, ``ModelError`` without a card or for an engine of another architecture or version, ``DeviceError`` where
    the memory of the card does not last.
    """

    def __init__(
        self,
        engines: Mapping[int, Path],
        *,
        module: str = "tensorrt",
        device: str = "cuda:0",
        batch: int | None = None,
        graphs: bool = True,
    ) -> None:
        trt, torch = _runtime(module), _torch()
        if not torch.cuda.is_available():
            raise ModelError(
                f"{min(engines.values())}: an engine runs on an NVIDIA card, and there is none here",
                hint="export the model --to onnx for the CPU",
            )
        self._batch = size_for(batch, list(engines))
        self.device, self.model = device, engines[self._batch]
        self._trt, self._torch = trt, torch
        self._logger = trt.Logger(trt.Logger.ERROR)
        self._runtime = trt.Runtime(self._logger)
        self.eager = None if graphs else "they were not asked for"
        # An engine is loaded to the current card.
        with as_ours(self.model, device, OF_TORCH), torch.cuda.device(device):
            self._stream = torch.cuda.Stream(device)
            self._engine = self._load(self.model)
            with self._ordered():
                self._contexts = Contexts(trt, torch, self._engine, self.model, device)
            self._context = self._contexts.make()
            self._graphs = self._capturing() if graphs else None
        specs = list(self._specs(self._engine))
        self.inputs = tuple(spec for mode, spec in specs if mode == trt.TensorIOMode.INPUT)
        self.outputs = tuple(spec for mode, spec in specs if mode == trt.TensorIOMode.OUTPUT)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run the model once (see ``Session.run``)."""
        with as_ours(self.model, self.device, OF_TORCH):
            given = {spec.name: self._sent(spec, inputs.get(spec.name)) for spec in self.inputs}
            if unknown := set(inputs) - set(given):
                raise ModelError(f"{self.model}: it has no input {sorted(unknown)[0]!r}, only {', '.join(given)}")
            with self._ordered():
                tensors = self._run_rows(given, self._rows(given))
            if any_tensor(inputs):
                return tensors
            return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}

    def _run_rows(self, given: Mapping[str, Any], rows: int) -> dict[str, Any]:
        """All rows, batch by batch."""
        found: dict[str, list[Any]] = {spec.name: [] for spec in self.outputs}
        for first in range(0, rows, self._batch):
            count = min(rows - first, self._batch)
            piece = {name: filled(value[first : first + count], self._batch) for name, value in given.items()}
            for name, value in self._run(piece).items():
                found[name].append(value[:count])
        return {name: values[0] if len(values) == 1 else self._torch.cat(values) for name, values in found.items()}

    @contextmanager
    def _ordered(self) -> Iterator[None]:
        """Work on the session's stream, after what the caller's has been given and before what it will be given."""
        callers = self._torch.cuda.current_stream(self.device)
        self._stream.wait_stream(callers)
        with self._torch.cuda.stream(self._stream):
            yield
        callers.wait_stream(self._stream)

    def _rows(self, given: Mapping[str, Any]) -> int:
        """How many rows all inputs have."""
        lengths = {name: len(value) for name, value in given.items()}
        if len(set(lengths.values())) > 1:
            found = listed([f"{name!r} has {length}" for name, length in lengths.items()], 8)
            raise ModelError(f"{self.model}: its inputs are of one number of rows, but {found}")
        return next(iter(lengths.values()))

    def _run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """One batch of the very size of the engine."""
        names, sent = [spec.name for spec in self.outputs], [inputs[spec.name] for spec in self.inputs]
        if self._graphs is not None:
            try:
                return dict(zip(names, self._graphs.run(sent), strict=True))
            except self._graphs.NotCapturedError as exc:
                self.eager, self._graphs = str(exc), None
                _LOG.warning("%s: runs without CUDA graphs from now on: %s", self.model, self.eager)
        return dict(zip(names, self._launched(sent), strict=True))

    def _capturing(self) -> CudaGraphs:
        return CudaGraphs(self._torch, self.device, self._launched, fixed=self._fixed, stream=self._stream)

    def _launched(self, inputs: Sequence[Any]) -> list[Any]:
        """Outputs of one launch, into memory of its own."""
        # What was cut from a larger tensor may lie anywhere.
        aligned = [value if value.data_ptr() % ALIGNMENT == 0 else value.clone() for value in inputs]
        made = self._bound(self._context, aligned)
        if not self._context.execute_async_v3(self._stream.cuda_stream):
            raise DeviceError(f"{self.model}: TensorRT could not run it on {self.device}", hint=AFTER_A_FAILURE)
        return made

    def _fixed(self, inputs: Sequence[Any]) -> Callable[[], list[Any]]:
        """Launches for a CUDA graph, which is of the state of its context too: so that has one of its own, told once
        where inputs and outputs are.
        """
        context, stream = self._contexts.make(), self._stream.cuda_stream
        made = self._bound(context, inputs)
        # Only TensorRT for RTX can tell.
        if hasattr(context, "is_stream_capturable") and not context.is_stream_capturable(stream):
            raise CudaGraphs.NotCapturedError("TensorRT says that this engine cannot be captured as a CUDA graph")

        def launch() -> list[Any]:
            if not context.execute_async_v3(stream):
                raise RuntimeError("TensorRT could not launch it")
            return made

        return launch

    def _bound(self, context: Any, inputs: Sequence[Any]) -> list[Any]:
        """Tell a context what its inputs are, and where; outputs, made for them."""
        torch = self._torch
        for spec, tensor in zip(self.inputs, inputs, strict=True):
            if not context.set_input_shape(spec.name, tuple(tensor.shape)):
                raise ModelError(f"{self.model}: its input {spec.name!r} cannot have the shape {tuple(tensor.shape)}")
            self._place(context, spec.name, tensor)
        made = []
        for spec in self.outputs:
            shape, dtype = tuple(context.get_tensor_shape(spec.name)), getattr(torch, spec.dtype)
            made.append(torch.empty(shape, dtype=dtype, device=self.device))
            self._place(context, spec.name, made[-1])
        return made

    def _place(self, context: Any, name: str, tensor: Any) -> None:
        if not context.set_tensor_address(name, tensor.data_ptr()):
            raise ModelError(f"{self.model}: TensorRT does not take the memory of {name!r}")

    def _sent(self, spec: TensorSpec, value: Any) -> Any:
        """One input as a contiguous tensor on the session's device, checked but for its number of rows."""
        if value is None:
            raise ModelError(f"{self.model}: its input {spec.name!r} is not given")
        wanted = TensorSpec(spec.name, spec.dtype, None if spec.shape is None else (None, *spec.shape[1:]))
        given = TensorSpec(spec.name, str(value.dtype).removeprefix("torch."), tuple(value.shape))
        if not wanted.fits(given):
            raise ModelError(f"{self.model}: it takes {wanted}, not {given}")
        if not len(value):
            raise ModelError(f"{self.model}: its input {spec.name!r} has no rows")
        if isinstance(value, np.ndarray):
            value = to_device(value, self.device)
        if value.device != self._torch.device(self.device):
            raise ModelError(f"{self.model}: its input {spec.name!r} is on {value.device}; it runs on {self.device}")
        return value.contiguous()

    def _load(self, file: Path) -> Any:
        try:
            engine = self._runtime.deserialize_cuda_engine(file.read_bytes())
        except OSError as exc:
            raise ModelError(f"{file}: {exc.strerror or exc}") from None
        if engine is None:
            raise ModelError(
                f"{file}: {self._trt.__name__} {self._trt.__version__} cannot load this engine on this card",
                hint="engines are for one version and one compute capability: export the model anew, here",
            )
        return engine

    def _specs(self, engine: Any) -> Iterator[tuple[Any, TensorSpec]]:
        """Inputs and outputs of an engine with their modes."""
        for place in range(engine.num_io_tensors):
            name = engine.get_tensor_name(place)
            dtype = np.dtype(self._trt.nptype(engine.get_tensor_dtype(name))).name
            shape = tuple(None if size < 0 else int(size) for size in engine.get_tensor_shape(name))
            yield engine.get_tensor_mode(name), TensorSpec(name, dtype, shape)


class Contexts:
    """Makes what runs an engine: contexts, whose work is done one after the other, so that all use the same memory.

    It is made on the stream of that work. Raises ``DeviceError`` where the memory of the card does not last.
    """

    def __init__(self, trt: Any, torch: Any, engine: Any, model: Path, device: str) -> None:
        self._engine, self._model, self._device = engine, model, device
        self._config = engine.create_runtime_config()
        self._config.set_execution_context_allocation_strategy(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        if hasattr(self._config, "dynamic_shapes_kernel_specialization_strategy"):
            # TensorRT for RTX would exchange kernels when better ones are compiled: another answer from some run on,
            # and never in a graph that was captured before.
            eager = trt.DynamicShapesKernelSpecializationStrategy.EAGER
            self._config.dynamic_shapes_kernel_specialization_strategy = eager
        self._size = max(int(engine.device_memory_size_v2), 1)
        self._memory = torch.empty(self._size, dtype=torch.uint8, device=device)

    def make(self) -> Any:
        """Another context."""
        context = self._engine.create_execution_context(runtime_config=self._config)
        if context is None:
            raise DeviceError(
                f"{self._model}: TensorRT could make no context for it on {self._device}; it wrote why to standard"
                " error, and mostly the memory of the card ran out",
                hint="look with nvidia-smi what else uses the card, and run with fewer --workers, or export the model"
                " with a smaller --batch",
            )
        context.set_device_memory(self._memory.data_ptr(), self._size)
        return context


def size_for(rows: int | None, sizes: Sequence[int]) -> int:
    """The smallest of the sizes that holds this many rows; the largest when none does, or ``rows`` is None."""
    return min((size for size in sizes if rows is not None and size >= rows), default=max(sizes))


def filled(rows: Any, batch: int) -> Any:
    """Rows, an array or a tensor, and the last of them again up to a whole batch."""
    last = len(rows) - 1
    return rows if len(rows) == batch else rows[[min(row, last) for row in range(batch)]]


def _runtime(module: str) -> Any:
    if find_spec(module) is None:
        raise MissingExtraError.of(module, "tensorrt")
    return importlib.import_module(module)


def _torch() -> Any:
    with MissingExtraError.unless("torch", extra="gpu"):
        import torch
    return torch
