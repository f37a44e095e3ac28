"""RF-DETR, nano to large, as transformers has it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tallymill.errors import ModelError
from tallymill.exporters.recipes.closed import PICKS, examples_of, head, images, labels_of, original
from tallymill.exporters.recipes.parts import Loaded, Part, WeightsRecipe
from tallymill.exporters.weights import from_pretrained, model_from


def load(weights: str | Path) -> Loaded:
    """``RfDetrForObjectDetection`` at the size that its image processor names, in one part."""
    import torch
    from transformers import AutoImageProcessor, RfDetrForObjectDetection

    model = model_from(RfDetrForObjectDetection, weights)
    processor = from_pretrained(AutoImageProcessor.from_pretrained, weights)
    height, width = processor.size.height, processor.size.width
    if not height or height != width:
        raise ModelError(f"{weights}: its image processor resizes to {processor.size}; RF-DETR takes squares")
    labels = labels_of(model.config, weights)
    own = partial(original, model, processor, labels, None, lambda _height, _width: {})
    return Loaded(
        family="rf_detr",
        parts={
            "image": Part(
                head(model, proposals=model.config.num_queries),
                {"image": torch.zeros(2, 3, height, width)},
                {"image": (0,)},
                lambda batch, seed: images(batch, seed, height, width),
                choices=PICKS,
            )
        },
        numbers={
            "side": height,
            "mean": list(processor.image_mean),
            "std": list(processor.image_std),
            "labels": labels,
            "top": model.config.num_queries,
        },
        original=own,
        following=own,
        categories=examples_of(labels),
    )


RECIPES = tuple(
    WeightsRecipe(f"rf-detr-{size}", "rf_detr", f"Roboflow/rf-detr-{size}", "Apache-2.0", load)
    for size in ("nano", "small", "medium", "base", "large")
)
