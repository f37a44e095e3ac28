"""The proposals of a whole RUN labelled true or false by a table of true objects, shard after shard."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallymill.engine.manifests.base import Faults
from tallymill.engine.numbench.labelling import label_proposals
from tallymill.engine.numbench.truth import Truth
from tallymill.engine.proposals import OK, Proposals
from tallymill.engine.words import counted, listed
from tallymill.errors import RunError
from tallymill.runners.parts import naming_values
from tallymill.runners.plan import Shard
from tallymill.runners.run import Run

# A box may reach beyond its image by a rounding; more is told.
SLACK = 1.0
SHOWN = 10
# Proposals say in uint8 which target they answer.
MOST_TARGETS = 256


@dataclass(slots=True)
class Labelled:
    """One detector's proposals over the items that went well: ``confidence`` float32 [P] raw, ``label`` bool [P]."""

    items: int = 0
    failed: int = 0
    objects: int = 0
    confidence: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    label: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))


@dataclass(slots=True)
class Labels:
    """All detectors' proposals with labels; ``images`` names the (first) item of each ``image_hash``."""

    items: int
    failed: int
    objects: int
    without_objects: int
    notes: list[str]
    images: dict[str, str]
    detectors: dict[str, Labelled]


def label_run(run: Run, truth: Truth) -> Labels:
    """Label the proposals of every shard. Faults of the truth that only the RUN shows are one ``ManifestError``.

    A RUN that is not complete, or of which the truth names no image, is a ``RunError``.
    """
    work = _Work(run, truth)
    for shard in run.shards:
        work.add(shard)
    work.faults.raise_if_any("mend or remove these rows; nothing was fitted")
    if not work.met.any():
        first = next(iter(truth.items))
        raise RunError(
            f"{truth.file} names none of the {work.items} images of {run.path} (it names {first!r} first)",
            hint=f"item_id must be that of the RUN, such as {work.some_item!r}",
        )
    return work.result()


@dataclass(frozen=True, slots=True)
class _Asked:
    """The true objects of one shard that answer a requested target.

    Object j is true object ``at[j]`` of the table, in the shard's row ``owner[j]``, of that item's ``target[j]``.
    """

    at: NDArray[np.int64]
    owner: NDArray[np.int64]
    target: NDArray[np.int64]

    def keys(self) -> NDArray[np.int64]:
        return self.owner * MOST_TARGETS + self.target


