"""What comes with published weights beside them, checked as it is read: image processors, configs, tokenizers.

Folders of weights are put together by hand and their files edited. A value that a family cannot have is an error that
names the file, the key and the value; else it would be one of Python's, or numbers that only the gate finds wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from tallymill.errors import ModelError

PROCESSOR, CONFIG, TOKENIZER = "preprocessor_config.json", "config.json", "tokenizer_config.json"
RESAMPLING = {2: "bilinear", 3: "bicubic"}  # by Pillow's numbers
MOST_PIXELS = 100_000  # pixels, of a side


def wrong(weights: str | Path, file: str, key: str, value: object, wanted: str) -> ModelError:
    """The error for a value that a file of published weights gives a key."""
    return ModelError(
        f"{weights}: {file}: {key} = {value!r}; wanted {wanted}",
        hint=f"take {file} as it is published with these weights",
    )


def sides(processor: Any, weights: str | Path) -> tuple[int, int]:
    """Height and width to which every image is resized."""
    return _size(processor, weights, "height", "width")


def side(processor: Any, weights: str | Path, expected: int | None = None) -> int:
    """Of the square to which every image is resized; ``expected`` is what the model's weights are for."""
    height, width = sides(processor, weights)
    if height != width:
        raise wrong(weights, PROCESSOR, "size", _shown(processor.size), "a square")
    if expected is not None and height != expected:
        raise wrong(weights, PROCESSOR, "size", _shown(processor.size), f"the {expected} pixels of {CONFIG}")
    return height


def edges(processor: Any, weights: str | Path) -> tuple[int, int]:
    """What the shorter side of an image becomes, and what the longer may not pass."""
    shortest, longest = _size(processor, weights, "shortest_edge", "longest_edge")
    if shortest > longest:
        raise wrong(weights, PROCESSOR, "size", _shown(processor.size), "no shortest_edge above the longest_edge")
    return shortest, longest


def _size(processor: Any, weights: str | Path, *names: str) -> tuple[int, int]:
    if not processor.do_resize:
        raise wrong(weights, PROCESSOR, "do_resize", processor.do_resize, "true: the graphs have fixed sizes")
    shown = _shown(processor.size)
    first, second = (shown.get(name) if isinstance(shown, Mapping) else None for name in names)
    if not (is_whole(first, 1, MOST_PIXELS) and is_whole(second, 1, MOST_PIXELS)):
        raise wrong(weights, PROCESSOR, "size", shown, f"{' and '.join(names)}, in pixels")
    return first, second


def _shown(size: Any) -> Any:
    """A size as the file has it: transformers makes an object of it."""
    try:
        return dict(size)
    except (TypeError, ValueError):
        return size


def normalisation(processor: Any, weights: str | Path) -> dict[str, list[float]]:
    """``mean`` and ``std`` of the channels, of values in [0, 1]: 0 and 1 where nothing is normalised."""
    factor = processor.rescale_factor
    if not processor.do_rescale:
        raise wrong(weights, PROCESSOR, "do_rescale", processor.do_rescale, "true")
    if not (is_number(factor) and math.isclose(factor, 1 / 255, rel_tol=1e-6)):
        raise wrong(weights, PROCESSOR, "rescale_factor", factor, "1/255: levels become fractions")
    if not processor.do_normalize:
        return {"mean": [0.0] * 3, "std": [1.0] * 3}
    mean, std = processor.image_mean, processor.image_std
    if not are_three(mean):
        raise wrong(weights, PROCESSOR, "image_mean", mean, "three numbers")
    if not (are_three(std) and min(std) > 0):
        raise wrong(weights, PROCESSOR, "image_std", std, "three numbers above 0")
    return {"mean": list(mean), "std": list(std)}


def resampling(processor: Any, weights: str | Path, known: Sequence[str] = tuple(RESAMPLING.values())) -> str:
    """How an image is resized, by our names: one of those ``known`` to the family."""
    value = processor.resample
    found = RESAMPLING.get(int(value)) if isinstance(value, int) else None  # Pillow's names are numbers as well
    if found is None or found not in known:
        numbers = [f"{number} ({name})" for number, name in RESAMPLING.items() if name in known]
        raise wrong(weights, PROCESSOR, "resample", value, " or ".join(numbers))
    return found


def whole(config: Any, weights: str | Path, key: str, least: int = 1) -> int:
    """A whole number of ``config.json``; ``key`` is a path such as ``text_config.max_position_embeddings``."""
    value = config
    for name in key.split("."):
        value = getattr(value, name, None)
    if not is_whole(value, least):
        raise wrong(weights, CONFIG, key, value, f"a whole number from {least}")
    return int(value)


def special_tokens(tokenizer: Any, weights: str | Path, *names: str) -> list[int]:
    """The numbers of special tokens, such as ``eos_token``."""
    found = []
    for name in names:
        number = getattr(tokenizer, f"{name}_id", None)
        if not is_whole(number, 0):
            raise wrong(weights, TOKENIZER, name, getattr(tokenizer, name, None), "a token of the vocabulary")
        found.append(number)
    return found


def tokenizer_json(tokenizer: Any, weights: str | Path) -> str:
    """The tokenizer as JSON of ``tokenizers``, which is what reads it where there are no transformers."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(
            f"{weights}: its tokenizer, a {type(tokenizer).__name__}, is none of the package tokenizers",
            hint="take tokenizer.json as it is published with these weights",
        )
    return str(backend.to_str())


def is_whole(value: object, least: int, most: float = math.inf) -> TypeGuard[int]:
    """Of JSON: a whole number within limits. True is none."""
    return type(value) is int and least <= value <= most


def is_number(value: object) -> TypeGuard[float]:
    """Of JSON: a number that is finite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def are_three(values: object) -> bool:
    """Of JSON: a list of three numbers, one a channel."""
    return isinstance(values, list | tuple) and len(values) == 3 and all(map(is_number, values))
