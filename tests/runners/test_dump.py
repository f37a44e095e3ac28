import json
from collections import defaultdict

import pyarrow.parquet as pq
import pytest

import tallymill
from tallymill.engine.detectors.coco import COCO_80, COCO_IDS
from tallymill.errors import RunError, UsageError
from tallymill.runners.dump import SCHEMA

NAMES = ("synthetic-a", "synthetic-b", "synthetic-c")


@pytest.fixture(scope="module")
def run(tmp_path_factory, manifest_file, ensemble_file):
    folder = tmp_path_factory.mktemp("run")
    manifest = manifest_file(folder / "m.jsonl", 60)
    ensemble = ensemble_file(folder / "e.toml", *NAMES, taus=(1.15, 1.42, 0.93))
    tallymill.sweep(manifest, folder / "RUN", ensemble=ensemble, workers=0)
    tallymill.sweep(manifest, folder / "ALL", ensemble=ensemble, workers=0, keep_suppressed=True)
    return folder / "RUN"


@pytest.mark.parametrize("name", ["RUN", "ALL"])
def test_what_was_counted_adds_up_to_the_stored_counts(name, run, tmp_path):
    source = tallymill.load(run.parent / name)
    n = tallymill.dump(source, tmp_path / "d.parquet")
    table = pq.read_table(tmp_path / "d.parquet")
    assert table.schema.equals(SCHEMA)
    assert table.num_rows == n
    soft, hard = defaultdict(float), defaultdict(int)
    for row in table.to_pylist():
        if row["counted_soft"]:
            soft[row["item_id"], row["category"]] += row["calibrated"]
            assert row["kept"]
            assert row["calibrated"] >= row["threshold"]
        hard[row["item_id"], row["category"]] += row["counted_hard"]
    for row in source.scores.to_pylist():
        for target in row["targets"]:
            key = row["item_id"], target["category"]
            assert soft[key] / 3 == target["soft"]
            assert hard[key] / 3 == target["hard"]
    assert table["kept"].to_pylist().count(False) == (0 if name == "RUN" else n - total(run))


def total(run):
    return sum(counts["proposals"] for counts in tallymill.load(run).summary().detectors.values())


def test_rows_are_the_stored_proposals(run, tmp_path):
    source = tallymill.load(run)
    assert tallymill.dump(run, tmp_path / "d.parquet", detectors=["synthetic-b"]) == len(
        [p for row in source.proposals("synthetic-b")["confidence"].to_pylist() for p in row]
    )
    found = pq.read_table(tmp_path / "d.parquet").to_pylist()
    stored = [
        (row["item_id"], row["requested"][t], t, p, box)
        for row in source.proposals("synthetic-b").to_pylist()
        for t, p, box in zip(row["target"], row["confidence"], row["box"], strict=True)
    ]
    assert [(r["item_id"], r["requested"], r["target"], r["confidence"], r["box"]) for r in found] == stored
    assert {r["detector"] for r in found} == {"synthetic-b"}


def test_coco_results(run, tmp_path):
    n = tallymill.dump(run, tmp_path / "d.json", form="coco")
    results = json.loads((tmp_path / "d.json").read_text())
    tallymill.dump(run, tmp_path / "d.parquet")
    rows = pq.read_table(tmp_path / "d.parquet").to_pylist()
    assert len(results) == n == len(rows)
    ids = {f"thing {k}": 1001 + k for k in range(7)} | {"dog": 18}
    for result, row in zip(results, rows, strict=True):
        left, top, right, bottom = row["box"]
        assert result["image_id"] == row["item_id"]
        assert result["category_id"] == ids[result["category"]]
        assert result["bbox"] == [left, top, right - left, bottom - top]
        assert (result["score"], result["calibrated"]) == (row["confidence"], row["calibrated"])
        assert (result["detector"], result["kept"]) == (row["detector"], True)


def test_coco_ids_are_those_of_the_annotation_files():
    ids = dict(zip(COCO_80, COCO_IDS, strict=True))
    assert (ids["person"], ids["stop sign"], ids["toothbrush"], ids["cat"]) == (1, 13, 90, 17)


