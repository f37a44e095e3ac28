"""Answers of anybody's file and of a RUN: what counts, what is missing, what is refused."""

from __future__ import annotations

import hashlib
import json

import pytest

from tallymill.engine.physcount.parse import Parsed
from tallymill.engine.physcount.predictions import read_predictions
from tallymill.errors import ManifestError, RunError


@pytest.fixture
def dataset(tmp_path, physcount_example):
    return physcount_example.worked_dataset(tmp_path / "set")


@pytest.fixture
def read(tmp_path, dataset):
    """Predictions from lines: texts, or objects."""

    def of(*lines, **options):
        path = tmp_path / "p.jsonl"
        path.write_bytes(b"".join((x if isinstance(x, bytes) else json.dumps(x).encode()) + b"\n" for x in lines))
        return read_predictions(path, dataset, **options)

    return of


def test_responses_and_predictions(read):
    found = read(
        {"question_id": "a1", "response": "5"},
        {"question_id": "e1", "prediction": 3},
        {"question_id": "e2", "prediction": 4.0},
        {"question_id": "f1", "prediction": None},
        {"question_id": "c1", "response": "one, I think: 1"},
        {"question_id": "c2", "response": "7", "finish_reason": "length"},
        b'{"question_id": "a2", "prediction": ' + b"1" * 5_000 + b"}",
        {"question_id": "e3", "response": [{"type": "text", "text": "4"}]},
    )
    statuses = {key: answer.parsed for key, answer in found.answers.items()}
    assert statuses == {
        "a1": Parsed("valid", 5),
        "e1": Parsed("valid", 3),
        "e2": Parsed("malformed"),
        "f1": Parsed("missing"),
        "c1": Parsed("malformed"),
        "c2": Parsed("malformed"),
        "a2": Parsed("extreme"),
        "e3": Parsed("valid", 4),
        "a3": Parsed("missing"),
        "e4": Parsed("missing"),
        "a4": Parsed("missing"),
    }
    assert found.missing == ["f1", "a3", "e4", "a4"]
    assert found.answers["c1"].response == "one, I think: 1"
    assert (found.name, found.mode, found.failed) == ("p", "file", {})


def test_the_looser_rule(read):
    assert read({"question_id": "a1", "response": "It is 5."}, rule="last-integer").answers["a1"].parsed.value == 5


def test_unknown_and_repeated_ids_are_named(read):
    found = read(
        {"question_id": "zz", "response": "5"},
        {"question_id": "a1", "response": "5"},
        {"question_id": "a1", "response": "5"},
    )
    assert (found.unknown, found.duplicates) == (["zz"], ["a1"])


def test_a_response_and_the_prediction_that_was_read_from_it_go_together(read):
    found = read(
        {"question_id": "a1", "response": " 5", "prediction": 5},
        {"question_id": "e1", "response": "no idea", "prediction": None},
    )
    assert found.answers["a1"].parsed == Parsed("valid", 5)
    assert found.answers["e1"].parsed == Parsed("malformed")


def test_a_file_of_other_data_is_no_score_of_nothing(read, dataset):
    with pytest.raises(ManifestError, match=r"none of its 2 question ids is in .*set: 'x', 'y'\n.*right --data.*'a1'"):
        read({"question_id": "x", "response": "5"}, {"question_id": "y", "response": "5"})
    with pytest.raises(ManifestError, match="no predictions in it"):
        read()
    rows = [{"question_id": key, "response": "5"} for key in ("a1", "x", "y")]
    (note,) = read(*rows).notes
    assert note == f"Most ids of the file (2 of 3) are of no question of {dataset.root}: is this the right data?"
    assert read(*rows[:2]).notes == []


def test_what_is_no_jsonl_file_is_told_at_once(tmp_path, dataset, physcount_example):
    (tmp_path / "p.csv").write_text("question_id,response\na1,5\n")
    with pytest.raises(ManifestError, match=r"p\.csv: a JSONL file is wanted"):
        read_predictions(tmp_path / "p.csv", dataset)
    run = physcount_example.write_run(tmp_path / "RUN", dataset, {"a1": "5"})
    with pytest.raises(ManifestError, match=r"belongs to a RUN\n.*give the folder: .*RUN$"):
        read_predictions(run / "answers.jsonl", dataset)


