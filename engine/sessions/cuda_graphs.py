"""CUDA graphs of one program, one a set of shapes: its kernels are launched with one call, whatever they are.

Written against the documentation of ``torch.cuda.graph``; it HAS NOT BEEN RUN ON A CARD.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

MOST = 8  # graphs that are kept; each has its inputs and outputs, and all share memory for what lies between
_REMEMBERED = 1024  # sets of shapes whose runs are counted
_WARM_UP = 2  # runs before a capture: libraries allocate their workspaces in the first


class CudaGraphs:
    """Runs ``program``, a function of tensors that launches the same kernels for the same shapes.

    A set of shapes is run as it is when it is first seen, and captured when it comes again. Of more than ``MOST`` the
    one that was not used for longest is let go, and shapes must then come twice as often before they are captured, so
    that no program spends its time on captures. Everything is in the order of the caller's current stream; outputs are
    copies.
    """

    class NotCapturedError(Exception):
        """Raised when a capture failed: the program must be run without."""

    def __init__(self, torch: Any, device: str, program: Callable[[Sequence[Any]], list[Any]]) -> None:
        self._torch, self._device, self._program = torch, device, program
        self._kept: OrderedDict[tuple[Any, ...], tuple[Any, list[Any], list[Any]]] = OrderedDict()
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
        graph, places, outputs = self._kept[key]
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

    def _keep(self, key: tuple[Any, ...], graph: tuple[Any, list[Any], list[Any]]) -> None:
        self._kept[key] = graph
        if len(self._kept) > MOST:
            # Its last replay may still be running.
            self._torch.cuda.current_stream(self._device).synchronize()
            gone, _ = self._kept.popitem(last=False)
            self._runs.pop(gone, None)
            self._patience = min(2 * self._patience, _REMEMBERED)

    def _capture(self, inputs: Sequence[Any]) -> tuple[Any, list[Any], list[Any]]:
        """A graph, the tensors that it reads and those that it writes."""
        torch = self._torch
        try:
            places = [value.clone() for value in inputs]
            current, side = torch.cuda.current_stream(self._device), torch.cuda.Stream(self._device)
            side.wait_stream(current)
            with torch.cuda.stream(side):
                for _ in range(_WARM_UP):
                    self._program(places)
            current.wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # Other threads may go on allocating meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                outputs = self._program(places)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as exc:
            raise self.NotCapturedError(f"a CUDA graph could not be captured: {exc}") from exc
        return graph, places, outputs

    def _after_last(self) -> None:
        """Wait, on the caller's stream, for the last run if that was on another one."""
        stream = self._torch.cuda.current_stream(self._device)
        if self._last is not None and self._last != stream:
            stream.wait_stream(self._last)
        self._last = stream
