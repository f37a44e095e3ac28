import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tallymill
from tallymill.engine.settings import Settings
from tallymill.errors import ManifestError, RunError, UsageError
from tallymill.runners.sweep import Quiet


@pytest.fixture(scope="module")
def plain(tmp_path_factory, manifest_file):
    """A manifest of 200 items and its uninterrupted RUN (13 shards of 16)."""
    folder = tmp_path_factory.mktemp("plain")
    manifest = manifest_file(folder / "m.jsonl", 200)
    tallymill.sweep(manifest, folder / "RUN", ensemble="synthetic", workers=0)
    return manifest, folder / "RUN"


def test_a_run_has_the_files_that_the_design_names(plain):
    _, run = plain
    assert {path.name for path in run.iterdir()} == {"run.json", "items.arrow", "proposals", "scores", "summary.json"}
    assert {path.name for path in (run / "proposals").iterdir()} == {"synthetic-a", "synthetic-b", "synthetic-c"}
    parts = [f"part-{k:05d}.parquet" for k in range(13)]
    for folder in ("scores", *(f"proposals/{name}" for name in ("synthetic-a", "synthetic-b", "synthetic-c"))):
        assert sorted(path.name for path in (run / folder).iterdir()) == parts


def test_rows_stand_in_the_order_of_the_manifest(plain, contents):
    _, run = plain
    found = contents(run)
    ids = [f"item-{k}" for k in range(200)]
    for folder in ("scores", "proposals/synthetic-a", "proposals/synthetic-c"):
        rows = [row for name, part in sorted(found.items()) if name.startswith(f"{folder}/") for row in part]
        assert [row["item_id"] for row in rows] == ids


def test_results_do_not_depend_on_the_number_of_workers(plain, contents, tmp_path):
    manifest, run = plain
    tallymill.sweep(manifest, tmp_path / "RUN", ensemble="synthetic", workers=3)
    assert contents(tmp_path / "RUN") == contents(run)
    assert len(contents(run)) == 52


def test_the_summary_tells_the_mean_of_the_scores(plain):
    _, run = plain
    summary = json.loads((run / "summary.json").read_text())
    scores = tallymill.load(run).scores
    assert (summary["complete"], summary["items"], summary["done"], summary["scored"]) == (True, 200, 200, 200)
    assert summary["cw_nps"] == math.fsum(scores["cw_nps"].to_pylist()) / 200
    assert summary["b_nps"] == math.fsum(scores["b_nps"].to_pylist()) / 200
    retained = {name: tallymill.load(run).proposals(name) for name in summary["detectors"]}
    for name, counts in summary["detectors"].items():
        assert counts["items"] == 200
        assert counts["failed"] == 0
        assert counts["proposals"] == sum(map(len, retained[name]["confidence"].to_pylist()))


def rho(p, tau):
    """Equation 6: evaluated in float64 from the stored float32, rounded to float32 once."""
    p = float(np.float32(p))
    return p if p in (0.0, 1.0) else float(np.float32(1 / (1 + math.exp(-math.log(p / (1 - p)) / tau))))


def least(n):
    """Equation 7."""
    return 0.7 if n <= 3 else 0.3 if n >= 10 else 0.7 - 0.4 * (n - 3) / 7


def recomputed(run):
    """Every score of a RUN from ``run.json`` and ``proposals/`` alone, in plain Python from the equations."""
    record = json.loads((run / "run.json").read_text())
    taus = {d["name"]: d["tau"] for d in record["ensemble"]["detectors"]}
    parts = sorted(path.name for path in (run / "proposals" / next(iter(taus))).iterdir())
    rows = {
        name: [row for part in parts for row in pq.read_table(run / "proposals" / name / part).to_pylist()]
        for name in taus
    }
    for of_item in zip(*rows.values(), strict=True):
        soft, hard = [], []
        for t, n in enumerate(of_item[0]["requested"]):
            counted = [
                (tau, p)
                for (_, tau), row in zip(taus.items(), of_item, strict=True)
                for p, target in zip(row["confidence"], row["target"], strict=True)
                if target == t
            ]
            detectors = sum(row["covered"][t] for row in of_item)
            total = 0.0
            for tau, p in counted:
                value = rho(p, tau)
                total = total + value if value >= least(n) else total
            soft.append((total / detectors, n))
            hard.append((sum(p >= 0.5 for _, p in counted) / detectors, n))
        scores = []
        for counts in (soft, hard):
            error = 0.0
            for found, n in counts:
                error += abs(found - n) / n
            scores.append(max(0.0, 1 - error / len(counts)))
        yield of_item[0]["item_id"], [s for s, _ in soft], [h for h, _ in hard], *scores


