"""RF-DETR, nano to large, as transformers has it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tallymill.exporters.published import normalisation, resampling, side, whole
from tallymill.exporters.recipes.closed import PICKS, examples_of, head, images, labels_of, original
from tallymill.exporters.recipes.parts import Loaded, Part, WeightsRecipe
from tallymill.exporters.weights import from_pretrained, model_from


def load(weights: str | Path) -> Loaded:
    """``RfDetrForObjectDetection`` at the size that its image processor names, in one part."""
    import torch
    from transformers import AutoImageProcessor, RfDetrForObjectDetection

    model = model_from(RfDetrForObjectDetection, weights)
    processor = from_pretrained(AutoImageProcessor.from_pretrained, weights)
    pixels = side(processor, weights)
    resampling(processor, weights, ["bilinear"])
    queries = whole(model.config, weights, "num_queries")
    labels = labels_of(model.config, weights)
    own = partial(original, model, processor, labels, None, lambda _height, _width: {})
    return Loaded(
        family="rf_detr",
        parts={
            "image": Part(
                head(model, proposals=queries),
                {"image": torch.zeros(2, 3, pixels, pixels)},
                {"image": (0,)},
                lambda batch, seed: images(batch, seed, pixels, pixels),
                choices=PICKS,
            )
        },
        numbers={
            "side": pixels,
            **normalisation(processor, weights),
            "labels": labels,
            "top": queries,
        },
        original=own,
        following=own,
        in_halves=partial(own, halves=True),
        categories=examples_of(labels),
    )


RECIPES = tuple(
    WeightsRecipe(f"rf-detr-{size}", "rf_detr", f"Roboflow/rf-detr-{size}", "Apache-2.0", load)
    for size in ("nano", "small", "medium", "base", "large")
)
