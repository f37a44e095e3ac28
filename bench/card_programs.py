"""What is shipped for torch, on a card: OWL-ViT's image tower as ``--to torch`` exports it, opened as a sweep opens it,
with CUDA graphs and without.

Each is compared with the module in torch, in float32 on the CPU, by the bounds of the gate, and then timed.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from tallymill.bench.faults import fault_of
from tallymill.engine.sessions.base import Array
from tallymill.engine.sessions.pytorch import TorchSession
from tallymill.errors import ModelError, TallymillError
from tallymill.exporters import gate
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.recipes.parts import Loaded, Part
from tallymill.exporters.to_torch import PRECISIONS, export_part, lenient

BATCH, ROUNDS = 8, 20
SMALL_BATCH, SMALL_ROUNDS = 2, 2
_RUNS = 3  # of new shapes the first is as it is, the second is captured, and the third is another replay


@dataclass(frozen=True, slots=True)
class Tower:
    """A part, inputs of some runs, each other images, and what the module makes of the last."""

    part: Part
    images: list[Mapping[str, Array]]
    wanted: Mapping[str, Array]
    rounds: int


def programs(torch: Any, device: str, small: bool) -> list[dict[str, Any]]:
    """A row for each precision, without graphs and with them; what is wrong with one is its ``fault``.

    ``of_bound`` is the largest difference of an output, as a share of what the gate bears.
    """
    tower, batch = vision(small), SMALL_BATCH if small else BATCH
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for precision in PRECISIONS:
            file = Path(scratch) / f"{precision}.pt2"
            fault = fault_of(partial(export_part, tower.part, file, family="owlvit", precision=precision))
            for graphs in (False, True):
                row = {"program": "owlvit vision", "precision": precision, "batch": batch, "fault": fault}
                row["graphs"] = "asked for" if graphs else "not asked for"
                rows.append(row)
                if fault is None:
                    row["fault"] = fault_of(partial(_measure, torch, tower, file, device, row, graphs=graphs))
    return rows


def vision(small: bool) -> Tower:
    """The image tower, of random weights in the published size or a small one."""
    from tallymill.bench.random_models import make_folder

    with tempfile.TemporaryDirectory() as scratch:
        loaded = recipe_of("owlvit-base-patch32").load(make_folder("owlvit", Path(scratch), small=small))
    assert isinstance(loaded, Loaded)
    part = loaded.parts["vision"]
    images = [part.vary(SMALL_BATCH if small else BATCH, seed) for seed in range(_RUNS)]
    return Tower(part, images, gate.reference(part, images[-1]), SMALL_ROUNDS if small else ROUNDS)


def _measure(torch: Any, tower: Tower, file: Path, device: str, row: dict[str, Any], *, graphs: bool) -> None:
    """Open, compare and time one program; what is found is in the row, as far as it went."""
    session = TorchSession(file, device=device, graphs=graphs)
    sent = [{name: torch.from_numpy(value).to(device) for name, value in each.items()} for each in tower.images]
    found = [session.run(each) for each in sent][-1]
    if graphs:
        row["graphs"] = captured(session)
    part = tower.part if row["precision"] == "fp32" else lenient(tower.part)
    row["of_bound"] = apart({name: value.cpu().numpy() for name, value in found.items()}, tower.wanted, part)
    wait: Callable[[], object] = torch.cuda.synchronize if device != "cpu" else lambda: None
    seconds = _seconds(lambda: session.run(sent[0]), wait, tower.rounds)
    row["images_per_s"] = round(row["batch"] / seconds, 2)


def captured(session: TorchSession) -> str:
    """What became of the graphs that a session was asked for. Raises ``ModelError`` where a card runs without."""
    if session.device == "cpu":
        return "off: no card"
    if session.eager is not None:
        raise ModelError(f"runs without CUDA graphs: {session.eager}")
    return "captured"


def apart(found: Mapping[str, Array], wanted: Mapping[str, Array], part: Part) -> float:
    """The largest difference of an output as a share of what is borne. Raises ``TallymillError`` where one is beyond
    that, or no number.
    """
    largest = 0.0
    for name, value in wanted.items():
        off, borne = gate.difference(found[name], value), part.tolerance.get(name, gate.TOLERANCE)
        if not off <= borne:
            raise TallymillError(f"{name} differs by {off:.3g}, and {borne:.3g} is borne")
        largest = max(largest, off / borne)
    return largest


def _seconds(run: Callable[[], object], wait: Callable[[], object], rounds: int) -> float:
    """The median of some runs, each waited for."""
    seconds = []
    for _ in range(rounds):
        begun = time.perf_counter()
        run()
        wait()
        seconds.append(time.perf_counter() - begun)
    return median(seconds)
