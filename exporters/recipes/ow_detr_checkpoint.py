"""Checkpoints of OW-DETR as its repository writes them, for the Deformable DETR of transformers.

Read from github.com/akshitac8/OW-DETR (models/, main_open_world.py, datasets/torchvision_datasets/open_world.py): the
file holds ``model``, the weights, and ``args``, how it was trained. Everything that the architecture needs but the
number of heads is in the shapes of the weights. The novelty branch (``nc_class_embed``) serves the loss alone.
"""

from __future__ import annotations

import argparse
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tallymill.errors import ModelError

Weights = Mapping[str, Any]

HEADS = 8
_UNUSED = re.compile(r"^nc_class_embed\.|num_batches_tracked$|total_(params|ops)$")
_RENAMED = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^backbone\.0\.body\.conv1\.", r"model.backbone.model.embedder.embedder.convolution."),
        (r"^backbone\.0\.body\.bn1\.", r"model.backbone.model.embedder.embedder.normalization."),
        (r"^(transformer\.(?:encoder|decoder)\.layers\.\d+)\.linear([12])\.", r"\1.mlp.fc\2."),
        (r"^(transformer\.encoder\.layers\.\d+)\.norm1\.", r"\1.self_attn_layer_norm."),
        (r"^(transformer\.encoder\.layers\.\d+)\.norm2\.", r"\1.final_layer_norm."),
        (r"^(transformer\.decoder\.layers\.\d+)\.norm1\.", r"\1.encoder_attn_layer_norm."),
        (r"^(transformer\.decoder\.layers\.\d+)\.norm2\.", r"\1.self_attn_layer_norm."),
        (r"^(transformer\.decoder\.layers\.\d+)\.norm3\.", r"\1.final_layer_norm."),
        (r"^(transformer\.decoder\.layers\.\d+)\.cross_attn\.", r"\1.encoder_attn."),
        (r"^(transformer\.decoder\.layers\.\d+\.self_attn)\.out_proj\.", r"\1.o_proj."),
        (r"^transformer\.", r"model."),
        (r"^query_embed\.", r"model.query_position_embeddings."),
        (r"^input_proj\.", r"model.input_proj."),
    )
)
_BLOCK = re.compile(r"^backbone\.0\.body\.layer(\d+)\.(\d+)\.(?:(conv|bn)(\d)|downsample\.(\d))\.(.+)$")
_PACKED = re.compile(r"^(model\.decoder\.layers\.\d+\.self_attn)\.in_proj_(weight|bias)$")


def read(file: Path) -> tuple[dict[str, Any], argparse.Namespace]:
    """Weights by name and the arguments of training. Raises ``ModelError`` when it is no such checkpoint."""
    import torch

    try:
        # Nothing of the file but tensors, plain values and the arguments is unpickled, so that it cannot run code.
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, pickle.UnpicklingError) as exc:
        reason = str(exc).strip().partition("\n")[0]
        raise ModelError(f"{file}: torch cannot read it: {reason}", hint=_WANTED) from exc
    weights = content.get("model", content) if isinstance(content, dict) else None
    if not isinstance(weights, dict) or "transformer.level_embed" not in weights:
        raise ModelError(f"{file}: not a checkpoint of OW-DETR (it has no transformer.level_embed)", hint=_WANTED)
    args = content.get("args")
    return dict(weights), args if isinstance(args, argparse.Namespace) else argparse.Namespace()


_WANTED = "a checkpoint such as checkpoint0109.pth that the repository akshitac8/OW-DETR wrote"


def renamed(weights: Weights) -> dict[str, Any]:
    """The weights under the names of ``DeformableDetrForObjectDetection``, query, key and value taken apart."""
    found: dict[str, Any] = {}
    for name, value in weights.items():
        if _UNUSED.search(name):
            continue
        new = _rename(name)
        packed = _PACKED.match(new)
        if packed:
            for letter, piece in zip("qkv", value.chunk(3), strict=True):
                found[f"{packed[1]}.{letter}_proj.{packed[2]}"] = piece
        else:
            found[new] = value
    return found


def _rename(name: str) -> str:
    block = _BLOCK.match(name)
    if block:
        stage, layer, kind, number, shortcut, rest = block.groups()
        inner = f"layer.{int(number) - 1}" if number else "shortcut"
        what = "convolution" if kind == "conv" or shortcut == "0" else "normalization"
        return f"model.backbone.model.encoder.stages.{int(stage) - 1}.layers.{layer}.{inner}.{what}.{rest}"
    for pattern, replacement in _RENAMED:
        name = pattern.sub(replacement, name)
    return name


def config_of(weights: Weights, args: argparse.Namespace) -> Any:
    """The ``DeformableDetrConfig`` of a checkpoint's weights (in its own names). OW-DETR has one stage.

    Raises ``KeyError`` with the name of a weight that is not there.
    """
    from transformers import DeformableDetrConfig

    shape = {name: tuple(value.shape) for name, value in weights.items()}
    levels, width = shape["transformer.level_embed"]
    heads = getattr(args, "nheads", HEADS)

    def layers(where: str) -> int:
        return _count(weights, rf"^transformer\.{where}\.layers\.(\d+)\.linear1\.weight$")

    def points(attention: str) -> int:
        return int(shape[f"transformer.{attention}.attention_weights.weight"][0] // (heads * levels))

    return DeformableDetrConfig(
        backbone_config=_backbone(weights, levels),
        d_model=width,
        encoder_layers=layers("encoder"),
        decoder_layers=layers("decoder"),
        encoder_ffn_dim=shape["transformer.encoder.layers.0.linear1.weight"][0],
        decoder_ffn_dim=shape["transformer.decoder.layers.0.linear1.weight"][0],
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_n_points=points("encoder.layers.0.self_attn"),
        decoder_n_points=points("decoder.layers.0.cross_attn"),
        num_feature_levels=levels,
        with_box_refine="transformer.decoder.bbox_embed.0.layers.0.weight" in shape,
        num_queries=shape["query_embed.weight"][0],
        num_labels=shape["class_embed.0.weight"][0],
        disable_custom_kernels=True,
    )


def _backbone(weights: Weights, levels: int) -> Any:
    """The ``ResNetConfig`` of what lies under ``backbone.0.body``."""
    from transformers import ResNetConfig

    body = "backbone.0.body"
    depths = [_count(weights, rf"^{body}\.layer{stage}\.(\d+)\.conv1\.weight$") for stage in (1, 2, 3, 4)]
    bottleneck = f"{body}.layer1.0.conv3.weight" in weights
    last = "conv3" if bottleneck else "conv2"
    return ResNetConfig(
        embedding_size=weights[f"{body}.conv1.weight"].shape[0],
        hidden_sizes=[weights[f"{body}.layer{stage}.0.{last}.weight"].shape[0] for stage in (1, 2, 3, 4)],
        depths=depths,
        layer_type="bottleneck" if bottleneck else "basic",
        out_features=["stage2", "stage3", "stage4"] if levels > 1 else ["stage4"],
    )


def _count(weights: Weights, pattern: str) -> int:
    return 1 + max((int(found[1]) for name in weights if (found := re.match(pattern, name))), default=-1)
