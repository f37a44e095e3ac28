"""What each stage is for: edits whose evidence would be another if it were left out, or were given something else."""

from __future__ import annotations

import json

import cv2
import numpy as np
import pyarrow as pa
import pytest
import skimage.data
from PIL import Image

from tallymill.engine.abacus.consistency import background
from tallymill.engine.abacus.data import EDIT, FOUND, Instances
from tallymill.engine.abacus.models import Models, Seen
from tallymill.engine.abacus.panoptic import Panoptic
from tallymill.engine.abacus.pipeline import EditPipeline
from tallymill.engine.abacus.settings import EditSettings
from tallymill.engine.clock import StageClock
from tallymill.engine.detectors.base import DetectorSpec
from tallymill.engine.flow.dis import Dis
from tallymill.engine.sources.reader import ImageReader
from tallymill.kernels.mask_iou import Masks

SIZE = (200, 240)
SPEC = DetectorSpec(name="fake", family="fake", labels=("cat",))
SCENE = np.asarray(cv2.resize(skimage.data.astronaut(), SIZE[::-1]), np.uint8) // 2  # darker than any cat
FIRST = 200  # levels of red from here on are cats, each its own


def disc(x, y, radius):
    down, across = np.ogrid[: SIZE[0], : SIZE[1]]
    return np.hypot(down - y, across - x) <= radius


def picture(path, *cats):
    """The scene with cats, masks [H, W], each in its own level; its name."""
    image = SCENE.copy()
    for number, mask in enumerate(cats):
        if mask is not None:
            image[mask] = FIRST + number
    Image.fromarray(image).save(path)
    return path.name


class Seer:
    """Finds each level as one cat: its pixels, or the box of them."""

    spec = SPEC

    def __init__(self, masks=True):
        self.masks = masks

    def segment(self, looks, clock):
        del clock
        return [{name: self._cats(image) for name in categories} for image, categories in looks]

    def _cats(self, image):
        levels = [level for level in np.unique(image[..., 0]) if level >= FIRST]
        found = Masks.from_arrays(np.array([image[..., 0] == level for level in levels]).reshape(-1, *SIZE))
        boxes, scores = found.box.astype(np.float32), np.ones(len(levels), np.float32)
        if not self.masks:
            return Instances.of_boxes(boxes, scores, FOUND, *SIZE)
        return Instances(found, boxes, scores, (FOUND,) * len(levels))


class Lumps:
    """A detector that takes cats which touch for one."""

    spec = SPEC

    def look(self, looks, clock):
        del clock
        return [{name: self._lumps(image) for name in categories} for image, categories in looks]

    def _lumps(self, image):
        bright = (image[..., 0] >= 180).astype(np.uint8)
        _, _, found, _ = cv2.connectedComponentsWithStats(bright)
        boxes = np.array([(x, y, x + w, y + h) for x, y, w, h, _ in found[1:]], np.float32).reshape(-1, 4)
        return Seen(boxes, np.ones(len(boxes), np.float32))


def evidence(folder, operation, source, edited, *, masks=True, panoptic=None, count=1):
    models = Models(Seer(masks), (Lumps(), Lumps()), Dis(), None)
    pipe = EditPipeline(models, EditSettings(), ImageReader(str(folder)), panoptic, StageClock())
    own = {"edit_id": "0", "operation": operation, "category": "cat", "count": count}
    row = {**dict.fromkeys(EDIT.names), **own, "source": source, "edited": edited}
    [cases] = pipe.batches([pa.RecordBatch.from_pylist([row], schema=EDIT)])
    [found] = pipe.evidence(cases).to_pylist()
    assert found["error"] is None
    return found


def annotated(folder, source, *segments):
    """Annotations of one image: masks, and whether each is a crowd."""
    ids = np.zeros((*SIZE, 3), np.uint8)
    infos = []
    for number, (mask, crowd) in enumerate(segments, 1):
        ids[mask, 0] = number
        infos.append({"id": number, "category_id": 17, "iscrowd": int(crowd)})
    (folder / "p").mkdir()
    Image.fromarray(ids).save(folder / "p/s.png")
    document = {
        "images": [{"id": 1, "file_name": source}],
        "annotations": [{"image_id": 1, "file_name": "s.png", "segments_info": infos}],
        "categories": [{"id": 17, "name": "cat"}],
    }
    (folder / "p.json").write_text(json.dumps(document))
    return Panoptic(folder / "p.json")


@pytest.mark.parametrize("shift", [(8, 0), (0, -8)])
def test_small_things_that_moved_by_half_their_width_are_followed(tmp_path, shift):
    """In place they overlap by less than is matched; by the flow from the edited image to the source, wholly."""
    cats = [disc(x, y, 8) for x, y in ((60, 60), (150, 60), (100, 140))]
    source = picture(tmp_path / "s.png", *cats)
    moved = np.roll(np.asarray(Image.open(tmp_path / source)), shift[::-1], axis=(0, 1))
    Image.fromarray(moved).save(tmp_path / "e.png")
    found = evidence(tmp_path, "add", source, "e.png")
    assert [one["partner"] for one in found["instances"]] == [3, 4, 5, 0, 1, 2]
    assert min(one["similarity"] for one in found["instances"]) > 0.8


def test_a_new_thing_beside_an_old_one_is_seen_because_the_old_one_is_painted_over(tmp_path):
    old, new = disc(100, 100, 30), disc(155, 100, 26)
    assert (old & new).any()  # they touch
    source, edited = picture(tmp_path / "s.png", old & ~new), picture(tmp_path / "e.png", old & ~new, new)
    found = evidence(tmp_path, "add", source, edited)
    assert [one["votes"] for one in found["instances"]] == [None, None, [True, True]]


