"""What ``tallymill analyse`` writes and prints."""

import csv
import json
from dataclasses import asdict, fields

import pytest

import tallymill
from tallymill.engine.numbench.analysis.results import Agreement, AgreementRow, Analysis
from tallymill.engine.report.markdown import markdown
from tallymill.engine.report.serialize import from_json
from tallymill.errors import RunError, UsageError
from tallymill.runners.numbench.analysis_files import load_analysis, write_analysis

HOSTILE = "a|b <script>alert(1)</script>\n# *x* `y` [z](http://e) ‮ 😀 " + "w" * 300


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    rows = [
        {
            "item_id": f"i{k}",
            "image": "x.jpg",
            "system": ("plain", HOSTILE)[k % 2],
            "targets": {"cat": 1 + 9 * (k % 12), **({"dog": 3} if k % 3 else {})},
            "core_id": f"c{k // 4}",
            "layout": ("free", "grid")[k // 2 % 2],
            "appearance": "clean",
        }
        for k in range(48)
    ]
    (folder / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tallymill.sweep(folder / "m.jsonl", folder / "RUN", ensemble="synthetic", workers=0)
    return folder / "RUN"


@pytest.fixture(scope="module")
def analysis(run):
    return tallymill.analyse(run, resamples=15)


@pytest.fixture(scope="module")
def agreed(analysis):
    row = AgreementRow("plain", "51-75", True, 9, 8, 9, 0.5, None, 0.9, None, "n < 3", 0.4, 0.5, 0.1, 2, 1)
    agreement = Agreement("people.csv", "0" * 64, 3, 1, "max", [row], ["One image was left out."])
    return Analysis(**{f.name: getattr(analysis, f.name) for f in fields(Analysis)} | {"agreement": agreement})


@pytest.mark.parametrize("which", ["analysis", "agreed"])
def test_json_comes_back(which, request, tmp_path):
    given = request.getfixturevalue(which)
    write_analysis(given, tmp_path / "OUT")
    assert load_analysis(tmp_path / "OUT") == given
    assert load_analysis(tmp_path / "OUT" / "analysis.json") == given
    assert (tmp_path / "OUT" / "agreement.csv").exists() == (which == "agreed")


def test_a_table_a_file(analysis, agreed, tmp_path):
    write_analysis(agreed, tmp_path)
    names = {f.name for f in fields(Analysis)} - {"settings", "runs", "notes"}
    assert {path.stem for path in tmp_path.glob("*.csv")} == names
    with (tmp_path / "cells.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(analysis.cells)
    for row, cell in zip(rows, analysis.cells, strict=True):
        assert row["system"] == cell.system
        for name in ("cw_nps", "b_nps", "gap"):
            value = getattr(cell, name)
            for column, number in ((name, value.value), (f"{name}_low", value.low), (f"{name}_high", value.high)):
                assert row[column] == ("" if number is None else repr(number))
            assert row[f"{name}_null"] == str(value.null_resamples)
        alone = cell.single_cw["synthetic-b"].value
        assert row["single_cw:synthetic-b"] == ("" if alone is None else repr(alone))
    with (tmp_path / "visible.csv").open(newline="") as file:
        assert all(row["stress_test"] == str(int(row["count"]) > 50) for row in csv.DictReader(file))
    assert json.loads((tmp_path / "analysis.json").read_text())["tallymill"] == tallymill.__version__
    assert (tmp_path / "uncovered.csv").read_text() == "system,category,items\n"
    # An analysis without people takes their table away.
    write_analysis(analysis, tmp_path)
    assert not (tmp_path / "agreement.csv").exists()


def test_markdown(agreed):
    text = markdown(agreed)
    assert "## Scores by count range (Table 4)" in text
    assert "51-75 ‡" in text
    assert "| loss ‡ |" in text
    assert "stress test" in text
    assert "## Agreement with people" in text
    assert "- One image was left out." in text
    for raw in ("<script>", "\n# *x*", "`y`", "[z]("):
        assert raw not in text
    heads = [line for line in text.splitlines() if line.startswith("| system")]
    for head in heads:
        block = text[text.index(head) :].split("\n\n")[0].splitlines()
        assert len({line.replace("\\|", "").count("|") for line in block}) == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not an analysis"),
        ("[" * 100_000, "is not an analysis"),
        ("[]", "not a Analysis"),
        ('{"notes": []}', "missing"),
        ('{"color": 1}', "not a Analysis"),
        ('{"tallymill": "9.9", "color": 1}', r"not a Analysis \(tallymill 9\.9 wrote it, this is \d"),
    ],
)
def test_files_that_are_no_analysis(text, told, tmp_path):
    (tmp_path / "analysis.json").write_text(text)
    with pytest.raises(RunError, match=told):
        load_analysis(tmp_path)
    with pytest.raises(RunError, match="no such file"):
        load_analysis(tmp_path / "else.json")


def test_a_table_that_cannot_get_its_name_leaves_the_others_as_they_were(analysis, agreed, tmp_path):
    write_analysis(agreed, tmp_path)
    (tmp_path / "analysis.md").unlink()
    (tmp_path / "analysis.md").mkdir()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(UsageError, match=r"analysis\.md is no regular file"):
        write_analysis(analysis, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_a_value_of_another_kind(analysis, tmp_path):
    value = asdict(analysis)
    value["systems"][0]["items"] = "many"
    (tmp_path / "analysis.json").write_text(json.dumps(value))
    with pytest.raises(RunError, match="'many' is not"):
        load_analysis(tmp_path)


def test_where_it_may_be_written(run, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="is a file"):
        tallymill.analyse(run, tmp_path / "file", resamples=0)
    with pytest.raises(UsageError, match="lies in the RUN"):
        tallymill.analyse(run, run, resamples=0)
    (tmp_path / "annotations.csv").write_text("nothing of the kind\n")
    with pytest.raises(UsageError, match="is a file"):  # tried before anything else is read
        tallymill.analyse(run, tmp_path / "file", resamples=0, annotations=tmp_path / "annotations.csv")
    for _ in range(2):
        tallymill.analyse(run, tmp_path / "OUT", resamples=0)
    assert load_analysis(tmp_path / "OUT").settings == {"range_by": "max", "resamples": 0, "seed": 0}


def test_the_command(run, analysis, command, tmp_path):
    done = command("analyse", run, "--resamples", 15, "--out", tmp_path / "OUT", "--workers", 2)
    assert done.returncode == 0, done.stderr
    for words in (
        "Scores by count range (Table 4)",
        "51-75 ‡",
        "stress test",
        "Failure families",
        "note: plain",
        "1-25",
    ):
        assert words in done.stdout
    assert load_analysis(tmp_path / "OUT") == analysis
    told = command("analyse", run, "--resamples", 15, "--json")
    assert from_json(json.loads(told.stdout)) == analysis
    assert command("analyse").returncode == 2
    assert command("analyse", run, "--range-by", "least").returncode == 2
    missing = command("analyse", tmp_path / "none")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "is not a RUN" in missing.stderr


def test_failed_images_are_an_exit_code(tmp_path, command):
    (tmp_path / "m.jsonl").write_text('{"image": "x.jpg", "targets": {"cat": 200}}\n')
    tallymill.sweep(tmp_path / "m.jsonl", tmp_path / "RUN", ensemble="synthetic", workers=0)
    assert command("analyse", tmp_path / "RUN", "--resamples", 0).returncode == 3
