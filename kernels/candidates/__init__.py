"""From the raw outputs of a detector to candidates: boxes that answer a request well enough, in pixels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tallymill.kernels import arguments, tensors
from tallymill.kernels.candidates import cpu, reference
from tallymill.kernels.candidates.checks import checked

__all__ = ["IMPLEMENTATIONS", "Found", "candidates", "select"]

IMPLEMENTATIONS = ("cpu", "gpu", "reference")
ARRAYS = ("logits", "boxes", "columns", "edges", "requests", "scale")


class Found(NamedTuple):
    """Candidates, request after request, and what is to be said of every window.

    ``boxes`` float32 [P, 4] xyxy in pixels, not clipped; ``scores`` float32 [P]; ``request`` int64 [P], never falling;
    within a request in the order of the model's boxes. ``saturated`` bool [B]: every box of the window answers some
    request, so that there might be more. ``finite`` bool [B]: false where an asked logit is NaN or +inf; such a window
    has no candidates, and is not saturated. ``offsets`` int64 [S+1]: where each request's candidates begin and end.
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    request: NDArray[np.int64]
    saturated: NDArray[np.bool_]
    finite: NDArray[np.bool_]
    offsets: NDArray[np.int64]


def select(impl: str, device: str = "cpu") -> str:
    """Name the implementation that runs for ``impl`` (auto or one of IMPLEMENTATIONS); UsageError for any other."""
    return arguments.choose("candidates", impl, device, IMPLEMENTATIONS)


def candidates(
    logits: NDArray[Any],
    boxes: NDArray[Any],
    columns: NDArray[Any],
    edges: NDArray[Any],
    requests: NDArray[Any],
    scale: NDArray[Any],
    floor: float,
    *,
    impl: str = "auto",
    capacity: int | None = None,
) -> Found:
    """Find the boxes whose best logit, of the columns that answer a request, has a sigmoid of at least ``floor``.

    ``logits`` float32 [B, N, T] of B windows, their N boxes and T columns (classes, or tokens of a text), with any
    strides; only the asked columns are read. ``boxes`` float32 [B, N, 4]: centre x and y, width and height, as
    fractions; ``scale`` float32 [B, 4] takes their corners (x1, y1, x2, y2) to pixels. Window b is asked the requests
    ``requests[b]`` to ``requests[b + 1]`` (int32 [B+1]), and request s is answered by the best of
    ``columns[edges[s]:edges[s + 1]]`` (int32 [K] and [S+1]), at least one column.

    A score is 1 / (1 + exp(-logit)) in float32, compared with ``floor`` (in [0, 1]) in float64. A best logit of -inf
    is never chosen, also with a floor of 0. Every implementation on a CPU gives the same bits.

    Torch tensors give tensors. Only ``logits`` and ``boxes`` may lie on a GPU: what is asked is known to the host, and
    is checked there. Logits may be float16 or bfloat16 on a GPU; the same boxes are chosen there as on a CPU, with
    scores that differ by less than 1e-6. The host waits for one number, how many candidates there are, unless it says
    by ``capacity`` how many to make room for: then ``boxes``, ``scores`` and ``request`` have that length, filled up
    with NaN and -1, candidates beyond it are left out, and ``offsets`` counts all. It means nothing elsewhere.

    TypeError and ValueError name the argument that is wrong.
    """
    chosen = select(impl, arguments.device_of(logits))
    if capacity is not None and capacity < 0:
        raise ValueError(f"capacity: wanted a number of candidates, got {capacity}")
    question = [*map(tensors.on_host, ARRAYS[2:], (columns, edges, requests, scale)), floor]
    if chosen == "gpu":
        return Found(*arguments.gpu_module("candidates").candidates(logits, boxes, *question, capacity))
    given: list[Any] = [*map(tensors.on_host, ARRAYS, (logits, boxes)), *question]
    found = reference.candidates(*checked(*given)) if chosen == "reference" else cpu.candidates(*given)
    return Found(*map(tensors.torch().from_numpy, found) if tensors.is_tensor(logits) else found)