class _Work:
    """What grows from shard to shard."""

    def __init__(self, run: Run, truth: Truth) -> None:
        self._run, self._truth = run, truth
        self._codes = {name: code for code, name in enumerate(truth.categories)}
        self._pieces: dict[str, list[tuple[NDArray[np.float32], NDArray[np.bool_]]]] = {d: [] for d in run.detectors}
        self._detectors = {name: Labelled() for name in run.detectors}
        self._images: dict[str, str] = {}
        self._unasked: Counter[str] = Counter()
        self._beyond: list[int] = []
        self._unhashed = self._failed = self._objects = self._bare_items = self._bare_targets = 0
        self.faults = Faults(truth.file)
        self.met = np.zeros(len(truth.items), np.bool_)
        self.items = 0
        self.some_item = ""

    def add(self, shard: Shard) -> None:
        scores = self._run.scores_of_shard(shard, ["item_id", "image_hash", "targets"])
        found = {name: self._run.proposals_of_shard(name, shard) for name in self._run.detectors}
        if scores is None or any(table is None for table in found.values()):
            raise RunError(
                f"{self._run.path}: {shard.part} is not done yet",
                hint="complete it first: run its sweep again, which continues where it stopped",
            )
        tables = {name: table for name, table in found.items() if table is not None}
        items = scores["item_id"].to_pylist()
        self.items += len(items)
        self.some_item = self.some_item or items[0]
        for item, digest in zip(items, scores["image_hash"].to_pylist(), strict=True):
            if digest is None:
                self._unhashed += 1
            else:
                self._images.setdefault(digest, item)
        asked = self._asked(items, scores, _sizes(list(tables.values())))
        self._objects += len(asked.at)
        failed = np.zeros(len(items), np.bool_)
        for name, table in tables.items():
            with naming_values(self._run.path, shard):
                failed |= self._label(name, table, asked)
        self._failed += int(failed.sum())

    def _asked(self, items: list[str], scores: pa.Table, sizes: NDArray[np.int64]) -> _Asked:
        truth = self._truth
        code = np.array([truth.items.get(item, -1) for item in items], np.int64)
        named = np.flatnonzero(code >= 0)
        self.met[code[named]] = True
        number = truth.starts[code[named] + 1] - truth.starts[code[named]]
        owner = np.repeat(named, number)
        at = np.repeat(truth.starts[code[named]], number) + _within(number)
        self._look_at_boxes(at, owner, sizes)
        target = self._targets_of(at, owner, scores)
        asked = target >= 0
        lengths = np.asarray(scores["targets"].combine_chunks().value_lengths(), np.int64)
        answered = np.unique(owner[asked] * MOST_TARGETS + target[asked])
        self._bare_targets += int(lengths.sum()) - len(answered)
        self._bare_items += len(items) - len(np.unique(owner[asked]))
        return _Asked(at[asked], owner[asked], target[asked])

    def _look_at_boxes(self, at: NDArray[np.int64], owner: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        width, height = sizes[owner].T
        x1, y1, x2, y2 = self._truth.boxes[at].T
        known = width > 0
        outside = known & ((x1 >= width) | (y1 >= height) | (x2 <= 0) | (y2 <= 0))
        for k in np.flatnonzero(outside).tolist():
            reason = f"lies outside its image of {width[k]} x {height[k]} pixels"
            self.faults.add(self._truth.where(at[k]), reason, column="box", value=self._truth.boxes[at[k]].tolist())
        beyond = (x1 < -SLACK) | (y1 < -SLACK) | (x2 > width + SLACK) | (y2 > height + SLACK)
        self._beyond += at[known & beyond & ~outside].tolist()

    def _targets_of(self, at: NDArray[np.int64], owner: NDArray[np.int64], scores: pa.Table) -> NDArray[np.int64]:
        """The requested target that each object answers, -1 where its category was not asked for."""
        column = scores["targets"].combine_chunks()
        lengths = np.asarray(column.value_lengths(), np.int64)
        names = column.flatten().field("category").to_pylist()
        asked = np.array([self._codes.get(name, -1) for name in names], np.int64)
        parent = np.repeat(np.arange(len(lengths)), lengths)
        category, given = self._truth.category[at], self._truth.target[at]
        flat = _first_equal(_pairs(parent, asked), _pairs(owner, category))
        by_name = np.where((category >= 0) & (flat >= 0), np.append(_within(lengths), -1)[flat], -1)
        for k in np.flatnonzero(given >= 0).tolist():
            self._check_target(int(at[k]), int(given[k]), int(lengths[owner[k]]), int(by_name[k]))
        self._unasked.update(self._truth.categories[code] for code in category[(given < 0) & (by_name < 0)].tolist())
        return np.where(given >= 0, given, by_name)

    def _check_target(self, at: int, given: int, targets: int, by_name: int) -> None:
        where, category = self._truth.where(at), int(self._truth.category[at])
        if given >= targets:
            reason = f"its item has {targets} target{'' if targets == 1 else 's'}, counted from 0"
            self.faults.add(where, reason, column="target", value=given)
        elif category >= 0 and by_name != given:
            name = self._truth.categories[category]
            self.faults.add(where, f"target {given} is not", column="category", value=name)

    def _label(self, name: str, table: pa.Table, asked: _Asked) -> NDArray[np.bool_]:
        """Label one detector's proposals of a shard; which items failed."""
        good = np.array([status == OK for status in table["status"].to_pylist()], np.bool_)
        found = Proposals.from_arrow(table).survivors()
        owner = np.repeat(np.arange(len(found)), np.diff(found.offsets))
        used, there = good[owner], good[asked.owner]
        label = label_proposals(
            found.boxes[used],
            found.confidence[used],
            (owner * MOST_TARGETS + found.target)[used],
            self._truth.boxes[asked.at[there]],
            asked.keys()[there],
        )
        self._pieces[name].append((found.confidence[used], label))
        total = self._detectors[name]
        total.items += int(good.sum())
        total.failed += int((~good).sum())
        total.objects += int(there.sum())
        return ~good

    def result(self) -> Labels:
        for name, pieces in self._pieces.items():
            self._detectors[name].confidence = np.concatenate([p for p, _ in pieces])
            self._detectors[name].label = np.concatenate([y for _, y in pieces])
        return Labels(
            items=self.items,
            failed=self._failed,
            objects=self._objects,
            without_objects=self._bare_items,
            notes=self._notes(),
            images=self._images,
            detectors=self._detectors,
        )

    def _notes(self) -> list[str]:
        truth, notes = self._truth, []
        if self._unhashed:
            verb = "has" if self._unhashed == 1 else "have"
            notes.append(
                f"{counted(self._unhashed, 'image')} of this RUN {verb} no hash, for the file was never read: "
                "whether one of them is scored elsewhere is not known."
            )
        if self._bare_targets:
            bare = counted(self._bare_items, "image")
            targets = counted(self._bare_targets, "requested target")
            notes.append(f"No true object of {targets} ({bare} without any): every proposal of these counts as false.")
        if self._unasked:
            names = [f"{name} {number}" for name, number in sorted(self._unasked.items())]
            shown = listed(names, SHOWN)
            number = counted(self._unasked.total(), "true object")
            notes.append(f"Left aside: {number} of categories that their image was not asked for ({shown}).")
        absent = np.flatnonzero(~self.met)
        if len(absent):
            first = next(name for name, code in truth.items.items() if code == absent[0])
            mine = slice(truth.starts[absent[0]], truth.starts[absent[0] + 1])
            where = truth.where(mine.start + int(truth.row[mine].argmin()))
            number = counted(len(absent), "image")
            notes.append(f"Left aside: the true objects of {number} that the RUN lacks (first: {first!r}, {where}).")
        if self._beyond:
            where = truth.where(min(self._beyond, key=lambda at: int(truth.row[at])))
            number = counted(len(self._beyond), "true box", "true boxes")
            notes.append(
                f"taken as given: {number} beyond the image's edge by more than {SLACK:g} pixel (first: {where})"
            )
        return notes


def _sizes(tables: list[pa.Table]) -> NDArray[np.int64]:
    """Width and height int64 [I, 2] of each image as some detector saw it; 0 where none did."""
    sizes = np.zeros((len(tables[0]), 2), np.int64)
    for table in tables:
        own = np.stack([np.asarray(table[c].combine_chunks().fill_null(0)) for c in ("width", "height")], axis=1)
        sizes = np.where(sizes > 0, sizes, own)
    return sizes


def _pairs(row: NDArray[np.int64], code: NDArray[np.int64]) -> NDArray[np.int64]:
    """One number for a row and a code of at least -1."""
    return row * (1 << 32) + code + 1


def _first_equal(values: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first place among ``values`` that is equal to each wanted one; -1 where none is."""
    order = np.argsort(values, kind="stable")
    place = np.searchsorted(values[order], wanted)
    found = np.append(order, -1)[place]
    return np.where(np.append(values, -1)[found] == wanted, found, -1)


def _within(lengths: NDArray[Any]) -> NDArray[np.int64]:
    """0, 1, … inside each of consecutive groups of these lengths."""
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    within: NDArray[np.int64] = np.arange(total) - np.repeat(ends - lengths, lengths)
    return within
