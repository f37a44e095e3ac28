"""In what order an engine of TensorRT is launched and captured. Stand-ins take the places of TensorRT, of the card and
of its graphs: contexts read and write by the addresses that they were told, in the memory of the CPU.
"""

from __future__ import annotations

import ctypes
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tallymill.engine.sessions import trt
from tallymill.engine.sessions.trt import TensorRtSession
from tallymill.errors import DeviceError, ModelError, TallymillError

NAMES = {"x": "input", "z": "input", "y": "output"}


class Card:
    """``torch`` with a card of the CPU's memory: a graph keeps the launches that were captured, and repeats them."""

    def __init__(self) -> None:
        self.capturing: list[Callable[[], None]] | None = None
        self.captured_on: list[Any] = []
        self.fault: Exception | None = None
        self.current = Stream()
        self.cuda = SimpleNamespace(
            is_available=lambda: True,
            device=lambda _device: nullcontext(),
            Stream=lambda _device: Stream(),
            stream=self.on,
            current_stream=lambda _device: self.current,
            graph_pool_handle=lambda: 1,
            CUDAGraph=Graph,
            graph=self.capture,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def capture(self, graph: Any, *, stream: Any, **_more: Any) -> Iterator[None]:
        if self.fault is not None:
            raise self.fault
        self.capturing = graph.launches
        self.captured_on.append(stream)
        try:
            yield
        finally:
            self.capturing = None


class Stream:
    def __init__(self) -> None:
        self.cuda_stream = id(self)

    def wait_stream(self, _other: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


class Graph:
    def __init__(self) -> None:
        self.launches: list[Callable[[], None]] = []

    def replay(self) -> None:
        for launch in self.launches:
            launch()


class Context:
    """Of an engine that gives x + z."""

    def __init__(self, card: Card) -> None:
        self.card, self.launches, self.streams = card, 0, set[int]()
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, list[int]] = {name: [] for name in NAMES}
        self.memory: tuple[int, int] | None = None

    def set_device_memory(self, memory: int, size: int) -> None:
        self.memory = (memory, size)

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shapes[name] = shape
        return True

    def get_tensor_shape(self, _name: str) -> tuple[int, ...]:
        return self.shapes["x"]

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self.addresses[name].append(memory)
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        self.streams.add(stream_handle)
        size = math.prod(self.shapes["x"])
        x, z, y = (view(self.addresses[name][-1], size) for name in NAMES)

        def launch() -> None:
            np.add(x, z, out=y)

        if self.card.capturing is not None:
            self.card.capturing.append(launch)
        else:
            self.launches += 1
            launch()
        return True


def view(address: int, size: int) -> Any:
    return np.ctypeslib.as_array((ctypes.c_float * size).from_address(address))


class Uncapturable(Context):
    def is_stream_capturable(self, _stream: int) -> bool:
        return False


class Engine:
    """Of x + z [4, T]."""

    num_io_tensors, device_memory_size_v2 = 3, 1000

    def __init__(self, card: Card, kind: Callable[[Card], Any]) -> None:
        self.card, self.kind = card, kind
        self.contexts: list[Any] = []

    def create_runtime_config(self) -> Any:
        return SimpleNamespace(
            set_execution_context_allocation_strategy=lambda _strategy: None,
            dynamic_shapes_kernel_specialization_strategy="lazy",
        )

    def create_execution_context(self, *, runtime_config: Any) -> Any:
        assert runtime_config.dynamic_shapes_kernel_specialization_strategy == "eager"
        context = self.kind(self.card)
        self.contexts.append(context)
        return context

    def get_tensor_name(self, place: int) -> str:
        return list(NAMES)[place]

    def get_tensor_dtype(self, _name: str) -> str:
        return "float32"

    def get_tensor_shape(self, _name: str) -> tuple[int, ...]:
        return (4, -1)

    def get_tensor_mode(self, name: str) -> str:
        return NAMES[name]


class Machine:
    """A machine with a card and TensorRT, whose contexts are of a ``kind``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.card = Card()
        self.kind: Callable[[Card], Context | None] = Context
        self.file = folder / "image-b4.engine"
        self.file.write_bytes(b"")
        monkeypatch.setattr(trt, "_torch", lambda: self.card)
        monkeypatch.setattr(trt, "_runtime", self.runtime)
        monkeypatch.setattr(trt, "ALIGNMENT", 64)  # as torch aligns memory of the CPU

    def runtime(self, _module: str) -> Any:
        self.engine = Engine(self.card, lambda card: self.kind(card))
        logger = SimpleNamespace(ERROR=0)
        return SimpleNamespace(
            Logger=type("Logger", (), {"ERROR": 0, "__init__": lambda _self, _level: None}),
            Runtime=lambda _logger: SimpleNamespace(
                deserialize_cuda_engine=lambda _content: self.engine, **vars(logger)
            ),
            TensorIOMode=SimpleNamespace(INPUT="input", OUTPUT="output"),
            ExecutionContextAllocationStrategy=SimpleNamespace(USER_MANAGED=2),
            DynamicShapesKernelSpecializationStrategy=SimpleNamespace(EAGER="eager"),
            nptype=np.dtype,
        )

    def open(self, **more: Any) -> TensorRtSession:
        return TensorRtSession({4: self.file}, device="cpu", **more)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(monkeypatch, tmp_path)


def some(seed: int, rows: int = 4, width: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {name: rng.random((rows, width), np.float32) for name in ("x", "z")}


def answers(session: TensorRtSession, inputs: Mapping[str, Any]) -> bool:
    return np.array_equal(session.run(inputs)["y"], inputs["x"] + inputs["z"])


def test_shapes_that_come_a_second_time_are_captured_and_replayed(machine: Machine) -> None:
    session = machine.open()
    (plain,) = machine.engine.contexts
    assert answers(session, some(1))
    assert (plain.launches, machine.card.captured_on) == (1, [])
    assert answers(session, some(2))
    plain, own = machine.engine.contexts
    assert machine.card.captured_on == [session._stream], "the session's, not the caller's or torch's"
    assert own.launches >= 1, "TensorRT must have been launched with these shapes before it is captured"
    launches = plain.launches, own.launches
    for seed in (3, 4):
        assert answers(session, some(seed))
    assert (plain.launches, own.launches) == launches, "from now on the graph is replayed"
    assert {name: len(told) for name, told in own.addresses.items()} == dict.fromkeys(NAMES, 1), "told once"
    assert own.streams == plain.streams == {session._stream.cuda_stream}
    assert own.memory == plain.memory
    assert plain.memory is not None
    assert plain.memory[1] == Engine.device_memory_size_v2
    assert session.eager is None


def test_every_graph_has_a_context_of_its_own(machine: Machine) -> None:
    """A context that is told other shapes spoils the graphs that were captured with it."""
    session = machine.open()
    for seed, width in enumerate((3, 3, 5, 5, 7, 3, 5, 3)):
        assert answers(session, some(seed, width=width))
    assert [own.shapes["x"] for own in machine.engine.contexts[1:]] == [(4, 3), (4, 5)]
    assert len(machine.card.captured_on) == 2


@pytest.mark.parametrize("graphs", [True, False])
def test_what_is_given_is_the_callers_own_and_batches_are_cut(machine: Machine, graphs: bool) -> None:
    session = machine.open(graphs=graphs)
    inputs = {name: torch.from_numpy(value) for name, value in some(1, rows=9).items()}
    found: list[Any] = [session.run(inputs)["y"] for _ in range(3)]
    session.run({name: value * 3 for name, value in inputs.items()})
    for each in found:
        assert torch.equal(each, inputs["x"] + inputs["z"])
    assert len(machine.engine.contexts) == 1 + graphs
    addresses = [at for context in machine.engine.contexts for name in NAMES for at in context.addresses[name]]
    assert not [at for at in addresses if at % 64], "TensorRT takes aligned memory only"
    assert session.eager == (None if graphs else "they were not asked for")


def test_a_capture_that_fails_is_told_once_and_done_without(machine: Machine, caplog: Any) -> None:
    session = machine.open()
    machine.card.fault = RuntimeError("operation not permitted when stream is capturing")
    with caplog.at_level(logging.WARNING):
        assert all(answers(session, some(seed)) for seed in range(5))
    assert len(caplog.records) == 1
    assert "image-b4.engine: runs without CUDA graphs from now on: a CUDA graph could not be" in caplog.text
    assert "stream is capturing" in str(session.eager)
    assert machine.engine.contexts[0].launches == 5


def test_an_engine_that_says_it_cannot_be_captured_is_not(machine: Machine) -> None:
    machine.kind = Uncapturable
    session = machine.open()
    assert all(answers(session, some(seed)) for seed in range(3))
    assert machine.card.captured_on == []
    assert "this engine cannot be captured" in str(session.eager)


def test_a_launch_that_fails_in_a_capture_is_tried_without(machine: Machine, monkeypatch: Any) -> None:
    execute = Context.execute_async_v3
    monkeypatch.setattr(
        Context,
        "execute_async_v3",
        lambda self, stream: self.card.capturing is None and execute(self, stream),
    )
    session = machine.open()
    assert all(answers(session, some(seed)) for seed in range(3))
    assert "TensorRT could not launch it" in str(session.eager)


def test_no_context_is_an_error_that_says_what_to_do(machine: Machine) -> None:
    machine.kind = lambda _card: None
    with pytest.raises(DeviceError, match=r"image-b4\.engine: TensorRT could make no context .* memory") as caught:
        machine.open()
    assert "nvidia-smi" in (caught.value.hint or "")
    assert "--workers" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), DeviceError),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), DeviceError),
        (MemoryError(), DeviceError),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), ModelError),
    ],
)
@pytest.mark.parametrize("where", ["inputs", "memory", "answers"])
def test_a_card_that_fails_is_no_fault_of_an_image(
    machine: Machine, monkeypatch: Any, error: Exception, kind: type[TallymillError], where: str
) -> None:
    def fails(*_given: Any, **_more: Any) -> Any:
        raise error

    session = machine.open()
    session.device = "cuda:0"  # of which errors are told
    monkeypatch.setattr(TensorRtSession, "_sent", lambda _self, _spec, value: torch.from_numpy(value))
    monkeypatch.setattr(machine.card, "empty", lambda shape, dtype, **_device: torch.empty(shape, dtype=dtype), False)
    if where == "inputs":
        monkeypatch.setattr(TensorRtSession, "_sent", fails)
    elif where == "memory":
        monkeypatch.setattr(machine.card, "empty", fails, False)
    else:
        monkeypatch.setattr(torch.Tensor, "cpu", fails)
    with pytest.raises(kind, match=r"image-b4\.engine: "):
        session.run(some(1))


def test_memory_that_runs_out_in_a_capture_is_told(machine: Machine) -> None:
    """A run without graphs would take it from others."""
    session = machine.open()
    session.run(some(1))
    machine.card.fault = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    with pytest.raises(DeviceError, match="out of memory"):
        session.run(some(2))
