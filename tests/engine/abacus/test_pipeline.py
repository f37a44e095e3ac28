from __future__ import annotations

import io
import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from tallymill.engine.abacus import pipeline as module
from tallymill.engine.abacus.data import EDIT, FOUND, Instances
from tallymill.engine.abacus.models import Models, Seen
from tallymill.engine.abacus.panoptic import Panoptic
from tallymill.engine.abacus.pipeline import EditPipeline
from tallymill.engine.abacus.settings import EditSettings
from tallymill.engine.clock import StageClock
from tallymill.engine.detectors.base import DetectorSpec
from tallymill.engine.flow.dis import Dis
from tallymill.engine.sources.reader import ImageReader
from tallymill.errors import ModelError
from tallymill.kernels.mask_iou import Masks

HEIGHT, WIDTH = 200, 240
DISC = np.hypot(*np.mgrid[-20:20, -20:20]) < 19
PLACES = [(10, 10), (10, 100), (120, 10), (120, 100), (60, 180)]
SPEC = DetectorSpec(name="fake", family="fake", labels=("cat", "dog"))


def mask_of(place):
    top, left = PLACES[place]
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[top : top + 40, left : left + 40] = DISC
    return mask


def picture(folder, name, places):
    grain = np.random.default_rng(0).integers(90, 110, (HEIGHT, WIDTH, 1)).astype(np.uint8)
    image = np.repeat(grain, 3, axis=2)
    for place in places:
        image[mask_of(place)] = 255
    Image.fromarray(image).save(folder / name)
    return name


def there(image):
    return [place for place in range(len(PLACES)) if image[mask_of(place)].mean() > 250]


class Seer:
    """Finds discs, as masks; keeps what it was asked, and has no answer for images in which place 4 is bright."""

    spec, masks = SPEC, True

    def __init__(self):
        self.asked = []

    def segment(self, looks, clock):
        del clock
        self.asked.append([categories for _, categories in looks])
        return [self._one(image, categories) for image, categories in looks]

    def _one(self, image, categories):
        found = there(image)
        if 4 in found:
            return "fake: non-finite scores"
        masks = Masks.from_arrays(np.array([mask_of(place) for place in found], bool).reshape(-1, HEIGHT, WIDTH))
        whole = Instances(masks, masks.box.astype(np.float32), np.ones(len(found), np.float32), (FOUND,) * len(found))
        return {name: whole if name == "cat" else whole.only(np.zeros(0, int)) for name in categories}


class Voter:
    """Sees the discs of an image, with boxes."""

    spec = SPEC

    def __init__(self):
        self.looked = []

    def look(self, looks, clock):
        del clock
        self.looked.append(len(looks))
        return [self._one(image, categories) for image, categories in looks]

    def _one(self, image, categories):
        found = there(image)
        boxes = np.array(
            [[PLACES[p][1], PLACES[p][0], PLACES[p][1] + 40, PLACES[p][0] + 40] for p in found], np.float32
        )
        return {name: Seen(boxes.reshape(-1, 4), np.ones(len(found), np.float32)) for name in categories}


def make(folder, *, flow=None, panoptic=None, upscaler=None):
    models = Models(Seer(), (Voter(), Voter()), flow or Dis(), upscaler)
    return EditPipeline(models, EditSettings(), ImageReader(str(folder)), panoptic, StageClock())


def rows_of(*edits):
    rows = []
    for number, (operation, count, source, edited) in enumerate(edits):
        own = {"edit_id": str(number), "operation": operation, "category": "cat", "count": count}
        rows.append({**dict.fromkeys(EDIT.names), **own, "source": source, "edited": edited})
    return [pa.RecordBatch.from_pylist(rows, schema=EDIT)]


def evidence(pipe, *edits):
    return [row for cases in pipe.batches(rows_of(*edits)) for row in pipe.evidence(cases).to_pylist()]


def test_models_see_the_images_of_all_edits_together(tmp_path, monkeypatch):
    source = picture(tmp_path, "s.png", [0])
    edited = [picture(tmp_path, f"{n}.png", [0, n]) for n in (1, 2, 3)]
    decoded, decode = [], module.decode

    def counting(data, **more):
        decoded.append(data)
        return decode(data, **more)

    monkeypatch.setattr(module, "decode", counting)
    pipe = make(tmp_path)
    found = evidence(pipe, *(("add", 1, source, name) for name in edited))
    assert len(decoded) == 4  # the source once
    assert pipe.models.segmenter.asked == [[("cat",)] * 4]  # and segmented once
    assert [voter.looked for voter in pipe.models.confirmers] == [[3], [3]]
    assert [[one["votes"] for one in row["instances"]] for row in found] == [[None, None, [True, True]]] * 3
    assert {"decode", "flow", "match", "clean", "consistency"} <= set(pipe.clock.take())


