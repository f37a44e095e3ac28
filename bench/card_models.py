"""Detectors of random weights for a card, in published or small sizes, that run their torch modules as they are.

What an export adds, a runtime and its files, is left out: these are for the path of the data, and for a first speed.
Their bfloat16, that of autocast, is not what is shipped: ``card_programs`` runs that.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers

from tallymill.bench.random_models import bert_tokenizer, make_folder, stirred
from tallymill.engine.arrays import is_array, to_device
from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors.base import Detector
from tallymill.engine.ensemble import open_detector
from tallymill.engine.sessions.base import TensorSpec, any_tensor
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.recipes.parts import Loaded

BATCH = 8
_SMALL_TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
_SMALL_LAYERS = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_queries": 20,
}


@dataclass(slots=True)
class Precision:
    """What sessions compute in, ``fp32`` or, under autocast, ``bf16``: it may be changed between two calls."""

    name: str = "fp32"


class ModuleSession:
    """A part's module on a device: a ``Session`` without a file."""

    def __init__(self, module: Any, example: Mapping[str, Any], device: str, precision: Precision, name: str) -> None:
        self.device, self.model = device, Path(name)
        self._module, self._precision = module.to(device).eval(), precision
        self.inputs = tuple(_spec(key, value) for key, value in example.items())
        found = self._run({key: value.to(device) for key, value in example.items()})
        self.outputs = tuple(_spec(key, value) for key, value in found.items())

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """See ``Session.run``."""
        sent = {key: to_device(value, self.device) if is_array(value) else value for key, value in inputs.items()}
        found = self._run(sent)
        return found if any_tensor(inputs) else {key: value.cpu().numpy() for key, value in found.items()}

    def _run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        kind, half = self.device.partition(":")[0], self._precision.name == "bf16"
        with torch.no_grad(), torch.autocast(kind, dtype=torch.bfloat16, enabled=half):
            found = self._module(**inputs)
        return {key: value.float() if value.is_floating_point() else value for key, value in found.items()}


def _spec(name: str, value: Any) -> TensorSpec:
    return TensorSpec(name, str(value.dtype).removeprefix("torch."), (None,) * value.ndim)


class ModuleBundle(Bundle):
    """Parts that are still modules."""

    __slots__ = ("_loaded", "_precision")
    _loaded: Loaded
    _precision: Precision

    def __init__(self, loaded: Loaded, folder: Path, device: str, precision: Precision) -> None:
        tokenizer = folder / "bundle-tokenizer.json"
        tokenizer.write_text(loaded.tokenizer or "", "utf-8")
        parts = {name: name for name in loaded.parts}
        super().__init__(
            folder, loaded.family, loaded.family, "module", "fp32", parts, loaded.numbers, tokenizer, "", {}, device
        )
        object.__setattr__(self, "_loaded", loaded)
        object.__setattr__(self, "_precision", precision)

    def session(self, part: str, *, threads: int = 1, batch: int | None = None) -> Any:
        """One part on the device. Text is float32: it is encoded once a category, and nothing is gained there."""
        del threads, batch
        made = self._loaded.parts[part]
        return ModuleSession(
            made.module, made.inputs, self.device, Precision() if part == "text" else self._precision, part
        )


def open_random(family: str, device: str, *, small: bool) -> tuple[Detector, Precision]:
    """A detector of ``MODELS`` on a device, its weights random but the same each time, and what it computes in."""
    write, recipe, options = MODELS[family]
    precision = Precision()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / family
        folder.mkdir()
        write(folder, small)
        loaded = recipe_of(recipe).load(folder, **options["small" if small else "full"])
        assert isinstance(loaded, Loaded)
        found = open_detector(ModuleBundle(loaded, folder, device, precision), family)
    found.spec = replace(found.spec, batch=BATCH)
    return found, precision


def _owl(folder: Path, small: bool) -> None:
    make_folder("owlvit", folder, small=small)


def _grounding_dino(folder: Path, small: bool) -> None:
    options: dict[str, Any] = {}
    if small:
        swin = {"image_size": 96, "embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 2, 2], "window_size": 4}
        options = {**_SMALL_LAYERS, "max_text_len": 16}
        options["backbone_config"] = transformers.SwinConfig(**swin, out_indices=[2, 3, 4])
        options["text_config"] = transformers.BertConfig(**_SMALL_TOWER, vocab_size=1100, max_position_embeddings=64)
    made = transformers.GroundingDinoForObjectDetection(transformers.GroundingDinoConfig(**options))
    (stirred(made, 0.05) if small else made.eval()).save_pretrained(folder)
    bert_tokenizer().save_pretrained(folder)
    size = {"shortest_edge": 96, "longest_edge": 160} if small else {"shortest_edge": 800, "longest_edge": 1333}
    transformers.GroundingDinoImageProcessor(size=size).save_pretrained(folder)


def _ow_detr(folder: Path, small: bool) -> None:
    stages: dict[str, Any] = {"out_features": ["stage2", "stage3", "stage4"]}
    options: dict[str, Any] = {"num_queries": 100}
    if small:
        stages |= {"embedding_size": 16, "hidden_sizes": [16, 32, 32, 48], "depths": [1, 2, 1, 1]}
        stages["layer_type"], options = "basic", {**_SMALL_LAYERS, "encoder_n_points": 2}
    config = transformers.DeformableDetrConfig(
        backbone_config=transformers.ResNetConfig(**stages), num_labels=81, disable_custom_kernels=True, **options
    )
    made = transformers.DeformableDetrForObjectDetection(config)
    (stirred(made, 0.05) if small else made.eval()).save_pretrained(folder)
    size = {"shortest_edge": 64, "longest_edge": 107} if small else {"shortest_edge": 800, "longest_edge": 1333}
    transformers.DeformableDetrImageProcessor(size=size).save_pretrained(folder)


# Of each family what writes its weights, the recipe that reads them, and what sizes of images it is asked for.
MODELS: Mapping[str, tuple[Callable[[Path, bool], None], str, Mapping[str, Mapping[str, Any]]]] = {
    "owlvit": (_owl, "owlvit-base-patch32", {"small": {}, "full": {}}),
    "grounding_dino": (
        _grounding_dino,
        "grounding-dino-tiny",
        {"small": {"buckets": ((96, 96), (96, 160))}, "full": {"buckets": ((800, 800),)}},
    ),
    "ow_detr": (
        _ow_detr,
        "ow-detr",
        {"small": {"buckets": ((64, 107), (107, 64))}, "full": {"buckets": ((800, 800),)}},
    ),
}