def test_anybody_can_recompute_a_run_to_the_bit(tmp_path, manifest_file, ensemble_file):
    manifest = manifest_file(tmp_path / "m.jsonl", 150)
    ensemble = ensemble_file(tmp_path / "e.toml", "x", "y", "z", taus=(1.15, 1.42, 0.93))
    tallymill.sweep(manifest, tmp_path / "RUN", ensemble=ensemble, workers=0)
    stored = [
        (
            row["item_id"],
            [t["soft"] for t in row["targets"]],
            [t["hard"] for t in row["targets"]],
            row["cw_nps"],
            row["b_nps"],
        )
        for row in tallymill.load(tmp_path / "RUN").scores.to_pylist()
    ]
    again = list(recomputed(tmp_path / "RUN"))
    assert stored == again
    assert len(stored) == 150
    assert len({cw for *_, cw, _ in stored}) > 50  # not all alike


def test_parts_of_a_sweep_add_up_to_the_whole(plain, contents, tmp_path):
    manifest, run = plain
    done = []
    for i in (3, 1, 2):
        summary = tallymill.sweep(manifest, tmp_path / "RUN", ensemble="synthetic", workers=0, part=(i, 3))
        done.append((summary.done, summary.complete))
        assert summary.items == 200
    assert done == [(64, False), (136, False), (200, True)]
    assert contents(tmp_path / "RUN") == contents(run)


@pytest.mark.parametrize("part", [(0, 3), (4, 3), (-1, 2), (1, 0)])
def test_a_part_that_is_none_is_refused_before_anything_is_written(part, plain, tmp_path):
    with pytest.raises(UsageError, match=r"i/n with 1 <= i <= n"):
        tallymill.sweep(plain[0], tmp_path / "RUN", ensemble="synthetic", part=part)
    assert not (tmp_path / "RUN").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"workers": -1}, "workers = -1"),
        ({"shard_items": 0}, "shard_items = 0"),
        ({"device": "cuda:0"}, "device 'cuda:0'"),
        ({"ensemble": "nothing"}, "no ensemble 'nothing'"),
        ({"prompt": "some cats"}, "'some cats'"),
    ],
)
def test_arguments_that_make_no_sense(options, named, plain, tmp_path):
    with pytest.raises(UsageError, match=named):
        tallymill.sweep(plain[0], tmp_path / "RUN", **{"ensemble": "synthetic", **options})
    assert not (tmp_path / "RUN").exists()


def test_a_part_larger_than_the_number_of_shards_is_empty(plain, tmp_path):
    summary = tallymill.sweep(plain[0], tmp_path / "RUN", ensemble="synthetic", part=(20, 20), workers=2)
    assert (summary.done, summary.complete, summary.cw_nps) == (0, False, None)


def test_the_floor_must_fit_the_temperatures(plain, ensemble_file, tmp_path):
    hot = ensemble_file(tmp_path / "hot.toml", "x", "y", taus=(1.0, 4.0))
    with pytest.raises(UsageError) as caught:
        tallymill.sweep(plain[0], tmp_path / "RUN", ensemble=hot)
    assert caught.value.message.startswith("y: with tau = 4.0 a proposal at the floor 0.05")
    assert "floor" in caught.value.hint
    assert not (tmp_path / "RUN").exists()
    summary = tallymill.sweep(plain[0], tmp_path / "RUN", ensemble=hot, settings=Settings(floor=0.01), workers=0)
    assert summary.scored == 200


