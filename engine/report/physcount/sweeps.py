"""Which sets of predictions belong together: one model at several resolutions, one model asked in both modes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tallymill.engine.physcount.results import Scores
from tallymill.engine.words import listed

EDGE = "long_edge"


class Made(Protocol):
    """Predictions or their scores: what is known of how they were made."""

    @property
    def mode(self) -> str:
        """independent, joint or file."""

    @property
    def record(self) -> dict[str, Any] | None:
        """run.json, of a RUN."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One model and mode at several long edges (pixels), the smallest first; at one edge there may be several sets."""

    model: str
    mode: str
    points: tuple[tuple[int, Scores], ...]

    @property
    def repeated(self) -> dict[int, list[str]]:
        """The names of the sets at each edge that has several."""
        names: dict[int, list[str]] = {}
        for edge, one in self.points:
            names.setdefault(edge, []).append(one.name)
        return {edge: own for edge, own in names.items() if len(own) > 1}


def sweeps_of(found: Sequence[Scores]) -> list[Sweep]:
    """Sets that differ in their long edge alone, where there are two edges or more."""
    together: dict[str, list[tuple[int, Scores]]] = {}
    for one in found:
        edge = edge_of(one)
        if edge is not None:
            together.setdefault(_key(one, with_mode=True), []).append((edge, one))
    return [
        Sweep(_model(own[0][1]), own[0][1].mode, tuple(sorted(own, key=lambda point: point[0])))
        for own in together.values()
        if len({edge for edge, _ in own}) > 1
    ]


def notes_of(sweeps: Sequence[Sweep]) -> list[str]:
    """What a reader of sweeps must know: where several sets stand at one edge."""
    return [
        f"{listed(names, 5)} were made alike: all of them stand at {edge:,} px."
        for sweep in sweeps
        for edge, names in sweep.repeated.items()
    ]


def pairs_of(sets: Sequence[Made]) -> Iterator[tuple[int, int]]:
    """Places of all (joint, independent) sets of one model that were made alike in everything else."""
    alone: dict[str, list[int]] = {}
    for place, one in enumerate(sets):
        if one.mode == "independent":
            alone.setdefault(_key(one, with_edge=True), []).append(place)
    for place, one in enumerate(sets):
        if one.mode == "joint":
            yield from ((place, other) for other in alone.get(_key(one, with_edge=True), ()))


def edge_of(one: Made) -> int | None:
    """The limit of the long edge that a RUN was made with."""
    edge = {} if one.record is None else one.record["settings"]
    value = edge.get(EDGE)
    return value if isinstance(value, int) else None


def _key(one: Made, *, with_mode: bool = False, with_edge: bool = False) -> str:
    """What must be equal."""
    if one.record is None:
        return f"file {id(one)}"
    settings: Mapping[str, Any] = one.record["settings"]
    kept = {name: value for name, value in settings.items() if with_edge or name != EDGE}
    served: Mapping[str, Any] = one.record.get("served") or {}
    facts = [one.record["model"], one.record.get("data", {}).get("sha256"), kept]
    facts += [served.get("model"), served.get("arguments")]
    facts += [one.mode, one.record.get("prompt_sha256"), one.record["selection"]] if with_mode else []
    return json.dumps(facts, sort_keys=True, default=str)


def _model(one: Scores) -> str:
    return one.name if one.record is None else str(one.record["model"])
