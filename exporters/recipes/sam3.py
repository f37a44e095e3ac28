"""SAM 3: the image encoder, the text encoder and the decoder of instances, apart.

An image is encoded once however many categories are asked of it, and a category once however many images.

The image processor of transformers resizes with torchvision; the detector does with Pillow, which antialiases as well
and rounds elsewhere. On drawn pictures no value differs by more than one level: 0.03% of them do where 1024x1024
becomes 112x112, 0.7% where it becomes 1008x1008, as published, and 20% where 1500x900 does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.sessions.base import Array
from tallymill.exporters.published import normalisation, resampling, side, special_tokens, tokenizer_json, whole
from tallymill.exporters.recipes.owl import texts_of_mixed_lengths
from tallymill.exporters.recipes.parts import Loaded, Part, WeightsRecipe
from tallymill.exporters.weights import from_pretrained, model_from, tokenizer_from

LEVELS = ("fine", "middle", "coarse")  # the feature maps that the decoder reads, by falling resolution
TOKENS = 32  # of a text, as the processor of transformers pads it


def load(weights: str | Path) -> Loaded:
    """Cut ``Sam3Model`` into ``vision``, ``text`` and ``decoder``."""
    from transformers import AutoImageProcessor, Sam3Model

    model = model_from(Sam3Model, weights)
    processor = from_pretrained(AutoImageProcessor.from_pretrained, weights)
    tokenizer = tokenizer_from(weights)
    numbers = _numbers(weights, model, processor, tokenizer)
    given = (model, processor, tokenizer, numbers["tokens"])
    return Loaded(
        family="sam3",
        parts=_parts(model, numbers),
        numbers=numbers,
        original=partial(_original, *given),
        masks=partial(_masks, *given),
        tokenizer=tokenizer_json(tokenizer, weights),
    )


def _numbers(weights: str | Path, model: Any, processor: Any, tokenizer: Any) -> Mapping[str, Any]:
    resampling(processor, weights, ["bilinear"])
    start, end, pad = special_tokens(tokenizer, weights, "bos_token", "eos_token", "pad_token")
    return {
        "side": side(processor, weights, whole(model.config, weights, "vision_config.backbone_config.image_size")),
        **normalisation(processor, weights),
        "tokens": min(TOKENS, whole(model.config, weights, "text_config.max_position_embeddings")),
        "start": start,
        "end": end,
        "pad": pad,
    }


def _parts(model: Any, numbers: Mapping[str, Any]) -> dict[str, Part]:
    """The parts, the decoder with examples of what the other two give."""
    import torch

    modules = _modules(model)
    image = (3, numbers["side"], numbers["side"])
    words = {name: torch.ones(2, numbers["tokens"], dtype=torch.int64) for name in ("tokens", "mask")}
    with torch.no_grad():
        levels = modules["vision"](torch.zeros(2, *image))
        text = modules["text"](**words)["features"]
    features = {**levels, "text": text}
    shapes = {name: tuple(value.shape[1:]) for name, value in features.items()}
    texts = partial(texts_of_mixed_lengths, length=numbers["tokens"], start=numbers["start"], end=numbers["end"])

    def pairs(batch: int, seed: int) -> Mapping[str, Array]:
        return {**_noise(batch, seed, shapes), "mask": texts(batch, seed)["mask"]}

    def part(name: str, examples: Mapping[str, Any], vary: Any, batches: tuple[int, ...] = (1, 2, 5)) -> Part:
        return Part(modules[name], examples, dict.fromkeys(examples, (0,)), vary, batches=batches)

    return {
        "vision": part(
            "vision", {"image": torch.zeros(2, *image)}, lambda batch, seed: _noise(batch, seed, {"image": image})
        ),
        "text": part("text", words, texts),
        "decoder": part("decoder", {**features, "mask": words["mask"]}, pairs, batches=(1, 2)),
    }


def _modules(model: Any) -> dict[str, Any]:
    """The three parts as torch modules."""
    import torch

    class Base(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

    class Vision(Base):
        def forward(self, image: Any) -> dict[str, Any]:
            # The last and coarsest map is not read by the decoder.
            maps = self.model.get_vision_features(image).fpn_hidden_states[: len(LEVELS)]
            return dict(zip(LEVELS, maps, strict=True))

    class Text(Base):
        def forward(self, tokens: Any, mask: Any) -> dict[str, Any]:
            return {"features": self.model.get_text_features(tokens, mask).pooler_output}

    class Decoder(Base):
        def forward(self, fine: Any, middle: Any, coarse: Any, text: Any, mask: Any) -> dict[str, Any]:
            from transformers.modeling_outputs import BaseModelOutputWithPooling
            from transformers.models.sam3.modeling_sam3 import Sam3VisionEncoderOutput

            maps = (fine, middle, coarse)
            place = self.model.vision_encoder.neck.position_encoding
            places = tuple(place(each.shape, each.device, each.dtype) for each in maps)
            # The model drops the last of the maps that it is given.
            seen = Sam3VisionEncoderOutput(
                fpn_hidden_states=(*maps, coarse), fpn_position_encoding=(*places, places[-1])
            )
            read = BaseModelOutputWithPooling(pooler_output=text)
            found = self.model(vision_embeds=seen, text_embeds=read, attention_mask=mask)
            return {
                "logits": found.pred_logits,
                "presence": found.presence_logits,
                "boxes": found.pred_boxes,
                "masks": found.pred_masks,
            }

    return {"vision": Vision().eval(), "text": Text().eval(), "decoder": Decoder().eval()}


def _original(
    model: Any, processor: Any, tokenizer: Any, tokens: int, image: NDArray[np.uint8], categories: Sequence[str]
) -> list[tuple[Array, Array]]:
    """See ``Original``."""
    answers = []
    for outputs in _outputs(model, processor, tokenizer, tokens, image, categories):
        (found,) = processor.post_process_instance_segmentation(outputs, 0.0, target_sizes=[image.shape[:2]])
        answers.append((found["boxes"].numpy(), found["scores"].numpy()))
    return answers


def _masks(
    model: Any,
    processor: Any,
    tokenizer: Any,
    tokens: int,
    image: NDArray[np.uint8],
    categories: Sequence[str],
    undecided: float,
) -> list[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """See ``MaskOriginal``: the original's reading at two levels about its own, one half, and of all queries."""
    answers = []
    for outputs in _outputs(model, processor, tokenizer, tokens, image, categories):
        sure, possible = (
            processor.post_process_instance_segmentation(outputs, -1.0, level, target_sizes=[image.shape[:2]])[0]
            for level in (0.5 + undecided, 0.5 - undecided)
        )
        answers.append((sure["masks"].numpy().astype(np.bool_), possible["masks"].numpy().astype(np.bool_)))
    return answers


def _outputs(
    model: Any, processor: Any, tokenizer: Any, tokens: int, image: NDArray[np.uint8], categories: Sequence[str]
) -> Iterator[Any]:
    """Of one pass of the whole model for each category."""
    import torch

    pixels = processor(images=image, return_tensors="pt").pixel_values
    for name in categories:
        text = tokenizer([name], padding="max_length", max_length=tokens, return_tensors="pt")
        with torch.no_grad():
            yield model(pixels, input_ids=text.input_ids, attention_mask=text.attention_mask)


def _noise(batch: int, seed: int, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((batch, *shape), np.float32) for name, shape in shapes.items()}


RECIPES = (WeightsRecipe("sam3", "sam3", "facebook/sam3", "SAM License", load),)
