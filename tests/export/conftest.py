"""Small models with random weights in folders that transformers can load: they need torch, and no downloads."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

from tallymill.bench.random_models import bert_tokenizer, make_folder, stirred


@pytest.fixture(scope="session")
def owl_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """OWL-ViT or OWLv2 of 32 dimensions on 64 pixels, with a tokenizer of single letters and some words."""

    @cache
    def make(family: str) -> Path:
        return make_folder(family, tmp_path_factory.mktemp("weights") / family, small=True)

    return make


@pytest.fixture(scope="session")
def stir() -> Any:
    """``stirred``, for tests that make their own models."""
    return stirred


@pytest.fixture(scope="session")
def grounding_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Grounding DINO (or MM…) of 32 dimensions, for images of 96 pixels and texts of 16 tokens."""

    @cache
    def make(prefix: str) -> Path:
        folder = tmp_path_factory.mktemp(prefix)
        config, model = (getattr(transformers, prefix + name) for name in ("Config", "ForObjectDetection"))
        swin = {"image_size": 96, "embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 2, 2], "window_size": 4}
        bert = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
        sizes = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
        heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
        torch.manual_seed(0)
        made = model(
            config(
                backbone_config=transformers.SwinConfig(**swin, out_indices=[2, 3, 4]),
                text_config=transformers.BertConfig(**bert, vocab_size=1100, max_position_embeddings=64),
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
        return folder

    return make


@pytest.fixture(scope="session")
def rf_detr_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RF-DETR of 32 dimensions on 112 pixels, with the 91 columns of the published ones, which have no names here."""
    folder = tmp_path_factory.mktemp("rf_detr")
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
    torch.manual_seed(0)
    model = stirred(transformers.RfDetrForObjectDetection(config), 0.1)
    model.class_embed.weight.data *= 5  # scores of many levels, none of them 1
    model.save_pretrained(folder)
    transformers.RfDetrImageProcessor(size={"height": 112, "width": 112}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def ow_detr() -> Callable[..., Any]:
    """Makes an OW-DETR in the form of transformers (see ``small_ow_detr``)."""
    return small_ow_detr


@pytest.fixture(scope="session")
def ow_detr_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """OW-DETR of 32 dimensions, for images whose sides are 64 and 107 at most."""
    folder = tmp_path_factory.mktemp("ow_detr")
    small_ow_detr().save_pretrained(folder)
    size = {"shortest_edge": 64, "longest_edge": 107}
    transformers.DeformableDetrImageProcessor(size=size).save_pretrained(folder)
    return folder


def small_ow_detr(layer_type: str = "basic", encoder_layers: int = 2, decoder_layers: int = 3, **options: Any) -> Any:
    """Deformable DETR of 32 dimensions with 81 columns; its scores are where a fault shows."""
    backbone = transformers.ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32, 32, 48],
        depths=[1, 2, 1, 1],
        layer_type=layer_type,
        out_features=["stage2", "stage3", "stage4"],
    )
    config = transformers.DeformableDetrConfig(
        backbone_config=backbone,
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
