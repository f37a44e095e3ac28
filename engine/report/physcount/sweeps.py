"""Which sets of predictions belong together: one model at several resolutions, one model asked in both modes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tallymill.engine.physcount.results import Scores

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
    """One model and mode at several long edges (pixels), the smallest first."""

    model: str
    mode: str
    points: tuple[tuple[int, Scores], ...]


def sweeps_of(found: Sequence[Scores]) -> list[Sweep]:
    """Sets that differ in their long edge alone, where there are two of them or more."""
    together: dict[str, dict[int, Scores]] = {}
    for one in found:
        edge = edge_of(one)
        if edge is not None:
            together.setdefault(_key(one, with_mode=True), {}).setdefault(edge, one)
    return [
        Sweep(_model(next(iter(own.values()))), next(iter(own.values())).mode, tuple(sorted(own.items())))
        for own in together.values()
        if len(own) > 1
    ]


def pairs_of(sets: Sequence[Made]) -> Iterator[tuple[int, int]]:
    """Places of (joint, independent) sets of one model that were made alike in everything else."""
    alone = {_key(one, with_edge=True): place for place, one in reversed([*enumerate(sets)]) if one.mode != "joint"}
    for place, one in enumerate(sets):
        if one.mode == "joint" and one.record is not None and _key(one, with_edge=True) in alone:
            yield place, alone[_key(one, with_edge=True)]


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
    kept = {name: value for name, value in settings.items() if name != "mode" and (with_edge or name != EDGE)}
    facts = [one.record["model"], one.record.get("data", {}).get("sha256"), kept]
    facts += [one.mode, one.record.get("prompt_sha256"), one.record["selection"]] if with_mode else []
    return json.dumps(facts, sort_keys=True, default=str)


def _model(one: Scores) -> str:
    return one.name if one.record is None else str(one.record["model"])