def test_items_that_cannot_be_scored_are_error_rows_and_counted(tmp_path):
    asked = [{"cat": 3}, {"cat": 0}, {"cat": 101}, None, {"dog": 100}]
    rows = [
        {"item_id": f"i{k}", "image": "x.jpg", "targets": None if t is None else json.dumps(t)}
        for k, t in enumerate(asked)
    ]
    rows[3]["targets"] = '[{"category": "cat", "count": 1}, {"category": "cat", "count": 2}]'
    summary = tallymill.sweep(pa.Table.from_pylist(rows), tmp_path / "RUN", ensemble="synthetic", workers=0)
    assert (summary.items, summary.scored, summary.error, summary.uncovered) == (5, 2, 3, 0)
    assert summary.reasons == [
        ("targets: category 'cat' is requested more than once", 1, "i3"),
        ("targets: requested count 0 outside 1..100", 1, "i1"),
        ("targets: requested count 101 outside 1..100", 1, "i2"),
    ]
    scores = tallymill.load(tmp_path / "RUN").scores.to_pylist()
    assert [row["status"] for row in scores] == ["scored", "error", "error", "error", "scored"]
    assert [row["cw_nps"] is None for row in scores] == [False, True, True, True, False]


def test_a_manifest_with_faults_is_refused_before_any_work(tmp_path):
    (tmp_path / "m.jsonl").write_text('{"image": "a", "targets": {"cat": 1}}\n{"image": "b"}\n{"image": ""}\n')
    with pytest.raises(ManifestError) as caught:
        tallymill.sweep(tmp_path / "m.jsonl", tmp_path / "RUN", ensemble="synthetic")
    assert "line 2" in caught.value.message
    assert "line 3" in caught.value.message
    assert not (tmp_path / "RUN").exists()


def test_an_out_that_is_a_file(plain, tmp_path):
    (tmp_path / "RUN").write_text("mine")
    with pytest.raises(RunError, match="is a file"):
        tallymill.sweep(plain[0], tmp_path / "RUN", ensemble="synthetic")
    assert (tmp_path / "RUN").read_text() == "mine"


def test_a_table_is_a_manifest_too(plain, contents, tmp_path):
    manifest, run = plain
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    tallymill.sweep(pa.Table.from_pylist(rows), tmp_path / "RUN", ensemble="synthetic", workers=0)
    assert contents(tmp_path / "RUN") == contents(run)


def test_suppressed_boxes_are_kept_when_asked_and_change_no_score(plain, contents, tmp_path):
    manifest, run = plain
    tallymill.sweep(manifest, tmp_path / "RUN", ensemble="synthetic", workers=0, keep_suppressed=True)
    more, fewer = contents(tmp_path / "RUN"), contents(run)
    suppressed = 0
    for name, rows in more.items():
        if name.startswith("scores/"):
            assert rows == fewer[name]
            continue
        for row, plain_row in zip(rows, fewer[name], strict=True):
            assert len(row["kept"]) == len(row["confidence"]) == 13
            kept = [p for p, k in zip(row["confidence"], row.pop("kept"), strict=True) if k]
            assert kept == plain_row["confidence"]
            suppressed += 13 - len(kept)
    assert suppressed > 0


def test_settings_reach_the_detectors(plain, tmp_path):
    loose = tallymill.sweep(
        plain[0], tmp_path / "A", ensemble="synthetic", settings=Settings(nms_iou=1.0, floor=0.3), workers=2
    )
    assert all(counts["proposals"] == 200 * 13 for counts in loose.detectors.values())
    least_confidence = min(
        min(row) for row in tallymill.load(tmp_path / "A").proposals("synthetic-a")["confidence"].to_pylist()
    )
    assert least_confidence >= 0.3


class Watch(Quiet):
    def __init__(self):
        self.total = self.before = self.items = self.failed = 0

    def start(self, total, done):
        self.total, self.before = total, done

    def advance(self, items, failed):
        self.items, self.failed = self.items + items, self.failed + failed


@pytest.mark.parametrize("workers", [0, 2])
def test_progress_is_told_what_is_left(workers, plain, tmp_path):
    watch = Watch()
    tallymill.sweep(plain[0], tmp_path / "RUN", ensemble="synthetic", workers=0, part=(1, 2), progress=watch)
    assert (watch.total, watch.before, watch.items, watch.failed) == (104, 0, 104, 0)
    watch = Watch()
    tallymill.sweep(plain[0], tmp_path / "RUN", ensemble="synthetic", workers=workers, progress=watch)
    assert (watch.total, watch.before, watch.items) == (200, 104, 96)