def test_an_edit_fails_alone(tmp_path):
    good, bad = picture(tmp_path, "a.png", [0, 1]), picture(tmp_path, "b.png", [0, 4])
    source = picture(tmp_path, "s.png", [0])
    (tmp_path / "c.png").write_bytes(b"GIF89a")
    names = [good, bad, "c.png", good]
    found = evidence(make(tmp_path), *(("add", 1, source, name) for name in names))
    assert [row["status"] for row in found] == ["scored", "error", "error", "scored"]
    assert found[1]["error"] == "edited: fake: non-finite scores"
    assert found[2]["error"].startswith("edited: the file is")
    assert found[1]["instances"] is None


def test_a_flow_that_is_not_finite_is_an_error_of_its_edit(tmp_path):
    class Broken:
        def flow(self, *_images):
            raise ModelError("raft: not finite")

    source, edited = picture(tmp_path, "s.png", [0]), picture(tmp_path, "e.png", [0, 1])
    first, second = evidence(make(tmp_path, flow=Broken()), ("add", 1, source, edited), ("add", 1, source, source))
    assert first["error"] == "flow: raft: not finite"
    assert second["error"] is None  # nothing changed: there is no flow to take
    assert (second["structure"], second["appearance"]) == (1, 1)


def test_a_crop_that_cannot_be_enlarged_is_finished_bicubic_and_its_edit_stands(tmp_path):
    class Broken:
        scale = 2

        def upscale(self, image):
            raise ModelError(f"no bucket holds an image of {image.shape[0]} x {image.shape[1]}")

    class Blind(Voter):
        def look(self, looks, clock):
            return [
                {name: Seen(s.boxes[:0], s.confidence[:0]) for name, s in one.items()}
                for one in super().look(looks, clock)
            ]

    source, edited = picture(tmp_path, "s.png", [0]), picture(tmp_path, "e.png", [0, 1])
    pipe = make(tmp_path)
    pipe.models = Models(Seer(), (Voter(), Blind()), Dis(), Broken())
    [row] = evidence(pipe, ("add", 1, source, edited))
    assert (row["status"], row["scene"] is None) == ("scored", False)
    *kept, new = row["instances"]
    assert new["votes"] == [True, False]
    assert Image.open(io.BytesIO(new["crop"])).size == (224, 224)
    assert new["crop_fault"] == "bicubic from 45 x 45: no bucket holds an image of 45 x 45"
    assert [(one["crop"], one["crop_fault"]) for one in kept] == [(None, None)] * 2


def test_everything_moved_by_three_pixels_and_nothing_is_lost(tmp_path):
    source = picture(tmp_path, "s.png", [0, 1, 2, 3])
    moved = np.roll(np.asarray(Image.open(tmp_path / source)), (2, 3), axis=(0, 1))
    Image.fromarray(moved).save(tmp_path / "m.png")

    class Elsewhere(Seer):
        """Finds the discs where they went to."""

        def _one(self, image, categories):
            if there(image):
                return super()._one(image, categories)
            found = super()._one(np.roll(image, (-2, -3), axis=(0, 1)), categories)
            masks = {name: np.roll(each.masks.to_arrays(), (2, 3), axis=(1, 2)) for name, each in found.items()}
            return {name: Instances.of_masks(Masks.from_arrays(each), FOUND) for name, each in masks.items()}

    pipe = make(tmp_path)
    pipe.models = Models(Elsewhere(), pipe.models.confirmers, Dis(), None)
    [row] = evidence(pipe, ("add", 1, source, "m.png"))
    assert [one["partner"] for one in row["instances"][:4]] == [4, 5, 6, 7]
    assert min(one["similarity"] for one in row["instances"]) > 0.95
    assert row["scene"] < 0.9


def test_masks_stay_masks(tmp_path):
    source, edited = picture(tmp_path, "s.png", [0]), picture(tmp_path, "e.png", [0, 1])
    [row] = evidence(make(tmp_path), ("add", 1, source, edited))
    areas = Masks.from_rle([{"size": [HEIGHT, WIDTH], "counts": one["rle"]} for one in row["instances"]]).area
    assert areas.tolist() == [DISC.sum()] * 3


