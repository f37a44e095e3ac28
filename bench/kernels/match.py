"""Matching of boxes beside pycocotools and the assignment libraries, and assignment beside those alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.bench.pairs import aligned, in_turns
from tallymill.bench.peers import lapx, library
from tallymill.errors import TallymillError
from tallymill.kernels import paths
from tallymill.kernels.match import assign, match

Boxes = NDArray[np.float32]
Costs = NDArray[np.float64]
Solve = Callable[[Costs], Any]

PAIRINGS = ((20, 20), (30, 50), (100, 100))
SQUARES = ((20, 20), (30, 50), (50, 50), (100, 100), (200, 200), (300, 300))
ENTRIES = 200_000  # costs a turn, in as many problems as that makes
AGREEMENT = 1e-6


def run(rounds: int = 5) -> dict[str, Any]:
    """Time ours and every peer on the same problems, one thread, in turns.

    ``boxes``: from float32 boxes to pairs. Peers compute all IoU with ``pycocotools.mask.iou``, from boxes that are in
    its form already, and solve 1 - IoU. ``costs``: from float64 matrices to pairs, uniform, of few integers (ties), and
    like 1 - IoU of a crowd. Times in microseconds a problem, ratios to ours.

    Raises:
        TallymillError: a peer or a path of ours finds another total; all are checked before any is timed.
        UsageError: a peer is not installed.
    """
    boxes = [_pairing(rows, columns, rounds) for rows, columns in PAIRINGS]
    costs = [_square(rows, columns, kind, rounds) for rows, columns in SQUARES for kind in KINDS]
    return {"rounds": rounds, "boxes": boxes, "costs": costs}


def table(result: dict[str, Any]) -> str:
    """The result of ``run`` for reading."""
    peers = list(dict.fromkeys(row["name"] for case in result["boxes"] for row in case["rows"]))
    rows = [["match, one thread: us (times ours)", *peers]]
    rows += [[f"{case['shape'][0]}x{case['shape'][1]} boxes", *_cells(case["rows"], peers)] for case in result["boxes"]]
    text = aligned(rows)
    peers = list(dict.fromkeys(row["name"] for case in result["costs"] for row in case["rows"]))
    rows = [["assign, one thread: us (times ours)", *peers]]
    for case in result["costs"]:
        rows.append([f"{case['shape'][0]}x{case['shape'][1]} {case['kind']}", *_cells(case["rows"], peers)])
    return f"{text}\n\n{aligned(rows)}"


def _cells(rows: list[dict[str, Any]], peers: list[str]) -> list[str]:
    by_name = {row["name"]: row for row in rows}
    return [f"{by_name[name]['time']:.1f} ({by_name[name]['ratio']:.1f})" if name in by_name else "-" for name in peers]


@dataclass(frozen=True, slots=True)
class Solver:
    """A function of a library, and how to read the pairs from its result: their rows and their columns, after their
    problems where it solves several.
    """

    solve: Solve
    pairs: Callable[[Any], Any]

    def total(self, cost: Costs, solved: Costs | None = None) -> float:
        """The sum of ``cost`` over the pairs found for ``solved``, by default the same."""
        return float(cost[tuple(self.pairs(self.solve(cost if solved is None else solved)))].sum())


def solvers(rows: int, columns: int) -> dict[str, Solver]:
    """Every way that the three libraries have to assign one float64 matrix."""
    scipy, lap, fork = library("scipy.optimize"), library("lap"), lapx()
    oblong = rows != columns
    extended: dict[str, Any] = {"extend_cost": oblong, "return_cost": False}
    return {
        "scipy": Solver(scipy.linear_sum_assignment, _rows_and_columns),
        "lap": Solver(partial(lap.lapjv, **extended), _column_of_each_row),
        "lapx lapjv": Solver(partial(fork.lapjv, **extended), _column_of_each_row),
        "lapx lapjvx": Solver(partial(fork.lapjvx, **extended), _rows_and_columns),
        "lapx lapjvc": Solver(partial(fork.lapjvc, return_cost=False), _rows_and_columns),
        "lapx lapjvsa": Solver(partial(fork.lapjvsa, **extended), np.transpose),  # a row and a column a pair
        "lapx lapjvr": Solver(partial(fork.lapjvr, **extended), _rows_and_columns),
        "lapx lapjvh": Solver(partial(fork.lapjvh, **extended), _rows_and_columns),
    }


def batch_solver(rows: int, columns: int) -> Solver:
    """The fastest batch function of lapx, for float64 matrices [problems, rows, columns]."""
    settings: dict[str, Any] = {"extend_cost": rows != columns, "return_cost": False, "n_threads": 1}
    return Solver(partial(lapx().lapjvr_batch, **settings), _of_all_problems)


def _rows_and_columns(found: Any) -> Any:
    return found


def _column_of_each_row(found: Any) -> Any:
    i = np.flatnonzero(found[0] >= 0)  # -1: none
    return i, found[0][i]


def _of_all_problems(found: Any) -> Any:
    rows, columns = found
    problem = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
    return problem, np.concatenate(rows), np.concatenate(columns)


def crowds(problems: int, rows: int, columns: int, seed: int = 0) -> tuple[Boxes, Boxes]:
    """Two sights of the same objects, jittered, [problems, rows, 4] and [problems, columns, 4]."""
    rng = np.random.default_rng(seed)
    objects = max(rows, columns)
    center = rng.uniform(50, 970, (problems, objects, 2))
    size = np.exp(rng.uniform(np.log(24), np.log(320), (problems, objects, 2)))

    def seen(count: int) -> Boxes:
        at = center + rng.normal(0, 0.1, center.shape) * size
        extent = size * np.exp(rng.normal(0, 0.1, size.shape))
        corners = np.concatenate([at - extent / 2, at + extent / 2], axis=2).astype(np.float32)
        return np.ascontiguousarray(corners[:, rng.permutation(objects)[:count]])

    return seen(rows), seen(columns)


def _uniform(rng: np.random.Generator, shape: tuple[int, int, int]) -> Costs:
    return rng.random(shape)


def _integers(rng: np.random.Generator, shape: tuple[int, int, int]) -> Costs:
    return rng.integers(0, 10, shape).astype(np.float64)


def _overlaps(rng: np.random.Generator, shape: tuple[int, int, int]) -> Costs:
    return 1 - np.where(rng.random(shape) < 0.1, rng.random(shape), 0)


KINDS = {"uniform": _uniform, "of 10 integers": _integers, "1 - IoU": _overlaps}


def _pairing(rows: int, columns: int, rounds: int) -> dict[str, Any]:
    problems = ENTRIES // (rows * columns)
    a, b = crowds(problems, rows, columns)
    of_a, of_b = (np.arange(problems + 1) * size for size in (rows, columns))
    flat_a, flat_b = a.reshape(-1, 4), b.reshape(-1, 4)
    coco = library("pycocotools.mask")
    forms = [_corner_and_size(boxes) for boxes in (a, b)]
    no_crowds = [0] * columns

    def chain(solve: Solve) -> Callable[[], object]:
        return lambda: [solve(1 - coco.iou(x, y, no_crowds)) for x, y in zip(*forms, strict=True)]

    ours = {path: partial(match, flat_a, of_a, flat_b, of_b, impl=path) for path in ("cpu", *paths.supported())}
    best = _agreeing({name: float(call().iou.astype(np.float64).sum()) for name, call in ours.items()})
    peers: dict[str, Callable[[], object]] = {f"ours ({path})": call for path, call in ours.items()}
    overlap = [coco.iou(x, y, no_crowds) for x, y in zip(*forms, strict=True)]
    libraries = solvers(rows, columns)
    found = {name: sum(solver.total(iou, 1 - iou) for iou in overlap) for name, solver in libraries.items()}
    _agreeing({"ours": best} | found)
    peers |= {name: chain(solver.solve) for name, solver in libraries.items()}
    rows_of = in_turns(peers, rounds).rows(1e-6 * problems)
    return {"shape": [rows, columns], "problems": problems, "rows": rows_of}


def _square(rows: int, columns: int, kind: str, rounds: int) -> dict[str, Any]:
    problems = max(ENTRIES // (rows * columns), 2)
    cost = KINDS[kind](np.random.default_rng(rows * columns), (problems, rows, columns))
    ours = {path: partial(assign, cost, impl=path) for path in ("cpu", *paths.supported())}
    totals = {name: float(call().total.sum()) for name, call in ours.items()}
    libraries, batch = solvers(rows, columns), batch_solver(rows, columns)
    totals |= {name: sum(solver.total(one) for one in cost) for name, solver in libraries.items()}
    _agreeing(totals | {"lapx lapjvr_batch": batch.total(cost)})
    peers: dict[str, Callable[[], object]] = {f"ours ({path})": call for path, call in ours.items()}
    peers["ours, one a call"] = lambda: [assign(one) for one in cost]
    peers |= {name: partial(_each, solver.solve, cost) for name, solver in libraries.items()}
    peers["lapx lapjvr_batch"] = partial(batch.solve, cost)
    rows_of = in_turns(peers, rounds).rows(1e-6 * problems)
    return {"shape": [rows, columns], "kind": kind, "problems": problems, "rows": rows_of}


def _each(solve: Solve, costs: Costs) -> list[Any]:
    return [solve(one) for one in costs]


def _corner_and_size(boxes: Boxes) -> NDArray[np.float64]:
    form = boxes.astype(np.float64)
    form[..., 2:] -= form[..., :2]
    return form


def _agreeing(totals: dict[str, float]) -> float:
    first = next(iter(totals.values()))
    for name, total in totals.items():
        if abs(total - first) > AGREEMENT * abs(first):
            raise TallymillError(f"{name} finds a total of {total}, not {first}: not timed")
    return first
