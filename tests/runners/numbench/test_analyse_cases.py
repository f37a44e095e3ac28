"""Hand-made RUNs whose tables are known, and RUNs that lack something: all of it is told."""

import json
import shutil
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tallymill
from tallymill.errors import RunError, UsageError
from tallymill.runners.plan import Shard
from tallymill.runners.run_folder import stamps_of
from tallymill.runners.sink import ScoresPart

ONLY = Shard(0, 0, 1)


def item(number, targets, **factors):
    return {"item_id": f"item-{number:03d}", "image": f"{number}.jpg", "targets": targets, **factors}


def made(folder, rows, name="RUN", ensemble="synthetic"):
    """A RUN of these rows. ``counted`` of a row are the counts that were found, soft and hard alike."""
    manifest = folder / f"{name}.jsonl"
    manifest.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "counted"}) + "\n" for row in rows))
    tallymill.sweep(manifest, folder / name, ensemble=ensemble, workers=0)
    if any("counted" in row for row in rows):
        rewrite(folder / name, [row["counted"] for row in rows])
    return folder / name


def rewrite(path, counted):
    """Put other counts into the scores of a RUN, and the scores that follow from them."""
    run = tallymill.load(path)
    table = run.scores
    rows = table.to_pylist()
    for row, counts in zip(rows, counted, strict=True):
        errors = []
        for target, count in zip(row["targets"], counts, strict=True):
            target["soft"] = target["hard"] = float(count)
            errors.append(abs(count - target["requested"]) / target["requested"])
        row["cw_nps"] = row["b_nps"] = max(0.0, 1.0 - sum(errors) / len(errors))
    table = pa.Table.from_pylist(rows, schema=table.schema)
    shard = Shard(0, 0, len(table))
    part = ScoresPart(path / "scores" / shard.part, stamps_of(run.record).scores, shard)
    part.write(table.combine_chunks().to_batches()[0])
    part.close({})


def cell(analysis, composition="all", count_range="all", system=None):
    for found in [*analysis.overall, *analysis.cells]:
        if (found.composition, found.count_range) == (composition, count_range) and system in (None, found.system):
            return found
    raise AssertionError("no such cell")


def test_three_cats_and_two_dogs(tmp_path):
    """The paper's example: five cats and no dogs are a score of 1/6, and a binding failure."""
    run = made(tmp_path, [item(0, {"cat": 3, "dog": 2}, counted=[5, 0])])
    analysis = tallymill.analyse(run, resamples=20)
    found = cell(analysis, "double", "1-25")
    assert found.cw_nps.value == 0.16666666666666674
    assert (found.cw_nps.low, found.cw_nps.high) == pytest.approx((1 / 6, 1 / 6), abs=1e-9)
    assert found.cw_nps.null_resamples == 0
    (families,) = [f for f in analysis.families if (f.composition, f.count_range) == ("double", "all")]
    assert (families.none, families.cardinality, families.binding) == (0, 0, 1)
    (errors,) = [e for e in analysis.signed_errors if (e.composition, e.count_range) == ("all", "all")]
    assert (errors.hard, errors.under, errors.exact, errors.over) == (0.0, 1, 0, 1)
    empty = cell(analysis, "single", "1-25")
    assert (empty.items, empty.cw_nps.value, empty.cw_nps.low, empty.cw_nps.null_resamples) == (0, None, None, 20)


def test_images_that_do_not_tell_a_factor_are_no_cell_of_the_others(tmp_path):
    known = [
        item(10 * at + n, {"cat": count}, counted=[count - at - n], layout=layout, appearance="clean")
        for at, count in enumerate((10, 40))
        for n, layout in enumerate(("grid", "random"))
    ]
    odd = [item(90 + at, {"cat": count}, counted=[0]) for at, count in enumerate((10, 40))]
    alone, mixed = (
        tallymill.analyse(made(tmp_path, rows, f"R{len(rows)}"), resamples=5) for rows in (known, known + odd)
    )
    told = [
        [(s.factor, s.relative, s.absolute, s.cells, s.cells_one_level, s.chance) for s in found.sensitivity]
        for found in (alone, mixed)
    ]
    assert told[0] == told[1]
    assert {s.factor: s.cells for s in mixed.sensitivity}["count_range"] == 2


