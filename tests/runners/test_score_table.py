"""The streamed table is, to the bit, what a sweep writes and what rows written one by one come to."""

import io
import json
import math
import shutil
from dataclasses import asdict, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import tallymill
from tallymill.engine.numbench.factors import COUNT_RANGES
from tallymill.engine.settings import Settings
from tallymill.errors import RunError, UsageError
from tallymill.runners import console
from tallymill.runners.run_folder import ensemble_of

ITEMS = 150


def write(path, n=ITEMS):
    """Several targets an item, two systems and none, items that cannot be scored."""
    rng = np.random.default_rng(1)
    with path.open("w") as file:
        for k in range(n):
            categories = [f"thing {c}" for c in rng.permutation(9)[: k % 4 + 1]]
            targets = [{"category": c, "count": int(rng.integers(1, 101))} for c in categories]
            if k % 31 == 7:
                targets[0]["count"] = 101
            row = {"item_id": f"item-{k}", "image": f"{k}.jpg", "targets": targets}
            if k % 3:
                row["system"] = ("left", "right")[k % 3 - 1]
            file.write(json.dumps(row) + "\n")
    return path


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swept")
    tallymill.sweep(write(folder / "m.jsonl"), folder / "RUN", ensemble="synthetic", workers=0, shard_items=32)
    return folder / "RUN"


@pytest.fixture(scope="module")
def looked(tmp_path_factory, image_folder, image_ensemble_file):
    """Closed detectors over images: one file is broken, and categories that they do not know."""
    folder = tmp_path_factory.mktemp("looked")
    images = image_folder(folder / "images", 20)
    (images / "4.png").write_bytes(b"no image")
    lines = (images / "metadata.jsonl").read_text().splitlines()
    for k, targets in ((3, {"raccoon": 2}), (4, {"raccoon": 1}), (9, {"cat": 1, "mug": 3, "raccoon": 60})):
        lines[k] = json.dumps({**json.loads(lines[k]), "targets": targets})
    (images / "metadata.jsonl").write_text("\n".join(lines))
    ensemble = image_ensemble_file(folder / "e.toml", "x", "y")
    tallymill.sweep(images, folder / "RUN", ensemble=ensemble, workers=0, keep_suppressed=True)
    return folder / "RUN"


