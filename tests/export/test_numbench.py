"""The ensemble of the paper, end to end: three folders of weights, three exports, one sweep."""

from __future__ import annotations

import json

import pytest
import skimage.data
import torch
import transformers
from PIL import Image

from tallymill.cli import main
from tallymill.runners.run import load

MODELS = {"ow-detr": "64x107,107x64", "grounding-dino-tiny": "96x96,96x160", "owlvit-base-patch32": None}


def tallymill(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


@pytest.fixture
def deformable(stir, tmp_path):
    """Deformable DETR of 32 dimensions with the 81 columns of OW-DETR."""
    backbone = transformers.ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32, 32, 48],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    layers = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    config = transformers.DeformableDetrConfig(
        backbone_config=backbone, d_model=32, **layers, num_queries=20, num_labels=81, disable_custom_kernels=True
    )
    torch.manual_seed(0)
    folder = tmp_path / "ow_detr"
    stir(transformers.DeformableDetrForObjectDetection(config), 0.05).save_pretrained(folder)
    size = {"shortest_edge": 64, "longest_edge": 107}
    transformers.DeformableDetrImageProcessor(size=size).save_pretrained(folder)
    return folder


def test_the_ensemble_of_the_paper_scores_a_sweep(
    deformable, grounding_folder, owl_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("TALLYMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folders = [deformable, grounding_folder("GroundingDino"), owl_folder("owlvit")]
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
