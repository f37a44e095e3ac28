"""What an analysis reads: the part files of a RUN, and a prompts file for the factors that these lack."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.types import is_nested, is_string

from tallymill.engine.manifests.prompts import PromptsTable
from tallymill.engine.numbench.analysis.asked import UInt64s, asked_of
from tallymill.engine.numbench.analysis.images import FACTORS, IDS, Images
from tallymill.engine.proposals import CountedBoxes
from tallymill.errors import RunError, UsageError
from tallymill.runners.parts import UNREADABLE, foreign_part, naming_damage, open_part
from tallymill.runners.plan import Shard
from tallymill.runners.run import Run
from tallymill.runners.run_folder import stamps_of

_TARGETS = [f"targets.list.element.{name}" for name in ("requested", "soft", "hard", "covering")]
_SCORES = ["system", "status", "cw_nps", "b_nps", *_TARGETS]
_SHOWN = 3
_BROUGHT = ("core_id", *FACTORS)
_TEXTS = ("core_id", "prompt_id", "system", "status", *FACTORS)


class KnownPrompts:
    """A prompts file, for the factors that a RUN does not know."""

    def __init__(self, path: Path) -> None:
        self._prompts = PromptsTable(path)
        self.name = self._prompts.name
        self.sha256 = self._prompts.sha256
        self.ids: pa.Array = pa.array(self._prompts.ids, pa.string())
        targets = self._prompts.targets
        counts = np.asarray(targets.flatten().field("count"), np.int64)
        offsets = np.concatenate([[0], np.cumsum(np.asarray(targets.value_lengths(), np.int64))])
        self._asked = asked_of(targets.flatten().field("category"), counts, offsets)

    def require_same(self, run: Run, images: Images, asked: UInt64s) -> None:
        """The images of a RUN must ask for what the prompts of their ids ask for; else this is another file."""
        places, _ = self._prompts.find(images.prompts)
        place = np.append(np.asarray(places.fill_null(-1), np.int64), -1)[images.prompt]
        both = (place >= 0) & (asked > 0)
        wanted = self._asked[place[both]]
        other = images.prompt[both][(wanted > 0) & (wanted != asked[both])]
        if len(other):
            ids = sorted(images.prompts.take(pa.array(np.unique(other))).to_pylist())
            raise UsageError(
                f"{self.name} is not the prompts file of {run.path}: {', '.join(ids[:_SHOWN])} "
                f"{'and others ask' if len(ids) > _SHOWN else 'asks' if len(ids) == 1 else 'ask'} for something else "
                "there",
                hint="name the prompts file that the RUN was swept with, or none",
            )

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


class Parts:
    """The part files of a RUN as Arrow tables, of the columns that an analysis wants."""

    def __init__(self, run: Run, known: KnownPrompts | None, categories: bool) -> None:
        self.run = run
        self._categories = categories
        self._known = known
        self._stamps = stamps_of(run.record)
        self._boxes = [*CountedBoxes.COLUMNS, *(["kept"] if run.record["keep_suppressed"] else [])]
        self.ignored: set[str] = set()  # factor columns that are no text
        self._encoded = self._texts()

    def _texts(self) -> list[str]:
        """The columns that are text, by the first scores file; where that is missing it will be told."""
        try:
            schema = pq.read_schema(str(self.scores_path(self.run.shards[0])))
        except UNREADABLE:
            return []
        return [name for name in _TEXTS if name in schema.names and is_string(schema.field(name).type)]

    def scores_path(self, shard: Shard) -> Path:
        """Where the scores of a shard are."""
        return self.run.path / "scores" / shard.part

    def proposals_path(self, name: str, shard: Shard) -> Path:
        """Where the proposals of a detector are."""
        return self.run.proposals_folder / name / shard.part

    def scores(self, shard: Shard) -> pa.Table:
        """What ``images_of`` wants, ``item_id`` only where it is used; and where there are any ``error``, and of each
        target ``category`` (always where wanted) and ``covering`` as lists.
        """
        path = self.scores_path(shard)
        part = open_part(path, self._stamps.scores, shard, encoded=self._encoded)
        if part is None:
            raise foreign_part(path, self._stamps.scores, shard) or RunError(
                f"{self.run.path} is not complete: it has no whole scores of {shard.part}",
                hint="run its sweep (or rescore) again, which continues where it stopped",
            )
        file, counts = part
        with naming_damage(path), file:
            wanted = [name for name in (*IDS[:-1], *FACTORS) if self._is_there(file.schema_arrow, name)]
            wanted += ["error"] if counts["error"] else []
            table = file.read([*_SCORES, *wanted], use_threads=False)
            table.validate(full=True)
            if self._known is not None:
                table = self._known.join(table, [name for name in _BROUGHT if name not in table.column_names])
            if counts["error"] or counts["uncovered"] or _needs_ids(table):
                table = table.append_column("item_id", file.read(["item_id"], use_threads=False)["item_id"])
            lists = ["category"] if self._categories or counts["uncovered"] else []
            lists += ["covering"] if counts["uncovered"] else []
            if lists:
                leaves = [f"targets.list.element.{name}" for name in lists]
                targets = file.read(leaves, use_threads=False)["targets"].combine_chunks()
                for name in lists:
                    values = targets.flatten().field(name)
                    table = table.append_column(name, pa.ListArray.from_arrays(targets.offsets, values))
        return table

    def proposals(self, name: str, shard: Shard) -> pa.Table:
        """What ``CountedBoxes`` wants, the sizes of the images, and where needed ``status`` and ``saturated``."""
        path = self.proposals_path(name, shard)
        part = open_part(path, self._stamps.detectors[name], shard)
        if part is None:
            raise self.run.lacking(name, shard)
        file, counts = part
        extra = [column for column, told in (("status", "failed"), ("saturated", "saturated")) if counts.get(told, 1)]
        with naming_damage(path), file:
            table = file.read([*self._boxes, "width", "height", *extra], use_threads=False)
            table.validate(full=True)
        return table

    def boxes(self, table: pa.Table) -> CountedBoxes:
        """The boxes that count."""
        return CountedBoxes.from_arrow(table.select(self._boxes))

    def _is_there(self, schema: pa.Schema, name: str) -> bool:
        if name not in schema.names:
            return False
        if is_nested(schema.field(name).type):
            self.ignored.add(name)
            return False
        return True


def _needs_ids(table: pa.Table) -> bool:
    return not any(name in table.column_names and not table[name].null_count for name in IDS[:-1])
