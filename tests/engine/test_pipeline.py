import hashlib

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from tallymill.engine import pipeline as module
from tallymill.engine.batch import batch_of
from tallymill.engine.clock import StageClock
from tallymill.engine.decoders.base import HostDecoder
from tallymill.engine.detectors.base import Candidates, Detector, DetectorSpec
from tallymill.engine.detectors.coco import COCO_80, COCO_SYNONYMS
from tallymill.engine.detectors.synthetic import Synthetic
from tallymill.engine.items import read_items
from tallymill.engine.numbench.scores import ScorePlan
from tallymill.engine.pipeline import Pipeline, class_of_targets
from tallymill.engine.proposer import DetectOptions, WindowProposer
from tallymill.engine.sources.reader import ImageReader

COCO = DetectorSpec("coco", "fake", COCO_80, COCO_SYNONYMS)
OPEN_WORLD = DetectorSpec("open", "fake", (*COCO_80, "unknown"), COCO_SYNONYMS, fallback="unknown")


class Bright(Detector):
    """As many boxes as the picture is bright: a stand-in for a model whose answer follows from the pixels."""

    def __init__(self, name="bright"):
        self.spec = DetectorSpec(name, "fake", COCO_80, COCO_SYNONYMS)

    def preprocess(self, window):
        return {"mean": window.mean(axis=(0, 1)).astype(np.float32)}

    def run(self, inputs, _asked):
        return dict(inputs)

    def decode(self, outputs, index, _size, classes, _floor):
        n = int(outputs["mean"][index, 0]) // 10
        left = np.arange(n, dtype=np.float32) * 20
        boxes = np.stack([left, left * 0, left + 10, left * 0 + 10], axis=1)
        scores = np.linspace(0.1, 0.9, n, dtype=np.float32)
        return Candidates(boxes, scores, np.arange(n, dtype=np.int64) % len(classes))


def rows(folder, n, categories=("cat", "dog")):
    values = []
    for k in range(n):
        Image.fromarray(np.full((8 + k, 12, 3), 5 * k, np.uint8)).save(folder / f"{k}.png")
        targets = [{"category": c, "count": 2} for c in categories]
        values.append({"item_id": f"i{k}", "image": f"{k}.png", "targets": targets})
    return next(read_items(pa.Table.from_pylist(values)))


def pipe_of(folder, *proposers):
    names = tuple(p.spec.name for p in proposers)
    plan = ScorePlan(names, (1.0,) * len(names))
    options = DetectOptions(0.05, 0.5, ())
    return Pipeline(list(proposers), plan, options, ImageReader(str(folder)), 10_000, StageClock())


def run(pipe, table):
    """Proposals by detector, and scores, as lists of rows."""
    names = [p.spec.name for p in pipe.proposers]
    proposals, scores = {name: [] for name in names}, []
    for batch in pipe.read([table], names):
        found = pipe.detect(batch, names)
        for name in names:
            proposals[name] += found[name].to_arrow().to_pylist()
        scores += pipe.score(batch, found).to_pylist()
    return proposals, scores


@pytest.mark.parametrize(
    ("spec", "categories", "classes"),
    [
        (COCO, ["cat"], ["cat"]),
        (COCO, ["people", "sofa"], ["person", "couch"]),
        (COCO, ["raccoon", "cat"], [None, "cat"]),
        (COCO, ["sofa", "couch"], [None, None]),
        (COCO, ["sofa", "couch", "cat"], [None, None, "cat"]),
        (COCO, ["couch", "dog", "sofa", "couch potato"], [None, "dog", None, None]),
        (COCO, ["people", "human", "person"], [None, None, None]),
        (OPEN_WORLD, ["heron", "cat"], ["unknown", "cat"]),
        (OPEN_WORLD, ["heron", "stork"], [None, None]),
        (OPEN_WORLD, ["heron", "sofa", "unknown"], [None, "couch", None]),
    ],
)
def test_the_class_that_answers_for_a_category(spec, categories, classes):
    table = pa.Table.from_pylist(
        [
            {"image": "other", "targets": [{"category": "couch", "count": 1}]},
            {"image": "this", "targets": [{"category": c, "count": 1} for c in categories]},
        ]
    )
    found = class_of_targets(spec, batch_of(next(read_items(table))).targets)
    assert found[0] == COCO_80.index("couch")  # another item with the same class takes nothing away
    assert [None if k < 0 else spec.labels[k] for k in found[1:]] == classes


def test_coco_class_11_is_the_stop_sign():
    assert COCO.class_of("stop sign") == 11
    assert COCO.class_of("unicorn") is None