@pytest.mark.parametrize("detectors", [(), ("synthetic-b",)])
def test_coco_ids_are_those_of_the_whole_manifest(detectors, tmp_path, ensemble_file):
    rows = [{"image": f"{k}.jpg", "targets": {f"thing {k:02}": 3}} for k in range(40)]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ensemble = ensemble_file(tmp_path / "e.toml", *NAMES)
    tallymill.sweep(tmp_path / "m.jsonl", tmp_path / "RUN", ensemble=ensemble, workers=0)
    first, _, _ = tallymill.load(tmp_path / "RUN").shards
    (tmp_path / "RUN" / "scores" / first.part).unlink()  # as where the sweep is stopped in the middle of a shard
    (tmp_path / "RUN" / "proposals" / "synthetic-a" / first.part).unlink()
    tallymill.dump(tmp_path / "RUN", tmp_path / "d.json", detectors=detectors, partial=True)
    found = {(row["category"], row["category_id"]) for row in json.loads((tmp_path / "d.json").read_text())}
    assert found == {(f"thing {k:02}", 1001 + k) for k in range(40)}


def test_a_run_without_its_items_is_dumped_without_categories(run, tmp_path):
    import shutil

    shutil.copytree(run, tmp_path / "RUN")
    (tmp_path / "RUN" / "items.arrow").unlink()
    tallymill.dump(tmp_path / "RUN", tmp_path / "d.json", form="coco")
    results = json.loads((tmp_path / "d.json").read_text())
    assert len(results) == total(run)
    assert {(r["category"], r["category_id"]) for r in results} == {(None, None)}


def test_a_rescored_run_is_dumped_with_its_own_temperatures(run, tmp_path):
    tallymill.rescore(run, tmp_path / "AGAIN", taus={"synthetic-a": 1.0})
    tallymill.dump(tmp_path / "AGAIN", tmp_path / "d.parquet", detectors=["synthetic-a"])
    table = pq.read_table(tmp_path / "d.parquet")
    assert table["calibrated"].to_pylist() == pytest.approx(table["confidence"].to_pylist(), abs=1e-6)


def test_shards_that_were_not_done_are_left_out(run, tmp_path):
    tallymill.sweep(run.parent / "m.jsonl", tmp_path / "RUN", ensemble="synthetic", workers=0, part=(1, 2))
    with pytest.raises(RunError, match=r"RUN is not complete: 2 of 4 shards not done yet\n  .*with partial=True"):
        tallymill.dump(tmp_path / "RUN", tmp_path / "d.parquet")
    assert not (tmp_path / "d.parquet").exists()
    tallymill.dump(tmp_path / "RUN", tmp_path / "d.parquet", partial=True)
    assert len(set(pq.read_table(tmp_path / "d.parquet")["item_id"].to_pylist())) == 32


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"form": "csv"}, "--format csv"),
        ({"form": "coco", "detectors": ["nobody"]}, "no detector 'nobody'"),
        ({}, r"/d: neither \.parquet nor \.json"),
    ],
)
def test_what_cannot_be_dumped(options, named, run, tmp_path):
    with pytest.raises(UsageError, match=named):
        tallymill.dump(run, tmp_path / "d", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "form"), [("d.parquet", "parquet"), ("d.json", "coco")])
def test_the_form_follows_from_the_name_of_the_file(name, form, run, tmp_path):
    tallymill.dump(run, tmp_path / name)
    tallymill.dump(run, tmp_path / "named", form=form)
    assert (tmp_path / name).read_bytes() == (tmp_path / "named").read_bytes()


@pytest.mark.parametrize("form", [None, "coco"])
def test_a_folder_is_not_written_to(form, run, tmp_path):
    with pytest.raises(UsageError, match="is a folder; it names the file to write"):
        tallymill.dump(run, tmp_path, form=form)
    assert not list(tmp_path.iterdir())


def test_what_is_no_run(tmp_path):
    with pytest.raises(RunError, match="is not a RUN"):
        tallymill.dump(tmp_path, tmp_path / "d")
