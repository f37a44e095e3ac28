"""What an analysis says of systems, levels and columns: their names, their order, and what a RUN does not tell."""

import pyarrow as pa
import pytest

import tallymill
from tallymill.errors import UsageError


def test_the_names_of_systems(item, made, tmp_path):
    rows = [item(0, {"cat": 3}), item(1, {"cat": 3}, system="all"), item(2, {"cat": 3}, system="mine")]
    first = made(tmp_path, rows)
    (tmp_path / "deep").mkdir()
    second = made(tmp_path / "deep", rows[2:], "OTHER")
    analysis = tallymill.analyse([second, first], resamples=0)
    assert [row.system for row in analysis.systems] == ["mine (OTHER)", "all (RUN)", "mine (RUN)", "RUN"]
    assert [row.run for row in analysis.systems] == [str(second)] + [str(first)] * 3
    assert [run["systems"] for run in analysis.runs] == [["mine (OTHER)"], ["all (RUN)", "mine (RUN)", "RUN"]]


def test_what_a_run_does_not_know(item, made, tmp_path):
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


def test_words_of_ones_own(item, made, tmp_path):
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


def test_a_column_of_nothing_but_nulls(item, made, tmp_path):
    rows = [item(k, {"cat": 3}, layout="free", appearance="clean", modifier_group=None) for k in range(3)]
    analysis = tallymill.analyse(made(tmp_path, rows), resamples=0)
    assert [level.level for level in analysis.levels if level.items] == ["free", "clean"]


def test_several_runs_are_compared(cell, item, made, tmp_path, ensemble_file):
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


def test_too_many_systems(item, made, tmp_path):
    run = made(tmp_path, [item(k, {"cat": 3}, system=f"s{k}") for k in range(256)])
    with pytest.raises(UsageError, match="more than 255 systems"):
        tallymill.analyse(run, resamples=0)


def test_cores_of_several_strata(item, made, tmp_path):
    rows = [item(0, {"cat": 3}, core_id="a"), item(1, {"cat": 60}, core_id="a"), item(2, {"cat": 4}, core_id="a")]
    analysis = tallymill.analyse(made(tmp_path, rows), resamples=5)
    assert analysis.systems[0].cores == 1
    assert any("1 core has images of more than one" in note for note in analysis.notes)


def test_an_image_that_does_not_tell_its_range_lends_its_targets_to_none(item, made, tmp_path):
    rows = [item(0, {"cat": 3}, count_range="1-25"), item(1, {"cat": 101}), item(2, {"cat": 60}, count_range=None)]
    notes = tallymill.analyse(made(tmp_path, rows), resamples=0).notes
    assert not [note for note in notes if "count_range" in note]
    told = tallymill.analyse(made(tmp_path, [item(0, {"cat": 30}, count_range="1-25")], "OTHER"), resamples=0).notes
    assert [note for note in told if note.startswith("1 image has a count_range")]


def test_whose_counts_they_are_is_told_first(item, made, tmp_path, ensemble_file):
    rows = [item(0, {"cat": 3}), item(1, {"cat": 4})]
    plain = made(tmp_path, rows, "A", ensemble=ensemble_file(tmp_path / "plain.toml", "a", "b", taus=[1.0, 1.0]))
    first, second, *_ = tallymill.analyse(plain, resamples=0).notes
    assert "is not the paper's ensemble" in first
    assert second.startswith("All temperatures are 1")
    fitted = made(tmp_path, rows, "B", ensemble=ensemble_file(tmp_path / "fitted.toml", "a", "b", taus=[1.3, 1.0]))
    assert not [note for note in tallymill.analyse(fitted, resamples=0).notes if "temperatures are 1" in note]
