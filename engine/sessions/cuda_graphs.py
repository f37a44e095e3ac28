"""CUDA graphs of one program, one a set of shapes: its kernels are launched with one call, whatever they are.

Written against the documentation of ``torch.cuda.graph``; it HAS NOT BEEN RUN ON A CARD.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

MOST = 8  # graphs that are kept; each has its inputs and outputs, and all share memory for what lies between
_REMEMBERED = 1024  # sets of shapes whose runs are counted
_WARM_UP = 2  # runs before a capture: libraries allocate their workspaces in the first
Program = Callable[[Sequence[Any]], list[Any]]
Launch = Callable[[], list[Any]]


class _Graph(NamedTuple):
    """A graph, the tensors that it reads and those that it writes, and what was captured, which may own more."""

    graph: Any
    places: list[Any]
    outputs: list[Any]
    launch: Launch


class CudaGraphs:
    """Runs ``program``, a function of tensors that launches the same kernels for the same shapes.

    A set of shapes is run as it is when it is first seen, and captured when it comes again. Of more than ``MOST`` the
    one that was not used for longest is let go, and shapes must then come twice as often before they are captured, so
    that no program spends its time on captures. Everything is in the order of the caller's current stream; outputs are
    copies.

    ``fixed`` makes of tensors that stay where they are what is captured, if that is not just ``program`` of them; it
    may raise ``NotCapturedError``. ``stream`` is where captures are made, if not on a stream of torch's.
    """

    class NotCapturedError(Exception):
        """Raised when a capture failed: the program must be run without."""

    def __init__(
        self,
        torch: Any,
        device: str,
        program: Program,
        *,
        fixed: Callable[[Sequence[Any]], Launch] | None = None,
        stream: Any = None,
    ) -> None:
        self._torch, self._device, self._program, self._stream = torch, device, program, stream
        self._fixed = fixed or partial(partial, program)
        self._kept: OrderedDict[tuple[Any, ...], _Graph] = OrderedDict()
        self._runs: OrderedDict[tuple[Any, ...], int] = OrderedDict()
        self._patience = 1
        self._pool = torch.cuda.graph_pool_handle()
        self._last: Any = None  # the stream of the last run, whose work on the shared memory must be over

    @property
    def shapes(self) -> list[tuple[Any, ...]]:
        """Shapes of the inputs of the graphs that are kept, the last used last."""
        return list(self._kept)

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Outputs of the program. Raises ``NotCapturedError`` when a capture failed."""
        key = tuple(tuple(value.shape) for value in inputs)
        self._after_last()
        if key not in self._kept and not self._due(key):
            return [value.clone() for value in self._program(inputs)]
        if key not in self._kept:
            self._keep(key, self._capture(inputs))
        self._kept.move_to_end(key)
        graph, places, outputs, _ = self._kept[key]
        for place, value in zip(places, inputs, strict=True):
            place.copy_(value)
        graph.replay()
        return [value.clone() for value in outputs]

    def _due(self, key: tuple[Any, ...]) -> bool:
        """Whether shapes that have no graph have come often enough for one."""
        runs = self._runs.pop(key, 0)
        self._runs[key] = runs + 1
        if len(self._runs) > _REMEMBERED:
            self._runs.popitem(last=False)
        return runs >= self._patience

    def _keep(self, key: tuple[Any, ...], graph: _Graph) -> None:
        self._kept[key] = graph
        if len(self._kept) > MOST:
            # Its last replay may still be running.
            self._torch.cuda.current_stream(self._device).synchronize()
            gone, _ = self._kept.popitem(last=False)
            self._runs.pop(gone, None)
            self._patience = min(2 * self._patience, _REMEMBERED)

    def _capture(self, inputs: Sequence[Any]) -> _Graph:
        torch = self._torch
        current = torch.cuda.current_stream(self._device)
        try:
            places = [value.clone() for value in inputs]
            launch = self._fixed(places)
            side = torch.cuda.Stream(self._device) if self._stream is None else self._stream
            side.wait_stream(current)
            with torch.cuda.stream(side):
                for _ in range(_WARM_UP):
                    launch()
            current.wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # A capture that fails leaves its own stream as the current one: the outer context puts that right. Other
            # threads may go on allocating meanwhile.
            how = {"pool": self._pool, "stream": self._stream, "capture_error_mode": "thread_local"}
            with torch.cuda.stream(current), torch.cuda.graph(graph, **how):
                outputs = launch()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as exc:
            raise self.NotCapturedError(f"a CUDA graph could not be captured: {exc}") from exc
        return _Graph(graph, places, outputs, launch)

    def _after_last(self) -> None:
        """Wait, on the caller's stream, for the last run if that was on another one."""
        stream = self._torch.cuda.current_stream(self._device)
        if self._last is not None and self._last != stream:
            stream.wait_stream(self._last)
        self._last = stream
