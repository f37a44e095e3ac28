"""torch, on the CPU or on a card: programs of ``torch.export`` in files ``PART.pt2``, without transformers.

On a card a program is captured as a CUDA graph for each set of shapes. THAT HAS NOT BEEN RUN ON A CARD: tests run the
programs on the CPU, and place them on a device without memory to see that nothing in them stays behind.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from tallymill.engine.arrays import to_device
from tallymill.engine.sessions.base import OF_TORCH, TensorSpec, any_tensor, as_ours, stamp
from tallymill.engine.sessions.cuda_graphs import CudaGraphs
from tallymill.errors import MissingExtraError, ModelError

TOLD = "told.json"  # in a .pt2: names of inputs and outputs in their order, and the file of common weights
# What makes the host wait for a value of the card, or gives as many values as there are in it: no graph has that.
HOST = frozenset({"item", "_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero"})
_HINT = "it is damaged, or was exported with another version of torch: export it anew (tallymill export --to torch)"
_LOG = logging.getLogger(__name__)


class TorchSession:
    """Runs a ``.pt2`` on the CPU, with ``threads`` threads, or on the card that ``device`` names.

    float32 is float32 (no TF32, no bfloat16 in its place) and algorithms of convolutions are chosen by rule: switches
    of torch, and its number of threads, hold for a whole process, so that a run sets them, and sets them back (of runs
    in several threads the last, as to switches); another thread that computes meanwhile is under them too. ``graphs``:
    capture CUDA graphs on a card. ``eager`` says why there are none, if so. Raises ``MissingExtraError`` without torch,
    ``ModelError`` without the card or for a file that cannot be loaded.
    """

    def __init__(self, model: Path, *, threads: int = 1, device: str = "cpu", graphs: bool = True) -> None:
        torch = _torch()
        self.model, self.device = model, device
        self._torch, self._threads = torch, threads
        if device.startswith("cuda") and torch.device(device).index not in range(torch.cuda.device_count()):
            raise ModelError(
                f"{model}: the device {device!r} was asked for, and torch finds {torch.cuda.device_count()} cards",
                hint="use --device cpu, or a torch that is built for CUDA and a driver that it can use",
            )
        self._program = _Program(torch, model, device)
        self.inputs, self.outputs = self._program.inputs, self._program.outputs
        self.eager = self._program.waits if graphs else "they were not asked for"
        self._graphs = None
        if device.startswith("cuda") and self.eager is None:
            self._graphs = CudaGraphs(torch, device, self._program)
        elif device.startswith("cuda"):
            _LOG.info("%s: runs without CUDA graphs: %s", model, self.eager)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run the model once (see ``Session.run``)."""
        torch = self._torch
        with as_ours(self.model, self.device, OF_TORCH):
            sent = [self._sent(spec, inputs.get(spec.name)) for spec in self.inputs]
            self._check_rows(sent)
            if unknown := set(inputs) - {spec.name for spec in self.inputs}:
                known = ", ".join(spec.name for spec in self.inputs)
                raise ModelError(f"{self.model}: it has no input {sorted(unknown)[0]!r}, only {known}")
            # (Not ``inference_mode``: its tensors could not be written to by the caller.)
            with torch.no_grad(), exact(torch), self._as_many_threads(), self._on_device():
                found = self._run(sent)
            if not any_tensor(inputs):  # which waits for the card, and so is told how it failed
                found = [value.cpu().numpy() for value in found]
        return dict(zip([spec.name for spec in self.outputs], found, strict=True))

    def _run(self, sent: Sequence[Any]) -> list[Any]:
        if self._graphs is not None:
            try:
                return self._graphs.run(sent)
            except self._graphs.NotCapturedError as exc:
                self.eager, self._graphs = str(exc), None
                _LOG.warning("%s: runs without CUDA graphs from now on: %s", self.model, self.eager)
        return self._program.owned(sent, self._program(sent))

    def _sent(self, spec: TensorSpec, value: Any) -> Any:
        """One input as a tensor on the session's device."""
        torch = self._torch
        if value is None:
            raise ModelError(f"{self.model}: its input {spec.name!r} is not given")
        if not isinstance(value, torch.Tensor):
            value = to_device(value, self.device)
        if value.device != torch.device(self.device):
            raise ModelError(f"{self.model}: its input {spec.name!r} is on {value.device}; it runs on {self.device}")
        given = TensorSpec(spec.name, name_of(value.dtype), tuple(value.shape))
        if not spec.fits(given):
            raise ModelError(f"{self.model}: it takes {spec}, not {given}")
        return value

    def _check_rows(self, sent: Sequence[Any]) -> None:
        """Batches are of one size: torch would stretch one of size 1 over the others, unsaid."""
        rows = {
            spec.name: len(value)
            for spec, value in zip(self.inputs, sent, strict=True)
            if spec.shape and spec.shape[0] is None
        }
        if len(set(rows.values())) > 1:
            told = ", ".join(f"{name} {count}" for name, count in rows.items())
            raise ModelError(f"{self.model}: its inputs have different numbers of rows: {told}")

    @contextlib.contextmanager
    def _as_many_threads(self) -> Iterator[None]:
        before = self._torch.get_num_threads()
        if before == self._threads:
            yield
            return
        self._torch.set_num_threads(self._threads)
        try:
            yield
        finally:
            self._torch.set_num_threads(before)

    def _on_device(self) -> Any:
        return self._torch.cuda.device(self.device) if self.device.startswith("cuda") else contextlib.nullcontext()