def test_the_sha256_of_a_file_is_kept(tmp_path, dataset, physcount_example):
    path = physcount_example.worked_predictions(tmp_path / "p.jsonl")
    assert read_predictions(path, dataset).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_two_answers_to_one_question_are_refused(read):
    with pytest.raises(ManifestError, match="line 2, column question_id: another answer than in line 1: 'a1'"):
        read({"question_id": "a1", "response": "5"}, {"question_id": "a1", "response": "6"})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'"prediction": 3', b'"prediction": 3.0'),
        (b'"prediction": 1', b'"prediction": true'),
        (b'"prediction": 3', b'"prediction": "3"'),
        (b'"prediction": ' + b"1" * 30, b'"prediction": "' + b"1" * 30 + b'"'),
        (b'"prediction": null', b'"prediction": null, "response": null'),
        (b'"response": "3"', b'"response": "3", "finish_reason": "length"'),
    ],
)
def test_answers_that_only_look_alike_are_two(one, other, read):
    lines = [b'{"question_id": "a1", ' + said + b"}" for said in (one, other)]
    assert read(lines[0], lines[0]).duplicates == read(lines[1], lines[1]).duplicates == ["a1"]
    with pytest.raises(ManifestError, match="line 2, column question_id: another answer than in line 1: 'a1'"):
        read(*lines)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"question_id":"b","te', "line 1: not JSON"),
        (b"[1]", "line 1: not an object"),
        (b'{"question_id": null, "response": "1"}', "line 1, column question_id: must be a text"),
        (b'{"id": "a1", "response": "1"}', "line 1: no question_id (it has id, response)"),
        (
            b'{"question_id": "a1", "response": "so, 5", "prediction": 5}',
            "line 1: its response is read as malformed, its prediction as 5: keep one of the two",
        ),
        (b'{"question_id": "a1", "response": "4", "prediction": 5}', "its response is read as 4, its prediction as 5"),
        (b'{"question_id": "a1"}', "line 1: has neither response nor prediction"),
        (b'{"question_id": "a1", "question_id": "a2", "prediction": 1}', "line 1: the key 'question_id' stands twice"),
        (b'{"question_id": "a1", "prediction": 1, "prediction": 1}', "line 1: the key 'prediction' stands twice"),
        (b'{"question_id": "a1", "response": [{"text": "1", "text": "2"}]}', "line 1: the key 'text' stands twice"),
        (b'{"question_id": "\xff"}', "not UTF-8"),
        (b"[" * 100_000, "line 1: not JSON"),
        (b'{"question_id": "a1", "prediction": NaN}', "line 1: not JSON: NaN is not JSON"),
        (b'{"question_id": "a1", "response": [-Infinity]}', "line 1: not JSON: -Infinity is not JSON"),
    ],
)
def test_lines_that_cannot_be_read(line, told, read):
    with pytest.raises(ManifestError) as caught:
        read(line)
    assert told in str(caught.value)


def test_lines_end_at_line_feeds_alone(read):
    found = read(json.dumps({"question_id": "a1", "response": "5\u2028\u0085 "}, ensure_ascii=False).encode())
    assert found.answers["a1"].parsed == Parsed("valid", 5)


def test_no_such_file(dataset, tmp_path):
    with pytest.raises(ManifestError, match="No such file"):
        read_predictions(tmp_path / "none.jsonl", dataset)


def record_of(dataset, **more):
    return {
        "kind": "physcount",
        "mode": "independent",
        "model": "some/model",
        "endpoint": "http://localhost:8000/v1",
        "served": None,
        "versions": {},
        "settings": {"reasoning_effort": None},
        "data": {"sha256": dataset.sha256},
        "selection": {"limit": None, "groups": None, "group_ids": None},
        **more,
    }


def answer(ids, response, **more):
    return {"question_ids": ids, "status": "answered", "response": response, "finish_reason": "stop", **more}


@pytest.fixture
def run(tmp_path, dataset):
    """A RUN from its record and answers."""

    def of(record, answers, tail=b""):
        folder = tmp_path / "RUN"
        folder.mkdir(exist_ok=True)
        (folder / "run.json").write_text(json.dumps(record))
        (folder / "answers.jsonl").write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in answers) + tail)
        return read_predictions(folder, dataset)

    return of


def test_a_run_question_by_question(run, dataset):
    found = run(
        record_of(dataset),
        [
            answer(["e1"], "3"),
            answer(["a1"], "5"),
            answer(["e2"], None, status="failed", error="HTTP 503"),
            answer(["f1"], None, status="failed", error="timed out"),
            answer(["e2"], "4"),
            answer(["c1"], None, status="refused", error="HTTP 400: no"),
        ],
        tail=b'{"question_ids": ["a2"], "status": "answ',
    )
    assert (found.name, found.mode) == ("some/model", "independent")
    assert [found.answers[key].parsed.value for key in ("a1", "e1", "e2")] == [5, 3, 4]
    assert (found.failed, found.refused) == ({"f1": "timed out"}, {"c1": "HTTP 400: no"})
    assert "a2" in found.missing
    assert found.record["model"] == "some/model"