def test_an_open_vocabulary_covers_everything():
    batch = batch_of(next(read_items(pa.Table.from_pylist([{"image": "a", "targets": '{"sofa": 1, "couch": 2}'}]))))
    assert (class_of_targets(Synthetic("s").spec, batch.targets) >= 0).all()


@pytest.mark.parametrize("size", [1, 3, 16])
def test_results_do_not_depend_on_the_size_of_a_batch(size, tmp_path, monkeypatch):
    table = rows(tmp_path, 20)
    whole = run(pipe_of(tmp_path, WindowProposer(Bright())), table)
    assert sum(len(row["box"]) for row in whole[0]["bright"]) > 50
    monkeypatch.setattr(module, "BATCH_IMAGES", size)
    assert run(pipe_of(tmp_path, WindowProposer(Bright())), table) == whole


@pytest.mark.parametrize(("held", "at_once"), [(1, 1), (1, 3), (150, 4), (200, 2)])
def test_a_batch_of_large_files_is_split(held, at_once, tmp_path, monkeypatch):
    table = rows(tmp_path, 20)
    (tmp_path / "4.png").unlink()
    (tmp_path / "9.png").write_bytes(b"")
    whole = run(pipe_of(tmp_path, WindowProposer(Bright())), table)
    sizes = [path.stat().st_size for path in tmp_path.glob("*.png")]
    monkeypatch.setattr(module, "BATCH_BYTES", held)
    monkeypatch.setattr(module, "READ_AT_ONCE", at_once)
    assert run(pipe_of(tmp_path, WindowProposer(Bright())), table) == whole
    batches = list(pipe_of(tmp_path, WindowProposer(Bright())).read([table], ["bright"]))
    assert sum(map(len, batches)) == 20
    assert len(batches) > 3
    for batch in batches:
        assert sum(len(content or b"") for content in batch.contents) < held + at_once * max(sizes)


@pytest.mark.parametrize("size", [1, 7, 1024])
def test_nor_do_those_of_detectors_without_pixels(size, tmp_path, monkeypatch):
    table = rows(tmp_path, 20)
    whole = run(pipe_of(tmp_path, Synthetic("a"), Synthetic("b")), table)
    monkeypatch.setattr(module, "BATCH_ROWS", size)
    assert run(pipe_of(tmp_path, Synthetic("a"), Synthetic("b")), table) == whole


class ByThrees(HostDecoder):
    """Three files at once, as a decoder on a card would."""

    at_once = 3

    def __init__(self):
        self.asked = []

    def decode(self, files, max_pixels):
        self.asked.append(len(files))
        return super().decode(files, max_pixels)


def test_files_are_decoded_as_many_at_once_as_the_decoder_takes(tmp_path):
    table = rows(tmp_path, 8)
    (tmp_path / "4.png").write_bytes((tmp_path / "4.png").read_bytes()[:40])
    (tmp_path / "6.png").unlink()
    whole = run(pipe_of(tmp_path, WindowProposer(Bright())), table)
    pipe = pipe_of(tmp_path, WindowProposer(Bright()))
    pipe.decoder = ByThrees()
    assert run(pipe, table) == whole
    assert pipe.decoder.asked == [3, 3, 1]
    assert [row["status"] for row in whole[1]].count("error") == 2


def test_a_bad_image_costs_its_own_row_only(tmp_path):
    table = rows(tmp_path, 5)
    (tmp_path / "1.png").write_bytes((tmp_path / "1.png").read_bytes()[:40])
    (tmp_path / "3.png").unlink()
    proposals, scores = run(pipe_of(tmp_path, WindowProposer(Bright())), table)
    assert [row["status"] for row in scores] == ["scored", "error", "scored", "error", "scored"]
    assert "cut short" in scores[1]["error"]
    assert scores[3]["error"] == "image: not found"  # the row names the image
    assert scores[1]["image_hash"] is not None
    assert scores[3]["image_hash"] is None
    assert [(row["status"], row["width"], row["height"]) for row in proposals["bright"]] == [
        ("ok", 12, 8),
        ("error", None, None),
        ("ok", 12, 10),
        ("error", None, None),
        ("ok", 12, 12),
    ]
    for row in scores:
        assert (row["cw_nps"] is None) == (row["status"] == "error")


def test_a_hash_is_that_of_the_files_bytes(tmp_path):
    table = rows(tmp_path, 2)
    _, scores = run(pipe_of(tmp_path, WindowProposer(Bright())), table)
    for k, row in enumerate(scores):
        assert row["image_hash"] == hashlib.sha256((tmp_path / f"{k}.png").read_bytes()).hexdigest()[:32]


