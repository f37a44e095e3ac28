"""OWL-ViT and OWLv2: the image tower with its heads, and the text tower, apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.sessions.base import Array
from tallymill.exporters.published import normalisation, resampling, side, special_tokens, tokenizer_json, whole
from tallymill.exporters.recipes.parts import Loaded, Part, WeightsRecipe
from tallymill.exporters.weights import from_pretrained, model_from, tokenizer_from

TEMPLATE = "a photo of a {}"


def load(weights: str | Path, *, family: str = "owlvit") -> Loaded:
    """Cut ``OwlViTForObjectDetection`` or ``Owlv2ForObjectDetection`` into ``vision`` and ``text``."""
    from transformers import AutoImageProcessor, Owlv2ForObjectDetection, OwlViTForObjectDetection

    kind = {"owlvit": OwlViTForObjectDetection, "owlv2": Owlv2ForObjectDetection}[family]
    model = model_from(kind, weights)
    # Pillow's resampling is what the published weights were made and measured with.
    processor = from_pretrained(AutoImageProcessor.from_pretrained, weights, backend="pil")
    tokenizer = tokenizer_from(weights)
    numbers = _numbers(weights, family, model, processor, tokenizer)
    return Loaded(
        family=family,
        parts={"vision": _vision(model, numbers["side"]), "text": _text(model, getattr(model, family), numbers)},
        numbers=numbers,
        original=partial(_original, model, processor, tokenizer),
        tokenizer=tokenizer_json(tokenizer, weights),
    )


def _numbers(weights: str | Path, family: str, model: Any, processor: Any, tokenizer: Any) -> Mapping[str, Any]:
    start, end, pad = special_tokens(tokenizer, weights, "bos_token", "eos_token", "pad_token")
    return {
        "side": side(processor, weights, whole(model.config, weights, "vision_config.image_size")),
        "square": family == "owlv2",
        # OWLv2 has its own.
        "resample": "bilinear" if family == "owlv2" else resampling(processor, weights),
        **normalisation(processor, weights),
        "template": TEMPLATE,
        "tokens": whole(model.config, weights, "text_config.max_position_embeddings"),
        "start": start,
        "end": end,
        "pad": pad,
    }


def _vision(model: Any, pixels: int) -> Part:
    """The image tower with its heads, on squares of ``pixels``."""
    import torch

    class Vision(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, image: Any) -> dict[str, Any]:
            head = self.model.class_head
            feature_map, _ = self.model.image_embedder(pixel_values=image)
            patches = feature_map.flatten(1, 2)
            embeds = head.dense0(patches)
            return {
                "embeds": embeds / (torch.linalg.norm(embeds, dim=-1, keepdim=True) + 1e-6),
                "shift": head.logit_shift(patches),
                "scale": head.elu(head.logit_scale(patches)) + 1,
                "boxes": self.model.box_predictor(patches, feature_map),
            }

    return Part(
        Vision().eval(),
        {"image": torch.zeros(2, 3, pixels, pixels)},
        {"image": (0,)},
        lambda batch, seed: _images(batch, seed, pixels),
    )


def _text(model: Any, towers: Any, numbers: Mapping[str, Any]) -> Part:
    """The text tower."""
    import torch

    class Text(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: Any, mask: Any) -> dict[str, Any]:
            embeds = towers.get_text_features(input_ids=tokens, attention_mask=mask).pooler_output
            embeds = embeds / torch.linalg.norm(embeds, dim=-1, keepdim=True)
            return {"embeds": embeds / (torch.linalg.norm(embeds, dim=-1, keepdim=True) + 1e-6)}

    return Part(
        Text().eval(),
        {name: torch.ones(2, numbers["tokens"], dtype=torch.int64) for name in ("tokens", "mask")},
        {"tokens": (0,), "mask": (0,)},
        partial(texts_of_mixed_lengths, length=numbers["tokens"], start=numbers["start"], end=numbers["end"]),
    )


def _original(
    model: Any, processor: Any, tokenizer: Any, image: NDArray[np.uint8], categories: Sequence[str]
) -> list[tuple[Array, Array]]:
    """See ``Original``: every patch has a box for every category."""
    import torch

    texts = [TEMPLATE.format(name) for name in categories]
    length = model.config.text_config.max_position_embeddings
    tokens = tokenizer(texts, padding="max_length", max_length=length, truncation=True, return_tensors="pt")
    pixels = processor(images=image, return_tensors="pt").pixel_values
    with torch.no_grad():
        outputs = model(tokens.input_ids, pixels, tokens.attention_mask)
    # The box of every patch, before post-processing keeps only its likeliest category.
    outputs.logits, confidences = torch.zeros_like(outputs.logits[..., :1]), outputs.logits[0].sigmoid()
    (found,) = processor.post_process_object_detection(outputs, threshold=0.0, target_sizes=[image.shape[:2]])
    return [(found["boxes"].numpy(), column.numpy()) for column in confidences.T]


def _images(batch: int, seed: int, side: int) -> Mapping[str, Array]:
    return {"image": np.random.default_rng(seed).standard_normal((batch, 3, side, side), np.float32)}


def texts_of_mixed_lengths(batch: int, seed: int, length: int, start: int, end: int) -> dict[str, Array]:
    """Tokens and masks int64 [batch, length]; the end has the greatest number, by which the model finds it."""
    rng = np.random.default_rng(seed)
    tokens, mask = np.zeros((2, batch, length), np.int64)
    for row in range(batch):
        n = int(rng.integers(3, length + 1))
        tokens[row, :n] = [start, *rng.integers(0, min(start, end), n - 2), end]
        mask[row, :n] = 1
    return {"tokens": tokens, "mask": mask}


RECIPES = (
    WeightsRecipe("owlvit-base-patch32", "owlvit", "google/owlvit-base-patch32", "Apache-2.0", load),
    WeightsRecipe("owlvit-base-patch16", "owlvit", "google/owlvit-base-patch16", "Apache-2.0", load),
    WeightsRecipe("owlvit-large-patch14", "owlvit", "google/owlvit-large-patch14", "Apache-2.0", load),
    *(
        WeightsRecipe(name, "owlv2", f"google/{name}", "Apache-2.0", partial(load, family="owlv2"))
        for name in ("owlv2-base-patch16", "owlv2-base-patch16-ensemble", "owlv2-large-patch14-ensemble")
    ),
)
