from __future__ import annotations

import csv
import json

import inflect
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tallymill.engine.abacus.manifest import EditManifest
from tallymill.engine.detectors.coco import COCO_80
from tallymill.errors import ManifestError

ROW = {"source": "a.jpg", "edited": "b.jpg", "operation": "add", "category": "cat", "count": 2}


def rows_of(manifest):
    return [row for batch in EditManifest(manifest).batches() for row in batch.to_pylist()]


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_all_forms_say_the_same(tmp_path):
    rows = [
        {**ROW, "edit_id": "x", "tier": "hard", "editor": "E", "human_count": 2, "human_rating": 3.5, "capacity": 4},
        {**ROW, "edit_id": "y", "operation": "change", "target": "dog", "count": 1, "image_id": "7"},
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])
    pq.write_table(table, tmp_path / "a.parquet")
    with (tmp_path / "a.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    found = rows_of(table)
    assert found[0]["human_rating"] == 3.5
    assert found[1]["target"] == "dog"
    assert found[1]["capacity"] is None
    for manifest in (tmp_path / "a.parquet", tmp_path / "a.csv", write(tmp_path / "a.jsonl", *rows)):
        assert rows_of(manifest) == found


def test_an_instruction_fills_in_what_is_missing(tmp_path):
    rows = [
        {"source": "a", "edited": "b", "instruction": "change 4 cars to trucks"},
        {"source": "a", "edited": "c", "instruction": "add 3 boats", "category": "boat"},
    ]
    first, second = rows_of(write(tmp_path / "a.jsonl", *rows))
    assert [first[name] for name in ("operation", "category", "target", "count")] == ["change", "car", "truck", 4]
    assert [second[name] for name in ("operation", "category", "target", "count")] == ["add", "boat", None, 3]
    assert first["edit_id"] == "b"


def test_other_names_of_columns(tmp_path):
    row = {
        "item_id": "x",
        "source": "a",
        "edited": "b",
        "operation": "Change",
        "category": " Cat ",
        "target_category": "DOG",
        "K": 1,
    }
    [found] = rows_of(write(tmp_path / "a.jsonl", row))
    assert [found[name] for name in ("edit_id", "operation", "category", "target", "count")] == [
        "x",
        "change",
        "cat",
        "dog",
        1,
    ]


def test_too_small_a_number_is_a_row_with_an_error(tmp_path):
    found = rows_of(
        write(tmp_path / "a.jsonl", {**ROW, "count": 0}, {**ROW, "edited": "c", "count": -3}, {**ROW, "edited": "d"})
    )
    assert [row["error"] for row in found] == [
        "count: K is 0; it must be at least 1",
        "count: K is -3; it must be at least 1",
        None,
    ]


def test_columns_that_nothing_asks_for_are_told(tmp_path):
    path = write(tmp_path / "a.jsonl", {**ROW, "mood": "blue", "error": "none"})
    assert EditManifest(path).ignored == ["error", "mood"]
    assert rows_of(path)[0]["error"] is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"operation": "paint"}, "operation 'paint' is not one of add, remove, change"),
        ({"source": ""}, "source is empty"),
        ({"category": None}, "category is empty"),
        ({"count": 2.5}, "count: not a whole number"),
        ({"operation": "change"}, "a change needs a target"),
        ({"target": "dog"}, "only a change has a target"),
        ({"operation": "change", "target": "cat"}, "'cat' to itself"),
        ({"operation": "change", "category": "sofa", "target": "couch"}, "'sofa' to itself"),
        ({"human_rating": "good"}, "human_rating: not a number"),
        ({"operation": None, "instruction": "make it nice"}, "not an instruction"),
        ({"operation": None, "instruction": "add 3 cats"}, "count is 2, the instruction says 3"),
        ({"count": 5, "category": "dog", "instruction": "remove 2 cats"}, "operation is 'add', the instruction says"),
        ({"instruction": "remove 2 cats"}, "operation is 'add', the instruction says 'remove'"),
        ({"instruction": "add 3 cats"}, "count is 2, the instruction says 3"),
        ({"category": "dog", "instruction": "add 2 cats"}, "category is 'dog', the instruction says 'cat'"),
        ({"category": "dog", "count": None, "instruction": "add 2 cats"}, "category is 'dog', the instruction says"),
        (
            {"operation": "change", "target": "bird", "count": 1, "instruction": "change 1 cat to a dog"},
            "target is 'bird', the instruction says 'dog'",
        ),
        ({"target": "dog", "instruction": "add 2 cats"}, "only a change has a target"),
    ],
)
def test_faulty_rows_are_listed_with_their_line(tmp_path, change, message):
    path = write(tmp_path / "a.jsonl", {**ROW, "instruction": None}, {**ROW, "edited": "c", **change})
    with pytest.raises(ManifestError, match=r"a\.jsonl, line 2") as caught:
        rows_of(path)
    assert message in str(caught.value)


def test_an_instruction_in_other_words_says_the_same(tmp_path):
    rows = [
        {**ROW, "edited": "c", "category": "couch", "instruction": "Add two sofas"},
        {**ROW, "edited": "d", "category": "person", "instruction": "add 2 people"},
        {**ROW, "edited": "e", "instruction": "make it nicer, with a cat or two"},  # nothing is missing without it
        {**ROW, "edited": "f", "category": "cup", "operation": "change", "target": "tv", "instruction": None},
    ]
    rows[3]["instruction"] = "replace 2 cups with televisions"
    assert [row["category"] for row in rows_of(write(tmp_path / "a.jsonl", *rows))] == ["couch", "person", "cat", "cup"]


def test_no_category_contradicts_its_own_plural(tmp_path):
    plural = inflect.engine().plural_noun
    rows = []
    for name in COCO_80:
        several = name if name in ("skis", "scissors") else plural(name)
        rows.append({**ROW, "edited": name, "category": name, "instruction": f"add 2 {several}"})
    assert len(rows_of(write(tmp_path / "a.jsonl", *rows))) == 80


def test_an_id_stands_once(tmp_path):
    with pytest.raises(ManifestError, match=r"'b\.jpg' stands more than once"):
        rows_of(write(tmp_path / "a.jsonl", ROW, ROW))


@pytest.mark.parametrize(
    ("name", "value"),
    [("source", b"\xff\xd8"), ("source", {"bytes": b"x"}), ("category", ["cat"]), ("edit_id", 1.5)],
)
def test_a_column_of_something_else_is_told(name, value):
    table = pa.Table.from_pylist([{**ROW, name: value}])
    with pytest.raises(ManifestError, match=f"table: column {name} is of type .*, not text"):
        EditManifest(table)


def test_a_number_beyond_all_bounds():
    table = pa.Table.from_pylist([{**ROW, "count": None}]).set_column(4, "count", pa.array([2**63], pa.uint64()))
    with pytest.raises(ManifestError, match="column count: not a whole number: 9223372036854775808"):
        rows_of(table)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("source", "operation", "category", "count"), "no column edited"),
        (("source", "edited", "category"), "no column count, operation, and no instruction"),
        (("source", "edited", "instruction", "count", "K"), "two columns are for count"),
    ],
)
def test_columns_that_are_missing_or_double(names, message):
    with pytest.raises(ManifestError, match=message):
        EditManifest(pa.table({name: pa.array(["1"]) for name in names}))
