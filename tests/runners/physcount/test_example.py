"""The drawn dataset: whole, the same every time, and right by construction."""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from tallymill.engine.physcount.check import check_dataset
from tallymill.engine.physcount.data import FAMILIES, MODES
from tallymill.engine.physcount.example import KINDS
from tallymill.errors import UsageError
from tallymill.runners.physcount.example import example


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return example(tmp_path_factory.mktemp("made") / "set")


def test_it_is_whole(made):
    found = check_dataset(made.root)
    assert found.holds
    assert found.notes == []
    assert len(made.image_ids) == 12
    assert {question.family for question in made.questions} == {*FAMILIES}
    assert {one.mode for group in made.groups.values() for one in group.appearances} == {*MODES}
    assert any({q.family for q in group.questions} == {*FAMILIES} for group in made.groups.values())
    assert len({group.image_id for group in made.groups.values()}) < len(made.groups)


def test_the_same_bytes_every_time(made, tmp_path):
    def digests(root):
        return {
            str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in root.rglob("*")
            if path.is_file()
        }

    assert digests(example(tmp_path / "again").root) == digests(made.root)
    assert digests(example(tmp_path / "other", seed=1).root) != digests(made.root)


def test_answers_follow_from_the_annotations(made):
    """Counted again, in another way than the generator counts."""
    for group in made.groups.values():
        answers = {question.question: question.answer for question in group.questions}
        kind = KINDS[group.group_id.rpartition("-")[2]]
        modes = Counter((one.entity_id, one.mode) for one in group.appearances)
        entities = {entity for entity, _ in modes}
        reflected = {entity for entity, mode in modes if mode == "reflection"}
        direct = {entity for entity, mode in modes if mode == "direct"}
        behind = {entity for entity, mode in modes if mode == "through_glass"}
        expected = {
            f"How many {kind} can be seen, counting every appearance of them?": modes.total(),
            f"How many different physical {kind} does the picture show?": len(entities),
            f"How many physical {kind} can be seen directly, not in a mirror and not through glass?": len(direct),
            f"How many appearances of {kind} are reflections?": sum(
                number for (_, mode), number in modes.items() if mode == "reflection"
            ),
            f"How many physical {kind} have at least one reflection?": len(reflected),
            f"How many physical {kind} are seen both directly and in a mirror?": len(direct & reflected),
            f"How many physical {kind} can be seen in mirrors only?": len(reflected - direct - behind),
            f"How many appearances of {kind} are seen through glass?": len(behind),
        }
        assert answers.items() <= expected.items()


def test_every_appearance_is_drawn_where_its_annotation_says(made):
    for group in made.groups.values():
        with Image.open(made.image_path(group)) as image:
            pixels = np.asarray(image.convert("RGB")).astype(int)
        for one in group.appearances:
            # Below the gleam a thing has its own strong colour; paper, glass and mirrors are pale.
            y, x = round(one.y * group.height) + 14, round(one.x * group.width)
            assert np.ptp(pixels[y, x]) > 12 or pixels[y, x].mean() < 140, (group.group_id, one)


def test_places_that_hold_something_are_left_alone(tmp_path):
    (tmp_path / "x").write_text("mine")
    with pytest.raises(UsageError, match="is not an empty folder"):
        example(tmp_path)
    with pytest.raises(UsageError, match="scenes 0"):
        example(tmp_path / "new", scenes_wanted=0)
