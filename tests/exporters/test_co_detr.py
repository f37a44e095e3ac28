"""A bundle of Co-DETR from ONNX files: graphs that stand in for it, made by hand."""

from __future__ import annotations

import hashlib
import json
import os

import numpy as np
import pytest
import skimage.data
import skimage.io

import tallymill
from tallymill.engine.bundles import digest_of, load_bundle
from tallymill.engine.detectors.co_detr import CoDetr
from tallymill.engine.sessions.base import stack
from tallymill.errors import ModelError, OpenError
from tallymill.exporters import given
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.export import export

RECIPE = recipe_of("co-detr")
QUERIES = 12
BATCH, HEIGHT, WIDTH = "B", 80, 134
NUMBERS = {"shortest": 80, "longest": 134, "top": 10}


@pytest.fixture
def graph(co_detr_graph):
    return co_detr_graph.graph


@pytest.fixture
def made(graph, tmp_path):
    """Export what ``graph`` makes of the options, with ``NUMBERS`` beside it."""

    def make(numbers=None, **options):
        file = graph(tmp_path / "mine.onnx", **options)
        (tmp_path / "mine.json").write_text(json.dumps({**NUMBERS, **(numbers or {})}))
        lines = []
        bundle = export(RECIPE, file, out=tmp_path / "out", log=lines.append)
        make.lines = lines
        return bundle

    return make


def test_a_file_becomes_a_bundle_that_answers(made):
    bundle = made()
    assert bundle.family == "co_detr"
    assert list(bundle.parts) == ["image-80x134"]
    detector = CoDetr(bundle, "co-detr")
    image = skimage.data.chelsea()
    outputs = detector.run(stack([detector.preprocess(image)] * 3), [np.arange(80)] * 3)
    one, other = (detector.decode(outputs, k, image.shape[:2], np.arange(80), 0.001) for k in (0, 2))
    assert np.array_equal(one.boxes, other.boxes)
    assert 0 < len(one.scores) <= 10
    assert any("picture of 200x300" in line and "fits none of the sizes" in line for line in made.lines)


def test_what_the_file_says_nothing_of_is_that_of_the_published_configurations(graph, tmp_path):
    loaded = RECIPE.load(graph(tmp_path / "mine.onnx"))
    assert loaded.numbers["shortest"] == 800
    assert loaded.numbers["top"] == 300
    assert loaded.numbers["soft_nms"] == 0.8
    assert loaded.numbers["buckets"] == [[80, 134]]


@pytest.mark.parametrize(
    "options", [{"batch": 1}, {"height": "H", "width": "W"}, {"batch": 1, "height": "H", "width": "W"}]
)
def test_batch_and_sizes_may_be_fixed_or_free(made, options):
    bundle = made(**options)
    detector = CoDetr(bundle, "co-detr")
    assert detector.spec.batch == 1  # of any size may be large ones, which go alone on the CPU
    assert list(bundle.parts) == (["image"] if "height" in options else ["image-80x134"])
    told = json.loads((bundle.folder / "bundle.json").read_text())["gate"]
    assert {each["output"] for each in told} == {"logits", "boxes"}
    assert all(each["compared"] and each["difference"] <= each["tolerance"] for each in told)
    end = "after another" if detector.spec.batch == 1 else "of 4 against alone"
    assert all(each["check"].endswith(end) for each in told)


def test_a_folder_may_hold_a_file_for_each_size_and_weights_beside_them(graph, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for height, width in ((80, 134), (134, 80)):
        name = f"{height}.onnx"
        graph(
            folder / name,
            height=height,
            width=width,
            save_as_external_data=True,
            location=f"{name}.data",
            size_threshold=64,
        )
    (folder / "co-detr.json").write_text(json.dumps(NUMBERS))
    bundle = export(RECIPE, folder, out=tmp_path / "out")
    assert sorted(file.name for file in bundle.folder.iterdir()) == [
        "134.onnx.data",
        "80.onnx.data",
        "bundle.json",
        "image-134x80.onnx",
        "image-80x134.onnx",
    ]
    CoDetr(load_bundle(bundle.folder), "co-detr").run({"image": np.zeros((1, 3, 134, 80), np.float32)}, [])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "float16"}, "wanted input image float32 .*, the model has image float16"),
        ({"names": ("input", "logits", "boxes")}, "wanted input image"),
        ({"names": ("image", "scores", "boxes")}, "wanted output logits .*, the model has only scores, boxes"),
        ({"classes": 91}, "has 80 labels and 91 columns of logits"),
        ({"last": "Sigmoid"}, r"all logits are in \[0, 1\], as if they had been through a sigmoid"),
        ({"batch": 2}, "takes 2 images a call"),
        ({"leak": True}, "slot 1 of 4 against alone: logits differs"),
        ({"height": 64, "width": 64}, "no picture fits any of its sizes"),
        ({"height": "H"}, "takes images of any height and 134 width"),
        ({"numbers": {"top": "ten"}}, r'mine\.json: top = "ten"; wanted a whole number from 1'),
        ({"numbers": {"shortest": True}}, "shortest = true; wanted a whole number of pixels"),
        ({"numbers": {"longest": 0}}, "longest = 0; wanted a whole number of pixels"),
        ({"numbers": {"padding": 300}}, "padding = 300; wanted a level from 0 to 255, or null"),
        ({"numbers": {"mean": 0.5}}, "mean = 0.5; wanted three numbers"),
        ({"numbers": {"std": [1, 1, 0]}}, r"std = \[1, 1, 0\]; wanted three numbers above 0"),
        ({"numbers": {"labels": ["cat", "cat"]}}, r'labels = \["cat", "cat"\]; wanted a list of names, each once'),
        ({"numbers": {"soft_nms": 2}}, "soft_nms = 2; wanted an IoU from 0 to 1, or null"),
        ({"numbers": {"least": float("nan")}}, "least = NaN; wanted a score from 0 to 1"),
        ({"numbers": {"tops": 10}}, "unknown key 'tops'; known: shortest, "),
    ],
)
def test_what_breaks_the_contract_is_told_and_nothing_is_installed(made, tmp_path, options, said):
    with pytest.raises(ModelError, match=said):
        made(**options)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mine.json", "mine.onnx"]


