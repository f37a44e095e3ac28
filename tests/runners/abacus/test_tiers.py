from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from tallymill import abacus
from tallymill.errors import UsageError
from tallymill.runners.abacus.tiers import CUTS


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return abacus.example(tmp_path_factory.mktemp("tiers") / "DATA", laps=1)


def test_crowded_sources_are_harder(made, tmp_path):
    rows = [json.loads(line) for line in made.manifest.read_text().splitlines()]
    for row in rows:
        row["capacity"] = 1
    manifest = tmp_path / "edits.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = abacus.tiers(manifest, tmp_path / "t.parquet", panoptic=made.panoptic)
    assert sum(found.edits.values()) == 12
    assert found.without == []
    table = pq.read_table(tmp_path / "t.parquet")
    assert json.loads(table.schema.metadata[CUTS]) == list(found.cuts)
    tiers = dict(zip(table["edit_id"].to_pylist(), table["tier"].to_pylist(), strict=True))
    one, four = (("easy", "medium", "hard").index(tiers[name]) for name in ("00-03-add-more", "00-04-remove-exact"))
    assert one < 2  # a single cat
    assert four > 0  # four of them
    again = abacus.tiers(tmp_path / "t.parquet", tmp_path / "u.parquet", panoptic=made.panoptic, cuts=(3, 3))
    assert again.edits == {"easy": 12, "medium": 0, "hard": 0}


def test_what_lacks_something_has_no_tier(made, tmp_path):
    rows = [json.loads(line) for line in made.manifest.read_text().splitlines()][:4]
    rows[0]["capacity"] = None
    rows[1]["source"] = "other.jpg"
    rows[2]["instruction"] = "add 3 dogs"
    manifest = tmp_path / "edits.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = abacus.tiers(manifest, tmp_path / "t.parquet", panoptic=made.panoptic)
    assert found.without == [
        ("no annotated instance of its category", 1, "00-02-add-fewer"),
        ("no annotation of its source", 1, "00-01-add-overwriting"),
        ("no capacity", 1, "00-00-add-exact"),
    ]
    manifest.write_text(json.dumps(rows[0]) + "\n")
    with pytest.raises(UsageError, match="no edit can be ranked: no capacity"):
        abacus.tiers(manifest, tmp_path / "t.parquet", panoptic=made.panoptic)