def test_what_was_taken_away_is_seen_because_what_stayed_is_painted_over(tmp_path):
    old, gone = disc(100, 100, 30), disc(155, 100, 26)
    source, edited = picture(tmp_path / "s.png", old & ~gone, gone), picture(tmp_path / "e.png", old & ~gone)
    found = evidence(tmp_path, "remove", source, edited)
    assert [one["votes"] for one in found["instances"]] == [None, [True, True], None]


@pytest.mark.parametrize(("before", "after"), [((0, 1), (0,)), ((0,), (0, 1))])
def test_background_is_what_no_instance_covers_in_either_image(tmp_path, before, after):
    cats = [disc(50, 50, 20), disc(150, 120, 40)]
    source, edited = (
        picture(tmp_path / f"{name}.png", *(cat if k in which else None for k, cat in enumerate(cats)))
        for name, which in (("s", before), ("e", after))
    )
    operation = "remove" if len(before) > len(after) else "add"
    found = evidence(tmp_path, operation, source, edited)
    assert found["background"] == background(*SIZE, cats).mean()
    assert found["scene"] > 0.9  # the cat that comes or goes is no change of the scene


def test_a_box_is_compared_with_the_box_of_an_annotated_mask(tmp_path):
    """An annotated frame covers a quarter of its box: as a mask it would match nothing, and be found anew."""
    frame = np.zeros(SIZE, bool)
    frame[40:120, 40:120] = True
    frame[45:115, 45:115] = False
    source, edited = picture(tmp_path / "s.png", frame), picture(tmp_path / "e.png", frame, disc(180, 150, 20))
    panoptic = annotated(tmp_path, source, (frame, False))
    found = evidence(tmp_path, "add", source, edited, masks=False, panoptic=panoptic)
    assert [one["origin"] for one in found["instances"]] == ["truth", "found", "found"]
    assert [one["partner"] for one in found["instances"]] == [1, 0, -1]
    assert found["instances"][0]["similarity"] == 1
    masks = Masks.from_rle([{"size": SIZE, "counts": one["rle"]} for one in found["instances"]])
    assert masks.area[0] == 80 * 80


def test_the_similarity_of_an_instance_is_that_of_its_pair(tmp_path):
    cats = [disc(50, 50, 20), disc(150, 60, 30), disc(80, 150, 25)]
    smaller = [disc(50, 50, 20), disc(150, 60, 24), disc(80, 150, 22)]
    source, edited = picture(tmp_path / "s.png", *cats), picture(tmp_path / "e.png", smaller[2], *smaller[:2])
    first = evidence(tmp_path, "add", source, edited)["instances"]
    assert [one["partner"] for one in first] == [4, 5, 3, 2, 0, 1]
    alike = [one["similarity"] for one in first[:3]]
    assert len(set(alike)) == 3
    assert [one["similarity"] for one in first[3:]] == [alike[2], alike[0], alike[1]]


CROWD = np.zeros(SIZE, bool)
CROWD[128:173, 38:133] = True
ONE, TWO, ALONE, NEW = disc(60, 150, 20), disc(110, 150, 20), disc(60, 50, 20), disc(180, 60, 25)


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize("shift", [(0, 0), (25, 0)])
def test_what_lies_in_a_crowd_is_neither_an_original_nor_new(tmp_path, shift, masks):
    source = picture(tmp_path / "s.png", ALONE, ONE, TWO)
    edited = picture(tmp_path / "e.png", ALONE, ONE, TWO, NEW)
    moved = np.roll(np.asarray(Image.open(tmp_path / edited)), shift[::-1], axis=(0, 1))
    Image.fromarray(moved).save(tmp_path / edited)
    panoptic = annotated(tmp_path, source, (ALONE, False), (CROWD, True))
    found = evidence(tmp_path, "add", source, edited, panoptic=panoptic, masks=masks)
    assert [(one["image"], one["partner"]) for one in found["instances"]] == [
        ("source", 1),
        ("edited", 0),
        ("edited", -1),
    ]
    assert (found["crowd"], found["ignored"]) == (1, 4)
    if shift == (0, 0) and masks:
        assert found["background"] == background(*SIZE, [ALONE, NEW, CROWD]).mean()


def test_who_comes_into_a_crowd_or_leaves_it_is_not_counted(tmp_path):
    with_both, with_one = picture(tmp_path / "s.png", ALONE, ONE, TWO), picture(tmp_path / "e.png", ALONE, ONE)
    panoptic = annotated(tmp_path, with_both, (ALONE, False), (CROWD, True))
    found = evidence(tmp_path, "remove", with_both, with_one, panoptic=panoptic)
    assert [one["partner"] for one in found["instances"]] == [1, 0]
    assert found["ignored"] == 3


@pytest.mark.parametrize("masks", [True, False])
def test_an_annotated_instance_is_kept_though_a_crowd_fills_its_box(tmp_path, masks):
    around = disc(85, 100, 70) & ~disc(85, 100, 60)
    crowd = disc(85, 100, 57)
    source, edited = picture(tmp_path / "s.png", around, disc(85, 100, 20)), picture(tmp_path / "e.png", around)
    panoptic = annotated(tmp_path, source, (around, False), (crowd, True))
    found = evidence(tmp_path, "add", source, edited, panoptic=panoptic, masks=masks)
    assert [one["origin"] for one in found["instances"]] == ["truth", "found"]
    assert [one["partner"] for one in found["instances"]] == [1, 0]
    assert found["ignored"] == 1
