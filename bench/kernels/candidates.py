"""Raw outputs to candidates beside the chains that one writes with NumPy and with torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tallymill.bench.pairs import aligned, in_turns
from tallymill.bench.peers import library
from tallymill.bench.workload import raw_outputs
from tallymill.errors import TallymillError
from tallymill.kernels.candidates import candidates
from tallymill.kernels.candidates.reference import sigmoid, to_corners

# Name, windows, boxes of each, columns of logits, and columns that answer one of the two requests of a window.
SCENES = (
    ("Grounding DINO", 4, 900, 256, 3),
    ("OWL-ViT", 4, 576, 2, 1),
    ("OW-DETR", 4, 100, 81, 1),
)
FLOOR = 0.05
CALLS = 20  # a turn: one call is too short to time alone
ROUNDING = 1e-6  # of torch's scores, whose exp is another


def run(rounds: int = 7) -> dict[str, Any]:
    """Time one batch of windows, one thread, peers in turns: microseconds a batch and their ratio to ours.

    ``scenes`` has rows for ours, for a chain of NumPy (maximum, sigmoid, selection, corners; a window at a time), and
    for one of torch (the whole batch at once).

    Raises:
        TallymillError: a peer or our own result is wrong.
        UsageError: a peer is not installed.
    """
    torch = library("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        scenes = []
        for name, windows, length, width, named in SCENES:
            arguments = raw_outputs(windows, length, width, named)
            peers = _peers(arguments, torch)
            about = {"scene": name, "windows": windows, "boxes": length, "columns": width}
            found = len(candidates(**arguments, floor=FLOOR).scores)
            rows = in_turns(_many(peers), rounds).rows(1e-6 * CALLS)
            scenes.append(about | {"candidates": found, "rows": rows})
        return {"rounds": rounds, "scenes": scenes}
    finally:
        torch.set_num_threads(threads)


def table(result: dict[str, Any]) -> str:
    """The result of ``run`` for reading."""
    rows = [["candidates, one thread", "us", "ratio"]]
    for scene in result["scenes"]:
        shape = f"{scene['windows']} windows of {scene['boxes']}x{scene['columns']}, 2 requests each"
        rows.append([f"{scene['scene']}: {shape}, {scene['candidates']} candidates", "", ""])
        rows += [[f"  {row['name']}", f"{row['time']:.1f}", f"{row['ratio']:.2f}"] for row in scene["rows"]]
    return aligned(rows)


def torch_chain(
    logits: Any, boxes: Any, columns: Any, edges: Any, requests: Any, scale: Any, floor: float
) -> tuple[Any, Any, Any]:
    """What one writes with torch where every window has two requests, each of as many columns: boxes, scores, requests.

    Logits and boxes are tensors, on any device; on a card it waits for the number of candidates.
    """
    torch = library("torch")
    windows, named = len(requests) - 1, int(edges[1])
    column = torch.from_numpy(columns).to(logits.device).long().view(windows, 1, 2 * named)
    scores = logits.gather(2, column.expand(-1, logits.shape[1], -1)).float().sigmoid()
    best = scores.view(*scores.shape[:2], 2, named).amax(3).transpose(1, 2)
    window, request, box = torch.nonzero(best >= floor, as_tuple=True)
    centre, size = boxes[window, box].split(2, 1)
    corners = torch.cat([centre - size / 2, centre + size / 2], 1)
    return corners * torch.from_numpy(scale).to(logits.device)[window], best[window, request, box], window * 2 + request


def numpy_chain(
    logits: Any, boxes: Any, columns: Any, edges: Any, requests: Any, scale: Any, floor: float
) -> tuple[Any, ...]:
    """The same with NumPy, a window at a time, with arrays as small as the question allows."""
    found = []
    for window in range(len(logits)):
        first, last = requests[window], requests[window + 1]
        asked = logits[window].take(columns[edges[first] : edges[last]], 1)
        scores = sigmoid(np.maximum.reduceat(asked, edges[first:last] - edges[first], axis=1)).T
        request, box = np.nonzero(scores >= floor)
        corners = to_corners(boxes[window].take(box, 0)) * scale[window]
        found.append((corners, scores[request, box], first + request))
    return tuple(map(np.concatenate, zip(*found, strict=True)))


def _peers(arguments: dict[str, Any], torch: Any) -> dict[str, Callable[[], Any]]:
    """All of which give the same."""
    tensors = {name: torch.from_numpy(arguments[name]) for name in ("logits", "boxes")}
    peers: dict[str, Callable[[], Any]] = {
        "tallymill": lambda: candidates(**arguments, floor=FLOOR),
        "numpy": lambda: numpy_chain(**arguments, floor=FLOOR),
        "torch": lambda: torch_chain(**{**arguments, **tensors}, floor=FLOOR),
    }
    wanted = candidates(**arguments, floor=FLOOR, impl="reference")
    for name, peer in peers.items():
        boxes, scores, request = (np.asarray(part) for part in peer()[:3])
        same = np.array_equal(boxes, wanted.boxes) and np.array_equal(request, wanted.request)
        if not same or np.abs(scores - wanted.scores).max(initial=0) > (ROUNDING if name == "torch" else 0):
            raise TallymillError(f"{name} gives other candidates than the reference")
    return peers


def _many(peers: dict[str, Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
    def calls(peer: Callable[[], Any]) -> Callable[[], Any]:
        def call_often() -> None:
            for _ in range(CALLS):
                peer()

        return call_often

    return {name: calls(peer) for name, peer in peers.items()}
