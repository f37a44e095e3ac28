"""Hand-made RUNs whose tables are known."""

import json

import numpy as np
import pytest

import tallymill


def test_three_cats_and_two_dogs(cell, item, made, tmp_path):
    """The paper's example: five cats and no dogs are a score of 1/6, and a binding failure."""
    run = made(tmp_path, [item(0, {"cat": 3, "dog": 2}, counted=[5, 0])])
    analysis = tallymill.analyse(run, resamples=20)
    found = cell(analysis, "double", "1-25")
    assert found.cw_nps.value == 0.16666666666666674
    assert (found.cw_nps.low, found.cw_nps.high) == (None, None)  # one core: every resample is alike
    assert found.cw_nps.null_resamples == 0
    (families,) = [f for f in analysis.families if (f.composition, f.count_range) == ("double", "all")]
    assert (families.none, families.cardinality, families.binding) == (0, 0, 1)
    (errors,) = [e for e in analysis.signed_errors if (e.composition, e.count_range) == ("all", "all")]
    assert (errors.hard.value, errors.under, errors.exact, errors.over) == (0.0, 1, 0, 1)
    empty = cell(analysis, "single", "1-25")
    assert (empty.items, empty.cw_nps.value, empty.cw_nps.low, empty.cw_nps.null_resamples) == (0, None, None, 20)


def test_images_that_do_not_tell_a_factor_are_no_cell_of_the_others(item, made, tmp_path):
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


def test_counts_of_one_and_of_two_detectors_are_told_apart(cell, tmp_path, image_folder, model_file):
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
def test_families(item, made, targets, counted, family, tmp_path):
    analysis = tallymill.analyse(made(tmp_path, [item(0, targets, counted=counted)]), resamples=0)
    found = analysis.families[-1]
    assert {"none", "cardinality", "binding"} - {family} == {
        name for name in ("none", "cardinality", "binding") if not getattr(found, name)
    }


@pytest.fixture
def crossed(item):
    """Rows of a manifest, one image a (layout, count, counted)."""

    def rows(*cells):
        return [
            item(k, {"cat": n}, counted=[seen], core_id=f"c{n}", layout=layout, appearance="clean", prompt_id=f"{k}")
            for k, (layout, n, seen) in enumerate(cells)
        ]

    return rows


def test_sensitivity_and_what_it_leaves_out(crossed, made, tmp_path):
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


def test_loss(crossed, made, tmp_path):
    analysis = tallymill.analyse(made(tmp_path, crossed(("free", 10, 8), ("free", 100, 20))), resamples=0)
    (loss,) = [row for row in analysis.losses if row.composition == "single"]
    assert loss.cw_nps.value == pytest.approx(0.75, abs=1e-15)
    assert loss.cw_nps.low is None
    stressed = [found.count_range for found in analysis.cells if found.stress_test and found.composition == "single"]
    assert stressed == ["51-75", "76-100"]


@pytest.fixture
def mixed(item):
    """An image of two targets and one of one, each in ranges of its own."""
    return [item(0, {"cat": 10, "dog": 80}, counted=[10, 0]), item(1, {"cat": 40}, counted=[20])]


def test_range_by_largest_and_by_mean(cell, made, mixed, tmp_path):
    run = made(tmp_path, mixed)
    analysis = tallymill.analyse(run, resamples=0)
    assert cell(analysis, "double", "76-100").cw_nps.value == 0.5
    by_mean = tallymill.analyse(run, range_by="mean", resamples=0)
    assert cell(by_mean, "double", "26-50").cw_nps.value == 0.5
    assert [point.count for point in by_mean.curve] == [40, 45]
    assert any("their mean" in note for note in by_mean.notes)


def test_range_by_target(cell, item, made, mixed, tmp_path):
    """Each target is a row of its own range, each error clipped alone."""
    run = made(tmp_path, [*mixed, item(2, {"cat": 10, "dog": 20}, counted=[30, 20])])
    analysis = tallymill.analyse(run, range_by="per-target", resamples=30)
    assert cell(analysis, "double", "76-100").cw_nps.value == 0.0
    found = cell(analysis, "double", "1-25")
    assert (found.items, found.scored, found.cw_nps.value) == (3, 3, 2 / 3)  # 1, 0 (clipped) and 1
    assert cell(analysis).scored == 5
    assert analysis.systems[0].scored == 3
    assert any("Each target has its own" in note for note in analysis.notes)
    errors = {(e.composition, e.count_range): e for e in analysis.signed_errors}
    assert (errors["double", "1-25"].targets, errors["double", "76-100"].hard.value) == (3, -80.0)
    alone = cell(analysis, "double", "1-25").single_cw["synthetic-a"]
    assert 0 <= alone.value <= 1
    # A core keeps its two targets together: in a resample both come as often.
    assert found.cw_nps.null_resamples == 0


def test_error_rows_have_their_cells(cell, item, made, tmp_path):
    rows = [item(0, {"cat": 3}), item(1, {"cat": 0, "dog": 101}), item(2, {"cat": 60})]
    for range_by in ("max", "per-target"):
        analysis = tallymill.analyse(made(tmp_path, rows), range_by=range_by, resamples=5)
        assert (cell(analysis).items, cell(analysis).error) == ((3, 1) if range_by == "max" else (4, 2))
        assert cell(analysis, "double", "76-100").error == 1
    assert any("1 of 3 images has no score (1 failed) and is in" in note for note in analysis.notes)


def test_a_system_without_any_score(item, made, tmp_path):
    rows = [item(0, {"cat": 200}, system="bad"), item(1, {"cat": 3}, system="good")]
    analysis = tallymill.analyse(made(tmp_path, rows), resamples=10)
    bad = analysis.overall[0]
    assert (bad.system, bad.error, bad.cw_nps.value, bad.cw_nps.null_resamples) == ("bad", 1, None, 10)
    assert "bad: no image has a score." in analysis.notes
    none = tallymill.analyse(made(tmp_path, rows[:1], "NONE"), resamples=10)
    assert none.overall[0].cw_nps.value is None
    assert none.curve == []


def test_null_resamples(cell, item, made, tmp_path):
    """Of two cores of a stratum one has a system's only image: a quarter of the resamples have none."""
    rows = [
        item(0, {"cat": 3}, system="often", core_id="a"),
        item(1, {"cat": 3}, system="often", core_id="b"),
        item(2, {"cat": 3}, system="once", core_id="a"),
    ]
    analysis = tallymill.analyse(made(tmp_path, rows), resamples=400, seed=3)
    once = cell(analysis, "single", "1-25", "once").cw_nps
    expected = sum(0 not in np.random.default_rng([3, b]).integers(0, 2, 2) for b in range(400))
    assert (once.null_resamples, once.low) == (expected, None)  # where there is a mean it is that of one core
    assert 50 < expected < 150
    assert analysis.overall[0].cw_nps.null_resamples == 0