class _Program:
    """What a ``.pt2`` computes: called with tensors in the order of its inputs, it returns those of its outputs."""

    def __init__(self, torch: Any, file: Path, device: str) -> None:
        program, told = _load(torch, file)
        if device != "cpu":
            program = torch.export.passes.move_to_device_pass(program, device)
        self._weights = common_weights(torch, file.parent / told["weights"], device) if told["weights"] else None
        signature, values = program.graph_signature, {**program.state_dict, **program.constants}
        if self._weights is not None:
            values |= self._weights.values
        # A program's graph takes its weights first, and then what it is called with.
        lifted = [spec.target for spec in signature.input_specs if spec.kind.name != "USER_INPUT"]
        self._lifted = [values[name].detach() for name in lifted]
        self._storages = {value.untyped_storage().data_ptr() for value in self._lifted}
        self._module = program.graph_module
        self._module.recompile()
        nodes = {node.name: node for node in program.graph.nodes}
        given = [nodes[name] for name in signature.user_inputs]
        self.inputs = tuple(_spec(name, node) for name, node in zip(told["inputs"], given, strict=True))
        made = [nodes[name] for name in signature.user_outputs]
        self.outputs = tuple(_spec(name, node) for name, node in zip(told["outputs"], made, strict=True))
        self.waits = waits(program.graph)

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        return list(self._module(*self._lifted, *inputs))

    def owned(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """Outputs, copied where they lie in an input or a weight: what a caller is given is his own."""
        others = self._storages | {value.untyped_storage().data_ptr() for value in inputs}
        return [value.clone() if value.untyped_storage().data_ptr() in others else value for value in outputs]


class Weights:
    """Weights by name, which several programs of a process share on a device."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values


_common: WeakValueDictionary[tuple[Path, str, tuple[int, ...]], Weights] = WeakValueDictionary()


def common_weights(torch: Any, file: Path, device: str) -> Weights:
    """The weights of a file, once in a process and on a device, as long as somebody has them. Those of a file that has
    taken its place, as when a bundle is exported anew, are others.
    """
    try:
        with file.open("rb") as stream:
            key = (file, device, stamp(os.fstat(stream.fileno())))
            weights = _common.get(key)
            if weights is None:
                weights = _common[key] = Weights(torch.load(stream, map_location=device, weights_only=True))
    except Exception as exc:  # as in ``_load``
        raise ModelError(f"{file}: torch cannot load these weights: {exc}", hint=_HINT) from exc
    return weights


def waits(graph: Any) -> str | None:
    """The node of a program's graph that no CUDA graph can have, in words, or None."""
    for node in graph.nodes:
        name = getattr(node.target, "overloadpacket", node.target)
        name = getattr(name, "__name__", "")
        if name in HOST or (name in ("index", "index_put", "index_put_") and _by_mask(node)):
            return f"the host must know what {node.name} ({name}) finds"
    return None


def _by_mask(node: Any) -> bool:
    return any(place is not None and name_of(place.meta["val"].dtype) == "bool" for place in node.args[1])


class Shared:
    """Several threads in one context: the first to come enters it, the last to go leaves it."""

    def __init__(self) -> None:
        self._lock, self._inside, self._left = threading.Lock(), 0, contextlib.ExitStack()

    @contextlib.contextmanager
    def inside(self, context: contextlib.AbstractContextManager[None]) -> Iterator[None]:
        """Meanwhile in the context of the first, which is like this one."""
        with self._lock:
            if self._inside == 0:
                self._left.enter_context(context)
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    self._left.close()


_EXACT = Shared()


def exact(torch: Any) -> contextlib.AbstractContextManager[None]:
    """Meanwhile float32 is computed as float32, and the same way each time; when no thread is in here any more, all is
    as it was before the first came.
    """
    return _EXACT.inside(_switched(torch))


@contextlib.contextmanager
def _switched(torch: Any) -> Iterator[None]:
    backends, legacy = torch.backends, torch.get_float32_matmul_precision()
    switches = [
        (backends.cuda.matmul, "fp32_precision", None),  # by the older switch, which must not contradict this one
        (backends.mkldnn.matmul, "fp32_precision", None),
        (backends.cudnn.conv, "fp32_precision", "ieee"),
        (backends.mkldnn.conv, "fp32_precision", "ieee"),
        (backends.cudnn, "benchmark", False),
        (backends.cudnn, "deterministic", True),
    ]
    before = [getattr(place, name) for place, name, _ in switches]
    try:
        torch.set_float32_matmul_precision("highest")
        for place, name, value in switches:
            if value is not None:
                setattr(place, name, value)
        yield
    finally:
        torch.set_float32_matmul_precision(legacy)
        for (place, name, _), value in zip(switches, before, strict=True):
            setattr(place, name, value)


def _load(torch: Any, file: Path) -> tuple[Any, dict[str, Any]]:
    """The program of a file, and what it tells of itself."""
    try:
        if not zipfile.is_zipfile(file):
            raise ValueError("it is no archive")
        told = {TOLD: ""}
        with _quiet():
            program = torch.export.load(str(file), extra_files=told)
        return program, json.loads(told[TOLD])
    except Exception as exc:  # what a damaged archive raises is of many kinds
        raise ModelError(f"{file}: torch cannot load this program: {exc}", hint=_HINT) from exc


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What torch says of a file that it cannot read is in the error; the rest is of symbols that are not used."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)


def _spec(name: str, node: Any) -> TensorSpec:
    value = node.meta["val"]
    shape = tuple(size if isinstance(size, int) else None for size in value.shape)
    return TensorSpec(name, name_of(value.dtype), shape)


def name_of(dtype: Any) -> str:
    """``torch.float32`` -> ``float32``."""
    return str(dtype).removeprefix("torch.")


def _torch() -> Any:
    with MissingExtraError.unless("torch", extra="gpu"):
        import torch
        import torch.export.passes
    return torch