def expected(run):
    """The summary of the rows of a RUN, and its groups by name."""
    rows = tallymill.load(run).scores.to_pylist()
    groups = {}
    for row in rows:
        largest = max((t["requested"] for t in row["targets"]), default=1)
        where = COUNT_RANGES[(min(max(largest, 1), 100) - 1) // 25]
        groups.setdefault((row["system"], where), []).append(row)
    return tallymill.load(run).summary(), groups


def check(table, run):
    summary, groups = expected(run)
    told = {**asdict(summary), "run": table.run, "stage_seconds": {}}
    told["detectors"] = {name: told["detectors"][name] for name in table.detectors}
    assert {name: getattr(table, name) for name in told} == told
    assert {(g.system, g.count_range) for g in table.groups} == set(groups)
    for group in table.groups:
        rows = groups[group.system, group.count_range]
        statuses = [row["status"] for row in rows]
        assert group.items == len(rows)
        for status in ("scored", "error", "uncovered"):
            assert getattr(group, status) == statuses.count(status)
        for name in ("cw_nps", "b_nps"):
            values = [row[name] for row in rows if row["status"] == "scored"]
            assert getattr(group, name) == (math.fsum(values) / len(values) if values else None)


@pytest.mark.parametrize("workers", [0, 1, 2, 5])
def test_the_table_is_that_of_the_sweep(workers, swept):
    before = sorted(str(p) for p in swept.rglob("*"))
    table = tallymill.rescore(swept, workers=workers)
    check(table, swept)
    assert table.error == 5
    assert table.run == str(swept)
    assert sorted(str(p) for p in swept.rglob("*")) == before


def test_uncovered_and_failed_items_are_told(looked):
    table = tallymill.rescore(looked)
    assert (table.scored, table.error, table.uncovered) == (17, 1, 2)
    assert dict(table.unknown) == {"raccoon": 2, "mug": 1}
    check(table, looked)


@pytest.mark.parametrize(
    "options",
    [
        {"taus": {"synthetic-b": 1.3, "synthetic-a": 0.7}},
        {"schedule": lambda n: 0.5 if n < 50 else 0.25},
        {"overrides": ["coverage=all"]},
        {"ensemble": "two.toml"},
    ],
)
def test_the_table_is_that_of_the_rows(options, swept, ensemble_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ensemble_file(tmp_path / "two.toml", "synthetic-c", "synthetic-a", taus=(0.9, 1.1))
    written = tallymill.rescore(swept, tmp_path / "OUT", **options)
    check(written, tmp_path / "OUT")
    table = tallymill.rescore(swept, **options)
    assert {**table.as_dict(), "run": ""} == {**written.as_dict(), "run": ""}
    assert json.loads((tmp_path / "OUT" / "summary.json").read_text()) == json.loads(json.dumps(written.as_dict()))


@pytest.mark.parametrize("ensemble", [None, "one"])
def test_coverage_and_suppressed_boxes(ensemble, looked, tmp_path):
    chosen = ensemble_of(tallymill.load(looked).record)
    if ensemble:
        chosen = replace(chosen, detectors=chosen.detectors[1:])
    for overrides in (["coverage=all"], []):
        out = tmp_path / f"OUT{len(overrides)}"
        check(tallymill.rescore(looked, out, ensemble=chosen, overrides=overrides), out)


def test_without_items(swept, tmp_path):
    shutil.copytree(swept, tmp_path / "RUN")
    (tmp_path / "RUN" / "items.arrow").unlink()
    table, whole = tallymill.rescore(tmp_path / "RUN"), tallymill.rescore(swept)
    assert (table.cw_nps, table.b_nps, table.reasons) == (whole.cw_nps, whole.b_nps, whole.reasons)
    assert {group.system for group in table.groups} == {None}
    tallymill.rescore(tmp_path / "RUN", tmp_path / "OUT")
    check(table, tmp_path / "OUT")


@pytest.mark.parametrize("left", [None, 0, 100, -1, "middle"])
def test_damage_is_named(left, swept, tmp_path):
    run = tmp_path / "RUN"
    shutil.copytree(swept, run)
    part = run / "proposals" / "synthetic-b" / "part-00003.parquet"
    data = part.read_bytes()
    if left is None:
        part.unlink()
    elif left == "middle":
        part.write_bytes(data[:200] + bytes(len(data) // 2) + data[200 + len(data) // 2 :])
    else:
        part.write_bytes(data[:left])
    with pytest.raises(RunError, match=r"synthetic-b/part-00003\.parquet is .*damaged"):
        tallymill.rescore(run)


def test_a_run_that_is_not_complete(tmp_path):
    manifest = write(tmp_path / "m.jsonl", 40)
    tallymill.sweep(manifest, tmp_path / "RUN", ensemble="synthetic", workers=0, part=(1, 2))
    with pytest.raises(RunError, match=r"has no whole proposals of synthetic-a for part-00001\.parquet"):
        tallymill.rescore(tmp_path / "RUN")


def within(soft, hard, requested):
    good = 0.0
    for k in range(len(soft)):
        good += abs(soft[k] - requested[k]) <= 0.4 * requested[k]
    return math.nan if requested[0] == 1 else good / len(soft) + hard[0]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_score_of_ones_own(workers, swept, tmp_path):
    table = tallymill.rescore(swept, tmp_path / f"OUT-{workers}", score=within, workers=workers)
    check(table, tmp_path / f"OUT-{workers}")
    rows = tallymill.load(tmp_path / f"OUT-{workers}").scores.to_pylist()
    given = []
    for row in rows:
        arrays = [[t[name] for t in row["targets"]] for name in ("soft", "hard", "requested")]
        value = within(*arrays) if row["status"] == "scored" else math.nan
        assert row["user_score"] == (None if math.isnan(value) else value)
        given += [] if math.isnan(value) else [value]
    assert table.user_score == {"name": "within", "value": math.fsum(given) / len(given), "scored": len(given)}
    assert sum(group.user_scored for group in table.groups) == len(given)
    record = json.loads((tmp_path / f"OUT-{workers}" / "run.json").read_text())["user_score"]
    assert (record["name"], record["file"], len(record["sha256"])) == ("within", __file__, 64)
    alone = tallymill.rescore(swept, score=f"{__file__}:within")
    assert {**alone.as_dict(), "run": ""} == {**table.as_dict(), "run": ""}
    again = tallymill.rescore(tmp_path / f"OUT-{workers}", tmp_path / f"PLAIN-{workers}")
    assert again.user_score is None
    assert "user_score" not in tallymill.load(tmp_path / f"PLAIN-{workers}").scores.column_names


@pytest.mark.parametrize("out", [None, "OUT"])
def test_a_score_that_fails_names_the_item(out, swept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def f(soft, hard, requested):\n    return 1 / (len(soft) - 3)\n")
    with pytest.raises(
        UsageError, match=r"mine\.py, line 1: for item 'item-2': f raised ZeroDivisionError: division by zero"
    ):
        tallymill.rescore(swept, out, score="mine.py:f", workers=2)
    assert not (tmp_path / "OUT").exists()


def test_another_score_is_another_run(swept, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "def f(soft, hard, requested):\n    return soft[0]\ndef g(soft, hard, requested):\n    return hard[0]\n"
    )
    tallymill.rescore(swept, tmp_path / "OUT", score=f"{file}:f")
    with pytest.raises(RunError, match=r'user_score\.name: "f" in the RUN, "g" now'):
        tallymill.rescore(swept, tmp_path / "OUT", score=f"{file}:g")
    with pytest.raises(RunError, match=r'user_score\.name: "f" in the RUN, null now'):
        tallymill.rescore(swept, tmp_path / "OUT")
    file.write_text(file.read_text() + "\n")
    with pytest.raises(RunError, match=r"user_score\.sha256 \(what the score's file holds\): ") as caught:
        tallymill.rescore(swept, tmp_path / "OUT", score=f"{file}:f")
    assert caught.value.hint == f"{file} or the options have changed since; choose another --out"


def test_the_settings_of_a_sweep_are_those_of_the_table(tmp_path):
    manifest = write(tmp_path / "m.jsonl", 40)
    settings = Settings(coverage="all", floor=0.02)
    tallymill.sweep(
        manifest, tmp_path / "RUN", ensemble="synthetic", workers=0, settings=settings, keep_suppressed=True
    )
    check(tallymill.rescore(tmp_path / "RUN"), tmp_path / "RUN")


def test_a_schedule_that_fails_is_told_with_count_and_line(swept, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "def f(n):\n    if n > 41:\n        return {}[n]\n    return 0.5\n\n\ndef g(n):\n    return n / 50\n"
    )
    with pytest.raises(UsageError, match=r"fails for T\(42\): KeyError: 42 \(.*mine\.py, line 3\)"):
        tallymill.rescore(swept, schedule=f"{file}:f")
    with pytest.raises(UsageError, match=r"gives T\(51\) = 1\.02; .* \(.*mine\.py, line 7\)"):
        tallymill.rescore(swept, schedule=f"{file}:g")


@pytest.mark.parametrize("systems", [20, 21, 45])
def test_of_many_systems_the_first_are_shown(systems, tmp_path, monkeypatch):
    manifest = tmp_path / "m.jsonl"
    names = [f"system-{k:03d}" for k in range(systems)]
    rows = [{"image": f"{k}.jpg", "targets": {"cat": 3}, "system": name} for k, name in enumerate(reversed(names))]
    manifest.write_text("\n".join(map(json.dumps, rows)))
    tallymill.sweep(manifest, tmp_path / "RUN", ensemble="synthetic", workers=0)
    table = tallymill.rescore(tmp_path / "RUN")
    assert [group.system for group in table.groups] == names
    alone = [row["cw_nps"] for row in reversed(tallymill.load(tmp_path / "RUN").scores.to_pylist())]
    assert [group.cw_nps for group in table.groups] == alone
    text = io.StringIO()
    monkeypatch.setattr(console, "out", Console(file=text, highlight=False, width=160))
    console.show_score_table(table, written=False)
    assert [name for name in names if name in text.getvalue()] == names[:20]
    more = f"  and {systems - 20} more systems: --json lists all"
    assert (more in text.getvalue().splitlines()) is (systems > 20)


def test_items_whose_text_is_none_are_damage(swept, tmp_path):
    """A reader that trusts such a file may crash."""
    run = shutil.copytree(swept, tmp_path / "RUN")
    file = run / "items.arrow"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"leftright", b"left\xffight"))
    assert file.read_bytes() != whole
    with pytest.raises(RunError, match=r"items\.arrow is damaged"):
        tallymill.rescore(run)


@pytest.mark.parametrize("out", [None, "OUT"])
def test_a_confidence_that_is_none_names_the_part(swept, tmp_path, out):
    run = shutil.copytree(swept, tmp_path / "RUN")
    part = sorted((run / "proposals").glob("*/part-00001.parquet"))[0]
    table = pq.read_table(part)
    lists = table["confidence"].combine_chunks()
    wrong = pa.ListArray.from_arrays(lists.offsets, pa.array(np.full(len(lists.flatten()), 1.5, np.float32)))
    at = table.schema.get_field_index("confidence")
    stamps = {key: value for key, value in pq.read_metadata(part).metadata.items() if key != b"ARROW:schema"}
    pq.write_table(table.set_column(at, table.schema.field(at), wrong).replace_schema_metadata(stamps), part)
    with pytest.raises(RunError, match=r"proposals of part-00001\.parquet are damaged: confidence: wanted values in"):
        tallymill.rescore(run, out and tmp_path / out)