def test_counts_of_one_and_of_two_detectors_are_told_apart(tmp_path, image_folder, model_file):
    folder = image_folder(tmp_path / "images", 4)
    wanted = [{"cat": 2, "dog": 2}, {"raccoon": 2, "dog": 1}, {"raccoon": 3}, {"cat": 4}]
    rows = [{"file_name": f"{k}.png", "targets": targets} for k, targets in enumerate(wanted)]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model_file(tmp_path / "coco.onnx")
    ensemble = tmp_path / "mixed.toml"
    ensemble.write_text(
        '[[detectors]]\nname = "coco"\nfamily = "coco_ssd"\nmodel = "coco.onnx"\n'
        '[[detectors]]\nname = "any"\nfamily = "synthetic"\n'
    )
    tallymill.sweep(folder, tmp_path / "RUN", ensemble=str(ensemble), workers=0)
    analysis = tallymill.analyse(tmp_path / "RUN", resamples=0)
    assert [(c.composition, c.detectors, c.scored) for c in analysis.coverage] == [
        ("single", 1, 1),
        ("single", 2, 1),
        ("double", 1, 1),
        ("double", 2, 1),
    ]
    assert cell(analysis).single_scored == {"coco": 2, "any": 4}
    assert any("2 by 1, 2 by 2" in note for note in analysis.notes)


@pytest.mark.parametrize(
    ("targets", "counted", "family"),
    [
        ({"cat": 3}, [3.5], "none"),
        ({"cat": 3}, [3.5000001], "cardinality"),
        ({"cat": 3, "dog": 2}, [3.5, 1.5], "none"),
        ({"cat": 3, "dog": 2}, [4.5, 1.0], "binding"),  # by half an object
        ({"cat": 3, "dog": 2}, [4.5, 0.99], "binding"),
        ({"cat": 3, "dog": 2}, [4.6, 1.0], "cardinality"),
        ({"cat": 1, "dog": 1}, [11 / 6, 2 / 3], "binding"),  # 5/6 - 1/3 = 1/2, not in floats
        ({"cat": 3, "dog": 2, "cup": 1}, [4, 2, 0], "binding"),
    ],
)
def test_families(targets, counted, family, tmp_path):
    analysis = tallymill.analyse(made(tmp_path, [item(0, targets, counted=counted)]), resamples=0)
    found = analysis.families[-1]
    assert {"none", "cardinality", "binding"} - {family} == {
        name for name in ("none", "cardinality", "binding") if not getattr(found, name)
    }


def crossed(*cells):
    """One image a (layout, count, counted)."""
    return [
        item(k, {"cat": n}, counted=[seen], core_id=f"c{n}", layout=layout, appearance="clean", prompt_id=f"{k}")
        for k, (layout, n, seen) in enumerate(cells)
    ]


def test_sensitivity_and_what_it_leaves_out(tmp_path):
    """Layouts at 10: 1 against .5; at 30: best 0, left out; at 60: one level."""
    run = made(
        tmp_path,
        crossed(("free", 10, 5), ("grid", 10, 10), ("free", 30, 0), ("grid", 30, 0), ("scene", 60, 30)),
    )
    analysis = tallymill.analyse(run, resamples=40)
    found = {row.factor: row for row in analysis.sensitivity if row.system == "RUN"}
    layout = found["layout"]
    assert (layout.relative.value, layout.absolute.value) == (0.5, 0.5)
    assert (layout.cells, layout.cells_best_zero, layout.cells_one_level) == (1, 1, 1)
    assert layout.relative.low is None
    assert layout.chance == pytest.approx(0.5, abs=1e-9)  # each stratum has one core
    # free: 1-25 has .5, 26-50 has 0; grid: 1 and 0; scene has one range.
    counts = found["count_range"]
    assert (counts.relative.value, counts.cells, counts.cells_one_level) == (1.0, 2, 1)
    assert found["composition"].relative.value is None
    assert found["composition"].chance is None
    assert (found["composition"].cells, found["composition"].cells_one_level) == (0, 5)
    contrasts = {row.level: row for row in analysis.contrasts if row.factor == "layout"}
    assert (contrasts["grid"].cores, contrasts["grid"].cw_nps.value) == (2, 0.25)
    assert (contrasts["guided"].cores, contrasts["scene"].cores, contrasts["scene"].cw_nps.value) == (2, 0, None)
    (loss,) = [row for row in analysis.losses if row.composition == "single"]
    assert loss.cw_nps.value is None  # no image above 75


