"""Parquet manifests: encodings, part files, exact integers, images stored as bytes."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tallymill.engine.items import Digest, ManifestOptions, read_items
from tallymill.errors import ManifestError

TARGETS = [[{"category": "cat", "count": 3}], [{"category": "dog", "count": 2}, {"category": "cat", "count": 1}]]
STRUCTS = pa.list_(pa.struct([("category", pa.string()), ("count", pa.uint16())]))
CAT = ManifestOptions(prompt="1 cat")


def rows(manifest: Any, options: ManifestOptions = CAT) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.Table.from_batches(read_items(manifest, options)).to_pylist()
    return found


def fault(manifest: Any, options: ManifestOptions = CAT) -> str:
    with pytest.raises(ManifestError) as caught:
        list(read_items(manifest, options))
    return caught.value.message


def write(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_int64_beside_null_is_exact(tmp_path: Path) -> None:
    got = rows(write(tmp_path / "m.parquet", image=["a", "b"], seed=pa.array([9007199254740993, None], pa.int64())))
    assert [row["seed"] for row in got] == [9007199254740993, None]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_encodings_of_text_give_identical_rows(tmp_path: Path, kind: pa.DataType) -> None:
    def table(kind: pa.DataType, row: int) -> pa.Table:
        def text(value: str) -> pa.Array:
            return pa.array([value]).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array([value], kind)

        names = pa.struct([("category", pa.large_string()), ("count", pa.int32())])
        lists = pa.large_list(names) if pa.types.is_large_string(kind) else STRUCTS
        targets = pa.array([TARGETS[row]], lists)
        columns = {"image": text(f"{row}.png"), "targets": targets, "layout": text("grid"), "system": text("s")}
        return pa.table(columns)

    plain, mixed = tmp_path / "plain", tmp_path / "mixed"
    for folder in (plain, mixed):
        folder.mkdir()
    for row in (0, 1):
        pq.write_table(table(pa.string(), row), plain / f"part-{row}.parquet")
        pq.write_table(table(kind if row else pa.string(), row), mixed / f"part-{row}.parquet")
    (mixed / "_metadata").write_bytes(b"x")
    (mixed / ".part-9.parquet").write_bytes(b"x")
    assert rows(mixed) == rows(plain)
    assert [row["targets"] for row in rows(mixed)] == TARGETS
    digests = []
    for folder in (plain, mixed):
        digest = Digest()
        for batch in read_items(folder):
            digest.update(batch)
        digests.append(digest.hexdigest())
    assert digests[0] == digests[1]


def test_parts_need_the_same_columns_and_types(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", image=["a"], seed=[1])
    write(tmp_path / "b.parquet", image=["b"])
    assert "b.parquet: its columns differ from those of a.parquet: seed" in fault(tmp_path)
    write(tmp_path / "b.parquet", image=["b"], seed=["x"])
    assert "b.parquet: column seed: is of type string, in an earlier part int64" in fault(tmp_path)
    write(tmp_path / "b.parquet", image=["b"], seed=pa.array([2], pa.int32()))
    assert [row["seed"] for row in rows(tmp_path)] == [1, 2]
    write(tmp_path / "b.parquet", seed=pa.nulls(1), image=["b"])
    assert [row["seed"] for row in rows(tmp_path)] == [1, None]


@pytest.mark.parametrize("kind", ["binary", "large_binary", "struct"])
def test_stored_images_are_named_by_row_and_not_read(tmp_path: Path, kind: str) -> None:
    data = [b"one", b"two", b"three"]
    if kind == "struct":
        column = pa.array([{"bytes": d, "path": "same.png"} for d in data])
    else:
        column = pa.array(data, pa.binary() if kind == "binary" else pa.large_binary())
    write(tmp_path / "p0.parquet", image=column)
    write(tmp_path / "p1.parquet", image=column.slice(0, 1))
    got = rows(tmp_path)
    assert [row["image"] for row in got] == [f"p0.parquet#row={i}" for i in range(3)] + ["p1.parquet#row=0"]
    assert [row["item_id"] for row in got] == [row["image"] for row in got]
    assert rows(tmp_path / "p1.parquet")[0]["image"] == "p1.parquet#row=0"


def test_the_bytes_of_images_cost_no_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "m.parquet", image=pa.array([bytes(1 << 20)] * 16), item_id=[str(i) for i in range(16)])
    before = pa.total_allocated_bytes()
    most = max(pa.total_allocated_bytes() - before for _ in read_items(path, CAT))
    assert most < 1 << 20


def test_a_struct_with_paths_only_is_a_path(tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    column = pa.array([{"bytes": None, "path": "a.png"}, {"bytes": None, "path": "b.png"}], kind)
    assert [row["image"] for row in rows(write(tmp_path / "m.parquet", image=column))] == ["a.png", "b.png"]


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (pa.array([1.0, 2.5, 3.0]), "row 2, column targets: count 2.5 is not a whole number"),
        (pa.array([1.0, float("nan"), 3.0]), "row 2, column targets: count nan is not a whole number"),
        (pa.array([1, None, 3]), "row 2, column targets: a count is missing"),
        (pa.array([1, 2**63, 3], pa.uint64()), "row 2, column targets: count 9223372036854775808"),
        (pa.array(["1", "2", "3"]), "count is of type string"),
        (pa.array([True, True, True]), "count is of type bool"),
    ],
)
def test_counts_that_are_none(tmp_path: Path, counts: pa.Array, words: str) -> None:
    pairs = pa.StructArray.from_arrays([pa.array(["cat"] * 3), counts], ["category", "count"])
    targets = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), pairs)
    assert words in fault(write(tmp_path / "m.parquet", image=["a", "b", "c"], targets=targets))


def test_faulty_categories_and_empty_lists(tmp_path: Path) -> None:
    lists = [[{"category": None, "count": 1}], [{"category": " ", "count": 1}], [], [None], TARGETS[0]]
    message = fault(write(tmp_path / "m.parquet", image=list("abcde"), targets=pa.array(lists, STRUCTS)))
    assert "4 faults" in message
    assert "row 1, column targets: a category is missing" in message
    assert "row 3, column targets: the list of targets is empty" in message


def test_whole_floats_are_counts_and_samples(tmp_path: Path) -> None:
    kind = pa.list_(pa.struct([("count", pa.float64()), ("category", pa.string())]))
    targets = pa.array([[{"category": " Red  Cat", "count": 2.0}]], kind)
    [row] = rows(write(tmp_path / "m.parquet", image=["a"], targets=targets, sample=[1.0], item_id=[7]))
    assert row["targets"] == [{"category": "red cat", "count": 2}]
    assert (row["sample"], row["item_id"]) == (1, "7")


def test_null_lists_fall_back_to_the_prompt(tmp_path: Path) -> None:
    path = write(tmp_path / "m.parquet", image=["a", "b"], targets=pa.array([TARGETS[0], None], STRUCTS))
    assert [row["targets"] for row in rows(path)] == [TARGETS[0], [{"category": "cat", "count": 1}]]


def test_unreadable_files(tmp_path: Path) -> None:
    path = tmp_path / "m.parquet"
    path.write_bytes(b"PAR1 nothing")
    assert "m.parquet: not a Parquet file" in fault(path)
    assert "column image is of type int64" in fault(write(path, image=[1]))


def test_a_table_with_bytes_asks_for_a_file() -> None:
    with pytest.raises(ManifestError) as caught:
        list(read_items(pa.table({"image": [b"x"]}), CAT))
    assert "Parquet" in str(caught.value.hint)


def test_a_sliced_table(tmp_path: Path) -> None:
    table = pa.table({"image": ["a", "b", "c"], "targets": pa.array([*TARGETS, TARGETS[0]], STRUCTS)})
    path = tmp_path / "m.parquet"
    pq.write_table(table.slice(1), path)
    assert rows(table.slice(1)) == rows(path)
    assert [row["targets"] for row in rows(path)] == [TARGETS[1], TARGETS[0]]
