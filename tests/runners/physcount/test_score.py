"""Scores from files, as files, and on the command line."""

from __future__ import annotations

import contextlib
import csv
import json

import pytest

from tallymill import cli, physcount
from tallymill.engine.physcount.data import read_dataset
from tallymill.errors import ManifestError, UsageError


@pytest.fixture
def data(tmp_path, physcount_example):
    return physcount_example.worked_dataset(tmp_path / "set").root


@pytest.fixture
def worked(tmp_path, physcount_example):
    return physcount_example.worked_predictions(tmp_path / "worked.jsonl")


def test_files(data, worked, tmp_path):
    (found,) = physcount.score(data, worked, tmp_path / "out", resamples=20)
    kept = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert kept["scores"][0]["headline"]["score"]["value"] == found.headline.score.value == pytest.approx(50.46875)
    with (tmp_path / "out" / "groups.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["group_id"], float(row["score"])) for row in rows][1] == ("g2", 80.0)
    assert rows[1]["correspondence_accuracy"] == rows[1]["phys_gnd"] == ""
    answers = [json.loads(line) for line in (tmp_path / "out" / "answers.jsonl").read_text().splitlines()]
    assert len(answers) == 11
    assert {**answers[9]} == {
        "name": "worked",
        "question_id": "e4",
        "group_id": "g3",
        "question_type": "entity",
        "answer": 2,
        "prediction": None,
        "status": "malformed",
        "response": "two",
        "error": None,
    }


def test_numbers_that_python_does_not_hold_are_kept_as_they_were_written(data, tmp_path):
    path, out = tmp_path / "p.jsonl", tmp_path / "out"
    said = {"a1": "1" * 30, "e1": "-1e999", "e2": f"[{'2' * 30}, 1e999]"}
    path.write_text("".join(f'{{"question_id": "{key}", "prediction": {value}}}\n' for key, value in said.items()))
    physcount.score(data, path, out, resamples=0)
    rows = {row["question_id"]: row for row in map(strictly, (out / "answers.jsonl").read_text().splitlines())}
    assert [(rows[key]["status"], rows[key]["response"]) for key in said] == [
        ("extreme", "1" * 30),
        ("malformed", "-1e999"),
        ("malformed", ["2" * 30, "1e999"]),
    ]
    strictly((out / "scores.json").read_text())


def strictly(text):
    def refused(name):
        raise AssertionError(name)

    return json.loads(text, parse_constant=refused)


def test_the_files_appear_together_or_not_at_all(data, worked, tmp_path, monkeypatch):
    from tallymill.runners.physcount import score as runner

    def broken(_):
        raise OSError("the disk is full")
        yield

    monkeypatch.setattr(runner, "_answers", broken)
    with pytest.raises(OSError, match="full"):
        physcount.score(data, worked, tmp_path / "out", resamples=0)
    assert not (tmp_path / "out").exists()


def test_what_is_read_is_not_replaced(data, tmp_path, physcount_example):
    dataset = read_dataset(data)
    run = physcount_example.write_run(tmp_path / "RUN", dataset, {"a1": "5"})
    other = physcount_example.write_run(tmp_path / "OTHER", dataset, {"a1": "5"})
    for out, told in (
        (run, "is a RUN, whose"),
        (run / "scores", "lies in the RUN"),
        (other, "is a RUN, whose"),
        (other / "deep" / "scores", "lies in the RUN"),
        (data, "is the folder of the dataset"),
        (data / "images" / "scores", "which is the dataset's"),
        (data / "data", "which is the dataset's"),
    ):
        before = (other / "answers.jsonl").read_bytes(), (run / "answers.jsonl").read_bytes()
        with pytest.raises(UsageError, match=told):
            physcount.score(data, run, out, resamples=0)
        assert before == ((other / "answers.jsonl").read_bytes(), (run / "answers.jsonl").read_bytes())
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "answers.jsonl").symlink_to(other / "answers.jsonl")
    with pytest.raises(UsageError, match="lies in the RUN"):
        physcount.score(data, run, tmp_path / "linked", resamples=0)
    assert physcount.score(data, run, data / "scores", resamples=0)
    file = physcount_example.write_predictions(tmp_path / "answers.jsonl", {"a1": "5"})
    with pytest.raises(UsageError, match=r"would replace answers\.jsonl that is read"):
        physcount.score(data, file, tmp_path, resamples=0)