def test_loss(tmp_path):
    analysis = tallymill.analyse(made(tmp_path, crossed(("free", 10, 8), ("free", 100, 20))), resamples=0)
    (loss,) = [row for row in analysis.losses if row.composition == "single"]
    assert loss.cw_nps.value == pytest.approx(0.75, abs=1e-15)
    assert loss.cw_nps.low is None
    stressed = [found.count_range for found in analysis.cells if found.stress_test and found.composition == "single"]
    assert stressed == ["51-75", "76-100"]


MIXED = [item(0, {"cat": 10, "dog": 80}, counted=[10, 0]), item(1, {"cat": 40}, counted=[20])]


def test_range_by_largest_and_by_mean(tmp_path):
    run = made(tmp_path, MIXED)
    analysis = tallymill.analyse(run, resamples=0)
    assert cell(analysis, "double", "76-100").cw_nps.value == 0.5
    by_mean = tallymill.analyse(run, range_by="mean", resamples=0)
    assert cell(by_mean, "double", "26-50").cw_nps.value == 0.5
    assert [point.count for point in by_mean.curve] == [40, 45]
    assert any("their mean" in note for note in by_mean.notes)


def test_range_by_target(tmp_path):
    """Each target is a row of its own range, each error clipped alone."""
    run = made(tmp_path, [*MIXED, item(2, {"cat": 10, "dog": 20}, counted=[30, 20])])
    analysis = tallymill.analyse(run, range_by="per-target", resamples=30)
    assert cell(analysis, "double", "76-100").cw_nps.value == 0.0
    found = cell(analysis, "double", "1-25")
    assert (found.items, found.scored, found.cw_nps.value) == (3, 3, 2 / 3)  # 1, 0 (clipped) and 1
    assert cell(analysis).scored == 5
    assert analysis.systems[0].scored == 3
    assert any("Each target has its own" in note for note in analysis.notes)
    errors = {(e.composition, e.count_range): e for e in analysis.signed_errors}
    assert (errors["double", "1-25"].targets, errors["double", "76-100"].hard) == (3, -80.0)
    alone = cell(analysis, "double", "1-25").single_cw["synthetic-a"]
    assert 0 <= alone.value <= 1
    # A core keeps its two targets together: in a resample both come as often.
    assert found.cw_nps.null_resamples == 0


def test_error_rows_have_their_cells(tmp_path):
    rows = [item(0, {"cat": 3}), item(1, {"cat": 0, "dog": 101}), item(2, {"cat": 60})]
    for range_by in ("max", "per-target"):
        analysis = tallymill.analyse(made(tmp_path, rows), range_by=range_by, resamples=5)
        assert (cell(analysis).items, cell(analysis).error) == ((3, 1) if range_by == "max" else (4, 2))
        assert cell(analysis, "double", "76-100").error == 1
    assert any("1 of 3 images has no score (1 failed) and is in" in note for note in analysis.notes)


def test_a_system_without_any_score(tmp_path):
    rows = [item(0, {"cat": 200}, system="bad"), item(1, {"cat": 3}, system="good")]
    analysis = tallymill.analyse(made(tmp_path, rows), resamples=10)
    bad = analysis.overall[0]
    assert (bad.system, bad.error, bad.cw_nps.value, bad.cw_nps.null_resamples) == ("bad", 1, None, 10)
    assert "bad: no image has a score." in analysis.notes
    none = tallymill.analyse(made(tmp_path, rows[:1], "NONE"), resamples=10)
    assert none.overall[0].cw_nps.value is None
    assert none.curve == []


def test_null_resamples(tmp_path):
    """Of two cores of a stratum one has a system's only image: a quarter of the resamples have none."""
    rows = [
        item(0, {"cat": 3}, system="often", core_id="a"),
        item(1, {"cat": 3}, system="often", core_id="b"),
        item(2, {"cat": 3}, system="once", core_id="a"),
    ]
    analysis = tallymill.analyse(made(tmp_path, rows), resamples=400, seed=3)
    once = cell(analysis, "single", "1-25", "once").cw_nps
    expected = sum(0 not in np.random.default_rng([3, b]).integers(0, 2, 2) for b in range(400))
    assert (once.null_resamples, once.low) == (expected, pytest.approx(once.value, abs=1e-9))
    assert 50 < expected < 150
    assert analysis.overall[0].cw_nps.null_resamples == 0


