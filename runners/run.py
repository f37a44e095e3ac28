"""A RUN opened for reading: Arrow tables of its scores and proposals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tallymill.engine.batch import ItemBatch, batch_of
from tallymill.engine.items import CORE_COLUMNS, TARGETS
from tallymill.errors import RunError, UsageError
from tallymill.runners.parts import foreign_part, read_counts, read_part
from tallymill.runners.plan import ItemFile, Shard, shards_of
from tallymill.runners.run_folder import RunFolder, stamps_of
from tallymill.runners.summary import Summary, summarise


class Run:
    """The results of a sweep or of a re-scoring.

    ``scores`` and ``proposals`` give whole tables; ``iter_scores`` and ``iter_proposals`` give one table a shard, for
    runs that are larger than memory. Columns are told in docs/files.md.
    """

    def __init__(self, path: str | Path) -> None:
        self.folder = RunFolder(Path(path))
        self.record: dict[str, Any] = self.folder.read()
        self._stamps = stamps_of(self.record)

    @property
    def path(self) -> Path:
        """The RUN folder."""
        return self.folder.path

    @property
    def detectors(self) -> tuple[str, ...]:
        """Names of the detectors, in ensemble order."""
        return tuple(self._stamps.detectors)

    @property
    def taus(self) -> dict[str, float]:
        """The temperature of each detector."""
        return {d["name"]: d["tau"] for d in self.record["ensemble"]["detectors"]}

    @property
    def shards(self) -> list[Shard]:
        """All shards of the RUN, done or not."""
        return shards_of(self.record["manifest"]["rows"], self.record["shard_items"])

    @property
    def proposals_folder(self) -> Path:
        """Where the proposals are; a re-scored RUN refers to those of the RUN that it came from."""
        return self.folder.proposals_path(self.record)

    @property
    def items_path(self) -> Path:
        """The rows of the manifest; those of a re-scored RUN are where its proposals are."""
        return self.proposals_folder.parent / "items.arrow"

    @property
    def scores(self) -> pa.Table:
        """One row an image of all shards that are done."""
        return _joined(list(self.iter_scores()), f"{self.path}: no shard is done yet")

    def proposals(self, detector: str) -> pa.Table:
        """One row an image with what ``detector`` found, of all shards that it has seen."""
        return _joined(list(self.iter_proposals(detector)), f"{self.path}: {detector} has not seen a shard yet")

    def iter_scores(self) -> Iterator[pa.Table]:
        """Scores, one table a shard that is done."""
        for shard in self.shards:
            table = self.scores_of_shard(shard)
            if table is not None:
                yield table

    def scores_of_shard(self, shard: Shard, columns: list[str] | None = None) -> pa.Table | None:
        """The scores of a shard, or these ``columns`` of them; None when it is not done."""
        path = self.path / "scores" / shard.part
        return None if read_counts(path, self._stamps.scores, shard) is None else read_part(path, columns)

    def iter_proposals(self, detector: str) -> Iterator[pa.Table]:
        """Proposals of one detector, one table a shard that is done."""
        if detector not in self._stamps.detectors:
            raise UsageError(f"{self.path} has no detector {detector!r}", hint=f"one of {', '.join(self.detectors)}")
        for shard in self.shards:
            table = self.proposals_of_shard(detector, shard)
            if table is not None:
                yield table

    def proposals_of_shard(self, detector: str, shard: Shard) -> pa.Table | None:
        """One detector's proposals for one shard; None when that shard is not done.

        Raises ``RunError`` where its scores are there and the proposals behind them are not, or are damaged, and where
        they were written under another ``run.json``.
        """
        path = self.proposals_folder / detector / shard.part
        if read_counts(path, self._stamps.detectors[detector], shard) is not None:
            return read_part(path)
        foreign = foreign_part(path, self._stamps.detectors[detector], shard)
        if foreign is not None:
            raise foreign
        if read_counts(self.path / "scores" / shard.part, self._stamps.scores, shard) is None:
            return None
        raise RunError(f"{path} is missing or damaged, though it was scored", hint=self._mend())

    def undone(self, detectors: Sequence[str] = ()) -> int:
        """How many shards lack the proposals of one of the ``detectors`` (of all, if none is named)."""
        return len({shard for _, shard in self.lacks(detectors)})

    def lacks(self, detectors: Sequence[str] = ()) -> list[tuple[str, Shard]]:
        """Each of the ``detectors`` (of all, if none is named) with every shard of which it has no whole proposals."""
        names = detectors or self.detectors
        parts = ((name, shard, self.proposals_folder / name / shard.part) for shard in self.shards for name in names)
        stamps = self._stamps.detectors
        return [(name, shard) for name, shard, path in parts if read_counts(path, stamps[name], shard) is None]

    def lacking(self, detector: str, shard: Shard) -> RunError:
        """The error for a shard without whole proposals of a detector."""
        try:
            self.proposals_of_shard(detector, shard)
        except RunError as exc:
            return exc
        return RunError(
            f"{self.path} has no whole proposals of {detector} for {shard.part}",
            hint="complete it first: run its sweep again, which continues where it stopped",
        )

    def _mend(self) -> str:
        source = self.record.get("rescored_from")
        if source is None:
            return "run the sweep again: it does anew what is missing"
        return f"the proposals are those of {source}: put it back in its place, or mend it by running its sweep again"

    def items(self, shard: Shard, proposals: pa.Table) -> Iterator[ItemBatch]:
        """The items of a shard, without pixels.

        Where ``items.arrow`` is gone they are made from ``proposals`` (any detector's of this shard), which know ids
        and requested counts but no categories: enough for every score.
        """
        if not self.items_path.is_file():
            yield batch_of(_items_from(proposals))
            return
        with ItemFile(self.items_path) as file:
            yield from map(batch_of, file.rows(shard))

    def categories(self) -> set[str]:
        """Every category that the manifest asks for, of shards done or not; none where ``items.arrow`` is gone."""
        names: set[str] = set()
        if self.items_path.is_file():
            with ItemFile(self.items_path, ("targets",)) as file:
                for shard in self.shards:
                    for rows in file.rows(shard):
                        names.update(rows.column("targets").flatten().field("category").unique().to_pylist())
        return names

    def summary(self) -> Summary:
        """The counts and means of the RUN as it stands."""
        return summarise(self.folder, write=False)


def load(run: str | Path) -> Run:
    """Open a RUN folder. Raises ``RunError`` when it is not one."""
    return Run(run)


def _joined(tables: list[pa.Table], message: str) -> pa.Table:
    if not tables:
        raise RunError(message, hint="run the sweep again; it continues where it stopped")
    return pa.concat_tables(tables).replace_schema_metadata(None)


def _items_from(proposals: pa.Table) -> pa.RecordBatch:
    """Canonical rows as far as proposals tell them: ids and requested counts, categories unknown."""
    rows = proposals.combine_chunks().to_batches()[0]
    requested = rows.column("requested")
    counts = requested.flatten()
    pairs = pa.StructArray.from_arrays(
        [pa.nulls(len(counts), pa.string()), counts.cast(pa.int64())], fields=list(TARGETS.value_type)
    )
    offsets = np.concatenate([[0], np.cumsum(np.asarray(requested.value_lengths()))]).astype(np.int32)
    known = {
        "item_id": rows.column("item_id"),
        "targets": pa.ListArray.from_arrays(pa.array(offsets), pairs, type=TARGETS),
    }
    columns = [known.get(field.name, pa.nulls(len(rows), field.type)) for field in CORE_COLUMNS]
    return pa.record_batch(
        [column.cast(field.type) for column, field in zip(columns, CORE_COLUMNS, strict=True)], names=CORE_COLUMNS.names
    )
