import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tallymill.engine.numbench.truth import read_truth
from tallymill.errors import ManifestError

ROWS = [
    {"item_id": "b", "category": "dog", "box": [5.0, 6.0, 7.0, 8.0]},
    {"item_id": "a", "category": "Ginger  Cat", "box": [1.0, 2.0, 3.0, 4.5]},
    {"item_id": "b", "category": "dog", "box": [0.0, 6.0, 7.0, 8.0]},
]


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def csv(path: Path, rows: list[Any], columns: tuple[str, ...] = ("x1", "y1", "x2", "y2")) -> Path:
    lines = [f"{r['item_id']},{r['category']},{','.join(map(str, r['box']))}" for r in rows]
    path.write_text("\n".join(["item_id,category," + ",".join(columns), *lines]) + "\n")
    return path


def test_every_form_of_file_gives_the_same(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    pq.write_table(table, tmp_path / "t.parquet")
    fixed = table.set_column(2, "box", table["box"].cast(pa.list_(pa.float32(), 4)))
    pq.write_table(fixed, tmp_path / "f.parquet")
    columns = {name: [r["box"][i] for r in ROWS] for i, name in enumerate(("x1", "y1", "x2", "y2"))}
    pq.write_table(pa.table({**table.drop_columns("box").to_pydict(), **columns}), tmp_path / "c.parquet")
    quoted = tmp_path / "q.csv"
    quoted.write_text(
        "item_id,category,box\n" + "".join(f'{r["item_id"]},{r["category"]},"{r["box"]}"\n' for r in ROWS)
    )
    files = [jsonl(tmp_path / "t.jsonl", ROWS), csv(tmp_path / "t.csv", ROWS), quoted]
    for path in [*files, *(tmp_path / f"{name}.parquet" for name in "tfc")]:
        truth = read_truth(path)
        assert truth.items == {"b": 0, "a": 1}, path
        assert truth.categories == ("dog", "ginger cat")
        assert truth.item.tolist() == [0, 0, 1]
        assert truth.category.tolist() == [0, 0, 1]
        assert truth.target.tolist() == [-1, -1, -1]
        assert truth.starts.tolist() == [0, 2, 3]
        # In order of item and box, each with its own place in the file.
        assert truth.boxes.tolist() == [[0, 6, 7, 8], [5, 6, 7, 8], [1, 2, 3, 4.5]]
        first = 1 if path.suffix != ".csv" else 2
        assert (truth.row - first).tolist() == [2, 0, 1]
    assert read_truth(files[1]).where(0) == "t.csv, line 4"
    assert len(truth) == 3


def test_targets_and_numeric_ids(tmp_path: Path) -> None:
    rows = [{"item_id": 7, "target": 1, "box": [0, 0, 9, 9]}, {"item_id": 7, "target": 0, "box": [0, 0, 5, 5]}]
    truth = read_truth(jsonl(tmp_path / "t.jsonl", rows))
    assert truth.items == {"7": 0}
    assert truth.target.tolist() == [0, 1]
    assert truth.category.tolist() == [-1, -1]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    assert read_truth(tmp_path / "t.parquet").boxes.tolist() == [[0, 0, 5, 5], [0, 0, 9, 9]]


def test_all_faulty_rows_are_told_at_once(tmp_path: Path) -> None:
    good = ROWS[0]
    rows = [
        good,
        {**good, "item_id": ""},
        {**good, "category": "  "},
        {**good, "box": [5, 6, 5, 8]},
        {**good, "box": [10, 20, 3, 4]},
        {**good, "box": [5, 6, 7]},
        {**good, "box": "everywhere"},
        {**good, "box": None},
        {**good, "box": [1, 2, 3, True]},
    ]
    with pytest.raises(ManifestError) as caught:
        read_truth(jsonl(tmp_path / "t.jsonl", rows))
    lines = caught.value.message.splitlines()
    assert lines[0] == "t.jsonl: 8 faults"
    told = "\n".join(lines)
    for words in (
        "line 2, column item_id: is empty",
        "line 3, column category: neither a category nor a target",
        "line 4, column box: not x1 < x2 and y1 < y2 (these are corners, not width and height): '[5, 6, 5, 8]'",
        "line 5, column box: not x1 < x2",
        "line 6, column box: not a list of 4 numbers, all finite: '[5, 6, 7]'",
        "line 7, column box: not a list of 4 numbers, all finite: 'everywhere'",
        "line 8, column box: not a list of 4 numbers",
        "line 9, column box: not a list of 4 numbers",
    ):
        assert words in told
    assert "nothing was fitted" in str(caught.value.hint)


def test_faults_of_other_forms(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("item_id,target,x1,y1,x2,y2\na,0,1,2,3,4\na,-1,1,2,3,4\na,x,1,2,3,4\na,0,nan,2,3,4\na,0,1,2,3,\n")
    with pytest.raises(ManifestError) as caught:
        read_truth(path)
    for words in (
        "line 3, column target: is below 0: -1",
        "line 4, column target: not a whole number: 'x'",
        "line 5, column x1: not a number: 'nan'",
        "line 6, column y2: not a number",
    ):
        assert words in caught.value.message
    table = pa.table({"item_id": ["a"], "target": [0], "box": [[1.0, float("inf"), 3.0, 4.0]]})
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(ManifestError, match="row 1, column box: not 4 numbers, all finite"):
        read_truth(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("item_id,box\na,1\n", "its columns are item_id, box"),
        ("item_id,category,x1,y1,x2\na,cat,1,2,3\n", "its columns are"),
        ("item_id,category,x1,y1,x2,y2\n", "has no objects"),
        ("item_id,category,x1,y1,x2,y2\na,cat,0.1,0.2,0.3,1.0\n", "no box reaches beyond 1"),
    ],
)
def test_files_that_are_no_truth(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ManifestError, match=words):
        read_truth(tmp_path / "t.csv")


def test_types_that_are_no_text(tmp_path: Path) -> None:
    table = pa.table({"item_id": ["a"], "category": [1.5], "box": [[1.0, 2.0, 3.0, 4.0]]})
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(ManifestError, match="column category is of type double, not text"):
        read_truth(tmp_path / "t.parquet")
