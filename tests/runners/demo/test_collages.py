import hashlib
import importlib.util
import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tallymill.engine.numbench.prompts.build import SCHEMA
from tallymill.errors import MissingExtraError, UsageError
from tallymill.runners.demo import collages
from tallymill.runners.demo.collages import Collage, CollageSet, Photograph, draw, make_collages, plan, visible_boxes

BACK, THING = (250, 250, 250), (0, 0, 0)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CollageSet]:
    out = tmp_path_factory.mktemp("collages")
    return out, make_collages(out, scored=6, calibration=2)


def block(thing: tuple[int, int, int, int] = (10, 20, 50, 80)) -> dict[str, tuple[Photograph, Image.Image]]:
    """A photograph of a black block off the middle of a white card."""
    picture = Image.new("RGB", (100, 90), BACK)
    picture.paste(THING, thing)
    return {"block": (Photograph("block", "-", (100, 90), (0, 0, 100, 90), thing), picture)}


def a_collage(n: int, layout: Any) -> Collage:
    return Collage("x", "s-00000", "score", layout, "1-25", (("block", n),))


def test_the_plan_fills_every_cell_alike() -> None:
    scored, calibration = plan("score", 48), plan("calibration", 16)
    cells = Counter((c.count_range, c.layout, c.composition) for c in scored)
    assert len(cells) == 12
    assert set(cells.values()) == {4}
    assert len({(c.count_range, c.layout, c.composition) for c in calibration}) == 12
    assert len({c.item_id for c in scored + calibration}) == 64
    assert {category for c in scored for category, _ in c.targets} == {"cat", "cup", "person"}


@pytest.mark.parametrize("part", ["score", "calibration"])
def test_counts_agree_with_their_range(part: Any) -> None:
    for collage in plan(part, 48):
        low, high = map(int, collage.count_range.split("-"))
        counts = [n for _, n in collage.targets]
        assert low <= max(counts) <= high
        assert sum(counts) <= 60
        assert len({category for category, _ in collage.targets}) == len(counts)


def test_counts_go_from_one_to_sixty_in_both_layouts() -> None:
    for layout in collages.LAYOUTS:
        singles = [c.targets[0][1] for c in plan("score", 48) if c.layout == layout and c.composition == "single"]
        assert (min(singles), max(singles)) == (1, 60)


def test_layouts_come_in_pairs_that_ask_for_the_same() -> None:
    planned = plan("score", 48)
    for grid, scattered in zip(planned[::2], planned[1::2], strict=True):
        assert (grid.layout, scattered.layout) == ("grid", "random")
        assert grid.targets == scattered.targets


def test_no_calibration_image_asks_for_what_a_scored_one_does() -> None:
    scored = {(c.targets, c.layout) for c in plan("score", 48)}
    assert scored.isdisjoint({(c.targets, c.layout) for c in plan("calibration", 16)})


def test_manifests_hold_what_was_drawn(small: tuple[Path, CollageSet]) -> None:
    out, made = small
    every = rows(made.manifest)
    assert every == rows(made.score) + rows(made.calibration)
    assert [row["part"] for row in every] == ["score"] * 6 + ["calibration"] * 2
    for row in every:
        assert set(row) == {"item_id", "image", "prompt_id", "part"}
        with Image.open(out / row["image"]) as picture:
            assert (picture.size, picture.mode, picture.format) == ((1024, 1024), "RGB", "JPEG")


def test_prompts_have_the_columns_and_texts_of_numbench(small: tuple[Path, CollageSet]) -> None:
    _, made = small
    prompts = {row["prompt_id"]: row for row in rows(made.prompts)}
    assert list(prompts) == [row["prompt_id"] for row in rows(made.manifest)]
    assert all(list(prompt) == SCHEMA.names for prompt in prompts.values())
    assert prompts["demo-s-00000-grid-clean"]["targets"] == [{"category": "cat", "count": 12}]
    assert prompts["demo-s-00000-grid-clean"]["text"] == "generate 12 cats, arranged in a regular grid"
    double = prompts["demo-d-00000-random-clean"]
    assert double["text"] == "generate 11 cups and 9 people, scattered at random positions"
    assert (double["core_id"], double["composition"], double["count_range"]) == ("demo-d-00000", "double", "1-25")


def test_the_two_layouts_of_a_core_and_no_others_share_it() -> None:
    cores = Counter(collage.core for part in ("score", "calibration") for collage in plan(part, 48))
    assert set(cores.values()) == {2}


def test_no_two_images_are_the_same_file(small: tuple[Path, CollageSet]) -> None:
    out, made = small
    hashes = {hashlib.sha256((out / row["image"]).read_bytes()).hexdigest() for row in rows(made.manifest)}
    assert len(hashes) == 8


def test_truth_is_complete_in_a_grid_and_short_at_random(small: tuple[Path, CollageSet]) -> None:
    _, made = small
    found = Counter((row["item_id"], row["target"]) for row in rows(made.truth))
    hidden = 0
    for collage in made.collages:
        for target, (_, asked) in enumerate(collage.targets):
            seen = found[collage.item_id, target]
            assert seen == asked if collage.layout == "grid" else seen <= asked
            hidden += asked - seen
    assert hidden > 0