def test_an_image_above_max_pixels_is_an_error_row(tmp_path):
    table = rows(tmp_path, 3)
    pipe = pipe_of(tmp_path, WindowProposer(Bright()))
    pipe.max_pixels = 12 * 9
    assert [row["status"] for row in run(pipe, table)[1]] == ["scored", "scored", "error"]


def test_an_item_with_bad_targets_is_not_read(tmp_path):
    values = [{"item_id": "a", "image": "nowhere.png", "targets": [{"category": "cat", "count": 0}]}]
    _, scores = run(pipe_of(tmp_path, WindowProposer(Bright())), next(read_items(pa.Table.from_pylist(values))))
    assert scores[0]["error"] == "targets: requested count 0 outside 1..100"


def test_detectors_without_pixels_never_open_an_image(tmp_path):
    table = rows(tmp_path, 3)
    for file in tmp_path.glob("*.png"):
        file.unlink()
    _, scores = run(pipe_of(tmp_path, Synthetic("a")), table)
    assert {row["status"] for row in scores} == {"scored"}


def test_only_the_named_detectors_run_and_others_need_no_pixels(tmp_path):
    table = rows(tmp_path, 3)
    (tmp_path / "1.png").write_bytes(b"broken since")
    pipe = pipe_of(tmp_path, WindowProposer(Bright()), Synthetic("a"))
    pipe.reader.read_many = pytest.fail
    [batch] = pipe.read([table], ["a"])
    assert list(pipe.detect(batch, ["a"])) == ["a"]
    assert batch.contents == [None] * 3
    assert batch.hashes == [None] * 3  # nothing is read again, not even for its hash
    assert batch.errors == [None] * 3


@pytest.mark.parametrize("image_first", [True, False])
def test_a_detector_without_pixels_leaves_the_size_that_another_found(image_first, tmp_path):
    table = rows(tmp_path, 3)
    (tmp_path / "1.png").write_bytes(b"broken")
    proposers = [WindowProposer(Bright()), Synthetic("a")]
    proposals, _ = run(pipe_of(tmp_path, *(proposers if image_first else proposers[::-1])), table)
    for name in ("bright", "a"):
        assert [(row["width"], row["height"]) for row in proposals[name]] == [(12, 8), (None, None), (12, 10)]


def test_proposals_carry_the_hash_of_what_was_looked_at(tmp_path):
    table = rows(tmp_path, 3)
    (tmp_path / "1.png").unlink()
    proposals, scores = run(pipe_of(tmp_path, Synthetic("a"), WindowProposer(Bright())), table)
    hashes = [row["image_hash"] for row in proposals["bright"]]
    assert [value is None for value in hashes] == [False, True, False]
    assert [row["image_hash"] for row in scores] == hashes
    alone, _ = run(pipe_of(tmp_path, Synthetic("a")), table)
    assert [row["image_hash"] for row in alone["a"]] == [None] * 3


def test_files_are_let_go_one_by_one_as_they_are_looked_at(tmp_path):
    pipe = pipe_of(tmp_path, WindowProposer(Bright()))
    [batch] = pipe.read([rows(tmp_path, 3)], ["bright"])
    assert all(isinstance(content, bytes) for content in batch.contents)
    held = []
    pipe.detect(batch, ["bright"], lambda items, _: held.append((items, sum(c is not None for c in batch.contents))))
    assert held == [(1, 2), (1, 1), (1, 0)]


def test_detectors_without_pixels_report_a_batch_at_once(tmp_path):
    pipe = pipe_of(tmp_path, Synthetic("a"))
    [batch] = pipe.read([rows(tmp_path, 3)], ["a"])
    reports = []
    pipe.detect(batch, ["a"], lambda *counts: reports.append(counts))
    assert reports == [(3, 0)]


def test_a_category_that_no_detector_knows_is_uncovered(tmp_path):
    _, scores = run(pipe_of(tmp_path, WindowProposer(Bright())), rows(tmp_path, 4, ("cat", "raccoon")))
    assert {(row["status"], row["cw_nps"], row["error"]) for row in scores} == {("uncovered", None, None)}
    assert [t["covering"] for t in scores[0]["targets"]] == [1, 0]
    assert [t["soft"] is None for t in scores[0]["targets"]] == [False, True]


def test_the_clock_knows_every_stage(tmp_path):
    pipe = pipe_of(tmp_path, WindowProposer(Bright()))
    run(pipe, rows(tmp_path, 3))
    seconds = pipe.clock.take()
    assert set(seconds) == {"read", "decode", "text", "preprocess", "model", "boxes", "nms", "score"}
    assert pipe.clock.take() == {}