def test_a_run_group_by_group(run, dataset):
    ids = ["a1", "e1", "e2", "f1", "c1", "c2"]
    found = run(
        record_of(dataset, mode="joint"),
        [answer(ids, "```json\n[5, 3, 4, 2, 1, null]\n```"), answer(["a2", "e3"], "[8]"), answer(["a4"], "[3]")],
    )
    assert [found.answers[key].parsed.value for key in ids] == [5, 3, 4, 2, 1, None]
    assert {found.answers[key].parsed.status for key in ("a2", "e3")} == {"malformed"}
    assert found.answers["a4"].parsed.value == 3


def test_a_part_of_the_groups(run, dataset):
    selection = {"limit": None, "groups": ["g4"], "group_ids": ["g4"]}
    found = run(record_of(dataset, selection=selection), [answer(["a4"], "3")])
    assert list(found.answers) == ["a4"]
    assert found.missing == []
    assert found.notes == ["Only 1 of 4 groups were asked about."]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kind": "sweep"}, "not of PhysCount"),
        ({"mode": None}, r"run.json: mode is missing or not as it must be"),
        ({"mode": ["joint"]}, "mode is missing"),
        ({"mode": "both"}, "mode is missing"),
        ({"settings": []}, "settings is missing"),
        ({"settings": {}}, r"settings\.reasoning_effort is missing"),
        ({"endpoint": 1}, "endpoint is missing"),
        ({"continued": [{}]}, "continued is missing"),
        ({"max": 10**30}, "the number '1000000000000000000000000000000' is beyond all bounds"),
        ({"data": {}}, r"data\.sha256 is missing"),
        ({"data": []}, r"data, data\.sha256 is missing"),
        ({"data": {"sha256": {"data/questions.jsonl": 3}}}, r"data\.sha256 is missing"),
        ({"data": {"sha256": {}}}, "its questions were of other data: data/annotations.jsonl, data/questions.jsonl"),
        ({"selection": {}}, r"selection\.group_ids is missing"),
        ({"selection": {"group_ids": "g1"}}, r"selection\.group_ids is missing"),
        ({"selection": {"group_ids": []}}, r"selection\.group_ids is missing"),
        ({"selection": {"group_ids": [["g1"]]}}, r"selection\.group_ids is missing"),
        ({"selection": {"group_ids": ["g1", "no"]}}, r"selection\.group_ids names no group of .*: 'no'"),
        ({"served": "vllm"}, "served is missing"),
        ({"served": {}}, r"served\.arguments is missing"),
        ({"versions": []}, "versions is missing"),
        ({"data": {"sha256": {"data/questions.jsonl": "0"}}}, "its questions were of other data"),
    ],
)
def test_records_that_do_not_fit(change, told, run, dataset):
    with pytest.raises(RunError, match=told):
        run(record_of(dataset, **change), [])


@pytest.mark.parametrize(
    "row",
    [
        {"a": 1},
        {"question_ids": ["a2"], "response": "5"},
        answer(["a2"], "5", status="asked"),
        answer(["a2"], "5", status=["answered"]),
        answer([["a2"]], "5"),
        answer([], "5"),
    ],
)
def test_an_answer_that_is_none(row, run, dataset):
    with pytest.raises(RunError, match=r"answers.jsonl, line 2: no answer"):
        run(record_of(dataset), [answer(["a1"], "5"), row])


def test_a_joint_answer_in_a_run_that_is_not(run, dataset):
    with pytest.raises(RunError, match=r"answers.jsonl: one answer to \['a2', 'e3'\], where mode in run.json is indep"):
        run(record_of(dataset), [answer(["a2", "e3"], "[5, 6]")])


def test_whatever_a_server_sent_is_read(run, dataset):
    row = b'{"question_ids": ["a1"], "status": "answered", "response": [{"type": "text", "text": "5", "p": [%s]}]}\n'
    found = run(record_of(dataset), [], tail=row % (b"NaN, 1e999, " + b"1" * 5_000))
    assert found.answers["a1"].parsed == Parsed("valid", 5)
    assert [str(one) for one in found.answers["a1"].response[0]["p"]] == ["NaN", "1e999", "1" * 5_000]


def test_a_folder_that_is_no_run(tmp_path, dataset):
    with pytest.raises(RunError, match=r"run.json: No such file"):
        read_predictions(tmp_path, dataset)
