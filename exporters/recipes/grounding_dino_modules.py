"""The two parts of Grounding DINO as modules. They share the weights of the model and change nothing in it."""

from __future__ import annotations

import contextlib
import math
import unittest.mock
from collections.abc import Iterator
from typing import Any


def text_module(model: Any) -> Any:
    """``tokens`` and ``positions`` int64 [P, L], ``attention`` bool [P, L, L] -> ``text`` float32 [P, L, D]."""
    import torch

    class Text(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = model.model.text_backbone
            self.projection = model.model.text_projection

        def forward(self, tokens: Any, attention: Any, positions: Any) -> dict[str, Any]:
            read = self.backbone(tokens, attention[:, None], torch.zeros_like(tokens), positions)
            return {"text": self.projection(read.last_hidden_state)}

    return Text().eval()


def image_module(model: Any) -> Any:
    """The model from pixels and encoded text to boxes.

    Inputs: ``image`` float32 [B, 3, H, W] and ``image_mask`` bool [B, H, W]; ``text`` float32 [B, L, D], ``text_mask``
    bool [B, L], ``text_attention`` bool [B, L, L] and ``text_positions`` int64 [B, L]. Outputs: ``logits`` float32
    [B, Q, L], -inf where the text is padding, and ``boxes`` float32 [B, Q, 4], centre and size as fractions of the
    image without its padding. ``proposals`` int64 [B, Q] are the places of the first stage that the queries start from,
    and ``best`` float32 [B, Q, 2] their scores, twice; where they are an input, first the best scores that there are.
    """
    import torch

    class Image(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model.model
            self.class_head = model.class_embed[-1]
            self.box_head = model.bbox_embed[-1]

        def forward(
            self,
            image: Any,
            image_mask: Any,
            text: Any,
            text_mask: Any,
            text_attention: Any,
            text_positions: Any,
            proposals: Any = None,
        ) -> dict[str, Any]:
            features, mask, geometry = _look(self.model, image, image_mask)
            read = {
                "text_features": text,
                "text_attention_mask": ~text_mask,
                "text_self_attention_masks": ~text_attention,
                "text_position_ids": text_positions,
            }
            with maxima_of_rows():
                seen = self.model.encoder(**features, vision_attention_mask=~mask, **read, return_dict=True, **geometry)
            image, text = seen.last_hidden_state_vision, seen.last_hidden_state_text
            start, picked = _first_stage(self.model, image, mask, text, text_mask, geometry, proposals)
            hidden, reference = _refine(self.model, image, mask, text, text_mask, start, geometry)
            return {
                "logits": _likeness(self.class_head, hidden, text, text_mask),
                "boxes": (self.box_head(hidden) + torch.special.logit(reference, eps=1e-5)).sigmoid(),
                **picked,
            }

    return Image().eval()


def _look(model: Any, image: Any, image_mask: Any) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """Features of all levels and where they are, flattened; the mask; shapes of the levels."""
    import torch

    maps, masks, positions = _levels(model, image, image_mask)
    shapes = [tuple(each.shape[-2:]) for each in maps]
    sizes = torch.tensor(shapes)
    features = {
        "vision_features": _flat(maps),
        "vision_position_embedding": _flat(
            [p + level[:, None, None] for p, level in zip(positions, model.level_embed, strict=True)]
        ),
    }
    geometry = {
        "spatial_shapes": sizes,
        "spatial_shapes_list": shapes,
        "level_start_index": torch.cat([sizes.new_zeros(1), sizes.prod(1).cumsum(0)[:-1]]),
        "valid_ratios": torch.stack([model.get_valid_ratio(mask) for mask in masks], 1),
    }
    return features, torch.cat([mask.flatten(1) for mask in masks], 1), geometry


def _levels(model: Any, image: Any, image_mask: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Of each level its map, projected, its mask, and the places of its pixels: those of the backbone, and coarser
    ones that are made of the last.
    """
    import torch

    levels, positions = model.backbone(image, image_mask)
    maps = [project(level) for project, (level, _) in zip(model.input_proj_vision, levels, strict=False)]
    masks = [mask for _, mask in levels]
    for project in model.input_proj_vision[len(levels) :]:
        maps.append(project(levels[-1][0] if len(maps) == len(levels) else maps[-1]))
        shrunk = torch.nn.functional.interpolate(image_mask[None].float(), size=maps[-1].shape[-2:])
        masks.append(shrunk[0].bool())
        positions.append(model.backbone.position_embedding(maps[-1], masks[-1]))
    return maps, masks, positions


def _first_stage(
    model: Any, image: Any, mask: Any, text: Any, text_mask: Any, geometry: dict[str, Any], proposals: Any
) -> tuple[Any, dict[str, Any]]:
    """The boxes that queries start from, and which they are (see ``image_module``)."""
    import torch

    places, anchors = model.generate_encoder_output_proposals(image, ~mask, geometry["spatial_shapes_list"])
    scores = _likeness(model.encoder_output_class_embed, places, text, text_mask).amax(-1)
    best, own = torch.topk(scores, model.config.num_queries, dim=1)
    # The graph's own proposals are compared with the best that the module finds, and by their places.
    chosen = scores.gather(1, own if proposals is None else proposals)
    if proposals is None:
        best, proposals = chosen, own
    coordinates = model.encoder_output_bbox_embed(places) + anchors
    start = coordinates.gather(1, proposals[..., None].expand(-1, -1, 4)).sigmoid()
    return start, {"proposals": proposals, "best": torch.stack([best, chosen], -1)}


def _refine(
    model: Any, image: Any, mask: Any, text: Any, text_mask: Any, start: Any, geometry: dict[str, Any]
) -> tuple[Any, Any]:
    """Queries after the last layer, and the boxes that it started from."""
    import torch

    # (``len`` would be a constant.)
    queries = model.query_position_embeddings.weight[None].expand(start.shape[0], -1, -1)
    decoded = model.decoder(
        inputs_embeds=queries,
        vision_encoder_hidden_states=image,
        vision_encoder_attention_mask=mask,
        text_encoder_hidden_states=text,
        text_encoder_attention_mask=~text_mask,
        reference_points=start,
        return_dict=True,
        **geometry,
    )
    boxes = torch.cat([start[:, None], decoded.intermediate_reference_points], 1)
    return decoded.intermediate_hidden_states[:, -1], boxes[:, -2]


def _likeness(head: Any, queries: Any, text: Any, text_mask: Any) -> Any:
    """Logits of every query and token. The heads of the original also pad them to the longest text there is."""
    logits = queries @ text.transpose(-1, -2)
    if hasattr(head, "bias"):  # MM-Grounding DINO
        logits = logits / math.sqrt(queries.shape[-1]) + head.bias
    return logits.masked_fill(~text_mask[:, None, :], -math.inf)


def _flat(maps: list[Any]) -> Any:
    import torch

    return torch.cat([each.flatten(2).transpose(1, 2) for each in maps], 1)


@contextlib.contextmanager
def maxima_of_rows() -> Iterator[None]:
    """Meanwhile the greatest of an attention [B x heads, N, L] is that of each image and head.

    The original takes that of the whole batch from all weights before their softmax, so that an image's answer depends,
    in its last bits, on its neighbours. A softmax is the same whatever is taken off.
    """
    import torch

    whole = torch.Tensor.max

    def greatest(tensor: Any, *args: Any, **options: Any) -> Any:
        if args or options or tensor.ndim != 3:
            return whole(tensor, *args, **options)
        return tensor.amax(dim=(1, 2), keepdim=True)

    with unittest.mock.patch.object(torch.Tensor, "max", greatest):
        yield
