"""The suite of the paper from small random weights: what is seen means nothing, but every stage runs on it."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow.parquet as pq
import pytest
import skimage.data
import torch
import transformers
from PIL import Image
from torchvision.models.optical_flow import raft

from tallymill import abacus
from tallymill.bench.random_models import stirred
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.export import export
from tallymill.exporters.recipes.raft import load
from tallymill.kernels.mask_iou import Masks

HEIGHT, WIDTH = 200, 300


def small_raft():
    encoder = partial(raft.FeatureEncoder, layers=(4, 4, 6, 8, 24))
    motion = raft.MotionEncoder(in_channels_corr=100, corr_layers=(8, 8), flow_layers=(8, 8), out_channels=16)
    update = raft.UpdateBlock(
        motion_encoder=motion,
        recurrent_block=raft.RecurrentBlock(input_size=24, hidden_size=16),
        flow_head=raft.FlowHead(in_channels=16, hidden_size=16),
    )
    return raft.RAFT(
        feature_encoder=encoder(norm_layer=torch.nn.InstanceNorm2d),
        context_encoder=encoder(norm_layer=torch.nn.BatchNorm2d),
        corr_block=raft.CorrBlock(num_levels=4, radius=2),
        update_block=update,
        mask_predictor=raft.MaskPredictor(in_channels=16, hidden_size=16),
    )


@pytest.fixture(scope="module")
def suite(small_folder, co_detr_graph, tmp_path_factory):
    root = tmp_path_factory.mktemp("suite")
    file = co_detr_graph.graph(root / "co-detr.onnx", height="H", width="W")
    export(recipe_of("co-detr"), file, out=root / "co-detr")
    for name, family in (("sam3", "sam3"), ("rf-detr-nano", "rf_detr")):
        export(recipe_of(name), small_folder(family), out=root / name)
    torch.manual_seed(0)
    torch.save(small_raft().state_dict(), root / "raft.pth")
    recipe = replace(recipe_of("raft-large"), load=partial(load, build=small_raft, updates=2))
    export(recipe, root / "raft.pth", out=root / "raft", options={"buckets": [(HEIGHT, 304)]})
    config = transformers.Swin2SRConfig(embed_dim=12, depths=[2], num_heads=[2], image_size=16)
    stirred(transformers.Swin2SRForImageSuperResolution(config), 0.05).save_pretrained(root / "weights")
    transformers.Swin2SRImageProcessor().save_pretrained(root / "weights")
    export(recipe_of("swin2sr-x2"), root / "weights", out=root / "swin2sr")
    tables = {"sam3": "[segmenter]", "rf-detr-nano": "[[confirmers]]", "co-detr": "[[confirmers]]"}
    lines = []
    for model, table in tables.items():
        lines += [table, f'name = "{model}"', f'family = "{recipe_of(model).family}"', f'model = "./{model}"']
    lines += [
        "[flow]",
        'family = "raft"',
        'model = "./raft"',
        "[upscaler]",
        'family = "swin2sr"',
        'model = "./swin2sr"',
    ]
    # Of random weights nothing is sure, and all instances are alike. Crops of them are wider than 256 pixels, which no
    # size of the default export is, and lower than 224, so that each is doubled once.
    lines += ["[settings]", "presence = 0.001", "confirm_confidence = 0.99", "crop_scale = 1.8", "match_iou = 0.999"]
    (root / "suite.toml").write_text("\n".join(lines) + "\n")
    return root / "suite.toml"


def test_edits_go_through_every_stage(suite, tmp_path):
    source = np.ascontiguousarray(skimage.data.chelsea()[:HEIGHT, :WIDTH])
    edited = source.copy()
    edited[20:120, 150:250] = skimage.data.coffee()[100:200, 100:200]
    rows = []
    for number, (first, second, text) in enumerate(
        [(source, edited, "add 1 cat"), (edited, source, "add 2 cups"), (source, source, "change 1 cat to dogs")]
    ):
        names = [f"{number}-{side}.png" for side in "ab"]
        for name, pixels in zip(names, (first, second), strict=True):
            Image.fromarray(pixels).save(tmp_path / name)
        rows.append({"source": names[0], "edited": names[1], "instruction": text})
    manifest = tmp_path / "edits.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = abacus.score(manifest, tmp_path / "RUN", suite=suite, workers=0, resamples=0, device="cpu")
    assert found.instances == "masks of sam3"
    table = pq.read_table(tmp_path / "RUN/evidence/part-00000.parquet").to_pylist()
    assert [row["error"] for row in table] == [None] * 3
    seen = [one for row in table for one in row["instances"]]
    assert seen
    masks = Masks.from_rle([{"size": [HEIGHT, WIDTH], "counts": one["rle"]} for one in seen])
    extent = (masks.box[:, 2:] - masks.box[:, :2]).prod(axis=1)
    assert (masks.area < extent).any()  # they are no boxes
    crops = [one for one in seen if one["crop"]]
    sizes = [Image.open(io.BytesIO(one["crop"])).size for one in crops]
    assert {one["crop_fault"] for one in crops} == {None}
    assert any(max(size) > 2 * 256 for size in sizes)  # no bucket held it
    assert {len(one["votes"]) for one in seen if one["votes"]} == {2}
    assert table[2]["scene"] in (1, None)  # an image beside itself
    assert {"flow", "model", "clean", "match", "crop"} <= set(found.seconds)
