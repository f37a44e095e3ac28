import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tallymill
from tallymill.errors import ManifestError, UsageError
from tallymill.runners.numbench.agreement import agreement_of
from tallymill.runners.numbench.annotations import read_annotations
from tallymill.runners.run import Run, load

ITEMS = 50


@pytest.fixture(scope="module")
def run(tmp_path_factory, manifest_file, ensemble_file) -> Run:
    folder = tmp_path_factory.mktemp("agreement")
    manifest = manifest_file(folder / "manifest.jsonl", ITEMS)
    ensemble = ensemble_file(folder / "ensemble.toml", "a", "b")
    tallymill.sweep(manifest, folder / "painter", ensemble=ensemble, workers=0, shard_items=16)
    return load(folder / "painter")


@pytest.fixture(scope="module")
def other(run: Run, manifest_file, ensemble_file) -> Run:
    """Another system's images of the same ids."""
    folder = run.path.parent
    manifest = manifest_file(folder / "manifest.jsonl", ITEMS)
    ensemble = ensemble_file(folder / "other.toml", "c")
    tallymill.sweep(manifest, folder / "sketcher", ensemble=ensemble, workers=0, system="sketcher")
    return load(folder / "sketcher")


def counted(run: Run, seed: int = 0, **more: Any) -> list[dict[str, Any]]:
    """Three people's counts of every category of every image."""
    rng = random.Random(seed)
    rows = []
    for row in run.scores.to_pylist():
        for target in row["targets"]:
            seen = round(target["requested"] * rng.uniform(0.2, 1.1))
            for name in ("ann", "ben", "cleo"):
                count = max(0, seen + rng.randint(-2, 2))
                line = {"item_id": row["item_id"], "category": target["category"], "annotator": name, "count": count}
                rows.append({**line, "ambiguous": rng.random() < 0.3, **more})
    return rows


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_annotations_meet_their_scores(run: Run, tmp_path: Path) -> None:
    rows = counted(run)
    found = agreement_of([run], write(tmp_path / "a.jsonl", rows))
    assert (found.annotators, found.bin_width, found.range_by, found.notes) == (3, 1, "max", [])
    assert [row.count_range for row in found.rows] == ["all", "1-25", "26-50", "51-75", "76-100"]
    every = found.rows[0]
    assert every.system == "painter"
    human, detector, marks = [], [], []
    for score in run.scores.to_pylist():
        errors = []
        mine = [row for row in rows if row["item_id"] == score["item_id"]]
        for target in score["targets"]:
            median = float(np.median([row["count"] for row in mine if row["category"] == target["category"]]))
            errors.append(abs(median - target["requested"]) / target["requested"])
        human.append(max(0.0, 1 - sum(errors) / len(errors)))
        detector.append(score["cw_nps"])
        marks.append(len({row["annotator"] for row in mine if row["ambiguous"]}))
    assert (every.images, every.scored, every.judged) == (ITEMS, ITEMS, len(rows) // 3)
    assert every.human_cw == pytest.approx(np.mean(human), rel=1e-12)
    assert every.detector_cw == pytest.approx(run.summary().cw_nps, rel=1e-12)
    assert every.pearson == pytest.approx(np.corrcoef(human, detector)[0, 1], rel=1e-9)
    assert every.ambiguous_any == sum(m > 0 for m in marks)
    assert every.ambiguous_most == sum(m > 1 for m in marks)


def test_every_form_and_order_gives_the_same(run: Run, tmp_path: Path) -> None:
    rows = counted(run)
    first = agreement_of([run], write(tmp_path / "a.jsonl", rows)).rows
    random.Random(1).shuffle(rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert agreement_of([run], tmp_path / "a.parquet").rows == first
    names = list(rows[0])
    lines = [",".join(str(row[name]) for name in names) for row in rows]
    (tmp_path / "a.csv").write_text("\n".join([",".join(names), *lines]) + "\n")
    assert agreement_of([run], tmp_path / "a.csv").rows == first
    categories = {row["item_id"]: [t["category"] for t in row["targets"]] for row in run.scores.to_pylist()}
    for row in rows:
        row["target"] = categories[row["item_id"]].index(row["category"])
    assert agreement_of([run], write(tmp_path / "both.jsonl", rows)).rows == first
    for row in rows:
        del row["category"]
    assert agreement_of([run], write(tmp_path / "targets.jsonl", rows)).rows == first


def test_several_systems_are_told_apart(run: Run, other: Run, tmp_path: Path) -> None:
    rows = [*counted(run, system="painter"), *counted(other, seed=2, system="sketcher")]
    found = agreement_of([run, other], write(tmp_path / "a.jsonl", rows))
    assert [row.system for row in found.rows[::5]] == ["all", "painter", "sketcher"]
    assert found.rows[0].images == 2 * ITEMS
    alone = agreement_of([other], write(tmp_path / "b.jsonl", counted(other, seed=2)))
    assert alone.rows == found.rows[10:]
    # Called otherwise by an analysis; what the manifest says is understood all the same.
    named = agreement_of([run, other], tmp_path / "a.jsonl", systems={(0, None): "painter", (1, "sketcher"): "S"})
    assert [row.system for row in named.rows[::5]] == ["all", "painter", "S"]
    assert named.rows[0].kappa == found.rows[0].kappa
    assert named.rows[0].pearson == pytest.approx(found.rows[0].pearson, rel=1e-12)  # systems are sorted by name
    only_one = agreement_of([run, other], write(tmp_path / "c.jsonl", counted(run, system="painter")))
    assert [row.system for row in only_one.rows] == ["painter"] * 5
    with pytest.raises(ManifestError) as caught:
        agreement_of([run, other], write(tmp_path / "d.jsonl", counted(run)))
    assert f"line 1, column item_id: is an image of 'painter' of {run.path}, 'sketcher' of" in caught.value.message
    assert "say which in a column system" in caught.value.message


def test_systems_of_one_name(run: Run, tmp_path: Path) -> None:
    tallymill.rescore(run, tmp_path / "painter", taus={"a": 1.5})
    again = load(tmp_path / "painter")
    rows = counted(run, system=f"painter ({run.path})")
    found = agreement_of([run, again], write(tmp_path / "a.jsonl", rows))
    assert [row.system for row in found.rows] == [f"painter ({run.path})"] * 5


def test_what_is_left_out_is_told(run: Run, tmp_path: Path) -> None:
    rows = counted(run)
    double, single = "item-0", "item-1"
    rows = [row for row in rows if (row["item_id"], row["category"]) != (double, "dog")]
    rows.remove(next(row for row in rows if row["item_id"] == single))
    rows.append({**rows[-1], "item_id": "nowhere"})
    found = agreement_of([run], write(tmp_path / "a.jsonl", rows))
    assert found.rows[0].images == ITEMS - 2
    assert found.notes == [
        f"Left aside: 1 annotated image that no RUN has (first: 'nowhere', a.jsonl, line {len(rows)}).",
        "Left aside: 2 annotated images without exactly 3 counts of each category "
        "(first: 'item-0' of 'painter', 'dog': 0).",
    ]


def test_the_commonest_number_of_counts_is_wanted(run: Run, tmp_path: Path) -> None:
    rows = counted(run)
    more = [{**row, "annotator": "dan"} for row in rows if row["annotator"] == "ann"]
    few = agreement_of([run], write(tmp_path / "a.jsonl", [*rows, *more[:4]]))
    assert few.annotators == 3
    assert few.rows[0].images == ITEMS - 3  # the first four targets are those of three images
    most = agreement_of([run], write(tmp_path / "b.jsonl", [*rows, *more[4:]]))
    assert most.annotators == 4
    assert most.rows[0].images == ITEMS - 3


def test_images_that_nobody_can_score(tmp_path: Path, ensemble_file) -> None:
    manifest = write(
        tmp_path / "m.jsonl",
        [
            {"item_id": "a", "image": "a.jpg", "targets": {"cat": 3}},
            {"item_id": "b", "image": "b.jpg", "targets": {"cat": 300}},
            {"item_id": "c", "image": "c.jpg", "targets": {"cat": 5}},
        ],
    )
    tallymill.sweep(manifest, tmp_path / "run", ensemble=ensemble_file(tmp_path / "e.toml", "a"), workers=0)
    rows = [
        {"item_id": item, "category": "cat", "annotator": name, "count": 3}
        for item in "abc"
        for name in ("u", "v", "w")
    ]
    found = agreement_of([load(tmp_path / "run")], write(tmp_path / "a.jsonl", rows))
    assert found.rows[0].images == 2
    assert found.notes == [
        "Left aside: 1 annotated image of which counts were asked that cannot be scored (first: 'b')."
    ]
    assert found.rows[0].ambiguous_any is None


def test_two_annotators_and_bins(run: Run, tmp_path: Path) -> None:
    rows = [row for row in counted(run) if row["annotator"] != "ben"]
    found = agreement_of([run], write(tmp_path / "a.jsonl", rows), range_by="per-target", bin_width=5)
    assert (found.annotators, found.bin_width, found.range_by) == (2, 5, "per-target")
    assert found.rows[0].images == found.rows[0].judged == len(rows) // 2
    exact = agreement_of([run], tmp_path / "a.jsonl")
    wide, narrow = found.rows[0].kappa, exact.rows[0].kappa
    assert wide is not None
    assert narrow is not None
    assert wide > narrow
    with pytest.raises(UsageError, match="range_by 'least'"):
        agreement_of([run], tmp_path / "a.jsonl", range_by="least")


def test_all_faults_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    good = {"item_id": "item-1", "category": "thing 1", "annotator": "ann", "count": 3}
    rows = [
        good,
        {**good, "item_id": None},
        {**good, "annotator": ""},
        {**good, "category": None},
        {**good, "count": -1},
        {**good, "count": 2.5},
        {**good, "count": None},
        {**good, "count": 2_000_000},
    ]
    with pytest.raises(ManifestError) as caught:
        read_annotations(write(tmp_path / "a.jsonl", rows))
    for words in (
        "a.jsonl: 7 faults",
        "line 2, column item_id: is empty",
        "line 3, column annotator: is empty",
        "line 4, column category: neither a category nor a target",
        "line 5, column count: not in 0..1000000: -1",
        "line 6, column count: not a whole number: 2.5",
        "line 7, column count: is missing",
        "line 8, column count: not in 0..1000000",
    ):
        assert words in caught.value.message
    path = tmp_path / "a.csv"
    path.write_text("item_id,category,annotator,count,ambiguous\na,cat,x,3,maybe\na,cat,y,3,TRUE\na,cat,z,3,\n")
    with pytest.raises(ManifestError, match="line 2, column ambiguous: neither true nor false: 'maybe'"):
        read_annotations(path)


def test_faults_that_only_the_run_shows(run: Run, tmp_path: Path) -> None:
    rows = counted(run)
    more = [
        {**rows[0], "annotator": "dan", "category": "zebra"},
        rows[0],
        {**rows[0], "annotator": "dan", "category": None, "target": 2},
        {**rows[0], "annotator": "dan", "target": 1},
    ]
    rows = [{**row, "target": None} for row in rows]
    with pytest.raises(ManifestError) as caught:
        agreement_of([run], write(tmp_path / "a.jsonl", [*rows, *more]))
    n = len(rows)
    for words in (
        "a.jsonl: 4 faults",
        f"line {n + 1}, column category: its image was asked for 'thing 0', 'dog', not: 'zebra'",
        f"line {n + 2}, column annotator: counted this image and category before, in a.jsonl, line 1: 'ann'",
        f"line {n + 3}, column target: its image has 2 targets, counted from 0: 2",
        f"line {n + 4}, column category: target 1 is not: 'thing 0'",
    ):
        assert words in caught.value.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("item_id,count,annotator\na,1,x\n", "its columns are item_id, count, annotator"),
        ("item_id,category,count\na,cat,1\n", "its columns are"),
        ("item_id,category,annotator,count\n", "has no rows"),
        ("item_id,category,annotator,count\na,cat,x,1\n", r"none of its images is in a RUN \(it names 'a' first\)"),
    ],
)
def test_files_that_are_no_annotations(run: Run, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ManifestError, match=words):
        agreement_of([run], tmp_path / "a.csv")


def test_an_analysis_shows_it(run: Run, tmp_path: Path, command) -> None:
    rows = counted(run)
    path = write(tmp_path / "a.jsonl", [*rows, {**rows[0], "item_id": "nowhere"}])
    shown = command("analyse", run.path, "--annotations", path, "--resamples", "0", "--kappa-width", "5")
    assert shown.returncode == 0, shown.stderr
    assert "Agreement with people" in shown.stdout
    assert "note: Left aside: 1 annotated image that no RUN has" in shown.stdout
    found = tallymill.analyse(run, annotations=path, resamples=0, kappa_width=5).agreement
    assert found is not None
    assert found == agreement_of([run], path, bin_width=5)
    assert f"{found.rows[0].kappa:.3f}" in shown.stdout
    with pytest.raises(UsageError, match="kappa_width 0"):
        tallymill.analyse(run, annotations=path, kappa_width=0)
