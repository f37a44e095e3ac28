"""Engines of TensorRT, or of TensorRT for RTX, on a card.

It is written against the documented interface of TensorRT 11 and HAS NOT BEEN RUN ON A CARD: the tests show how batches
are cut, and what is refused where there is no card. Treat its first answers as unproven, and compare them with those of
the graphs on ONNX Runtime.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tallymill.engine.arrays import to_device
from tallymill.engine.sessions.base import AFTER_A_FAILURE, TensorSpec, any_tensor
from tallymill.engine.words import listed
from tallymill.errors import DeviceError, MissingExtraError, ModelError


class TensorRtSession:
    """One part of a model: ``engines`` maps each batch size to its file.

    All rows go through one engine, for others compute in another order, and a row's answer must not depend on its place
    in a batch: the smallest that holds ``batch`` rows, as many as a run usually has (default: the largest). What is
    short of its batch is filled with its last row, whose answers are dropped. Work is on a stream of its own. Raises
    ``MissingExtraError`` without the runtime, ``ModelError`` without a card or for an engine of another architecture or
    version.
    """

    def __init__(
        self,
        engines: Mapping[int, Path],
        *,
        module: str = "tensorrt",
        device: str = "cuda:0",
        batch: int | None = None,
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
        self._stream = torch.cuda.Stream(device)
        self._logger = trt.Logger(trt.Logger.ERROR)
        self._runtime = trt.Runtime(self._logger)
        with torch.cuda.device(device):  # an engine is loaded to the current card
            self._engine = self._load(self.model)
            self._context = self._engine.create_execution_context()
        specs = list(self._specs(self._engine))
        self.inputs = tuple(spec for mode, spec in specs if mode == trt.TensorIOMode.INPUT)
        self.outputs = tuple(spec for mode, spec in specs if mode == trt.TensorIOMode.OUTPUT)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run the model once (see ``Session.run``)."""
        given = {spec.name: self._sent(spec, inputs.get(spec.name)) for spec in self.inputs}
        if unknown := set(inputs) - set(given):
            raise ModelError(f"{self.model}: it has no input {sorted(unknown)[0]!r}, only {', '.join(given)}")
        rows = self._rows(given)
        found: dict[str, list[Any]] = {spec.name: [] for spec in self.outputs}
        with self._ordered():
            for first in range(0, rows, self._batch):
                count = min(rows - first, self._batch)
                piece = {name: filled(value[first : first + count], self._batch) for name, value in given.items()}
                for name, value in self._run(piece).items():
                    found[name].append(value[:count])
            tensors = {
                name: values[0] if len(values) == 1 else self._torch.cat(values) for name, values in found.items()
            }
        if any_tensor(inputs):
            return tensors
        return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}

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
        torch, context = self._torch, self._context
        for name, tensor in inputs.items():
            if not context.set_input_shape(name, tuple(tensor.shape)):
                raise ModelError(f"{self.model}: its input {name!r} cannot have the shape {tuple(tensor.shape)}")
            context.set_tensor_address(name, tensor.data_ptr())
        made = {}
        for spec in self.outputs:
            shape, dtype = tuple(context.get_tensor_shape(spec.name)), getattr(torch, spec.dtype)
            made[spec.name] = torch.empty(shape, dtype=dtype, device=self.device)
            context.set_tensor_address(spec.name, made[spec.name].data_ptr())
        if not context.execute_async_v3(self._stream.cuda_stream):
            raise DeviceError(f"{self.model}: TensorRT could not run it on {self.device}", hint=AFTER_A_FAILURE)
        return made

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
