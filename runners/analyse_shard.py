"""What an analysis takes from one shard of a RUN: its scores, and what each detector found alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow.types import is_nested

from tallymill.engine.manifests.prompts import PromptsTable
from tallymill.engine.numbench.analysis.counting import counted_of
from tallymill.engine.numbench.analysis.gather import Looked, Shares
from tallymill.engine.numbench.analysis.images import FACTORS, IDS, Factors, Images, images_of, whole_scores
from tallymill.engine.numbench.analysis.leaves import part_of, target_scores
from tallymill.engine.numbench.factors import GREATEST_COUNT, LEAST_COUNT, RangeBy
from tallymill.engine.numbench.scores import ScorePlan, count_targets, scores_of
from tallymill.engine.proposals import ERROR, CountedBoxes
from tallymill.errors import RunError
from tallymill.runners.parts import naming_damage, naming_values, open_part
from tallymill.runners.plan import Shard
from tallymill.runners.run import Run
from tallymill.runners.run_folder import plan_of, stamps_of

SIDE = 1024
_TARGETS = [f"targets.list.element.{name}" for name in ("requested", "soft", "hard")]
_UNCOVERED = [f"targets.list.element.{name}" for name in ("category", "covering")]
_SCORES = ["system", "status", "cw_nps", "b_nps", *_TARGETS]
_BROUGHT = ("core_id", *FACTORS)
_TEXTS = ("core_id", "prompt_id", "system", "status", *FACTORS)


class KnownPrompts:
    """A prompts file, for the factors that a RUN does not know."""

    def __init__(self, path: Path) -> None:
        self._prompts = PromptsTable(path)
        self.name = self._prompts.name
        self.ids: pa.Array = pa.array(self._prompts.ids, pa.string())

    def join(self, table: pa.Table, lacking: Sequence[str]) -> pa.Table:
        """Rows with those of the columns that they lack and the prompts have; null where a prompt is unknown."""
        factors = self._prompts.factors
        brought = [n for n in lacking if n in factors.schema.names and not is_nested(factors.schema.field(n).type)]
        if not brought:
            return table
        places, _ = self._prompts.find(table["prompt_id"].cast(pa.string()).combine_chunks())
        for name in brought:
            table = table.append_column(name, factors.column(name).take(places).cast(pa.string()))
        return table


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
    ) -> None:
        self._run, self._number, self._factors, self._range_by = run, number, factors, range_by
        self._known = known
        self._stamps = stamps_of(run.record)
        self._plan = plan_of(run.record)
        self._places = [detectors.index(name) for name in self._plan.detectors]
        self._detectors = len(detectors)
        self.has_proposals = run.proposals_folder.is_dir()
        self.ignored: set[str] = set()  # factor columns that are no text

    def read(self, shard: Shard) -> Shares:
        """Everything that an analysis wants of a shard. A RUN that is not complete is a ``RunError``."""
        images, failures, uncovered = self._scores(shard)
        systems = int(images.system.max(initial=0)) + 1
        singles = [np.full(self._rows(images), -1)] * self._detectors
        looked: dict[int, Looked] = {}
        not_1024 = np.zeros(systems, np.int64)
        for name, tau, place in zip(self._plan.detectors, self._plan.taus, self._places, strict=True):
            if not self.has_proposals:
                break
            found, seen, sizes = self._proposals(name, shard, images, systems)
            looked[place] = seen
            plan = ScorePlan((name,), (tau,), self._plan.coverage, self._plan.schedule)
            with naming_values(self._run.path, shard):
                singles[place] = self._alone(found, images, plan)
            if len(looked) == 1:
                not_1024 = np.bincount(images.system[sizes], minlength=systems)
        return Shares(
            part=part_of(images, singles, self._range_by),
            counted=counted_of(images, self._range_by),
            images=images,
            statuses=np.bincount(images.system * 3 + images.status, minlength=3 * systems).reshape(systems, 3),
            not_1024=not_1024,
            looked=looked,
            failures=failures,
            uncovered=uncovered,
        )

    def _rows(self, images: Images) -> int:
        if self._range_by != "per-target":
            return len(images)
        return int(images.offsets[-1]) + int((images.targets == 0).sum())

    def _scores(self, shard: Shard) -> tuple[Images, list[tuple[int, str, str]], list[tuple[int, str, str]]]:
        path = self._run.path / "scores" / shard.part
        part = open_part(path, self._stamps.scores, shard, encoded=_TEXTS)
        if part is None:
            raise RunError(
                f"{self._run.path} is not complete: it has no whole scores of {shard.part}",
                hint="run its sweep (or rescore) again, which continues where it stopped",
            )
        file, counts = part
        failures: list[tuple[int, str, str]] = []
        uncovered: list[tuple[int, str, str]] = []
        with naming_damage(path), file:
            wanted = [name for name in (*IDS[:-1], *FACTORS) if self._is_there(file.schema_arrow, name)]
            table = file.read([*_SCORES, *wanted], use_threads=False)
            table.validate(full=True)
            if self._known is not None:
                table = self._known.join(table, [name for name in _BROUGHT if name not in table.column_names])
            if self._needs_ids(table) or counts["error"] or counts["uncovered"]:
                table = table.append_column("item_id", file.read(["item_id"], use_threads=False)["item_id"])
            images = images_of(table, self._factors, self._number)
            if counts["error"]:
                reasons = file.read(["error"], use_threads=False)["error"]
                failures = _met(images.system, reasons, table["item_id"], images.status == 1)
            if counts["uncovered"]:
                targets = file.read(_UNCOVERED, use_threads=False)["targets"].combine_chunks().flatten()
                missing = (np.asarray(targets.field("covering")) == 0) & (images.status == 2)[images.image]
                at = images.image
                uncovered = _met(
                    images.system[at], targets.field("category"), table["item_id"].take(pa.array(at)), missing
                )
        return images, failures, uncovered

    def _is_there(self, schema: pa.Schema, name: str) -> bool:
        if name not in schema.names:
            return False
        if is_nested(schema.field(name).type):
            self.ignored.add(name)
            return False
        return True

    @staticmethod
    def _needs_ids(table: pa.Table) -> bool:
        return not any(name in table.column_names and not table[name].null_count for name in IDS[:-1])

    def _proposals(
        self, name: str, shard: Shard, images: Images, systems: int
    ) -> tuple[CountedBoxes, Looked, NDArray[np.bool_]]:
        """A detector's boxes, what it did by system, and which images are known not to be 1024 x 1024."""
        path = self._run.proposals_folder / name / shard.part
        part = open_part(path, self._stamps.detectors[name], shard)
        if part is None:
            raise self._run.lacking(name, shard)
        file, counts = part
        columns = [*CountedBoxes.COLUMNS, *(["kept"] if self._run.record["keep_suppressed"] else [])]
        extra = ["width", "height"]
        extra += [column for column, told in (("status", "failed"), ("saturated", "saturated")) if counts.get(told, 1)]
        with naming_damage(path), file:
            table = file.read([*columns, *extra], use_threads=False)
            table.validate(full=True)
            found = CountedBoxes.from_arrow(table.select(columns))
            if not np.array_equal(found.target_offsets, images.offsets):
                raise ValueError("its targets are not those of the scores")
            nothing = pa.chunked_array([pa.nulls(len(table), pa.bool_())])
            failed = pc.equal(table["status"], ERROR) if "status" in extra else nothing
            saturated = table["saturated"] if "saturated" in extra else nothing
            sizes = pc.or_(pc.not_equal(table["width"], SIDE), pc.not_equal(table["height"], SIDE))
        of = images.system
        looked = Looked(
            items=np.bincount(of, minlength=systems),
            failed=np.bincount(of[_mask(failed)], minlength=systems),
            saturated=np.bincount(of[_mask(saturated)], minlength=systems),
            proposals=np.bincount(of, np.diff(found.offsets), systems).astype(np.int64),
        )
        return found, looked, _mask(sizes)

    def _alone(self, found: CountedBoxes, images: Images, plan: ScorePlan) -> NDArray[np.int64]:
        """The scores that one detector gives by itself, -1 where it does not know a category."""
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


def _met(
    system: NDArray[np.int64], names: pa.ChunkedArray | pa.Array, ids: pa.ChunkedArray, of: NDArray[np.bool_]
) -> list[tuple[int, str, str]]:
    """(system, name, item) of some rows."""
    mask = pa.array(of)
    told = ["" if name is None else name for name in names.filter(mask).to_pylist()]
    return list(zip(system[of].tolist(), told, ids.filter(mask).to_pylist(), strict=True))