def test_the_names_of_systems(tmp_path):
    rows = [item(0, {"cat": 3}), item(1, {"cat": 3}, system="all"), item(2, {"cat": 3}, system="mine")]
    first = made(tmp_path, rows)
    (tmp_path / "deep").mkdir()
    second = made(tmp_path / "deep", rows[2:], "OTHER")
    analysis = tallymill.analyse([second, first], resamples=0)
    assert [row.system for row in analysis.systems] == ["mine (OTHER)", "all (RUN)", "mine (RUN)", "RUN"]
    assert [row.run for row in analysis.systems] == [str(second)] + [str(first)] * 3
    assert [run["systems"] for run in analysis.runs] == [["mine (OTHER)"], ["all (RUN)", "mine (RUN)", "RUN"]]


def test_what_a_run_does_not_know(tmp_path):
    rows = [item(0, {"cat": 3}), item(1, {"cat": 3, "dog": 1}), item(2, {"cat": 1, "dog": 2, "cup": 30})]
    analysis = tallymill.analyse(made(tmp_path, rows), resamples=5)
    assert [c.composition for c in analysis.cells if c.count_range == "all"] == ["single", "double", "multiple"]
    assert analysis.levels == analysis.contrasts == analysis.collision == []
    assert [row.factor for row in analysis.sensitivity[:2]] == ["count_range", "composition"]
    told = " ".join(analysis.notes)
    for words in (
        "No image tells its layout",
        "No image tells its appearance",
        "“multiple”",
        "3 images without a prompt_id",
    ):
        assert words in told
    assert analysis.systems[0].cores == 3


def test_words_of_ones_own(tmp_path):
    """The paper's levels first, then others by name, images without one last."""
    words = ("tower", "grid", None, "arch")
    rows = [
        item(k, {"cat": 3}, composition="crowd", appearance="dirty", count_range="76-100", nested=[1], layout=word)
        for k, word in enumerate(words)
    ]
    analysis = tallymill.analyse(made(tmp_path, [{k: v for k, v in r.items() if v} for r in rows]), resamples=5)
    layouts = [level.level for level in analysis.levels if level.factor == "layout"]
    assert layouts == ["free", "grid", "scene", "random", "arch", "tower", "unknown"]
    assert [level.level for level in analysis.levels if level.factor == "appearance"] == ["clean", "modified", "dirty"]
    assert [c.composition for c in analysis.cells if c.count_range == "all"] == ["single", "double", "crowd"]
    told = " ".join(analysis.notes)
    assert "4 images have a count_range that is not" in told
    assert "Some images do not tell their layout" in told
    found = {row.factor: row for row in analysis.sensitivity}
    assert found["layout"].cells == 1  # the three that are known, in one cell


def test_columns_that_are_no_factors(tmp_path):
    columns = {name: [f"{name} {k}" for k in range(40)] for name in ("item_id", "image", "layout")}
    table = pa.table({**columns, "targets": ["cat=3"] * 40, "appearance": [["x"]] * 40})
    tallymill.sweep(table, tmp_path / "RUN", ensemble="synthetic", workers=0)
    analysis = tallymill.analyse(tmp_path / "RUN", resamples=0)
    told = " ".join(analysis.notes)
    assert "layout has more than 31 different values" in told
    assert "column appearance holds lists" in told
    assert analysis.levels == []


def test_several_runs_are_compared(tmp_path, ensemble_file):
    rows = [item(k, {"cat": 3 + k}, prompt_id=f"p{k}", system="one") for k in range(4)]
    first = made(tmp_path, rows, "A")
    warm = ensemble_file(tmp_path / "warm.toml", "synthetic-a", taus=(1.2,))
    second = made(tmp_path, [{**row, "system": "two"} for row in rows[:2]], "B", ensemble=warm)
    analysis = tallymill.analyse([first, second], resamples=10)
    assert [(row.prompts, row.prompts_missing) for row in analysis.systems] == [(4, 0), (2, 2)]
    told = " ".join(analysis.notes)
    assert "two: 2 prompts have no image" in told
    assert "was scored with other detectors" in told
    assert cell(analysis, system="two").single_cw["synthetic-b"].value is None
    assert cell(analysis, system="two").single_cw["synthetic-a"].value is not None
    assert {(row.system, row.detector) for row in analysis.saturation} == {
        *(("one", f"synthetic-{name}") for name in "abc"),
        ("two", "synthetic-a"),
    }