def test_true_boxes_lie_in_the_image(small: tuple[Path, CollageSet]) -> None:
    for row in rows(small[1].truth):
        x1, y1, x2, y2 = row["box"]
        assert 0 <= x1 < x2 <= 1024
        assert 0 <= y1 < y2 <= 1024
        assert 0.3 <= row["visible"] <= 1.0


def test_the_seed_decides(small: tuple[Path, CollageSet], tmp_path: Path) -> None:
    out, made = small
    again = make_collages(tmp_path / "a", scored=6, calibration=2)
    other = make_collages(tmp_path / "b", seed=1, scored=6, calibration=2)
    assert again.truth.read_bytes() == made.truth.read_bytes()
    image, elsewhere = rows(made.manifest)[1]["image"], rows(other.manifest)[1]["image"]
    assert image != elsewhere
    assert (tmp_path / "a" / image).read_bytes() == (out / image).read_bytes()
    assert (tmp_path / "b" / elsewhere).read_bytes() != (out / image).read_bytes()
    assert rows(other.prompts) == rows(made.prompts)


def test_an_image_does_not_depend_on_how_many_are_made(small: tuple[Path, CollageSet], tmp_path: Path) -> None:
    out, _ = small
    image = rows(make_collages(tmp_path, scored=2, calibration=0).manifest)[1]["image"]
    assert (tmp_path / image).read_bytes() == (out / image).read_bytes()


@pytest.mark.parametrize("n", [1, 2, 5, 17, 60])
def test_true_boxes_of_a_grid_hold_exactly_the_objects(n: int) -> None:
    picture, boxes = draw(a_collage(n, "grid"), block(), Random(4))
    black = np.asarray(picture).max(axis=2) < 60
    inside = np.zeros_like(black)
    for found in boxes:
        x1, y1, x2, y2 = found.box
        assert found.visible == 1.0
        assert not inside[y1:y2, x1:x2].any()
        inside[y1:y2, x1:x2] = True
        # Shrunk by two pixels the box is black throughout: it neither misses the object nor reaches past it.
        assert black[y1 + 2 : y2 - 2, x1 + 2 : x2 - 2].all()
    assert len(boxes) == n
    assert not (black & ~inside).any()


def test_a_mirrored_copy_has_a_mirrored_box() -> None:
    sides = set()
    for seed in range(8):
        picture, [found] = draw(a_collage(1, "grid"), block(), Random(seed))
        x1, y1, x2, _ = found.box
        card = np.flatnonzero((np.asarray(picture)[y1 + 5] == BACK).all(axis=1))
        sides.add(x1 - card.min() < card.max() - x2)
    assert sides == {True, False}


def copy_at(x: int, y: int, target: int = 0, thing: tuple[int, int, int, int] = (0, 0, 100, 100)) -> Any:
    return collages._Copy(target, Image.new("RGB", (100, 100)), thing, (x, y))


def test_a_covered_object_keeps_the_extent_that_can_be_seen() -> None:
    under, over = visible_boxes([copy_at(0, 0, target=1), copy_at(60, 0)])
    assert (under.target, under.box, under.visible) == (1, (0, 0, 60, 100), 0.6)
    assert (over.target, over.box, over.visible) == (0, (60, 0, 160, 100), 1.0)
    corner, _ = visible_boxes([copy_at(0, 0), copy_at(50, 50)])
    assert (corner.box, corner.visible) == ((0, 0, 100, 100), 0.75)


def test_an_object_seen_by_less_than_three_tenths_is_left_out() -> None:
    assert len(visible_boxes([copy_at(0, 0), copy_at(30, 0)])) == 2
    assert [b.box for b in visible_boxes([copy_at(0, 0), copy_at(29, 0)])] == [(29, 0, 129, 100)]


def test_the_margin_of_a_copy_covers_too() -> None:
    found = visible_boxes([copy_at(0, 0), copy_at(60, 0, thing=(40, 0, 100, 100))])
    assert [b.box for b in found] == [(0, 0, 60, 100), (100, 0, 160, 100)]


@pytest.mark.parametrize("photograph", collages.PHOTOGRAPHS, ids=lambda p: p.category)
def test_measured_boxes_lie_in_their_crop_and_photograph(photograph: Photograph) -> None:
    (cx1, cy1, cx2, cy2), (x1, y1, x2, y2) = photograph.crop, photograph.thing
    assert 0 <= cx1 <= x1 < x2 <= cx2 <= photograph.size[0]
    assert 0 <= cy1 <= y1 < y2 <= cy2 <= photograph.size[1]


@pytest.mark.parametrize(("scored", "calibration"), [(0, 4), (60, 11), (4, -1)])
def test_too_many_or_too_few_images_are_refused(tmp_path: Path, scored: int, calibration: int) -> None:
    with pytest.raises(UsageError, match="70 in all"):
        make_collages(tmp_path, scored=scored, calibration=calibration)
    assert not list(tmp_path.iterdir())


def test_without_scikit_image_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match="scikit-image") as caught:
        make_collages(tmp_path)
    assert caught.value.hint == "pip install 'tallymill[demo]'"


def test_a_photograph_that_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Photograph("cat", "chelsea.png", (450, 300), (0, 0, 1, 1), (0, 0, 1, 1))
    monkeypatch.setattr(collages, "PHOTOGRAPHS", (other, *collages.PHOTOGRAPHS[1:]))
    with pytest.raises(UsageError, match=r"chelsea.png: is \(451, 300\)"):
        make_collages(tmp_path)
