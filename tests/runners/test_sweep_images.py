"""Sweeps whose detectors look at images: odd images, categories that nothing covers, and model files that are none."""

import math
from collections import Counter

import pytest

import tallymill
from tallymill.engine import pipeline
from tallymill.engine.ensemble import load_ensemble
from tallymill.engine.settings import Settings
from tallymill.errors import ModelError


def test_image_results_do_not_depend_on_batches_or_workers(
    tmp_path, image_folder, image_ensemble_file, contents, monkeypatch
):
    images = image_folder(tmp_path / "images", 40)
    ensemble = image_ensemble_file(tmp_path / "tiny.toml", "one", "two")
    settings = Settings(slices=(2,))
    tallymill.sweep(images, tmp_path / "A", ensemble=ensemble, settings=settings, workers=2)
    monkeypatch.setattr(pipeline, "BATCH_IMAGES", 3)
    summary = tallymill.sweep(images, tmp_path / "B", ensemble=ensemble, settings=settings, workers=0)
    assert contents(tmp_path / "A") == contents(tmp_path / "B")
    assert summary.scored == 40
    assert {row["cw_nps"] for row in tallymill.load(tmp_path / "A").scores.to_pylist()} - {0.0}


def sweep_odd_images(odd_images, folder, ensemble, settings):
    images = folder / "images"
    images.mkdir()
    for name, (data, _) in odd_images.items():
        (images / name).write_bytes(data)
    summary = tallymill.sweep(
        images, folder / "RUN", ensemble=ensemble, prompt="3 cats and 2 dogs", settings=settings, workers=2
    )
    rows = {row["item_id"]: row for row in tallymill.load(folder / "RUN").scores.to_pylist()}
    sizes = {
        row["item_id"]: (row["height"], row["width"])
        for row in tallymill.load(folder / "RUN").proposals(load_ensemble(ensemble).detectors[0].name).to_pylist()
    }
    assert set(rows) == set(odd_images)
    for name, (_, expected) in odd_images.items():
        row = rows[name]
        if expected.good:
            assert (row["status"], row["error"]) == ("scored", None), name
            assert row["cw_nps"] is not None
            assert sizes[name] == expected.size, name
        else:
            assert (row["status"], row["cw_nps"], row["b_nps"]) == ("error", None, None), name
            assert expected.reason in row["error"], name
            assert sizes[name] == (None, None)
    status = Counter("scored" if expected.good else "error" for _, expected in odd_images.values())
    assert (summary.items, summary.scored, summary.error) == (len(odd_images), status["scored"], status["error"])
    assert sum(count for _, count, _ in summary.reasons) == status["error"]


def test_every_odd_image_is_scored_or_an_error_row(odd_images, image_ensemble_file, tmp_path):
    sweep_odd_images(odd_images, tmp_path, image_ensemble_file(tmp_path / "tiny.toml", "one"), Settings())


@pytest.mark.models
def test_so_it_is_with_the_shipped_detectors(odd_images, tmp_path):
    from tallymill.exporters import hub

    hub.get("coco-cpu")
    sweep_odd_images(odd_images, tmp_path, "coco-cpu", Settings(slices=()))


def test_a_category_that_no_detector_knows_leaves_no_score(tmp_path, image_folder, image_ensemble_file):
    images = image_folder(tmp_path / "images", 4)
    (images / "metadata.jsonl").write_text(
        '{"file_name": "0.png", "targets": {"cat": 1, "raccoon": 2}}\n{"file_name": "1.png", "targets": {"cat": 1}}\n'
        '{"file_name": "2.png", "targets": {"sofa": 1, "couch": 1}}\n{"file_name": "3.png", "targets": {"sofa": 1}}\n'
    )
    ensemble = image_ensemble_file(tmp_path / "tiny.toml", "one", "two")
    summary = tallymill.sweep(images, tmp_path / "RUN", ensemble=ensemble, workers=0)
    assert (summary.scored, summary.uncovered, summary.error) == (2, 2, 0)
    assert summary.unknown == [("couch", 1), ("raccoon", 1), ("sofa", 1)]
    scores = tallymill.load(tmp_path / "RUN").scores.to_pylist()
    assert [row["status"] for row in scores] == ["uncovered", "scored", "uncovered", "scored"]
    assert [[t["covering"] for t in row["targets"]] for row in scores] == [[2, 0], [2], [0, 0], [2]]
    assert summary.cw_nps == math.fsum([scores[1]["cw_nps"], scores[3]["cw_nps"]]) / 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_model_file_that_is_none_stops_the_sweep_with_its_name(workers, tmp_path, image_folder):
    images = image_folder(tmp_path / "images", 40)
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    (tmp_path / "e.toml").write_text('[[detectors]]\nname = "x"\nfamily = "coco_ssd"\nmodel = "bad.onnx"\n')
    with pytest.raises(ModelError, match=r"bad\.onnx: ONNX Runtime cannot load this model"):
        tallymill.sweep(images, tmp_path / "RUN", ensemble=tmp_path / "e.toml", workers=workers)
    assert not list((tmp_path / "RUN").rglob("*.parquet"))
    assert not list((tmp_path / "RUN").rglob(".*"))


def test_a_model_file_that_is_not_there(tmp_path, image_folder):
    images = image_folder(tmp_path / "images", 1)
    (tmp_path / "e.toml").write_text('[[detectors]]\nname = "x"\nfamily = "coco_ssd"\nmodel = "gone.onnx"\n')
    with pytest.raises(ModelError, match=r"gone\.onnx: no such model file"):
        tallymill.sweep(images, tmp_path / "RUN", ensemble=tmp_path / "e.toml")
    assert not (tmp_path / "RUN").exists()
