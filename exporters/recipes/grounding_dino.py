"""Grounding DINO and MM-Grounding DINO: the text tower, and the image with the fusion, one graph a size of image.

Up to the projection, text does not meet the image, and attention inside it ends at every ``.`` (arXiv 2303.05499,
section 3.4), so that a category is encoded once whatever stands beside it. The image part takes encoded text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.detectors.buckets import Buckets, Size
from tallymill.engine.detectors.graphs import part_of
from tallymill.engine.sessions.base import Array
from tallymill.errors import ModelError
from tallymill.exporters.published import (
    TOKENIZER,
    edges,
    normalisation,
    resampling,
    special_tokens,
    tokenizer_json,
    whole,
    wrong,
)
from tallymill.exporters.recipes.bucketed import batches, pictures, require_levels
from tallymill.exporters.recipes.closed import following
from tallymill.exporters.recipes.grounding_dino_modules import image_module, text_module
from tallymill.exporters.recipes.parts import Loaded, Part, WeightsRecipe
from tallymill.exporters.weights import from_pretrained, model_from, tokenizer_from

BUCKETS: tuple[Size, ...] = ((800, 800), (800, 1333), (1333, 800))
TEMPLATE = "a {}"
_KINDS = ("grounding-dino", "mm-grounding-dino")
_TEXT_AXES = {"text": (0, 1), "text_mask": (0, 1), "text_attention": (0, 1, 2), "text_positions": (0, 1)}


def load(weights: str | Path, *, buckets: Sequence[Size] = BUCKETS, kind: str | None = None) -> Loaded:
    """Cut ``GroundingDinoForObjectDetection`` (or MM…) into ``text`` and, for every bucket, ``image-HxW``.

    ``kind``: the one of ``_KINDS`` that it has to be, or None for either.
    """
    from transformers import AutoImageProcessor, AutoModelForZeroShotObjectDetection

    require_levels(buckets)
    model = model_from(AutoModelForZeroShotObjectDetection, weights)
    if model.config.model_type not in _KINDS or not model.config.two_stage:
        raise ModelError(f"{weights}: a {model.config.model_type}, not a Grounding DINO of two stages")
    if kind not in (None, model.config.model_type):
        found = model.config.model_type
        raise ModelError(
            f"{weights}: config.json: model_type = {found!r}; wanted {kind!r}",
            hint="these are the weights of another model than the one that was named",
        )
    processor = from_pretrained(AutoImageProcessor.from_pretrained, weights, backend="pil")
    tokenizer = tokenizer_from(weights)
    text, image = text_module(model), image_module(model)
    inputs = _Inputs(model, text)
    parts = {
        "text": Part(
            text,
            inputs.examples(inputs.texts),
            {"tokens": (0, 1), "attention": (0, 1, 2), "positions": (0, 1)},
            inputs.texts,
        )
    }
    for size in buckets:
        vary = inputs.images(size)
        parts[part_of("image", size)] = Part(
            image,
            inputs.examples(vary),
            {"image": (0,), "image_mask": (0,), **_TEXT_AXES},
            vary,
            batches=batches(size),
            choices=("proposals",),
            weights="image.weights",
        )
    own = _Original(model, processor, tokenizer, buckets)
    return Loaded(
        family="grounding_dino",
        parts=parts,
        numbers=_numbers(weights, model, processor, tokenizer, buckets),
        original=own,
        following=own,
        in_halves=partial(own, halves=True),
        categories=("cat", "wet dog"),
        pictures=pictures(buckets),
        tokenizer=tokenizer_json(tokenizer, weights),
    )


def _numbers(
    weights: str | Path, model: Any, processor: Any, tokenizer: Any, buckets: Sequence[Size]
) -> Mapping[str, Any]:
    shortest, longest = edges(processor, weights)
    start, end = special_tokens(tokenizer, weights, "cls_token", "sep_token")
    named = {"start": start, "end": end, "stop": tokenizer.convert_tokens_to_ids(".")}
    closing = model.model.special_tokens.tolist()
    if not set(named.values()) <= set(closing):
        raise wrong(weights, TOKENIZER, "the numbers around phrases", named, f"some of {closing}, as in training")
    most = whole(model.config, weights, "max_text_len", 4)  # start, a word, its stop, end
    return {
        "shortest": shortest,
        "longest": longest,
        "buckets": [list(size) for size in buckets],
        "resample": resampling(processor, weights),
        **normalisation(processor, weights),
        "template": TEMPLATE,
        "tokens": most,
        "phrase": min(most - 2, whole(model.config, weights, "text_config.max_position_embeddings")),
        **named,
        "closing": closing,
        "queries": whole(model.config, weights, "num_queries"),
    }


class _Original:
    """See ``Original`` and, with the outputs of a ``graph``, ``Following``: one text for all categories, each read by
    the tokens between the stops around it.
    """

    def __init__(self, model: Any, processor: Any, tokenizer: Any, buckets: Sequence[Size]) -> None:
        from transformers import GroundingDinoProcessor

        self._model, self._buckets = model, Buckets(buckets)
        self._processor = GroundingDinoProcessor(processor, tokenizer)

    def __call__(
        self,
        image: NDArray[np.uint8],
        categories: Sequence[str],
        graph: Mapping[str, Array] | None = None,
        *,
        halves: bool = False,
    ) -> list[tuple[Array, Array]]:
        import torch
        from transformers.models.grounding_dino.modeling_grounding_dino import build_label_maps

        # The original pads an image to the largest of its batch; here that is the bucket.
        images = self._processor.image_processor
        shortest, longest = images.size["shortest_edge"], images.size["longest_edge"]
        height, width = self._buckets.of(*self._buckets.rule(image.shape[0], image.shape[1], shortest, longest))
        inputs = self._processor(
            images=image,
            text=[[TEMPLATE.format(name) for name in categories]],
            return_tensors="pt",
            pad_size={"height": height, "width": width},
        )
        with torch.no_grad():
            outputs = self._model(**inputs) if graph is None else following(self._model, inputs, graph, halves=halves)
        (found,) = self._processor.post_process_grounded_object_detection(
            outputs, threshold=-1.0, text_threshold=2.0, target_sizes=[image.shape[:2]]
        )
        confidences = outputs.logits[0].sigmoid()
        (words,) = build_label_maps(outputs.logits, inputs["input_ids"])
        return [(found["boxes"].numpy(), confidences[:, own.bool()].amax(1).numpy()) for own in words]


class _Inputs:
    """What the gate tries: texts of random words and images of random pixels and sizes."""

    def __init__(self, model: Any, text: Any) -> None:
        self._model, self._text = model, text
        vocabulary = model.config.text_config.vocab_size
        self._closing = model.model.special_tokens
        self._words = np.setdiff1d(np.arange(1, vocabulary), self._closing.numpy())
        self._start, self._end, self._stop, _ = self._closing.tolist()

    @staticmethod
    def examples(vary: Callable[[int, int], Mapping[str, Array]]) -> Mapping[str, Any]:
        """The inputs of a batch of two, in torch."""
        import torch

        return {key: torch.from_numpy(value) for key, value in vary(2, 0).items()}

    def texts(self, batch: int, seed: int) -> Mapping[str, Array]:
        """Texts of one to three phrases of one to four words, with the masks that the original makes of them."""
        import torch
        from transformers.models.grounding_dino import modeling_grounding_dino as original

        rng = np.random.default_rng(seed)
        rows = [[self._start, *self._phrases(rng), self._end] for _ in range(batch)]
        tokens = np.zeros((batch, max(map(len, rows))), np.int64)
        for row, words in zip(tokens, rows, strict=True):
            row[: len(words)] = words
        attention, positions = original.generate_masks_with_special_tokens_and_transfer_map(
            torch.from_numpy(tokens), self._closing
        )
        return {"tokens": tokens, "attention": attention.numpy(), "positions": positions.numpy()}

    def _phrases(self, rng: np.random.Generator) -> list[int]:
        found: list[int] = []
        for _ in range(int(rng.integers(1, 4))):
            words = rng.choice(self._words, int(rng.integers(1, 5)))
            if len(found) + len(words) + 3 <= self._model.config.max_text_len:
                found += [*words.tolist(), self._stop]
        return found

    def images(self, size: Size) -> Callable[[int, int], Mapping[str, Array]]:
        """``vary`` of an image part: each image fills its bucket or a part of it."""
        import torch

        def vary(batch: int, seed: int) -> Mapping[str, Array]:
            rng = np.random.default_rng(seed)
            image = rng.standard_normal((batch, 3, *size), np.float32)
            mask = np.zeros((batch, *size), np.bool_)
            for row in mask:
                height, width = (
                    int(rng.integers(side // 2, side + 1)) if rng.random() < 0.6 else side for side in size
                )
                row[:height, :width] = True
            texts = self.texts(batch, seed)
            with torch.no_grad():
                text = self._text(**{key: torch.from_numpy(value) for key, value in texts.items()})["text"].numpy()
            return {
                "image": image * mask[:, None],
                "image_mask": mask,
                "text": text,
                "text_mask": texts["tokens"] > 0,
                "text_attention": texts["attention"],
                "text_positions": texts["positions"],
            }

        return vary


def _recipe(name: str, weights: str) -> WeightsRecipe:
    kind = "mm-grounding-dino" if name.startswith("mm-") else "grounding-dino"
    return WeightsRecipe(name, "grounding_dino", weights, "Apache-2.0", partial(load, kind=kind))


RECIPES = (
    _recipe("grounding-dino-tiny", "IDEA-Research/grounding-dino-tiny"),
    _recipe("grounding-dino-base", "IDEA-Research/grounding-dino-base"),
    _recipe("mm-grounding-dino-tiny", "openmmlab-community/mm_grounding_dino_tiny_o365v1_goldg_grit_v3det"),
    _recipe("mm-grounding-dino-base", "openmmlab-community/mm_grounding_dino_base_o365v1_goldg_v3det"),
)
