"""Swin2SR, super-resolution, as transformers has it: a graph a size of image.

Its windows are cut by the sides of the image: traced with sides that vary, even a small model takes minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors.buckets import Size
from tallymill.engine.detectors.graphs import part_of
from tallymill.engine.sessions.base import Array
from tallymill.engine.upscaling.swin2sr import FAMILY, Swin2Sr
from tallymill.errors import ModelError, UsageError
from tallymill.exporters.published import PROCESSOR, whole, wrong
from tallymill.exporters.recipes.parts import ArrayOriginal, Loaded, Part, WeightsRecipe
from tallymill.exporters.weights import from_pretrained, model_from

BUCKETS: tuple[Size, ...] = ((64, 64), (128, 128), (256, 256))


def load(weights: str | Path, buckets: Sequence[Size] = BUCKETS) -> Loaded:
    """``Swin2SRForImageSuperResolution``, one part a bucket."""
    from transformers import AutoImageProcessor, Swin2SRForImageSuperResolution

    model = model_from(Swin2SRForImageSuperResolution, weights)
    processor = from_pretrained(AutoImageProcessor.from_pretrained, weights, backend="pil")
    config, step = model.config, processor.size_divisor
    if type(step) is not int or step < 1:
        raise wrong(weights, PROCESSOR, "size_divisor", step, "a whole number from 1")
    window, scale = whole(config, weights, "window_size"), whole(config, weights, "upscale")
    if (config.num_channels, config.num_channels_out) != (3, 3):
        raise ModelError(f"{weights}: takes {config.num_channels} and gives {config.num_channels_out} channels, not 3")
    for size in buckets:
        if any(side % step or side % window for side in size):
            raise UsageError(f"--buckets {size[0]}x{size[1]}: multiples of {max(step, window)}")
    module = _enlarging(model)
    return Loaded(
        family=FAMILY,
        parts={part_of("image", size): _part(module, size) for size in buckets},
        numbers={"buckets": [list(size) for size in buckets], "scale": scale},
        original=ArrayOriginal(
            answer=partial(_original, model, processor),
            open=_open,
            images=1,
            output="levels",
            tolerance=1.0,
            half=3.0,
        ),
        # Sizes that the image processor, which always pads, brings to the bucket.
        pictures=tuple((height - step // 2, width - step) for height, width in buckets),
    )


def _enlarging(model: Any) -> Any:
    import torch

    class Enlarging(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, image: Any) -> dict[str, Any]:
            return {"enlarged": self.model(pixel_values=image).reconstruction}

    return Enlarging().eval()


def _part(module: Any, size: Size) -> Part:
    import torch

    vary = partial(_images, size)
    examples = {key: torch.from_numpy(value) for key, value in vary(2, 0).items()}
    return Part(module, examples, {"image": (0,)}, vary, weights="image.weights")


def _images(size: Size, batch: int, seed: int) -> Mapping[str, Array]:
    return {"image": np.random.default_rng([batch, seed]).random((batch, 3, *size), np.float32)}


def _original(model: Any, processor: Any, image: NDArray[np.uint8]) -> Array:
    """The image processor, the model, and the reading that its documentation gives."""
    import torch

    with torch.no_grad():
        found = model(**processor(image, return_tensors="pt")).reconstruction[0].clamp(0, 1)
    height, width = (model.config.upscale * side for side in image.shape[:2])
    levels: Array = np.moveaxis((found.numpy() * 255.0).round().astype(np.uint8), 0, 2)[:height, :width]
    return levels


def _open(bundle: Bundle) -> Callable[..., Array]:
    return Swin2Sr(bundle).upscale


RECIPES = (WeightsRecipe("swin2sr-x2", FAMILY, "caidas/swin2SR-classical-sr-x2-64", "Apache-2.0", load),)
