"""What an engine of TensorRT computes in, as TensorRT itself tells it of the layers that it made."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

# How formats of tensors are worded: "Half", or "Row major linear FP16 format". The first that is found counts.
_WORDS = {
    "bfloat16": r"bf16|bfloat16",
    "float16": r"half|fp16|float16",
    "float32": r"float|fp32|float32",
    "int64": r"int64",
    "int32": r"int32",
    "int8": r"u?int8",
    "bool": r"bool",
}
_KINDS = {name: re.compile(rf"\b({words})\b", re.IGNORECASE) for name, words in _WORDS.items()}


def dtypes_of(trt: Any, file: Path, device: str) -> dict[str, dict[str, int]] | None:
    """Kind of layer -> dtype of its first output -> how many layers; None where the engine tells nothing of them.

    Engines are loaded to be asked, so that ``device`` is a card that can; they must have been built with
    ``ProfilingVerbosity.DETAILED``. It HAS NOT BEEN RUN ON A CARD: what is read is what NVIDIA's documentation shows.
    """
    import torch

    with torch.cuda.device(device):
        engine = trt.Runtime(trt.Logger(trt.Logger.ERROR)).deserialize_cuda_engine(file.read_bytes())
        if engine is None:
            return None
        inspector = engine.create_engine_inspector()
        return histogram(inspector.get_engine_information(trt.LayerInformationFormat.JSON))


def histogram(told: str) -> dict[str, dict[str, int]] | None:
    """The same of the text of an engine inspector. ``unknown`` is the dtype of a layer whose output does not say."""
    try:
        layers = json.loads(told)["Layers"]
    except (ValueError, KeyError, TypeError):  # names of layers may hold what they do not escape
        return None
    found: dict[str, Counter[str]] = {}
    for layer in layers:
        if not isinstance(layer, dict):  # a name alone: built without details
            return None
        outputs = layer.get("Outputs") or [{}]
        kind = str(layer.get("LayerType", "unknown"))
        found.setdefault(kind, Counter())[_dtype(outputs[0])] += 1
    return {kind: dict(sorted(found[kind].items())) for kind in sorted(found)} or None


def _dtype(tensor: dict[str, Any]) -> str:
    """NumPy's name of a tensor's type."""
    said = " ".join(str(tensor.get(key, "")) for key in ("Format/Datatype", "Datatype"))
    return next((name for name, words in _KINDS.items() if words.search(said)), "unknown")
