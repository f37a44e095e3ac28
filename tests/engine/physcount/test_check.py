"""Whether a dataset is whole."""

from __future__ import annotations

import pytest

from tallymill.engine.physcount import check as module
from tallymill.engine.physcount.check import check_dataset


@pytest.fixture
def root(tmp_path, physcount_example):
    return physcount_example.worked_dataset(tmp_path / "set").root


def test_totals(root):
    found = check_dataset(root)
    assert {total.name: total.found for total in found.totals} == {
        "images": 2,
        "groups": 4,
        "questions": 11,
        "appearances": 6,
        "groups with all four families": 1,
        "appearance questions": 4,
        "entity questions": 4,
        "image_formation questions": 1,
        "correspondence questions": 2,
        "direct appearances": 4,
        "reflection appearances": 1,
        "through_glass appearances": 1,
    }
    assert not found.full
    assert found.holds
    assert {total.published for total in found.totals} == {None}
    assert "question a1: the answer is 5, and 2 appearances are annotated" in found.notes


def test_the_full_set_is_held_to_the_published_totals(root, monkeypatch):
    monkeypatch.setattr(module, "TOTALS", module.TOTALS | {"groups": 4})
    found = check_dataset(root)
    assert found.full
    assert not found.holds
    assert [(t.name, t.holds) for t in found.totals if t.name in ("groups", "images")] == [
        ("images", False),
        ("groups", True),
    ]


def test_images_that_are_not_what_was_annotated(root):
    (root / "images" / "i1.png").write_bytes(b"not an image")
    found = check_dataset(root)
    assert found.fault_total == 2
    assert "line 1, column image: not an image" in found.faults[0]


def test_an_image_that_is_cut_short_behind_its_header(root):
    path = root / "images" / "i1.png"
    path.write_bytes(path.read_bytes()[:-20])
    found = check_dataset(root)
    assert found.fault_total == 2
    assert "line 1, column image: the file is cut short" in found.faults[0]


def test_an_image_of_another_size_and_one_on_its_side(root):
    path = root / "data" / "annotations.jsonl"
    text = path.read_text().replace('"width": 8, "height": 6', '"width": 6, "height": 8', 1)
    path.write_text(text.replace('"width": 8, "height": 6', '"width": 9, "height": 6', 1))
    found = check_dataset(root)
    assert found.faults == [
        "data/annotations.jsonl, line 2, column image: is 8 x 6 pixels, annotated as 9 x 6: 'images/i1.png'"
    ]


def test_more_appearance_questions_than_one(root):
    path = root / "data" / "questions.jsonl"
    path.write_text(path.read_text().replace('"question_type": "entity"', '"question_type": "appearance"', 1))
    assert "group g1: 2 appearance questions, where the release has one a group" in check_dataset(root).notes
