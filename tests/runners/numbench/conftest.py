"""RUNs made by hand for the tests of NumBench's commands, and a look into their analysis."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tallymill
from tallymill.runners.run_folder import stamps_of
from tallymill.runners.sink import ScoresPart


def make_item(number: int, targets: dict[str, int], **factors: Any) -> dict[str, Any]:
    """A row of a manifest; with ``counted`` the counts that are to be found, soft and hard alike."""
    return {"item_id": f"item-{number:03d}", "image": f"{number}.jpg", "targets": targets, **factors}


def make_run(folder: Path, rows: list[dict[str, Any]], name: str = "RUN", ensemble: Any = "synthetic") -> Path:
    """A RUN of these rows."""
    manifest = folder / f"{name}.jsonl"
    manifest.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "counted"}) + "\n" for row in rows))
    tallymill.sweep(manifest, folder / name, ensemble=ensemble, workers=0)
    if any("counted" in row for row in rows):
        rewrite(folder / name, [row["counted"] for row in rows])
    return folder / name


def rewrite(path: Path, counted: list[list[float]]) -> None:
    """Put other counts into the scores of a RUN, and the scores that follow from them."""
    run = tallymill.load(path)
    table = run.scores
    rows = table.to_pylist()
    for row, counts in zip(rows, counted, strict=True):
        errors = []
        for target, count in zip(row["targets"], counts, strict=True):
            target["soft"] = target["hard"] = float(count)
            errors.append(abs(count - target["requested"]) / target["requested"])
        row["cw_nps"] = row["b_nps"] = max(0.0, 1.0 - sum(errors) / len(errors))
    table = pa.Table.from_pylist(rows, schema=table.schema)
    for shard in run.shards:
        part = ScoresPart(path / "scores" / shard.part, stamps_of(run.record).scores, shard)
        part.write(table.slice(shard.start, len(shard)).combine_chunks().to_batches()[0])
        part.close({})


def find_cell(analysis: Any, composition: str = "all", count_range: str = "all", system: str | None = None) -> Any:
    """The first row of Table 4, or of all images, of this composition, range and system."""
    for found in [*analysis.overall, *analysis.cells]:
        if (found.composition, found.count_range) == (composition, count_range) and system in (None, found.system):
            return found
    raise AssertionError("no such cell")


@pytest.fixture(scope="session")
def item() -> Callable[..., dict[str, Any]]:
    return make_item


@pytest.fixture(scope="session")
def made() -> Callable[..., Path]:
    return make_run


@pytest.fixture(scope="session")
def cell() -> Callable[..., Any]:
    return find_cell
