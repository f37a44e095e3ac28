"""A dataset is read whole, or every fault of it is told by line."""

from __future__ import annotations

import json

import pytest

from tallymill.engine.physcount.check import check_dataset
from tallymill.engine.physcount.data import read_dataset
from tallymill.errors import ManifestError


@pytest.fixture
def faults_of(tmp_path, physcount_example):
    def faults(questions, groups):
        root = physcount_example.write_dataset(tmp_path / "set", questions, groups)
        with pytest.raises(ManifestError) as caught:
            read_dataset(root)
        return str(caught.value)

    return faults


def test_what_is_read(tmp_path, physcount_example):
    dataset = physcount_example.worked_dataset(tmp_path / "set")
    assert list(dataset.groups) == ["g1", "g2", "g3", "g4"]
    assert [question.question_id for question in dataset.questions] == list(physcount_example.WORKED)
    group = dataset.groups["g1"]
    assert [question.question_id for question in group.questions] == ["a1", "e1", "e2", "f1", "c1", "c2"]
    assert [(one.entity_id, one.mode, one.x, one.y) for one in group.appearances] == [
        ("e0", "direct", 0.25, 0.5),
        ("e1", "reflection", 0.25, 0.5),
    ]
    assert dataset.image_ids == ["i1", "i2"]
    assert dataset.image_path(group) == tmp_path / "set" / "images" / "i1.png"
    assert {len(digest) for digest in dataset.sha256.values()} == {64}


def test_questions_of_a_group_keep_the_order_of_the_file(tmp_path, physcount_example):
    rows = [physcount_example.question_row(key) for key in ("z", "a", "m")]
    root = physcount_example.write_dataset(tmp_path / "set", rows, [physcount_example.group_row()])
    assert [q.question_id for q in read_dataset(root).groups["g1"].questions] == ["z", "a", "m"]


def test_lines_that_a_careless_reader_would_split_or_lose(tmp_path, physcount_example):
    row = physcount_example.question_row(question="How many\u2028of these\u0085?")
    root = physcount_example.write_dataset(tmp_path / "set", [row, ""], [physcount_example.group_row()])
    path = root / "data" / "questions.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().rstrip(b"\n"))
    assert [q.question for q in read_dataset(root).questions] == ["How many\u2028of these\u0085?"]


def test_numbers_are_ids_too(tmp_path, physcount_example):
    questions = [physcount_example.question_row(1, 2, 3, image="images/3.png")]
    groups = [physcount_example.group_row(2, 3)]
    dataset = read_dataset(physcount_example.write_dataset(tmp_path / "set", questions, groups))
    assert list(dataset.groups) == ["2"]
    assert dataset.questions[0].question_id == "1"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"answer": -1}, "column answer: must be a whole number, 0 or more: -1"),
        ({"answer": 10**30}, "column answer: must be a whole number, 0 or more, 9,007,199,254,740,991 at most: 1000"),
        ({"answer": 2.0}, "column answer: must be a whole number"),
        ({"answer": True}, "column answer: must be a whole number"),
        ({"answer": None}, "column answer: must be a whole number"),
        ({"question_type": "colour"}, "column question_type: must be one of appearance, entity"),
        ({"question_type": ["entity"]}, "column question_type: must be one of"),
        ({"question": " "}, "column question: must be a text"),
        ({"question_id": None}, "column question_id: must be a text"),
        ({"group_id": "g9"}, "its group is not in data/annotations.jsonl: 'g9'"),
        ({"image_id": "i9"}, "column image_id: data/annotations.jsonl, line 1 has 'i1': 'i9'"),
        ({"image": "images/x.png"}, "column image: data/annotations.jsonl, line 1 has 'images/i1.png'"),
    ],
)
def test_faults_of_questions(change, told, faults_of, physcount_example):
    message = faults_of([physcount_example.question_row(**change)], [physcount_example.group_row()])
    assert f"data/questions.jsonl, line 1{',' if told.startswith('column') else ':'} {told}" in message


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"width": 0}, "column width: must be a whole number, 1 or more: 0"),
        ({"appearances": None}, "column appearances: must be a list"),
        ({"appearances": [7]}, "appearances[0]: not an object: 7"),
        ({"image": "images2/i1.png"}, "no such file"),
        ({"image": "../i1.png"}, "a path outside the data"),
        ({"image": "/etc/passwd"}, "a path outside the data"),
    ],
)
def test_faults_of_groups(change, told, faults_of, physcount_example):
    row = physcount_example.group_row(**change)
    assert told in faults_of([physcount_example.question_row(image=row["image"])], [row])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"mode": "mirror"}, "column mode: must be one of direct, reflection, through_glass: 'mirror'"),
        ({"x": 1.5}, "column x: must be a number in [0, 1]: 1.5"),
        ({"y": "0.5"}, "column y: must be a number in [0, 1]: '0.5'"),
        ({"entity_id": ""}, "column entity_id: must be a text: ''"),
        ({"appearance_id": "a0"}, "column appearance_id: an appearance that stands twice: 'a0'"),
    ],
)
def test_faults_of_appearances(change, told, faults_of, physcount_example):
    row = physcount_example.group_row(modes=("direct", "direct"))
    row["appearances"][1] |= change
    message = faults_of([physcount_example.question_row()], [row])
    assert f"data/annotations.jsonl, line 1, appearances[1], {told}" in message


def test_every_fault_is_told_at_once(faults_of, physcount_example):
    questions = [
        physcount_example.question_row(),
        physcount_example.question_row(),
        '{"question_id": "b", "te',
        "[]",
        '{"question_id": "c"}',
        '{"answer": NaN}',
    ]
    message = faults_of(questions, [physcount_example.group_row(), physcount_example.group_row("g2", "i2")] * 2)
    for told in (
        "line 2, column question_id: a question that stands twice: 'q1'",
        "line 3: not JSON",
        "line 4: not an object",
        "line 5, column group_id: missing",
        "line 6: NaN is not JSON",
        "line 3: a group that stands twice: 'g1'",
        "line 2: a group without a question in data/questions.jsonl: 'g2'",
        "physcount check",
    ):
        assert told in message


def test_an_image_of_two_names(faults_of, physcount_example):
    groups = [physcount_example.group_row(), physcount_example.group_row("g2", "i2", image="images/i1.png")]
    questions = [physcount_example.question_row(), physcount_example.question_row("q2", "g2", "i2")]
    assert "column image: the image of 'i1' too: 'images/i1.png'" in faults_of(questions, groups)


def test_no_such_folder(tmp_path):
    with pytest.raises(ManifestError, match=r"data/questions.jsonl: No such file"):
        read_dataset(tmp_path / "none")


def test_an_image_whose_name_is_too_long(tmp_path, physcount_example):
    rows = {"on": "i1", "image": "images/" + "a" * 5_000}
    root = physcount_example.write_dataset(
        tmp_path / "set", [physcount_example.question_row(**rows)], [physcount_example.group_row()]
    )
    (root / "data" / "annotations.jsonl").write_text(json.dumps(physcount_example.group_row(**rows)) + "\n")
    with pytest.raises(ManifestError, match=r"annotations\.jsonl, line 1, column image: File name too long"):
        read_dataset(root)
    assert check_dataset(root).fault_total == 1
