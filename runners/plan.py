"""One pass over the manifest before any work: check every row, count them, and lay them out for random access.

The pass writes ``RUN/items.arrow`` (Arrow IPC, blocks of ``BLOCK_ROWS`` rows), so that a worker reads the rows of its
shard without parsing the manifest again, whatever its format.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tallymill.engine.items import (
    CORE_COLUMNS,
    Digest,
    DuplicateCheck,
    ManifestOptions,
    PromptsTable,
    open_prompts,
    read_items,
)
from tallymill.engine.numbench.prompts.build import facts_of
from tallymill.errors import ManifestError, RunError, UsageError

BLOCK_ROWS = 1024
MIN_SHARD, MAX_SHARD, SHARDS_AIMED_AT = 16, 4096, 256


@dataclass(frozen=True, slots=True)
class Shard:
    """Rows ``start`` to ``stop`` of the manifest: the unit of work, of retry and of commit."""

    index: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def part(self) -> str:
        """The name of this shard's file in every folder of the RUN."""
        return f"part-{self.index:05d}.parquet"


@dataclass(frozen=True, slots=True)
class PromptsFacts:
    """A prompts file: how many prompts it has, and how many of them the manifest refers to.

    ``sha256`` is the digest of what its rows say; ``kind`` and ``seed`` are those that ``prompts build`` wrote into it.
    """

    file: str
    rows: int
    used: int
    sha256: str
    kind: str | None
    seed: int | None


@dataclass(frozen=True, slots=True)
class ManifestFacts:
    """What the pass over a manifest found: the number of rows, the digest of what they say, whether any image
    reference starts from the manifest's folder, and what became of the prompts file, if one was given."""

    rows: int
    sha256: str
    relative: bool
    prompts: PromptsFacts | None = None


def default_shard_items(rows: int) -> int:
    """ceil(N / 256) clamped to 16 .. 4,096: from the manifest alone, so that a rerun cuts the same shards."""
    return min(max(-(-rows // SHARDS_AIMED_AT), MIN_SHARD), MAX_SHARD)


def shards_of(rows: int, shard_items: int, part: tuple[int, int] | None = None) -> list[Shard]:
    """Contiguous shards; with ``part`` = (i, n) every n-th of them beginning with the i-th (i from 1)."""
    edges = range(0, rows, shard_items)
    shards = [Shard(index, start, min(start + shard_items, rows)) for index, start in enumerate(edges)]
    if part is None:
        return shards
    i, n = part
    if not 1 <= i <= n:
        raise UsageError(f"part {i}/{n}: must be i/n with 1 <= i <= n")
    return shards[i - 1 :: n]


def lay_out(manifest: str | Path | pa.Table, options: ManifestOptions, items: Path) -> ManifestFacts:
    """Read and check the whole manifest, writing its canonical rows to ``items``. Faults are a ``ManifestError``."""
    digest = Digest()
    prompts = open_prompts(options)
    duplicates = DuplicateCheck(lambda: read_items(manifest, options, prompts))
    rows, relative = 0, False
    writer: pa.RecordBatchFileWriter | None = None
    try:
        for batch in blocks(_checked(read_items(manifest, options, prompts), digest, duplicates)):
            if writer is None:
                writer = item_writer(items, batch.schema)
            writer.write_batch(batch)
            rows += batch.num_rows
            relative = relative or _any_relative(batch.column("image"))
    finally:
        if writer is not None:
            writer.close()
    if not rows:
        raise ManifestError(
            f"{_name(manifest)}: no items", hint="a manifest needs at least one row, a folder one image"
        )
    duplicates.finish()
    found = None if prompts is None or options.prompts is None else _facts(options.prompts, prompts)
    return ManifestFacts(rows, digest.hexdigest(), relative, found)


def _facts(path: Path, prompts: PromptsTable) -> PromptsFacts:
    told = facts_of(pq.read_schema(path)) if path.suffix.lower() == ".parquet" else {}
    kind, seed = told.get("kind"), told.get("seed")
    return PromptsFacts(
        file=str(path),
        rows=len(prompts),
        used=prompts.used,
        sha256=prompts.sha256,
        kind=kind if isinstance(kind, str) else None,
        seed=seed if isinstance(seed, int) else None,
    )


def _any_relative(references: pa.Array) -> bool:
    placed = pc.or_(pc.starts_with(references, "/"), pc.match_substring(references, "://"))
    return not pc.all(placed).as_py()


def _checked(batches: Iterator[pa.RecordBatch], digest: Digest, duplicates: DuplicateCheck) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        digest.update(batch)
        duplicates.add(batch)
        yield batch


def blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in blocks of exactly ``BLOCK_ROWS`` (the last may be shorter)."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count < BLOCK_ROWS:
            continue
        joined = pa.concat_batches(waiting)
        whole = count - count % BLOCK_ROWS
        for start in range(0, whole, BLOCK_ROWS):
            yield joined.slice(start, BLOCK_ROWS)
        waiting, count = [joined.slice(whole)], count - whole
    if count:
        yield pa.concat_batches(waiting)


def item_writer(path: Path, schema: pa.Schema) -> pa.RecordBatchFileWriter:
    """A new ``items.arrow``; every batch that goes into it but the last has ``BLOCK_ROWS`` rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return pa.ipc.new_file(str(path), schema, options=pa.ipc.IpcWriteOptions(compression="zstd"))


def _name(manifest: str | Path | pa.Table) -> str:
    return "the table" if isinstance(manifest, pa.Table) else str(manifest)


class ItemFile(AbstractContextManager["ItemFile"]):
    """``RUN/items.arrow`` opened for reading by row range. A file that is damaged is a ``RunError``.

    With ``columns`` only these of ``CORE_COLUMNS`` are read.
    """

    def __init__(self, path: Path, columns: Collection[str] = ()) -> None:
        self._path = path
        try:
            self._file = pa.OSFile(str(path))
        except OSError as exc:
            raise RunError(f"{path} cannot be read: {exc if exc.errno is None else os.strerror(exc.errno)}") from None
        wanted = [CORE_COLUMNS.get_field_index(name) for name in columns]
        with self._naming_damage():
            self._reader = pa.ipc.open_file(self._file, options=pa.ipc.IpcReadOptions(included_fields=wanted))
            for name in columns:
                self._reader.schema.field(name)  # a KeyError where it is called something else

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def rows(self, shard: Shard) -> Iterator[pa.RecordBatch]:
        """The rows of a shard, block by block."""
        for block in range(shard.start // BLOCK_ROWS, -(-shard.stop // BLOCK_ROWS)):
            first = block * BLOCK_ROWS
            start, stop = max(shard.start - first, 0), min(shard.stop - first, BLOCK_ROWS)
            with self._naming_damage():
                rows = self._reader.get_batch(block)
                rows.validate(full=True)  # a changed byte may send a reader anywhere
            yield rows.slice(start, stop - start)

    @contextmanager
    def _naming_damage(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, KeyError, ValueError) as exc:
            self._file.close()
            raise RunError(f"{self._path} is damaged: {exc}", hint="the sweep, run again, writes it anew") from None