def test_a_prompts_file_brings_factors(tmp_path):
    prompts = [
        {"prompt_id": f"p{k}", "core_id": f"c{k // 2}", "layout": ("free", "grid")[k % 2], "appearance": "clean"}
        for k in range(6)
    ]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({**p, "targets": {"cat": 3}}) + "\n" for p in prompts))
    rows = [item(k, {"cat": 3}, prompt_id=f"p{k}") for k in range(4)] + [item(9, {"cat": 3}, prompt_id="else")]
    run = made(tmp_path, rows)
    analysis = tallymill.analyse(run, resamples=0, prompts=file)
    assert {(row.level, row.items) for row in analysis.levels if row.factor == "layout" and row.items} == {
        ("free", 2),
        ("grid", 2),
        ("unknown", 1),
    }
    assert (analysis.systems[0].cores, analysis.systems[0].prompts_missing) == (3, 2)
    assert "Of the 5 prompts of the images 1 are not in prompts.jsonl." in analysis.notes
    # The same factors in the RUN itself give the same.
    joined = made(tmp_path, [{**row, **prompt} for row, prompt in zip(rows, prompts, strict=False)], "JOINED")
    again = tallymill.analyse(joined, resamples=0)
    assert [row.cw_nps for row in again.contrasts] == [row.cw_nps for row in analysis.contrasts]


