"""Small models with random weights, a folder a family, that transformers can load: for tests and tables, no downloads.

They have 32 dimensions and few layers; every kind of node of the published ones is in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from tallymill.bench.random_models import bert_tokenizer, clip_tokenizer, make_folder, stirred
from tallymill.engine.detectors.coco import COCO_80

_STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 32, 48], "out_features": ["stage2", "stage3", "stage4"]}
_TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


@dataclass(frozen=True, slots=True)
class Small:
    """A family's small model: the recipe that exports it, options of that, and what writes its folder."""

    recipe: str
    write: Callable[[Path], None]
    options: Mapping[str, Any] = field(default_factory=dict)


def write_small(family: str, folder: Path) -> Path:
    """Write the small model of a family, one of ``SMALL``, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    SMALL[family].write(folder)
    return folder


def grounding_dino(folder: Path, prefix: str = "GroundingDino") -> None:
    """Grounding DINO (or MM…, by the prefix of its classes), for images of 96 pixels and texts of 16 tokens."""
    config, model = (getattr(transformers, prefix + name) for name in ("Config", "ForObjectDetection"))
    swin = {"image_size": 96, "embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 2, 2], "window_size": 4}
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    made = model(
        config(
            backbone_config=transformers.SwinConfig(**swin, out_indices=[2, 3, 4]),
            text_config=transformers.BertConfig(**_TOWER, vocab_size=1100, max_position_embeddings=64),
            **sizes,
            **heads,
            d_model=32,
            num_queries=20,
            max_text_len=16,
        )
    )
    stirred(made, 0.05).save_pretrained(folder)
    bert_tokenizer().save_pretrained(folder)
    size = {"shortest_edge": 96, "longest_edge": 160}
    transformers.GroundingDinoImageProcessor(size=size).save_pretrained(folder)


def rf_detr(folder: Path) -> None:
    """RF-DETR on 112 pixels, with the 91 columns of the published ones, which have no names here."""
    backbone = transformers.RfDetrDinov2Config(
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        image_size=112,
        patch_size=14,
        num_windows=2,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = transformers.RfDetrConfig(
        backbone_config=backbone,
        d_model=32,
        decoder_ffn_dim=64,
        decoder_layers=2,
        decoder_self_attention_heads=4,
        decoder_cross_attention_heads=4,
        decoder_n_points=2,
        num_queries=20,
        group_detr=2,
        num_labels=91,
        intermediate_size=64,
    )
    model = stirred(transformers.RfDetrForObjectDetection(config), 0.1)
    model.class_embed.weight.data *= 5  # scores of many levels, none of them 1
    model.save_pretrained(folder)
    transformers.RfDetrImageProcessor(size={"height": 112, "width": 112}).save_pretrained(folder)


def deformable_detr(layer_type: str = "basic", encoder_layers: int = 2, decoder_layers: int = 3, **options: Any) -> Any:
    """The model of OW-DETR, with 81 columns; its scores are where a fault shows."""
    config = transformers.DeformableDetrConfig(
        backbone_config=transformers.ResNetConfig(
            embedding_size=16, layer_type=layer_type, **{**_STAGES, "depths": [1, 2, 1, 1]}
        ),
        d_model=32,
        encoder_layers=encoder_layers,
        decoder_layers=decoder_layers,
        encoder_ffn_dim=64,
        decoder_ffn_dim=48,
        encoder_n_points=2,
        num_queries=20,
        num_labels=81,
        disable_custom_kernels=True,
        **options,
    )
    torch.manual_seed(0)
    model = stirred(transformers.DeformableDetrForObjectDetection(config), 0.05)
    for module in model.modules():
        for name in ("running_mean", "running_var"):
            if hasattr(module, name):
                getattr(module, name).add_(torch.rand(getattr(module, name).shape))
    for head in model.class_embed:
        head.weight.data.copy_(torch.randn(head.weight.shape))
        head.bias.data.fill_(-1)
    return model


def ow_detr(folder: Path) -> None:
    """OW-DETR in the form of transformers, for images of 64 by 107."""
    deformable_detr().save_pretrained(folder)
    size = {"shortest_edge": 64, "longest_edge": 107}
    transformers.DeformableDetrImageProcessor(size=size).save_pretrained(folder)


def rt_detr(folder: Path) -> None:
    """RT-DETR v2 on 128 pixels."""
    backbone = transformers.RTDetrResNetConfig(embedding_size=16, layer_type="basic", **_STAGES)
    config = transformers.RTDetrV2Config(backbone_config=backbone, anchor_image_size=None, **_hybrid())
    _write_hybrid(transformers.RTDetrV2ForObjectDetection(config), folder)


def d_fine(folder: Path) -> None:
    """D-FINE on 128 pixels."""
    backbone = transformers.HGNetV2Config(
        stem_channels=[3, 16, 16],
        stage_in_channels=[16, 16, 32, 32],
        stage_mid_channels=[16, 16, 16, 16],
        stage_out_channels=[16, 32, 32, 48],
        stage_num_blocks=[1, 1, 1, 1],
        stage_downsample=[False, True, True, True],
        stage_light_block=[False, False, False, False],
        stage_kernel_size=[3, 3, 3, 3],
        stage_numb_of_layers=[2, 2, 2, 2],
        **_STAGES,
    )
    config = transformers.DFineConfig(backbone_config=backbone, decoder_n_points=[2, 2, 2], **_hybrid())
    _write_hybrid(transformers.DFineForObjectDetection(config), folder)


def _hybrid() -> dict[str, Any]:
    return {
        "encoder_hidden_dim": 32,
        "encoder_in_channels": [32, 32, 48],
        "feat_strides": [8, 16, 32],
        "encoder_ffn_dim": 64,
        "encoder_attention_heads": 4,
        "d_model": 32,
        "num_queries": 20,
        "decoder_in_channels": [32, 32, 32],
        "decoder_attention_heads": 4,
        "decoder_layers": 2,
        "num_denoising": 0,
        "id2label": dict(enumerate(COCO_80)),
    }


def _write_hybrid(model: Any, folder: Path) -> None:
    stirred(model, 0.1)
    model.model.enc_score_head.weight.data *= 20  # so that not all proposals are nearly equal
    model.save_pretrained(folder)
    transformers.RTDetrImageProcessor(size={"height": 128, "width": 128}).save_pretrained(folder)


def sam3(folder: Path) -> None:
    """SAM 3 on 112 pixels with 20 queries."""
    tokenizer = clip_tokenizer()
    layers = {"hidden_size": 32, "num_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    backbone = {
        **_TOWER,
        "model_type": "sam3_vit_model",
        "image_size": 112,
        "patch_size": 14,
        "window_size": 4,
        "global_attn_indexes": [1],
        "pretrain_image_size": 56,
    }
    text = {"vocab_size": len(tokenizer), "max_position_embeddings": 16, "projection_dim": 32}
    config = transformers.Sam3Config(
        vision_config={
            "backbone_config": backbone,
            "fpn_hidden_size": 32,
            "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
        },
        text_config={**_TOWER, **text, "eos_token_id": tokenizer.eos_token_id},
        geometry_encoder_config=layers,
        detr_encoder_config=layers,
        detr_decoder_config={**layers, "num_queries": 20},
        mask_decoder_config={"hidden_size": 32, "num_attention_heads": 4},
    )
    stirred(transformers.Sam3Model(config)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    transformers.Sam3ImageProcessor(size={"height": 112, "width": 112}).save_pretrained(folder)


def _owl(family: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        make_folder(family, folder, small=True)

    return write


def _buckets(*sizes: tuple[int, int]) -> Mapping[str, Sequence[tuple[int, int]]]:
    return {"buckets": sizes}


SMALL: Mapping[str, Small] = {
    "owlvit": Small("owlvit-base-patch32", _owl("owlvit")),
    "owlv2": Small("owlv2-base-patch16", _owl("owlv2")),
    "grounding_dino": Small("grounding-dino-tiny", grounding_dino, _buckets((96, 96), (96, 160))),
    "mm_grounding_dino": Small(
        "mm-grounding-dino-base", partial(grounding_dino, prefix="MMGroundingDino"), _buckets((96, 96), (96, 160))
    ),
    "ow_detr": Small("ow-detr", ow_detr, _buckets((64, 107), (107, 64))),
    "rf_detr": Small("rf-detr-nano", rf_detr),
    "rt_detr": Small("rt-detr-v2-r18", rt_detr),
    "d_fine": Small("d-fine-nano", d_fine),
    "sam3": Small("sam3", sam3),
}