def test_other_labels_are_named_beside_the_file(made):
    bundle = made(classes=2, numbers={"labels": ["crane", "heron"]})
    assert CoDetr(bundle, "co-detr").spec.labels == ("crane", "heron")


def test_what_is_no_file_is_told(graph, tmp_path):
    with pytest.raises(ModelError, match="you export yourself"):
        export(RECIPE, out=tmp_path / "out")
    with pytest.raises(ModelError, match=r"has no \.onnx file"):
        export(RECIPE, tmp_path, out=tmp_path / "out")
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(ModelError, match=r"text\.onnx: ONNX Runtime cannot load"):
        export(RECIPE, tmp_path / "text.onnx", out=tmp_path / "out")
    graph(tmp_path / "one.onnx")
    graph(tmp_path / "two.onnx")
    (tmp_path / "text.onnx").unlink()
    with pytest.raises(ModelError, match="several files, of which one takes images of 80 x 134"):
        export(RECIPE, tmp_path, out=tmp_path / "out")


def test_corners_are_not_taken_for_centres_and_sizes(made):
    detector = CoDetr(made(), "co-detr")
    corners = np.sort(np.random.default_rng(0).random((1, 5, 2, 2), np.float32), axis=2).reshape(1, 5, 4)
    outputs = {"logits": np.full((1, 5, 80), -3, np.float32), "boxes": corners}
    with pytest.raises(ModelError, match="boxes look like corners"):
        given._check_ranges(detector, outputs, "")
    outputs["boxes"] = np.concatenate(
        [(corners[..., :2] + corners[..., 2:]) / 2, corners[..., 2:] - corners[..., :2]], 2
    )
    given._check_ranges(detector, outputs, "")


@pytest.fixture
def of_two_sizes(graph, tmp_path):
    """The arguments of a sweep with a bundle of two graphs, over an image that lies and one that stands."""
    folder, images = tmp_path / "mine", tmp_path / "images"
    folder.mkdir()
    images.mkdir()
    for height, width in ((80, 134), (134, 80)):
        graph(folder / f"{height}.onnx", height=height, width=width)
    (folder / "co-detr.json").write_text(json.dumps(NUMBERS))
    export(RECIPE, folder, out=tmp_path / "out")
    picture = skimage.data.coffee()
    for name, pixels in (("a", picture), ("b", picture.swapaxes(0, 1)), ("c", picture)):
        skimage.io.imsave(images / f"{name}.png", pixels)
    rows = [{"image": f"{name}.png", "prompt": "two cats"} for name in "abc"]
    (images / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "one.toml").write_text('[[detectors]]\nname = "c"\nfamily = "co_detr"\nmodel = "./out"\n')
    return {"manifest": images / "m.jsonl", "out": tmp_path / "RUN", "ensemble": tmp_path / "one.toml", "workers": 0}


def test_a_graph_that_is_changed_before_an_image_needs_it_ends_the_sweep(of_two_sizes, tmp_path, monkeypatch):
    """And makes no error rows, image after image."""
    run = CoDetr.run

    def touched_meanwhile(self, inputs, asked):
        os.utime(tmp_path / "out/image-134x80.onnx", (1, 1))
        return run(self, inputs, asked)

    monkeypatch.setattr(CoDetr, "run", touched_meanwhile)
    with pytest.raises(OpenError, match=r"image-134x80\.onnx: has been changed since it was checked\n  .* start again"):
        tallymill.sweep(**of_two_sizes)
    monkeypatch.setattr(CoDetr, "run", run)
    assert tallymill.load(tmp_path / "RUN").summary().error == 0
    summary = tallymill.sweep(**of_two_sizes)
    assert (summary.done, summary.error) == (3, 0)


def test_every_graph_is_opened_before_work_begins(of_two_sizes, tmp_path):
    file = tmp_path / "out/image-134x80.onnx"
    file.write_bytes(b"no graph")
    manifest = json.loads((tmp_path / "out/bundle.json").read_text())
    manifest["files"][file.name] = hashlib.sha256(b"no graph").hexdigest()
    (tmp_path / "out/bundle.json").write_text(json.dumps({**manifest, "sha256": digest_of(manifest)}))
    with pytest.raises(ModelError, match=r"image-134x80\.onnx: ONNX Runtime cannot load this model"):
        tallymill.sweep(**of_two_sizes)
    assert not (tmp_path / "RUN").exists()
