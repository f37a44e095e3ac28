"""Manifests in every form: what a row may say, what is a fault, and what the stream looks like."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tallymill.engine.items import BATCH_ROWS, CORE_COLUMNS, ManifestOptions, manifest_root, read_items
from tallymill.errors import ManifestError

STRUCTS = pa.list_(pa.struct([("category", pa.string()), ("count", pa.uint16())]))
ONE_CAT = [{"category": "cat", "count": 1}]


def rows(manifest: Any, options: ManifestOptions = ManifestOptions()) -> list[dict[str, Any]]:  # noqa: B008
    found: list[dict[str, Any]] = pa.Table.from_batches(read_items(manifest, options)).to_pylist()
    return found


def fault(manifest: Any, options: ManifestOptions = ManifestOptions()) -> str:  # noqa: B008
    with pytest.raises(ManifestError) as caught:
        list(read_items(manifest, options))
    return caught.value.message


def jsonl(path: Path, *lines: Any) -> Path:
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def text(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# What a row may say


def test_defaults_and_canonical_columns(tmp_path: Path) -> None:
    [row] = rows(jsonl(tmp_path / "m.jsonl", {"image": "a.png", "targets": {"  Red   Cat ": 3}, "seed": 5}))
    assert list(row) == [*CORE_COLUMNS.names, "seed"]
    assert row == {
        "item_id": "a.png",
        "image": "a.png",
        "sample": None,
        "system": None,
        "prompt_id": None,
        "targets": [{"category": "red cat", "count": 3}],
        "error": None,
        "seed": 5,
    }


@pytest.mark.parametrize(
    "targets",
    [
        [{"category": "cat", "count": 3}, {"category": "dog", "count": 2}],
        {"cat": 3, "dog": 2},
        {"cat": 3.0, "dog": 2},
        "cat=3;dog=2",
        " Cat = 3 ; dog=2;",
        '{"cat": 3, "dog": 2}',
        '[{"category": "cat", "count": 3}, {"count": 2, "category": "dog"}]',
    ],
)
def test_forms_of_targets(tmp_path: Path, targets: Any) -> None:
    [row] = rows(jsonl(tmp_path / "m.jsonl", {"image": "a", "targets": targets}))
    assert row["targets"] == [{"category": "cat", "count": 3}, {"category": "dog", "count": 2}]
    as_text = targets if isinstance(targets, str) else json.dumps(targets)
    with (tmp_path / "m.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["image", "targets"], ["a", as_text]])
    assert rows(tmp_path / "m.csv") == [row]


def test_sources_of_targets_in_order(tmp_path: Path) -> None:
    prompts = jsonl(tmp_path / "p.jsonl", {"prompt_id": "p1", "text": "2 dogs", "layout": "grid"})
    manifest = jsonl(
        tmp_path / "m.jsonl",
        {"image": "a", "targets": {"cat": 1}, "prompt_id": "p1", "prompt": "3 birds"},
        {"image": "b", "targets": None, "prompt_id": "p1", "prompt": "3 birds"},
        {"image": "c", "prompt": "3 birds"},
        {"image": "d"},
    )
    got = rows(manifest, ManifestOptions(prompts=prompts, prompt="4 cows", system="sys"))
    assert [row["targets"] for row in got] == [
        [{"category": "cat", "count": 1}],
        [{"category": "dog", "count": 2}],
        [{"category": "bird", "count": 3}],
        [{"category": "cow", "count": 4}],
    ]
    assert [row["layout"] for row in got] == ["grid", "grid", None, None]
    assert [row["text"] for row in got] == ["2 dogs", "2 dogs", None, None]
    assert {row["system"] for row in got} == {"sys"}


def test_a_system_of_its_own_is_kept(tmp_path: Path) -> None:
    manifest = text(tmp_path / "m.csv", "image,system\na,x\nb,\n")
    got = rows(manifest, ManifestOptions(prompt="1 cat", system="y"))
    assert [row["system"] for row in got] == ["x", "y"]


@pytest.mark.parametrize("count", [0, -3, 101, 100_000])
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_count_outside_1_to_100_is_an_error_row(tmp_path: Path, count: int, form: str) -> None:
    targets = [{"category": "cat", "count": 2}, {"category": "dog", "count": count}]
    if form == "jsonl":
        manifest = jsonl(tmp_path / "m.jsonl", {"image": "a", "targets": targets}, {"image": "b", "targets": ONE_CAT})
    else:
        manifest = tmp_path / "m.parquet"
        kind = pa.list_(pa.struct([("category", pa.string()), ("count", pa.int32())]))
        pq.write_table(pa.table({"image": ["a", "b"], "targets": pa.array([targets, ONE_CAT], kind)}), manifest)
    first, second = rows(manifest)
    assert first["error"] == f"requested count {count} outside 1..100"
    assert first["targets"] == targets
    assert second["error"] is None


@pytest.mark.parametrize("targets", ['{"cat": 1, "Cat": 2}', '{"cat": 1, "cat": 2}', '"cat=1;dog=1;cat=2"'])
def test_a_repeated_category_is_an_error_row(tmp_path: Path, targets: str) -> None:
    [row] = rows(jsonl(tmp_path / "m.jsonl", f'{{"image": "a", "targets": {targets}}}'))
    assert row["error"] == "category 'cat' is requested more than once"


def test_a_category_repeated_in_a_prompt_is_an_error_row(tmp_path: Path) -> None:
    [row] = rows(jsonl(tmp_path / "m.jsonl", {"image": "a", "prompt": "3 cats and 2 cats"}))
    assert "'cat'" in row["error"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"image": "a", "targets": {"cat": 3.5}}, "count 3.5 is not a whole number"),
        ({"image": "a", "targets": {"cat": "x"}}, "count 'x' is not a whole number"),
        ({"image": "a", "targets": {"cat": True}}, "count True is not a whole number"),
        ({"image": "a", "targets": {"cat": None}}, "a count is missing"),
        ({"image": "a", "targets": {"cat": 10**30}}, "is not a whole number"),
        ({"image": "a", "targets": {" ": 3}}, "a category is missing"),
        ({"image": "a", "targets": [{"category": "cat"}]}, "not a category with a count"),
        ({"image": "a", "targets": [["cat", 3]]}, "not a category with a count"),
        ({"image": "a", "targets": 3}, "not targets"),
        ({"image": "a", "targets": "cat:3"}, "is not category=count"),
        ({"image": "a", "targets": "cat=3.5"}, "is not a whole number"),
        ({"image": "a", "targets": "[3"}, "not JSON"),
        ({"image": "a", "targets": []}, "empty"),
        ({"image": "a", "targets": {}}, "empty"),
        ({"image": "a"}, "needs targets"),
        ({"image": "a", "prompt": "some cats"}, "prompt 'some cats'"),
        ({"targets": {"cat": 3}}, "no image is named"),
        ({"image": "", "targets": {"cat": 3}}, "no image is named"),
        ({"image": 7, "targets": {"cat": 3}}, "7 is not text"),
        ({"image": "a", "targets": {"cat": 3}, "sample": "x"}, '"x" is not a whole number'),
        ({"image": "a", "targets": {"cat": 3}, "item_id": True}, "true is not text"),
    ],
)
def test_faults_name_file_line_and_value(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    good = {"image": "x", "targets": {"cat": 1}, "prompt": None, "sample": 1, "item_id": "i"}
    message = fault(jsonl(tmp_path / "m.jsonl", good, row))
    assert "m.jsonl, line 2" in message
    assert words in message
    assert "1 fault" in message


def test_many_faults_are_counted_and_twenty_shown(tmp_path: Path) -> None:
    bad = [{"image": f"{i}", "targets": {"cat": 1.5}} for i in range(5000)]
    message = fault(jsonl(tmp_path / "m.jsonl", {"image": "x", "targets": {"cat": 1}}, *bad))
    assert "5000 faults" in message
    assert message.count("m.jsonl, line") == 20
    assert message.endswith("and 4980 more")


def test_faults_of_later_batches_are_told_after_the_good_rows(tmp_path: Path) -> None:
    lines: list[Any] = [{"image": f"{i}", "targets": {"cat": 1}} for i in range(2 * BATCH_ROWS)]
    lines[BATCH_ROWS + 6] = {"image": "x", "targets": {"cat": "?"}}
    seen = 0
    with pytest.raises(ManifestError, match=rf"line {BATCH_ROWS + 7}, column targets"):  # noqa: PT012
        for batch in read_items(jsonl(tmp_path / "m.jsonl", *lines)):
            seen += batch.num_rows
    assert seen == 2 * BATCH_ROWS - 1


def test_hopeless_manifests_stop_at_once(tmp_path: Path) -> None:
    assert "file_name" not in fault(jsonl(tmp_path / "a.jsonl", {"path": "a", "targets": {"cat": 1}}))
    with pytest.raises(ManifestError) as caught:
        next(read_items(jsonl(tmp_path / "a.jsonl", {"file_name": "a", "targets": {"cat": 1}})))
    assert "no column image" in caught.value.message
    assert "file_name" in str(caught.value.hint)
    assert "prompts" in fault(jsonl(tmp_path / "b.jsonl", {"image": "a", "prompt_id": "p"}))
    assert "error is reserved" in fault(jsonl(tmp_path / "c.jsonl", {"image": "a", "targets": "cat=1", "error": 1}))
    assert "no items" in fault(text(tmp_path / "d.csv", "image,targets\n"))
    assert "'some cats'" in fault(jsonl(tmp_path / "e.jsonl", {"image": "a"}), ManifestOptions(prompt="some cats"))


@pytest.mark.parametrize("name", ["m.txt", "m.xlsx", "m"])
def test_unknown_forms(tmp_path: Path, name: str) -> None:
    with pytest.raises(ManifestError) as caught:
        list(read_items(text(tmp_path / name, "x")))
    assert name in caught.value.message
    assert ".parquet" in str(caught.value.hint)


def test_missing_file(tmp_path: Path) -> None:
    assert "no such file" in fault(tmp_path / "none.parquet")
    assert "no such file" in fault("s3://bucket/m.parquet")


def test_manifest_root(tmp_path: Path) -> None:
    file = text(tmp_path / "m.csv", "image\n")
    assert manifest_root(file) == str(tmp_path)
    assert manifest_root(tmp_path) == str(tmp_path)
    assert manifest_root(pa.table({"image": ["a"]})) is None


# The stream


@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv", "table"])
def test_batches_are_bounded_and_alike(tmp_path: Path, form: str) -> None:
    n = 2 * BATCH_ROWS + 5
    table = pa.table({"image": [f"{i}.png" for i in range(n)], "targets": ["cat=1"] * n})
    manifest: Any = tmp_path / f"m.{form}"
    if form == "parquet":
        pq.write_table(table, manifest)
    elif form == "jsonl":
        jsonl(manifest, *table.to_pylist())
    elif form == "csv":
        text(manifest, "image,targets\n" + "".join(f"{i}.png,cat=1\n" for i in range(n)))
    else:
        manifest = table
    batches = list(read_items(manifest))
    assert max(batch.num_rows for batch in batches) <= BATCH_ROWS
    assert len({str(batch.schema) for batch in batches}) == 1
    assert pa.Table.from_batches(batches)["item_id"].to_pylist() == table["image"].to_pylist()


def test_arrow_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    def peak(n: int) -> int:
        path = tmp_path / f"{n}.parquet"
        names = pa.array(np.arange(n)).cast(pa.string())
        pq.write_table(pa.table({"image": names, "targets": pa.array(["cat=1"] * n)}), path, row_group_size=n)
        before, most = pa.total_allocated_bytes(), 0
        for _ in read_items(path):
            most = max(most, pa.total_allocated_bytes() - before)
        return most

    assert peak(400_000) < peak(100_000) + (1 << 20)


# Prompts file


@pytest.fixture
def table_prompts(tmp_path: Path) -> Callable[..., Path]:
    def write(**columns: Any) -> Path:
        path = tmp_path / "prompts.parquet"
        pq.write_table(pa.table(columns), path)
        return path

    return write


def test_prompts_join_factors_of_any_type(tmp_path: Path, table_prompts: Callable[..., Path]) -> None:
    prompts = table_prompts(
        prompt_id=pa.array(["p1", "p2"]),
        targets=pa.array([ONE_CAT, [{"category": "dog", "count": 101}]], STRUCTS),
        layout=pa.array(["grid", "free"]).dictionary_encode(),
        modifiers=pa.array([["blurry", "merged"], []], pa.list_(pa.string())),
        big=pa.array([9007199254740993, None], pa.int64()),
    )
    manifest = text(tmp_path / "m.csv", "image,prompt_id,sample\nb,p2,0\na,p1,1\na2,p1,2\n")
    got = rows(manifest, ManifestOptions(prompts=prompts))
    assert [row["layout"] for row in got] == ["free", "grid", "grid"]
    assert [row["modifiers"] for row in got] == [[], ["blurry", "merged"], ["blurry", "merged"]]
    assert [row["big"] for row in got] == [None, 9007199254740993, 9007199254740993]
    assert [row["sample"] for row in got] == [0, 1, 2]
    assert [row["error"] for row in got] == ["requested count 101 outside 1..100", None, None]


def test_prompt_faults(tmp_path: Path, table_prompts: Callable[..., Path]) -> None:
    manifest = text(tmp_path / "m.csv", "image,prompt_id,layout\na,p1,grid\nb,p9,\nc,p1,free\n")
    prompts = ManifestOptions(prompts=table_prompts(prompt_id=["p1"], text=["2 cats"], layout=["grid"]))
    message = fault(manifest, prompts)
    assert "m.csv, line 3, column prompt_id: not in prompts.parquet: 'p9'" in message
    assert "m.csv, line 4, column layout: differs from prompts.parquet: 'free'" in message
    table_prompts(prompt_id=["p1", "p2", "p1"], text=["2 cats"] * 3)
    assert "prompts.parquet, row 3, column prompt_id: stands more than once: 'p1'" in fault(manifest, prompts)
    table_prompts(prompt_id=["p1"], text=["some cats"])
    assert "prompts.parquet, row 1, column text: prompt 'some cats'" in fault(manifest, prompts)
    table_prompts(name=["p1"], text=["2 cats"])
    assert "prompt_id" in fault(manifest, prompts)
    jsonl(tmp_path / "empty.jsonl")
    assert "no items" in fault(manifest, ManifestOptions(prompts=tmp_path / "empty.jsonl"))
    text(tmp_path / "empty.csv", "prompt_id,text\n")
    assert "empty.csv: has no prompts" in fault(manifest, ManifestOptions(prompts=tmp_path / "empty.csv"))
