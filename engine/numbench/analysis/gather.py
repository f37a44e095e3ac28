"""An analysis while it grows shard by shard, and the tables when all are in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.estimates import Estimates
from tallymill.engine.numbench.analysis import tabulate, tabulate_counts
from tallymill.engine.numbench.analysis.asked import Asked, AskedByRun
from tallymill.engine.numbench.analysis.bootstrap import resampled
from tallymill.engine.numbench.analysis.chance import chance_of
from tallymill.engine.numbench.analysis.cores import cores_of
from tallymill.engine.numbench.analysis.counting import Counted, Counting
from tallymill.engine.numbench.analysis.differences import differences_of
from tallymill.engine.numbench.analysis.error_sums import ErrorUnits
from tallymill.engine.numbench.analysis.grid import Axes, Grid, Placing, Sums, axes_of, placing_of, sums_of
from tallymill.engine.numbench.analysis.images import Factors, Images
from tallymill.engine.numbench.analysis.keyed import Part
from tallymill.engine.numbench.analysis.leaves import Leaves
from tallymill.engine.numbench.analysis.results import Failure, Saturation, SystemRow, Uncovered
from tallymill.engine.numbench.analysis.sensitivity import sensitivity_of
from tallymill.engine.numbench.analysis.statistics import statistics
from tallymill.engine.numbench.analysis.tabulate_counts import Counts, counts_on
from tallymill.engine.numbench.analysis.tallies import Met, PromptUses, Tallies
from tallymill.engine.numbench.analysis.units import Units, cores_by_id, paired_sums, units_of

Floats = NDArray[np.float64]
# A system as the scores know it: the number of its RUN, and its name there.
SystemKey = tuple[int, str | None]


@dataclass(frozen=True, slots=True)
class Looked:
    """What one detector did in a shard, by code of system: int64 [S] each."""

    items: NDArray[np.int64]
    failed: NDArray[np.int64]
    saturated: NDArray[np.int64]
    proposals: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shares:
    """What one shard brings. ``statuses`` int64 [S, 3] and ``not_1024`` int64 [S] by code of system; ``looked`` by
    place of the detector; ``failures`` are error texts, ``uncovered`` categories. ``asked`` is by the name of an id,
    empty where nobody compares what was asked for; ``errors`` (see ``error_part_of``) None where nobody resamples.
    """

    part: Part
    counted: Counted
    images: Images
    statuses: NDArray[np.int64]
    not_1024: NDArray[np.int64]
    looked: dict[int, Looked]
    failures: Met
    uncovered: Met
    asked: dict[str, Asked] = field(default_factory=dict)
    errors: Part | None = None


@dataclass(slots=True)
class Gathered:
    """The sums of all shards so far. Nothing in it depends on the order in which they came."""

    factors: Factors
    detectors: list[str]
    leaves: Leaves = field(init=False)
    prompts: PromptUses = field(default_factory=PromptUses)
    asked: dict[str, AskedByRun] = field(default_factory=dict)
    counting: Counting = field(default_factory=Counting)
    failures: Tallies = field(default_factory=lambda: Tallies("other reasons"))
    uncovered: Tallies = field(default_factory=lambda: Tallies("other categories"))
    # By code of system: statuses, images that are not 1024 x 1024, images without a prompt.
    statuses: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    not_1024: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    without_prompt: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    # By place of the detector: items, failed, saturated, proposals by code of system, [4, S].
    looked: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    ranges_differ: int = 0

    def __post_init__(self) -> None:
        self.leaves = Leaves(len(self.detectors))

    def add(self, shard: Shares) -> None:
        """Add a shard."""
        images = shard.images
        self.leaves.add(shard.part, shard.errors)
        self.prompts.add(images.prompts, images.prompt, images.system)
        for name, asked in shard.asked.items():
            self.asked.setdefault(name, AskedByRun()).add(asked)
        self.counting.add(shard.counted, len(shard.statuses))
        self.failures.add(shard.failures)
        self.uncovered.add(shard.uncovered)
        self.statuses = _added(self.statuses, shard.statuses)
        self.not_1024 = _added(self.not_1024, shard.not_1024)
        self.without_prompt = _added(self.without_prompt, np.bincount(images.system[images.prompt < 0]))
        self.ranges_differ += images.ranges_differ
        for place, seen in shard.looked.items():
            told = np.stack([seen.items, seen.failed, seen.saturated, seen.proposals])
            self.looked[place] = _added(self.looked.get(place, told[:, :0]).T, told.T).T

    def settle(self) -> None:
        """Bring everything together: after the last shard."""
        self.leaves.settle()
        self.prompts.settle()
        for asked in self.asked.values():
            asked.settle()


def _added(before: NDArray[np.int64], now: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sum of two arrays whose first axis may differ in length."""
    longer, shorter = (before, now) if len(before) > len(now) else (now, before)
    found = longer.copy()
    found[: len(shorter)] += shorter
    return found


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of an ``Analysis`` that come from sums alone, by the names of its fields; and the axes."""

    axes: Axes
    rows: dict[str, list[Any]]
    split_cores: int


@dataclass(frozen=True, slots=True)
class _Found:
    """The sums on the axes, and the statistics that come from them."""

    axes: Axes
    placing: Placing
    grid: Grid
    units: Units
    sums: Sums
    counts: Counts
    cells_of: dict[str, NDArray[np.int64]]
    chance: dict[str, Floats]
    point: dict[str, Floats]
    drawn: dict[str, Floats]


def tables_of(gathered: Gathered, systems: dict[SystemKey, str], *, resamples: int, seed: int, workers: int) -> Tables:
    """Make the tables. ``systems`` names every system, in order."""
    found = _found(gathered, systems, resamples, seed, workers)
    cores = len(np.unique(found.grid.leaves.core[found.units.order]))
    return Tables(found.axes, _rows(found, gathered, systems), len(found.units) - cores)


def _found(gathered: Gathered, systems: dict[SystemKey, str], resamples: int, seed: int, workers: int) -> _Found:
    axes = axes_of(gathered.factors, gathered.leaves, systems, gathered.detectors)
    placing = placing_of(gathered.factors, axes, systems)
    grid = Grid.of(gathered.leaves, axes, placing)
    rank = cores_by_id(grid) if resamples else None
    units = units_of(grid, rank)
    sums = sums_of(grid, paired_sums(units))
    spreads, cells_of = sensitivity_of(sums, axes)
    counts = counts_on(axes, placing, gathered.counting)
    point = statistics(_with_axis(sums), axes) | {name: values[None] for name, values in spreads.items()} | counts.point
    drawn, chance = {}, {}
    if rank is not None:
        chance = chance_of(grid, rank[grid.leaves.core], seed, workers)
        errors = ErrorUnits.of(gathered.leaves.errors, placing.compositions, placing.systems, rank)
        drawn = resampled(replace(units, errors=errors), resamples, seed, workers)
    return _Found(axes, placing, grid, units, sums, counts, cells_of, chance, point, drawn)


def _rows(found: _Found, gathered: Gathered, systems: dict[SystemKey, str]) -> dict[str, list[Any]]:
    axes, placing, counts = found.axes, found.placing, found.counts
    estimates, numbers, cores = Estimates(found.point, found.drawn), found.grid.numbers(), cores_of(found.grid)
    overall, cells = tabulate.cells(axes, numbers, cores, found.sums.single_number, estimates)
    return {
        "overall": overall,
        "cells": cells,
        "differences": differences_of(found.grid, cores, found.point, found.drawn),
        "losses": tabulate.losses(axes, estimates),
        "levels": tabulate.levels(axes, numbers, estimates),
        "contrasts": tabulate.contrasts(axes, found.units.contrasts, found.sums.paired, estimates),
        "sensitivity": tabulate.sensitivity(axes, estimates, found.cells_of, found.chance),
        "families": tabulate_counts.families(axes, counts, estimates),
        "signed_errors": tabulate_counts.signed_errors(axes, counts, estimates),
        "curve": tabulate.curve(axes, found.sums.curve_number, estimates),
        "visible": list(tabulate_counts.visible(axes, placing, gathered.counting)),
        "coverage": list(tabulate_counts.coverage(axes, placing, gathered.counting)),
        "saturation": list(_saturation(gathered, systems)),
        "uncovered": [
            Uncovered(name, category, tally.images)
            for code, name in _by_code(gathered, systems)
            for category, tally in gathered.uncovered.of(code)
        ],
        "failures": [
            Failure(name, reason, tally.images, tally.first)
            for code, name in _by_code(gathered, systems)
            for reason, tally in gathered.failures.of(code)
        ],
    }


def system_rows(gathered: Gathered, systems: dict[SystemKey, str], runs: Sequence[str]) -> list[SystemRow]:
    """One row a system; ``runs`` are the paths of the RUNs by their number."""
    leaves, rows = gathered.leaves, {}
    of = leaves.attribute("system")
    for code, name in _by_code(gathered, systems):
        key = gathered.factors.systems.levels[code]
        scored, error, uncovered = gathered.statuses[code].tolist()
        uses = gathered.prompts.of(code)
        rows[name] = SystemRow(
            system=name,
            run=runs[key[0]],
            items=scored + error + uncovered,
            scored=scored,
            error=error,
            uncovered=uncovered,
            prompts=len(uses),
            cores=len(np.unique(leaves.core[of == code])),
            samples_least=int(uses.min()) if len(uses) else 0,
            samples_most=int(uses.max(initial=0)),
            prompts_missing=len(gathered.prompts.names.settled) - len(uses),
            items_without_prompt=int(gathered.without_prompt[code : code + 1].sum()),
            not_1024=int(gathered.not_1024[code : code + 1].sum()),
        )
    return [rows[name] for name in systems.values()]


def _saturation(gathered: Gathered, systems: dict[SystemKey, str]) -> Iterator[Saturation]:
    for code, name in _by_code(gathered, systems):
        for place, detector in enumerate(gathered.detectors):
            told = gathered.looked.get(place)
            if told is not None and told[0, code : code + 1].any():
                yield Saturation(name, detector, *(told[:, code].tolist()))


def _by_code(gathered: Gathered, systems: dict[SystemKey, str]) -> Iterator[tuple[int, str]]:
    """Codes and names of systems, in the order of ``systems``."""
    codes = {key: code for code, key in enumerate(gathered.factors.systems.levels)}
    for key, name in systems.items():
        yield codes[key], name


def _with_axis(sums: Sums) -> Sums:
    return Sums(**{f.name: getattr(sums, f.name)[None] for f in fields(sums)})
