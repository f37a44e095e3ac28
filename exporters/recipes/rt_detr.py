"""RT-DETRv2 and D-FINE, as transformers has them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tallymill.exporters.published import normalisation, resampling, sides, whole
from tallymill.exporters.recipes.closed import PICKS, examples_of, head, images, labels_of, original
from tallymill.exporters.recipes.parts import Loaded, Part, WeightsRecipe
from tallymill.exporters.weights import from_pretrained, model_from


def load(weights: str | Path, *, family: str = "rt_detr") -> Loaded:
    """``RTDetrV2ForObjectDetection`` or ``DFineForObjectDetection`` at the size that its image processor names."""
    import torch
    from transformers import AutoImageProcessor, DFineForObjectDetection, RTDetrV2ForObjectDetection

    kind = {"rt_detr": RTDetrV2ForObjectDetection, "d_fine": DFineForObjectDetection}[family]
    model = model_from(kind, weights)
    model.config.disable_custom_kernels = True
    processor = from_pretrained(AutoImageProcessor.from_pretrained, weights, backend="pil")
    height, width = sides(processor, weights)
    resampling(processor, weights, ["bilinear"])
    queries = whole(model.config, weights, "num_queries")
    labels = labels_of(model.config, weights)
    own = partial(original, model, processor, labels, None, lambda _height, _width: {})
    return Loaded(
        family=family,
        parts={
            "image": Part(
                head(model, proposals=queries),
                {"image": torch.zeros(2, 3, height, width)},
                {"image": (0,)},
                lambda batch, seed: images(batch, seed, height, width),
                choices=PICKS,
            )
        },
        numbers={
            "height": height,
            "width": width,
            **normalisation(processor, weights),
            "labels": labels,
            "top": queries,
        },
        original=own,
        following=own,
        in_halves=partial(own, halves=True),
        categories=examples_of(labels),
    )


RECIPES = (
    *(
        WeightsRecipe(f"rt-detr-v2-{size}", "rt_detr", f"PekingU/rtdetr_v2_{size}vd", "Apache-2.0", load)
        for size in ("r18", "r34", "r50", "r101")
    ),
    *(
        WeightsRecipe(
            f"d-fine-{size}",
            "d_fine",
            f"ustc-community/dfine-{size}-coco",
            "Apache-2.0",
            partial(load, family="d_fine"),
        )
        for size in ("nano", "small", "medium", "large", "xlarge")
    ),
)
