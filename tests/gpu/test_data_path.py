"""From files to proposals with tensors in between: the same as with arrays. Small models that answer from pixels."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from tallymill.engine.arrays import Picture, beside
from tallymill.engine.bundles import Bundle
from tallymill.engine.clock import StageClock
from tallymill.engine.detectors import text as text_module
from tallymill.engine.detectors.closed import greatest
from tallymill.engine.detectors.owl import Owl
from tallymill.engine.detectors.rt_detr import RtDetr
from tallymill.engine.items import read_items
from tallymill.engine.numbench.scores import ScorePlan
from tallymill.engine.pipeline import Pipeline
from tallymill.engine.proposer import DetectOptions, RawBoxes, WindowProposer
from tallymill.engine.retained import LONGEST, suppressed, suppressed_there
from tallymill.engine.sources.reader import ImageReader
from tallymill.exporters.pairing import Bounds, apart

SIDE, CELLS = 32, 8
NORMAL = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}
LABELS = ("cat", "dog", "bird")
OPTIONS = DetectOptions(floor=0.3, nms_iou=0.4, slices=(2,))
RNG = np.random.default_rng(3)
MIX, SHAPE = RNG.standard_normal((3, 3)).astype(np.float32), RNG.random((CELLS * CELLS, 4), np.float32) * 0.3


class Grid:
    """A model that sees the mean colour of each of 8 x 8 cells; a window with a white corner makes it answer NaN."""

    device, model = "cpu", Path("grid.onnx")

    def __init__(self, kind):
        self.inputs, self.outputs = kind.inputs, kind.outputs

    def run(self, inputs):
        image = inputs["image"]
        if not isinstance(image, np.ndarray):
            image = image.contiguous()  # as every session does: the order of a sum hangs on it
        cells = image.reshape(len(image), 3, CELLS, SIDE // CELLS, CELLS, SIDE // CELLS)
        colour = cells.mean((3, 5)).reshape(len(image), 3, -1).swapaxes(1, 2)
        corner = image[:, :, :2, :2].reshape(len(image), 12)
        white = (corner > 1.6).all(1)
        seen = colour @ beside(MIX, colour) + beside(SHAPE[:, :1], colour)  # no two cells tie
        seen[white] = float("nan")
        y, x = np.divmod(np.arange(CELLS * CELLS), CELLS)
        centres = np.stack([(x + 0.5) / CELLS, (y + 0.5) / CELLS], 1).astype(np.float32)
        boxes = beside(np.concatenate([centres, 0.05 + SHAPE[:, 2:]], 1)[None].repeat(len(image), 0), colour)
        one = colour[..., :1] * 0 + 1
        return {"logits": seen, "embeds": seen, "shift": one * 0.1, "scale": one * 1.5, "boxes": boxes}


class Text:
    inputs = outputs = ()
    device, model = "cpu", Path("text.onnx")

    def run(self, inputs):
        return {"embeds": np.eye(3, dtype=np.float32)[inputs["tokens"][:, 1] % 3]}


def bundle_of(kind, numbers, folder):
    plain = Bundle(folder, "m", "fake", "onnx", "fp32", {}, numbers, None, "0")
    return SimpleNamespace(
        family="fake",
        device="cpu",
        tokenizer=folder / "tokenizer.json",
        session=lambda part, **_: Text() if part == "text" else Grid(kind),
        read=lambda numbers_of: Bundle.read(plain, numbers_of),
        error=lambda message: ValueError(message),
    )


def owl(folder, square=False):
    numbers = {"side": SIDE, "square": square, "resample": "bicubic", **NORMAL, "template": "{}"}
    numbers |= {"tokens": 8, "start": 90, "end": 91, "pad": 0}
    return lambda **more: Owl(bundle_of(Owl, numbers, folder), "owl", **more)


def detr(folder):
    numbers = {"height": SIDE, "width": SIDE, **NORMAL, "labels": list(LABELS), "top": 90}
    return lambda **more: RtDetr(bundle_of(RtDetr, numbers, folder), "detr", **more)


KINDS = {"owl": owl, "square owl": lambda folder: owl(folder, square=True), "detr": detr}


@pytest.fixture(params=KINDS)
def make(request, tmp_path, monkeypatch):
    monkeypatch.setattr(text_module, "load_tokenizer", lambda _file: lambda text: [ord(text[0]) - 97])
    return KINDS[request.param](tmp_path)


def file_of(pixels, form="PNG", **options):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, form, **options)
    return stream.getvalue()


def write(folder):
    """Eight images: the third cut short, the fifth white; and what is asked of them."""
    rng = np.random.default_rng(1)
    values = []
    for k in range(8):
        coarse = rng.integers(0, 256, (5, 7, 3)).astype(np.uint8)
        pixels = np.asarray(Image.fromarray(coarse).resize((60 + 20 * (k % 3), 90 - 7 * k), Image.Resampling.NEAREST))
        data = file_of(np.full_like(pixels, 255) if k == 5 else pixels)
        (folder / f"{k}.png").write_bytes(data[: len(data) // 2] if k == 2 else data)
        targets = [{"category": c, "count": 2} for c in (LABELS[::-1], LABELS[:1], ("bird", "cat"))[k % 3]]
        values.append({"item_id": f"i{k}", "image": f"{k}.png", "targets": targets})
    return next(read_items(pa.Table.from_pylist(values)))


def proposals_of(proposer, folder, options=OPTIONS, images=8):
    name = proposer.spec.name
    plan = ScorePlan((name,), (1.0,))
    pipe = Pipeline([proposer], plan, options, ImageReader(str(folder)), 1_000_000, StageClock())
    (batch,) = pipe.read([write(folder).slice(0, images)], {name})
    return pipe.detect(batch, {name})[name]


def same(found, expected, boxes=1e-3, scores=1e-5):
    assert found.errors == expected.errors
    assert found.saturated.tolist() == expected.saturated.tolist()
    assert found.offsets.tolist() == expected.offsets.tolist()
    assert found.target.tolist() == expected.target.tolist()
    assert found.dropped == expected.dropped
    assert found.boxes.dtype == found.confidence.dtype == np.float32
    np.testing.assert_allclose(found.confidence, expected.confidence, rtol=0, atol=scores)
    if not boxes:
        np.testing.assert_array_equal(found.boxes, expected.boxes)
        return
    for rows in map(slice, expected.offsets[:-1], expected.offsets[1:]):
        for target in np.unique(expected.target[rows]):
            # Confidences that are equal but for their last bits may stand either way.
            mine, other = (of_target(answer, rows, target) for answer in (found, expected))
            off = apart(mine, other, Bounds(boxes, scores, half=True))
            assert off.compared == len(other[0])
            assert off.box <= boxes
            assert off.score <= scores


def of_target(answer, rows, target):
    here = answer.target[rows] == target
    return answer.boxes[rows][here], answer.confidence[rows][here]


@pytest.mark.parametrize("keep", [False, True])
def test_tensors_give_the_proposals_of_arrays(make, tmp_path, keep):
    options = replace(OPTIONS, keep_suppressed=keep)
    expected = proposals_of(WindowProposer(make()), tmp_path, options)
    found = proposals_of(WindowProposer(make(), place="cpu"), tmp_path, options)
    assert len(expected.boxes) > 100
    assert [error is not None for error in expected.errors] == [k in (2, 5) for k in range(8)]
    assert "cut short" in expected.errors[2]
    assert expected.errors[5].endswith(": non-finite scores")
    same(found, expected)


@pytest.mark.parametrize("place", [None, "cpu"])
def test_how_windows_are_batched_changes_nothing(make, tmp_path, place):
    one, many = (proposals_of(WindowProposer(make(batch=n), place=place), tmp_path) for n in (1, 7))
    same(many, one, boxes=0, scores=0)


def test_an_image_is_sent_to_a_device_once_and_only_where_it_is_wanted():
    picture = Picture(np.zeros((4, 6, 3), np.uint8))
    assert picture.size == (4, 6)
    assert isinstance(picture.at(None), np.ndarray)
    assert picture.at("cpu") is picture.at("cpu")
    there = Picture(torch.zeros((4, 6, 3), dtype=torch.uint8))
    assert there.at("cpu") is there.at("cpu")
    assert there.at(None).shape == (4, 6, 3)


def test_pixels_that_cannot_be_written_to_become_a_tensor_without_a_warning():
    pixels = np.zeros((4, 6, 3), np.uint8)
    pixels.flags.writeable = False
    assert Picture(pixels).at("cpu").dtype == torch.uint8


def test_the_greatest_of_tensors_are_those_of_arrays():
    rng = np.random.default_rng(0)
    for _ in range(100):
        values = rng.integers(-3, 4, (3, rng.integers(1, 40))).astype(np.float32)
        count = int(rng.integers(1, 45))
        assert np.array_equal(greatest(torch.from_numpy(values), count).numpy(), greatest(values, count))


def raw_boxes(count, segments, seed=0):
    rng = np.random.default_rng(seed)
    corner, side = rng.random((count, 2)) * 60, rng.random((count, 2)) * 30
    boxes = np.concatenate([corner, corner + side], 1).astype(np.float32)
    boxes[3] = [5, 5, 5, 9]
    boxes[4, 2] = np.nan
    scores = (rng.integers(0, 20, count) / 20).astype(np.float32)
    raw = RawBoxes(rng.integers(0, segments, count), boxes, scores, [], np.zeros(0, np.bool_))
    tensors = [torch.from_numpy(each) for each in (raw.segment, boxes, scores)]
    return raw, RawBoxes(*tensors, [], raw.saturated)


def test_suppression_where_the_boxes_are_is_that_of_the_host():
    for count, segments in ((60, 3), (9, 12)):
        raw, there = raw_boxes(count, segments)
        expected = suppressed(raw, segments, OPTIONS)
        found = suppressed_there(there, segments, OPTIONS, impl="gpu")
        assert found.usable == expected.usable == count - 2
        for name in ("segment", "boxes", "scores"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_nothing_is_suppressed_where_nothing_is():
    nothing = RawBoxes(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 4), torch.zeros(0), [], np.zeros(0, np.bool_))
    assert suppressed_there(nothing, 3, OPTIONS, impl="gpu").boxes.shape == (0, 4)


def test_more_boxes_than_the_kernel_takes_are_suppressed_on_the_host():
    raw, there = raw_boxes(LONGEST + 4, 1)
    assert suppressed_there(there, 1, OPTIONS, impl="gpu") is None
    np.testing.assert_array_equal(suppressed(there, 1, OPTIONS).boxes, suppressed(raw, 1, OPTIONS).boxes)


def test_both_kernels_of_a_card_give_the_proposals_of_the_host(tmp_path, monkeypatch):
    options = replace(OPTIONS, floor=0.75, slices=())
    expected = proposals_of(WindowProposer(detr(tmp_path)()), tmp_path, options, images=3)
    detector = detr(tmp_path)()
    detector.implementation = "gpu"
    asked = []

    def there(raw, segments, options):
        asked.append(segments)
        return suppressed_there(raw, segments, options, impl="gpu")

    monkeypatch.setattr("tallymill.engine.retained.suppressed", there)
    found = proposals_of(WindowProposer(detector, place="cpu"), tmp_path, options, images=3)
    assert asked
    assert len(found.boxes) > 5
    same(found, expected)