def test_annotations_are_read_with_their_image(tmp_path):
    source, edited = picture(tmp_path, "s.png", [0]), picture(tmp_path, "e.png", [0, 1])
    (tmp_path / "p").mkdir()
    ids = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    ids[mask_of(0), 0], ids[mask_of(2), 0] = 1, 2
    Image.fromarray(ids).save(tmp_path / "p/s.png")
    infos = [{"id": 1, "category_id": 17, "iscrowd": 0}, {"id": 2, "category_id": 17, "iscrowd": 1}]
    document = {
        "images": [{"id": 1, "file_name": "s.png"}],
        "annotations": [{"image_id": 1, "file_name": "s.png", "segments_info": infos}],
        "categories": [{"id": 17, "name": "cat"}],
    }
    (tmp_path / "p.json").write_text(json.dumps(document))
    [row] = evidence(make(tmp_path, panoptic=Panoptic(tmp_path / "p.json")), ("add", 1, source, edited))
    assert [one["origin"] for one in row["instances"]] == ["truth", "found", "found"]
    assert (row["crowd"], row["annotated"]) == (1, True)


def test_an_image_id_that_the_annotations_lack_is_an_error_of_its_edit(tmp_path):
    source = picture(tmp_path, "s.png", [0])
    (tmp_path / "p.json").write_text(json.dumps({"images": [], "annotations": [], "categories": []}))
    pipe = make(tmp_path, panoptic=Panoptic(tmp_path / "p.json"))
    rows = [
        {**row, "image_id": asked}
        for asked in ("139", None)
        for row in rows_of(("add", 1, source, source))[0].to_pylist()
    ]
    [cases] = pipe.batches([pa.RecordBatch.from_pylist(rows, schema=EDIT)])
    first, second = pipe.evidence(cases).to_pylist()
    assert first["error"] == "ground truth: p.json has no image_id 139"
    assert (second["error"], second["annotated"]) == (None, False)


def test_an_image_that_was_only_written_anew_is_untouched(tmp_path):
    class Broken:
        def flow(self, *_images):
            raise ModelError("nobody is to ask")

    source = picture(tmp_path, "s.png", [0, 1])
    Image.open(tmp_path / source).save(tmp_path / "e.png", compress_level=1)
    assert (tmp_path / "e.png").read_bytes() != (tmp_path / source).read_bytes()
    pipe = make(tmp_path, flow=Broken())
    [row] = evidence(pipe, ("add", 1, source, "e.png"))
    assert (row["error"], row["structure"], row["appearance"]) == (None, 1, 1)
    assert row["source_hash"] != row["edited_hash"]
    assert pipe.models.segmenter.asked == [[("cat",)]]  # one image


def test_batches_are_bounded_by_edits_and_by_pixels(tmp_path, monkeypatch):
    source, edited = picture(tmp_path, "s.png", [0]), picture(tmp_path, "e.png", [0, 1])
    edits = [("add", 1, source, edited)] * 5
    monkeypatch.setattr(module, "BATCH_EDITS", 2)
    assert [len(cases) for cases in make(tmp_path).batches(rows_of(*edits))] == [2, 2, 1]
    monkeypatch.setattr(module, "BATCH_PIXELS", HEIGHT * WIDTH)
    assert [len(cases) for cases in make(tmp_path).batches(rows_of(*edits))] == [1] * 5


def test_edits_of_one_source_are_one_batch(tmp_path, monkeypatch):
    sources = [picture(tmp_path, f"s{n}.png", [0]) for n in range(4)]
    edited = picture(tmp_path, "e.png", [0, 1])
    edits = [("add", 1, name, edited) for name, times in zip(sources, (3, 3, 9, 1), strict=True) for _ in range(times)]
    monkeypatch.setattr(module, "BATCH_EDITS", 5)
    assert [len(cases) for cases in make(tmp_path).batches(rows_of(*edits))] == [3, 3, 5, 5]


def test_what_a_model_does_not_know_is_told():
    models = Models(
        SimpleNamespace(spec=DetectorSpec("sam3", "sam3", (), open_vocabulary=True)), (Voter(), Voter()), Dis(), None
    )
    assert models.unknown(("cat", "yak")) == "category 'yak' is not known to fake and fake"
    assert models.unknown(("cat", "dog")) is None


@pytest.mark.parametrize("operation", ["remove", "change"])
def test_too_few_to_take_away(tmp_path, operation):
    source = picture(tmp_path, "s.png", [0, 1])
    batch = rows_of((operation, 3, source, source))[0].to_pylist()
    if operation == "change":
        batch[0]["target"] = "dog"
    pipe = make(tmp_path)
    [cases] = pipe.batches([pa.RecordBatch.from_pylist(batch, schema=EDIT)])
    [row] = pipe.evidence(cases).to_pylist()
    assert row["error"] == f"count: {operation} 3 of 2 cat in the source"
