"""The ensemble of the paper, end to end: three folders of weights, three exports, one sweep."""

from __future__ import annotations

import json

import pytest
import skimage.data
from PIL import Image

from tallymill.cli import main
from tallymill.runners.run import load

MODELS = {"ow-detr": "64x107,107x64", "grounding-dino-tiny": "96x96,96x160", "owlvit-base-patch32": None}


def tallymill(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def test_the_ensemble_of_the_paper_scores_a_sweep(small_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TALLYMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folders = [small_folder(family) for family in ("ow_detr", "grounding_dino", "owlvit")]
    for (model, buckets), folder in zip(MODELS.items(), folders, strict=True):
        sizes = [] if buckets is None else ["--buckets", buckets]
        assert tallymill("export", model, "--weights", folder, *sizes) == 0
    capsys.readouterr()
    rows = []
    # "dog" is a class of COCO, "wet cat" falls on OW-DETR's unknown, and two that do are covered by the others alone.
    asked = [["dog"], ["dog", "wet cat"], ["wet cat", "wet dog"]]
    for k, names in enumerate(asked):
        Image.fromarray(skimage.data.coffee()[: 400 - 30 * k]).save(f"{k}.png")
        targets = [{"category": name, "count": 2} for name in names]
        rows.append(json.dumps({"item_id": f"i{k}", "image": f"{k}.png", "targets": targets}))
    (tmp_path / "items.jsonl").write_text("\n".join(rows))
    assert tallymill("sweep", "items.jsonl", "--out", "one", "--ensemble", "numbench", "--workers", 1) == 0
    assert tallymill("sweep", "items.jsonl", "--out", "two", "--ensemble", "numbench", "--workers", 2) == 0
    run = load("one")
    assert run.scores.equals(load("two").scores)
    covering = [[target["covering"] for target in row["targets"]] for row in run.scores.to_pylist()]
    assert covering == [[3], [3, 3], [2, 2]]
    assert run.taus == {"ow-detr": 1.15, "grounding-dino": 1.42, "owl-vit": 0.93}
    for detector in run.detectors:
        found = run.proposals(detector).to_pylist()
        assert any(row["confidence"] for row in found), detector
    assert tallymill("rescore", "one", "--out", "again") == 0
    assert load("again").scores.column("cw_nps").equals(run.scores.column("cw_nps"))