def prompts_file(path, asked):
    rows = [{"prompt_id": name, "targets": targets, "layout": "free"} for name, targets in asked.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def swept(folder, name, prompts, ids):
    manifest = folder / f"{name}.csv"
    manifest.write_text("image,prompt_id\n" + "".join(f"{name}-{k}.jpg,{i}\n" for k, i in enumerate(ids)))
    tallymill.sweep(manifest, folder / name, ensemble="synthetic", prompts=prompts, workers=0)
    return folder / name


def test_another_prompts_file_with_the_same_ids_is_refused(tmp_path):
    """As the files of two seeds are."""
    mine = prompts_file(tmp_path / "mine.jsonl", {f"p{k}": {"cat": 1 + k, "dog": 2} for k in range(6)})
    other = prompts_file(tmp_path / "other.jsonl", {f"p{k}": {"cat": 1 + k, "dog": 2 + (k > 0)} for k in range(6)})
    same = prompts_file(tmp_path / "same.jsonl", {f"p{k}": {"dog": 2, "cat": 1 + k} for k in range(5)})
    run = swept(tmp_path, "RUN", mine, [f"p{k}" for k in (5, 0, 3, 3, 2, 1)])
    told = r"other.jsonl is not the prompts file of .*RUN: p1, p2, p3 and others ask for something else there"
    with pytest.raises(UsageError, match=told):
        tallymill.analyse(run, resamples=0, prompts=other)
    with pytest.raises(UsageError, match=told):
        tallymill.report(run, tmp_path / "r.html", resamples=0, prompts=other)
    assert tallymill.analyse(run, resamples=0, prompts=mine).systems[0].prompts_missing == 1
    # The order of targets is nothing, and a part of the file is only that.
    notes = tallymill.analyse(run, resamples=0, prompts=same).notes
    assert "Of the 5 prompts of the images 1 are not in same.jsonl." in notes


def test_what_a_row_asks_for_itself_goes_before_its_prompt(tmp_path):
    """So that the file which the RUN was swept with is always its own."""
    mine = prompts_file(tmp_path / "mine.jsonl", {"p": {"cat": 1}})
    manifest = tmp_path / "m.csv"
    manifest.write_text("image,prompt_id,targets\na.jpg,p,cat=2\nb.jpg,p,\n")
    tallymill.sweep(manifest, tmp_path / "RUN", ensemble="synthetic", prompts=mine, workers=0)
    assert tallymill.analyse(tmp_path / "RUN", resamples=0, prompts=mine).systems[0].items == 2


def test_runs_whose_ids_mean_different_things_are_not_joined(tmp_path):
    one = prompts_file(tmp_path / "one.jsonl", {f"p{k}": {"cat": 1 + k} for k in range(6)})
    two = prompts_file(tmp_path / "two.jsonl", {f"p{k}": {"cat" if k < 2 else "dog": 1 + k} for k in range(6)})
    first = swept(tmp_path, "A", one, [f"p{k}" for k in range(6)])
    alike = swept(tmp_path, "B", one, [f"p{k}" for k in range(3)])
    clash = swept(tmp_path, "C", two, [f"p{k}" for k in (5, 4, 3, 2, 1, 0)])
    apart = swept(tmp_path, "D", two, ["p1"])
    told = r"A and .*C ask for different targets under the same prompt_id \(p2, p3, p4 and 1 more\)"
    with pytest.raises(UsageError, match=told):
        tallymill.analyse([first, alike, clash], resamples=0)
    notes = tallymill.analyse([first, alike], resamples=0).notes
    assert not any("another prompts file" in note for note in notes)
    notes = tallymill.analyse([first, apart], resamples=0).notes
    assert any(note.startswith(f"{apart} was swept with another prompts file than {first}: ") for note in notes)


def test_cores_that_mean_different_things_are_not_joined(tmp_path):
    def rows(category, second=None):
        asked = [category, second or category]
        return [item(k, {asked[k]: 3}, prompt_id=f"{category}-{k}", core_id="s-1") for k in range(2)]

    cats, dogs, both = (made(tmp_path, rows(*w), w[-1]) for w in (["cat"], ["dog"], ["bird", "horse"]))
    with pytest.raises(UsageError, match=r"cat and .*dog ask for different targets under the same core_id \(s-1\)"):
        tallymill.analyse([cats, dogs], resamples=0)
    # Where a core is not one set of targets there is nothing to compare.
    assert tallymill.analyse([cats, both], resamples=0).systems[0].cores == 1


def test_a_prompt_that_asks_for_several_things_within_a_run_is_told(tmp_path):
    one = made(tmp_path, [item(k, {"cat": 3 + k}, prompt_id="p") for k in range(2)], "one")
    two = made(tmp_path, [item(0, {"cat": 9}, prompt_id="q")], "two")
    assert "Under 1 prompt_id images of one RUN ask for different targets." in (
        tallymill.analyse([one, two], resamples=0).notes
    )


def test_uncovered_images_and_sizes(tmp_path, image_folder, image_ensemble_file):
    images = image_folder(tmp_path / "images", 6)
    lines = [json.loads(line) for line in (images / "metadata.jsonl").read_text().splitlines()]
    lines[1]["targets"] = {"raccoon": 2}
    lines[2]["targets"] = {"raccoon": 2, "cat": 60}
    (images / "5.png").write_bytes(b"no image")
    (images / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = tmp_path / "RUN"
    ensemble = image_ensemble_file(tmp_path / "e.toml", "x", "y")
    tallymill.sweep(images, run, ensemble=ensemble, workers=0, keep_suppressed=True)
    analysis = tallymill.analyse(run, resamples=10)
    (row,) = analysis.systems
    assert (row.scored, row.error, row.uncovered, row.not_1024) == (3, 1, 2, 5)
    assert [asdict(u) for u in analysis.uncovered] == [{"system": "RUN", "category": "raccoon", "items": 2}]
    assert "RUN: 3 of 6 images have no score (1 failed, 2 uncovered) and are in no mean." in analysis.notes
    assert "RUN: 5 images are not 1024 x 1024." in analysis.notes
    assert cell(analysis, "double", "51-75").uncovered == 1
    assert [(failure.items, failure.first_item) for failure in analysis.failures] == [(1, "5.png")]
    # Of several shards that are read together only some have any.
    tallymill.sweep(images, tmp_path / "SHARDS" / "RUN", ensemble=ensemble, workers=0, shard_items=1)
    again = tallymill.analyse(tmp_path / "SHARDS" / "RUN", resamples=0)
    assert (again.uncovered, again.failures) == (analysis.uncovered, analysis.failures)


def test_proposals_that_are_not_there(tmp_path):
    run = made(tmp_path, [item(0, {"cat": 3})])
    before = tallymill.analyse(run, resamples=0)
    shutil.rmtree(run / "proposals")
    analysis = tallymill.analyse(run, resamples=0)
    assert cell(analysis).cw_nps == cell(before).cw_nps
    assert analysis.saturation == []
    assert cell(analysis).single_cw["synthetic-a"].value is None
    assert any("its proposals are not there" in note for note in analysis.notes)


def test_a_rescored_run(tmp_path):
    run = made(tmp_path, [item(k, {"cat": 3 + k}) for k in range(5)])
    tallymill.rescore(run, tmp_path / "NEW", taus={"synthetic-a": 1.3})
    analysis = tallymill.analyse(tmp_path / "NEW", resamples=0)
    assert analysis.runs[0]["rescored_from"] == str(run)
    assert cell(analysis).cw_nps.value == tallymill.load(tmp_path / "NEW").summary().cw_nps


@pytest.mark.parametrize("what", ["scores", "proposals/synthetic-b"])
def test_a_part_that_is_missing_or_damaged(what, tmp_path):
    run = made(tmp_path, [item(k, {"cat": 3}) for k in range(40)])
    part = run / what / "part-00001.parquet"
    whole = part.read_bytes()
    part.unlink()
    with pytest.raises(RunError, match=r"part-00001") as caught:
        tallymill.analyse(run, resamples=0)
    assert "run" in caught.value.hint
    part.write_bytes(whole[:100] + bytes(200) + whole[300:])
    with pytest.raises(RunError, match=r"part-00001"):
        tallymill.analyse(run, resamples=0)


def test_a_score_that_no_sweep_writes(tmp_path):
    run = made(tmp_path, [item(0, {"cat": 3}, counted=[3])])
    for wrong in (1.5, -0.1, 1e-300, float("nan")):
        table = pq.read_table(run / "scores" / "part-00000.parquet")
        table = table.set_column(table.schema.get_field_index("cw_nps"), "cw_nps", pa.array([wrong]))
        part = ScoresPart(run / "scores" / ONLY.part, stamps_of(tallymill.load(run).record).scores, ONLY)
        part.write(table.combine_chunks().to_batches()[0])
        part.close({})
        with pytest.raises(RunError, match="not a number that equation 8 can give"):
            tallymill.analyse(run, resamples=0)


def test_counts_that_no_sweep_writes(tmp_path):
    run = made(tmp_path, [item(0, {"cat": 3}, counted=[3])])
    for field, wrong in (("soft", float("inf")), ("hard", float("nan")), ("hard", -1.0), ("requested", 0)):
        table = tallymill.load(run).scores
        rows = table.to_pylist()
        rows[0]["targets"][0][field] = wrong
        copy = tmp_path / f"{field}{wrong}"
        shutil.copytree(run, copy)
        part = ScoresPart(copy / "scores" / "part-00000.parquet", stamps_of(tallymill.load(run).record).scores, ONLY)
        part.write(pa.Table.from_pylist(rows, schema=table.schema).to_batches()[0])
        part.close({})
        with pytest.raises(RunError, match=r"of a scored image is not|asks for a count outside"):
            tallymill.analyse(copy, resamples=0)


def test_a_column_of_nothing_but_nulls(tmp_path):
    rows = [item(k, {"cat": 3}, layout="free", appearance="clean", modifier_group=None) for k in range(3)]
    analysis = tallymill.analyse(made(tmp_path, rows), resamples=0)
    assert [level.level for level in analysis.levels if level.items] == ["free", "clean"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"range_by": "least"}, "must be one of max, mean, per-target"),
        ({"resamples": -1}, "resamples -1: must be 0 or more"),
        ({"seed": -1}, "seed -1: must be 0 or more"),
        ({"workers": -1}, "workers = -1"),
    ],
)
def test_wrong_options(options, message, tmp_path):
    run = made(tmp_path, [item(0, {"cat": 3})])
    with pytest.raises(UsageError, match=message):
        tallymill.analyse(run, **options)
    with pytest.raises(UsageError, match="no RUN to analyse"):
        tallymill.analyse([])


def test_too_many_systems(tmp_path):
    run = made(tmp_path, [item(k, {"cat": 3}, system=f"s{k}") for k in range(256)])
    with pytest.raises(UsageError, match="more than 255 systems"):
        tallymill.analyse(run, resamples=0)


def test_cores_of_several_strata(tmp_path):
    rows = [item(0, {"cat": 3}, core_id="a"), item(1, {"cat": 60}, core_id="a"), item(2, {"cat": 4}, core_id="a")]
    analysis = tallymill.analyse(made(tmp_path, rows), resamples=5)
    assert analysis.systems[0].cores == 1
    assert any("1 core has images of more than one" in note for note in analysis.notes)
