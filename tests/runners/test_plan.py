import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymill.engine.items import ManifestOptions
from tallymill.errors import ManifestError, RunError, UsageError
from tallymill.runners.plan import BLOCK_ROWS, ItemFile, Shard, default_shard_items, lay_out, shards_of


@pytest.mark.parametrize(
    ("rows", "size"),
    [(1, 16), (4096, 16), (4097, 17), (10_000, 40), (1_048_576, 4096), (10_240_000, 4096), (10**9, 4096)],
)
def test_the_size_of_a_shard(rows, size):
    assert default_shard_items(rows) == size


@given(rows=st.integers(0, 500), size=st.integers(1, 60), n=st.integers(1, 9))
def test_shards_are_contiguous_and_parts_share_them_out(rows, size, n):
    shards = shards_of(rows, size)
    assert [row for shard in shards for row in range(shard.start, shard.stop)] == list(range(rows))
    assert [shard.index for shard in shards] == list(range(len(shards)))
    assert all(0 < len(shard) <= size for shard in shards)
    parts = [shards_of(rows, size, (i, n)) for i in range(1, n + 1)]
    assert sorted((s for part in parts for s in part), key=lambda s: s.index) == shards
    assert parts[0] == shards[::n]


@pytest.mark.parametrize("part", [(0, 1), (2, 1), (-1, 3), (1, 0), (1, -1)])
def test_a_part_that_is_none(part):
    with pytest.raises(UsageError, match="i/n"):
        shards_of(10, 2, part)


def test_the_file_of_a_shard():
    assert Shard(7, 0, 1).part == "part-00007.parquet"


@pytest.mark.parametrize("rows", [1, BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 4 * BLOCK_ROWS + 7])
def test_rows_are_read_back_by_range(rows, tmp_path):
    table = pa.Table.from_pylist([{"image": f"{k}.jpg", "targets": f"cat={k % 100 + 1}"} for k in range(rows)])
    facts = lay_out(table, ManifestOptions(), tmp_path / "items.arrow")
    assert facts.rows == rows
    with ItemFile(tmp_path / "items.arrow") as file:
        for size in (1000, 1024, 5000):
            found = []
            for shard in shards_of(rows, size):
                blocks = list(file.rows(shard))
                assert sum(block.num_rows for block in blocks) == len(shard)
                found += [name for block in blocks for name in block.column("image").to_pylist()]
            assert found == [f"{k}.jpg" for k in range(rows)]


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(RunError, match=r"items\.arrow cannot be read: No such file"):
        ItemFile(tmp_path / "items.arrow")


def test_the_digest_is_of_what_the_manifest_says(tmp_path):
    rows = [{"item_id": f"i{k}", "image": f"{k}.jpg", "targets": {"cat": k + 1}} for k in range(20)]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ["item_id,image,targets", *(f"{r['item_id']},{r['image']},cat={r['targets']['cat']}" for r in rows)]
    (tmp_path / "m.csv").write_text("\n".join(lines))
    one = lay_out(tmp_path / "m.jsonl", ManifestOptions(), tmp_path / "one")
    other = lay_out(tmp_path / "m.csv", ManifestOptions(), tmp_path / "other")
    assert one == other
    rows[7]["targets"]["cat"] = 99
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert lay_out(tmp_path / "m.jsonl", ManifestOptions(), tmp_path / "two").sha256 != one.sha256


def test_an_item_id_that_repeats_is_refused(tmp_path):
    rows = [{"image": "a.jpg", "targets": "cat=1"}] * 2
    with pytest.raises(ManifestError, match=r"a\.jpg"):
        lay_out(pa.Table.from_pylist(rows), ManifestOptions(), tmp_path / "items.arrow")


def test_a_manifest_without_rows(tmp_path):
    (tmp_path / "m.jsonl").write_text("")
    with pytest.raises(ManifestError, match=r"m\.jsonl"):
        lay_out(tmp_path / "m.jsonl", ManifestOptions(), tmp_path / "items.arrow")


@pytest.mark.parametrize(
    ("images", "relative"),
    [
        (["a.jpg"], True),
        (["/data/a.jpg"], False),
        (["https://host/a.jpg", "s3://bucket/b.jpg", "/data/c.jpg"], False),
        (["/data/a.jpg", "b.jpg", "/data/c.jpg"], True),
        (["folder/a.jpg"], True),
        (["/data/a.jpg"] * (BLOCK_ROWS + 3) + ["b.jpg"], True),
    ],
)
def test_whether_images_start_from_the_manifests_folder(images, relative, tmp_path):
    rows = [{"item_id": f"i{k}", "image": image, "targets": "cat=1"} for k, image in enumerate(images)]
    facts = lay_out(pa.Table.from_pylist(rows), ManifestOptions(), tmp_path / "items.arrow")
    assert facts.relative is relative