def test_several_sets_have_names_of_their_own(data, worked, tmp_path, physcount_example):
    (tmp_path / "other").mkdir()
    other = physcount_example.write_predictions(tmp_path / "other" / "worked.jsonl", {"a4": "3"})
    names = [one.name for one in physcount.score(data, [worked, other], resamples=0)]
    assert names == [f"worked ({worked})", f"worked ({other})"]
    with pytest.raises(UsageError, match="given twice"):
        physcount.score(data, [worked, worked])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"parse": "loose"}, "must be one of strict, last-integer"),
        ({"max_count": 0}, "max_count 0"),
        ({"max_count": 10**19}, "max_count 10000000000000000000: must be 1 or more, 9,007,199,254,740,991 at most"),
        ({"resamples": -1}, "resamples -1"),
    ],
)
def test_settings_that_make_no_sense(options, told, data, worked, physcount_example):
    with pytest.raises(UsageError, match=told):
        physcount.score(data, worked, **options)
    with pytest.raises(UsageError, match=told):
        physcount.compare(
            data, worked, physcount_example.write_predictions(worked.parent / "b.jsonl", {"a1": "1"}), **options
        )
    with pytest.raises(UsageError, match="no predictions"):
        physcount.score(data, [])


def test_the_command(data, worked, capsys):
    assert cli.run(["physcount", "score", "--data", str(data), "--predictions", str(worked), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["statuses"] == {
        "questions": 11,
        "valid": 10,
        "missing": 0,
        "malformed": 1,
        "negative": 0,
        "extreme": 0,
    }
    assert found["settings"] == {"parse": "strict", "max_count": 1_000_000, "resamples": 2_000}


def test_the_command_compares(data, worked, tmp_path, physcount_example, capsys):
    other = physcount_example.write_predictions(tmp_path / "other.jsonl", {"a4": "3"})
    command = ["physcount", "score", "--data", str(data), "--compare", str(worked), str(other)]
    assert cli.run([*command, "--json"]) == 0
    rows = {row["metric"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert (rows["group_acc"]["a"], rows["group_acc"]["b"], rows["group_acc"]["difference"]["value"]) == (25, 25, 0)
    assert rows["score"]["difference"]["value"] == pytest.approx(25.46875)
    assert cli.run(command) == 0


def test_several_sets_follow_one_option_and_help_has_no_empty_ones(data, worked, tmp_path, physcount_example, capsys):
    other = physcount_example.write_predictions(tmp_path / "other.jsonl", {"a4": "3"})
    command = ["physcount", "score", "--data", str(data), "--predictions", str(worked), str(other), "--json"]
    assert cli.run([*command, "--resamples", "0"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["worked", "other"]
    with contextlib.suppress(SystemExit):
        cli.run(["physcount", "score", "--help"])
    assert "--empty" not in capsys.readouterr().out


@pytest.mark.parametrize(("groups", "code", "failed"), [(None, 3, 1), (["g1", "g4"], 3, 1), (["g4"], 0, 0)])
@pytest.mark.parametrize("status", ["failed", "refused"])
def test_a_comparison_tells_of_requests_that_failed(data, tmp_path, physcount_example, groups, code, failed, status):
    dataset = read_dataset(data)
    runs = [
        physcount_example.write_run(tmp_path / name, dataset, {"a4": "3"}, model=name, errors=errors)
        for name, errors in (("one", {"a1": "HTTP 500"}), ("two", {}))
    ]
    rows = runs[0] / "answers.jsonl"
    rows.write_text(rows.read_text().replace('"failed"', f'"{status}"'))
    record = json.loads((runs[1] / "run.json").read_text())
    (runs[1] / "run.json").write_text(json.dumps({**record, "selection": {"group_ids": groups}}))
    command = ["physcount", "score", "--data", str(data), "--resamples", "0", "--compare"]
    assert cli.run([*command, *map(str, runs)]) == code
    assert cli.run([*command, *map(str, reversed(runs)), "--json"]) == code
    found = physcount.compare(data, *runs, resamples=0)
    assert (found.failed, found.refused) == ((failed, 0) if status == "failed" else (0, failed))


@pytest.mark.parametrize(("more", "told"), [(["--out", "out"], "--out"), (["--published"], "--published")])
def test_what_does_not_go_with_a_comparison_is_refused(more, told, data, worked, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cli.run(["physcount", "score", "--data", str(data), "--compare", str(worked), str(worked), *more]) == 2
    assert f"{told} does not go with --compare" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_comparison_says_what_a_reader_must_know(data, worked, tmp_path, physcount_example, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    other = physcount_example.write_predictions(tmp_path / "other.jsonl", {"a4": "3", "zz": "1"})
    found = physcount.compare(data, worked, other, parse="last-integer", max_count=50, resamples=0)
    assert found.settings == {"parse": "last-integer", "max_count": 50, "resamples": 0}
    assert found.notes == [
        "Answers are the last integer of each response: these numbers do not compare with strict ones.",
        "other: 10 question ids have no answer, and count as wrong: a1, e1, e2, f1, c1 and 5 more.",
        "other: 1 question id of no question, left aside: zz.",
    ]
    command = ["physcount", "score", "--data", str(data), "--compare", str(worked), str(other), "--resamples", "0"]
    assert cli.run([*command, "--parse", "last-integer"]) == 0
    told = " ".join("".join(capsys.readouterr()).split())
    assert "read by the rule last-integer" in told
    assert all(note in told for note in found.notes)
    run = physcount_example.write_run(tmp_path / "RUN", read_dataset(data), {"a4": "3"})
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "selection": {"group_ids": ["g4"]}}))
    assert cli.run([*command[:-3], str(run), "--resamples", "0"]) == 0
    told = " ".join("".join(capsys.readouterr()).split())
    assert "note: tiny: Only 1 of 4 groups were asked about." in told
    assert "note: 3 groups of worked left out: not asked of both." in told


@pytest.mark.parametrize("more", [[], ["--predictions", "a", "--compare", "a", "b"]])
def test_the_command_needs_one_thing(more, data, capsys):
    assert cli.run(["physcount", "score", "--data", str(data), *more]) == 2
    assert "give --predictions, or two sets with --compare A B" in capsys.readouterr().err


def test_requests_that_failed_show_in_the_exit_code(data, tmp_path):
    run = tmp_path / "RUN"
    run.mkdir()
    dataset = physcount.check(data)
    assert dataset.holds
    record = {
        "kind": "physcount",
        "mode": "independent",
        "model": "m",
        "endpoint": "http://localhost:8000/v1",
        "served": None,
        "versions": {},
        "settings": {"reasoning_effort": None},
        "data": {"sha256": read_dataset(data).sha256},
        "selection": {"limit": None, "groups": None, "group_ids": None},
    }
    (run / "run.json").write_text(json.dumps(record))
    row = {"question_ids": ["a1"], "status": "failed", "response": None, "error": "HTTP 503"}
    (run / "answers.jsonl").write_text(json.dumps(row) + "\n")
    assert cli.run(["physcount", "score", "--data", str(data), "--predictions", str(run), "--resamples", "0"]) == 3


def test_check_and_example_commands(data, tmp_path, capsys):
    assert cli.run(["physcount", "example", "--out", str(tmp_path / "drawn"), "--scenes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 2
    assert cli.run(["physcount", "check", "--data", str(tmp_path / "drawn"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["holds"]
    (data / "images" / "i1.png").unlink()
    assert cli.run(["physcount", "check", "--data", str(data)]) == 1
    told = capsys.readouterr().out
    assert "data/annotations.jsonl, line 1, column image: no such file: 'images/i1.png'" in told
    assert cli.run(["physcount", "check", "--data", str(tmp_path / "none")]) == 1
    assert "data/questions.jsonl: No such file" in capsys.readouterr().err


def test_a_dataset_without_questions(tmp_path, physcount_example, capsys):
    root = physcount_example.write_dataset(tmp_path / "set", [], [])
    file = physcount_example.write_predictions(tmp_path / "p.jsonl", {"a1": "5"})
    asked = ("--endpoint", "http://127.0.0.1:9/v1", "--model", "m")
    for command, *more in (
        ("check",),
        ("score", "--predictions", str(file)),
        ("report", "--runs", str(file), "--out", str(tmp_path / "r.html")),
        ("ask", *asked, "--out", str(tmp_path / "RUN")),
    ):
        assert cli.run(["physcount", command, "--data", str(root), *more]) == 1
        told = capsys.readouterr()
        assert "data/questions.jsonl: no questions in it" in told.out + told.err
        assert "is whole" not in told.out
    assert {path.name for path in tmp_path.iterdir()} == {"set", "p.jsonl"}


@pytest.mark.parametrize("key", ["1" * 30, "1e999", "-" + "1" * 5_000])
def test_ids_that_are_long_numbers_are_told_as_they_were_written(data, tmp_path, key):
    file = tmp_path / "p.jsonl"
    file.write_text(f'{{"question_id": {key}, "response": "3"}}\n')
    with pytest.raises(ManifestError) as caught:
        physcount.score(data, file, resamples=0)
    assert "LongNumber" not in str(caught.value)
    assert key[:30] in str(caught.value)


def test_a_long_number_and_its_text_are_two_answers(data, tmp_path):
    file = tmp_path / "p.jsonl"
    said = ("1" * 30, f'"{"1" * 30}"')
    file.write_text("".join(f'{{"question_id": "a1", "prediction": {one}}}\n' for one in said))
    with pytest.raises(ManifestError, match="another answer than in line 1"):
        physcount.score(data, file, resamples=0)


def test_more_resamples_than_memory_holds(data, worked, monkeypatch):
    with pytest.raises(UsageError, match="resamples 1,000,000,000: must be 100,000 or fewer with 2 images"):
        physcount.score(data, worked, resamples=10**9)
    other = worked.with_name("other.jsonl")
    other.write_bytes(worked.read_bytes())
    with pytest.raises(UsageError, match="must be 100,000 or fewer"):
        physcount.compare(data, worked, other, resamples=100_001)
    monkeypatch.setattr("tallymill.engine.physcount.score._MOST_HELD", 20)
    with pytest.raises(UsageError, match="resamples 11: must be 10 or fewer with 2 images"):
        physcount.score(data, worked, resamples=11)
