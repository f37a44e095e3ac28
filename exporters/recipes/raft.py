"""RAFT, large and small, as torchvision has it: two images to the flow between them, one graph for all sizes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors.buckets import Buckets, Size
from tallymill.engine.detectors.graphs import part_of
from tallymill.engine.flow.raft import ANY, FAMILY, LEAST, STEP, Raft, ends_of, size_of
from tallymill.engine.sessions.base import Array
from tallymill.errors import MissingExtraError, ModelError, UsageError
from tallymill.exporters.recipes.parts import ArrayOriginal, Loaded, Part, WeightsRecipe

UPDATES = 12  # of the published models; each refines the flow of the one before
TOLERANCE, HALF = 0.01, 0.5  # pixels, of the whole model and of one with encoders in half precision
# Of a graph for all sizes, by the seeds that the gate takes for batches; where it mixes images, they are of one size.
_SIZES: Mapping[int, Size] = {0: (136, 144), 1: (128, 144), 2: (136, 128)}
_URL = "https://download.pytorch.org/models/"
_FILES = {"raft_large": "raft_large_C_T_SKHT_V2-ff5fadd5.pth", "raft_small": "raft_small_C_T_V2-01064c6d.pth"}
_HINT = f"fetch {' or '.join(_URL + file for file in _FILES.values())}; then --weights FILE"


def published(kind: str) -> Any:
    """The module of torchvision, without weights."""
    with MissingExtraError.unless("torchvision", extra="export"):
        from torchvision.models import optical_flow
    return getattr(optical_flow, kind)(weights=None)


def load(
    weights: str | Path,
    buckets: Sequence[Size] = (),
    *,
    build: Callable[[], Any],
    updates: int = UPDATES,
) -> Loaded:
    """``weights``: a state dict as torchvision publishes it, of the module that ``build`` makes. With ``buckets`` there
    is a graph for each of these sizes (as engines want it) instead of one for all.
    """
    for size in buckets:
        if min(size) < LEAST or any(side % STEP for side in size):
            raise UsageError(f"--buckets {size[0]}x{size[1]}: RAFT takes multiples of {STEP} from {LEAST}")
    model = _read(weights, build())
    module = _last(model, updates)
    parts = {part_of(ANY, size): _part(module, size) for size in buckets} or {ANY: _part(module, None)}
    return Loaded(
        family=FAMILY,
        parts=parts,
        numbers={"buckets": [list(size) for size in buckets], "mean": [0.5] * 3, "std": [0.5] * 3, "updates": updates},
        original=ArrayOriginal(
            answer=partial(_original, model, updates, Buckets(buckets) if buckets else None),
            open=_open,
            images=2,
            output="flow (pixels)",
            tolerance=TOLERANCE,
            half=HALF,
        ),
        pictures=tuple(size for height, width in buckets for size in ((height, width), (height - 9, width // 2))),
    )


def _read(weights: str | Path, model: Any) -> Any:
    import torch

    if not str(weights) or not Path(weights).is_file():
        raise ModelError(
            f"the weights of RAFT are a file, and {str(weights)!r} is none",
            hint=_HINT,
        )
    try:
        state = torch.load(weights, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, pickle.UnpicklingError) as exc:
        reason = str(exc).strip().partition("\n")[0]
        raise ModelError(f"{weights}: torch cannot read it as weights: {reason}") from exc
    wanted = set(model.state_dict())
    if not isinstance(state, Mapping) or set(state) != wanted:
        found = set(state) if isinstance(state, Mapping) else set()
        reason = f"{len(wanted - found)} of {len(wanted)} are missing, {len(found - wanted)} have other names"
        raise ModelError(f"{weights}: its weights are not those of this RAFT: {reason}", hint=_HINT)
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as exc:
        reason = str(exc).strip().splitlines()[-1].strip()
        raise ModelError(f"{weights}: its weights are not those of this RAFT: {reason}", hint=_HINT) from exc
    return model.float().eval()


def _last(model: Any, updates: int) -> Any:
    """A torch module of two images and the flow of the last update, without those before."""
    import torch

    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, first: Any, second: Any) -> dict[str, Any]:
            return {"flow": self.model(first, second, num_flow_updates=updates)[-1]}

    return Last().eval()


def _part(module: Any, size: Size | None) -> Part:
    import torch

    vary = partial(_pairs, size)
    examples = {key: torch.from_numpy(value) for key, value in vary(2, 0).items()}
    axes = (0,) if size is not None else (0, 2, 3)
    shared = None if size is None else "flow.weights"
    return Part(module, examples, dict.fromkeys(examples, axes), vary, weights=shared)


def _pairs(size: Size | None, batch: int, seed: int) -> Mapping[str, Array]:
    """Images of noise on a slope, and the same a little farther on."""
    rng = np.random.default_rng([batch, seed])
    height, width = size or _SIZES.get(seed, _SIZES[0])
    slope = np.linspace(-0.5, 0.5, width, dtype=np.float32)
    first = np.clip(slope + 0.3 * rng.standard_normal((batch, 3, height, width), np.float32), -1, 1)
    return {"first": first, "second": np.roll(first, (2, -3), (2, 3))}


def _original(
    model: Any, updates: int, buckets: Buckets | None, first: NDArray[np.uint8], second: NDArray[np.uint8]
) -> Array:
    """torchvision's own preparation and model, on images that are padded as in the evaluation of its authors."""
    import torch
    from torchvision.transforms._presets import OpticalFlow

    height, width = first.shape[:2]
    size = size_of(height, width, buckets)
    (top, bottom), (left, right) = ends_of(height, size[0]), ends_of(width, size[1])
    pair = (torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] for image in (first, second))
    prepared = OpticalFlow()(*pair)
    padded = [torch.nn.functional.pad(each, (left, right, top, bottom), mode="replicate") for each in prepared]
    with torch.no_grad():
        found = model(*padded, num_flow_updates=updates)[-1][0, :, top : top + height, left : left + width]
    answer: Array = found.permute(1, 2, 0).numpy()
    return answer


def _open(bundle: Bundle) -> Callable[..., Array]:
    return Raft(bundle).flow


RECIPES = tuple(
    WeightsRecipe(
        kind.replace("_", "-"),
        FAMILY,
        f"torchvision {file}",
        "BSD-3-Clause (code); the weights as torchvision publishes them, trained on data sets with terms of their own",
        partial(load, build=partial(published, kind)),
    )
    for kind, file in _FILES.items()
)
