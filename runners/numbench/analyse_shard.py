"""What an analysis takes from one shard of a RUN: its scores, and what each detector found alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tallymill.engine.numbench.analysis.asked import Asked, asked_of
from tallymill.engine.numbench.analysis.counting import counted_of
from tallymill.engine.numbench.analysis.error_sums import error_part_of
from tallymill.engine.numbench.analysis.gather import Looked, Shares
from tallymill.engine.numbench.analysis.images import Factors, Images, images_of, whole_scores
from tallymill.engine.numbench.analysis.leaves import part_of, target_scores
from tallymill.engine.numbench.analysis.tallies import Met
from tallymill.engine.numbench.factors import GREATEST_COUNT, LEAST_COUNT, RangeBy
from tallymill.engine.numbench.scores import ScorePlan, count_targets, scores_of
from tallymill.engine.proposals import ERROR, CountedBoxes
from tallymill.runners.numbench.analyse_parts import KnownPrompts, Parts
from tallymill.runners.parts import UNREADABLE, naming_damage
from tallymill.runners.plan import Shard
from tallymill.runners.run import Run
from tallymill.runners.run_folder import plan_of

SIDE = 1024
_AT_ONCE = 32_768
_NOTHING = Met.of(np.zeros(0, np.int64), pa.array([], pa.string()), None)


class ShardReader:
    """Reads the shards of a RUN; threads may share it. ``detectors`` says the place of a score in a leaf by name."""

    def __init__(
        self,
        run: Run,
        number: int,
        factors: Factors,
        detectors: Sequence[str],
        range_by: RangeBy,
        known: KnownPrompts | None = None,
        compare: bool = False,
        *,
        resample: bool = False,
    ) -> None:
        """``compare``: whether what its ids ask for will be compared with other RUNs; ``resample``: whether errors are
        wanted by core.
        """
        self._resample = resample
        self._number, self._factors, self._range_by = number, factors, range_by
        told = run.record["manifest"].get("prompts") or {}
        # A file of the same digest is the one that the RUN was made with.
        self._require = known if known is not None and known.sha256 != told.get("sha256") else None
        self._compare = compare
        self._parts = Parts(run, known, compare or self._require is not None)
        self._plan = plan_of(run.record)
        self._places = [detectors.index(name) for name in self._plan.detectors]
        self._detectors = len(detectors)
        self.has_proposals = run.proposals_folder.is_dir()
        # So many images at once that what is done for each shard costs little, and memory too.
        self.groups = grouped(run.shards, _AT_ONCE)

    @property
    def ignored(self) -> set[str]:
        """Factor columns that are no text."""
        return self._parts.ignored

    def read(self, shards: Sequence[Shard]) -> Shares:
        """Everything that an analysis wants of some shards. A RUN that is not complete is a ``RunError``."""
        try:
            return self._read(shards)
        except UNREADABLE:
            for shard in shards:  # one of them is at fault, and says so
                self._read([shard])
            raise

    def _read(self, shards: Sequence[Shard]) -> Shares:
        with self._blaming([self._parts.scores_path(shard) for shard in shards]):
            table = _together([self._parts.scores(shard) for shard in shards])
            images = images_of(table, self._factors, self._number)
            failures, uncovered = _failures(table, images), _uncovered(table, images)
        asked = self._asked(table, images)
        systems = int(images.system.max(initial=0)) + 1
        singles = [np.full(self._rows(images), -1)] * self._detectors
        looked: dict[int, Looked] = {}
        not_1024 = np.zeros(systems, np.int64)
        for name, tau, place in zip(self._plan.detectors, self._plan.taus, self._places, strict=True):
            if not self.has_proposals:
                break
            plan = ScorePlan((name,), (tau,), self._plan.coverage, self._plan.schedule)
            with self._blaming([self._parts.proposals_path(name, shard) for shard in shards]):
                proposals = _together([self._parts.proposals(name, shard) for shard in shards])
                boxes = self._parts.boxes(proposals)
                singles[place] = self._alone(boxes, images, plan)
            looked[place] = _looked(proposals, boxes, images.system, systems)
            if len(looked) == 1:
                other = pc.or_(pc.not_equal(proposals["width"], SIDE), pc.not_equal(proposals["height"], SIDE))
                not_1024 = np.bincount(images.system[_mask(other)], minlength=systems)
        counted = counted_of(images, self._range_by)
        return Shares(
            part=part_of(images, singles, self._range_by),
            errors=error_part_of(images, counted, self._range_by) if self._resample else None,
            counted=counted,
            images=images,
            statuses=np.bincount(images.system * 3 + images.status, minlength=3 * systems).reshape(systems, 3),
            not_1024=not_1024,
            looked=looked,
            failures=failures,
            uncovered=uncovered,
            asked=asked,
        )

    def _asked(self, table: pa.Table, images: Images) -> dict[str, Asked]:
        """What the ids of prompts and of cores ask for."""
        if not self._compare and self._require is None:
            return {}
        requested = np.asarray(table["targets"].combine_chunks().flatten().field("requested").fill_null(0), np.int64)
        asked = asked_of(table["category"].combine_chunks().flatten(), requested, images.offsets)
        if self._require is not None:
            self._require.require_same(self._parts.run, images, asked)
        if not self._compare:
            return {}
        found = {"prompt_id": Asked.of(self._number, images.prompts, images.prompt, asked)}
        if "core_id" in table.column_names:
            own = np.asarray(table["core_id"].is_valid().combine_chunks())
            found["core_id"] = Asked.of(self._number, images.cores, np.where(own, images.core, -1), asked)
        return found

    def _rows(self, images: Images) -> int:
        if self._range_by != "per-target":
            return len(images)
        return int(images.offsets[-1]) + int((images.targets == 0).sum())

    @staticmethod
    def _blaming(paths: Sequence[Path]) -> AbstractContextManager[None]:
        """A fault is that of the one file; of several it is not known whose."""
        return naming_damage(paths[0]) if len(paths) == 1 else nullcontext()

    def _alone(self, found: CountedBoxes, images: Images, plan: ScorePlan) -> NDArray[np.int64]:
        """The scores that one detector gives by itself, -1 where it does not know a category."""
        if not np.array_equal(found.target_offsets, images.offsets):
            raise ValueError("its targets are not those of the scores")
        counts = count_targets(found.requested, found.target_offsets, [found], plan)
        known = counts.covering > 0
        result = scores_of(counts, found.requested, found.target_offsets)
        if self._range_by == "per-target":
            requested = np.clip(found.requested.astype(np.int64), LEAST_COUNT, GREATEST_COUNT)
            whole = whole_scores(target_scores(result.soft_count, requested), known)
            empty = np.full(int((images.targets == 0).sum()), -1)
            return np.concatenate([np.where(known, whole, -1), empty])
        unknown = np.concatenate([[0], np.cumsum(~known)])
        of = (np.diff(unknown[images.offsets]) == 0) & (images.status == 0)
        return np.where(of, whole_scores(result.cw_nps, of), -1)


def _mask(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.asarray(column.combine_chunks().fill_null(False).to_numpy(zero_copy_only=False), np.bool_)


def grouped(shards: Sequence[Shard], items: int) -> list[list[Shard]]:
    """Runs of shards of at most so many items together, at least one shard each."""
    groups: list[list[Shard]] = []
    for shard in shards:
        if groups and shard.stop - groups[-1][0].start <= items:
            groups[-1].append(shard)
        else:
            groups.append([shard])
    return groups


def _together(tables: Sequence[pa.Table]) -> pa.Table:
    """One table; a column that some lack is null there."""
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="default")


def _looked(proposals: pa.Table, boxes: CountedBoxes, system: NDArray[np.int64], systems: int) -> Looked:
    nothing = pa.chunked_array([pa.nulls(len(proposals), pa.bool_())])
    failed = pc.equal(proposals["status"], ERROR) if "status" in proposals.column_names else nothing
    saturated = proposals["saturated"] if "saturated" in proposals.column_names else nothing
    return Looked(
        items=np.bincount(system, minlength=systems),
        failed=np.bincount(system[_mask(failed)], minlength=systems),
        saturated=np.bincount(system[_mask(saturated)], minlength=systems),
        proposals=np.bincount(system, np.diff(boxes.offsets), systems).astype(np.int64),
    )


def _failures(table: pa.Table, images: Images) -> Met:
    """The error texts of the images that failed, each with the least item id."""
    of = images.status == 1
    if not of.any():
        return _NOTHING
    failed = table.select(["error", "item_id"]).filter(pa.array(of)).combine_chunks()
    texts, items = (failed[name].cast(pa.string()).combine_chunks() for name in ("error", "item_id"))
    return Met.of(images.system[of], texts.fill_null(""), items)


def _uncovered(table: pa.Table, images: Images) -> Met:
    """The categories of the targets that no detector covers, of images without another fault."""
    of = images.status == 2
    if not of.any():
        return _NOTHING
    # The rows first: a shard that has none of them may lack the lists.
    rows = table.select(["category", "covering"]).filter(pa.array(of)).combine_chunks()
    categories, covering = (rows[name].combine_chunks() for name in ("category", "covering"))
    system = np.repeat(images.system[of], np.asarray(covering.value_lengths(), np.int64))
    bare = np.asarray(covering.flatten().fill_null(0)) == 0
    return Met.of(system[bare], categories.flatten().fill_null("").filter(pa.array(bare)), None)
