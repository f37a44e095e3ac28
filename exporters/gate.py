"""The acceptance gate: an exported graph is compared with the model that it was made from before it is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tallymill.engine.sessions.base import Array, Session
from tallymill.exporters.recipes.parts import Part

TOLERANCE = 1e-3  # of an output that the recipe names no other for
_FILL = -1e4  # stands for -inf: logits of what is masked


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison: the largest difference of an output, and how much is borne."""

    part: str
    check: str
    output: str
    difference: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """False also for NaN."""
        return self.difference <= self.tolerance

    def __str__(self) -> str:
        verdict = "" if self.passed else "  <-- refused"
        bound = f"{self.difference:.2g} (at most {self.tolerance:.2g})"
        return f"{self.part}, {self.check}: {self.output} differs by {bound}{verdict}"


def examine(name: str, part: Part, session: Session) -> list[Finding]:
    """Everything that the gate finds out about one part: against torch at each batch size, then slot by slot."""
    findings = []
    for batch in part.batches:
        inputs = part.vary(batch, batch)
        found = session.run(inputs)
        findings += _compare(name, f"batch of {batch} against torch", part, found, reference(part, inputs))
    return findings + _slots(name, part, session.run)


def reference(part: Part, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """What the module itself makes of the inputs, in float32."""
    import torch

    with torch.no_grad():
        outputs = part.module(**{key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in inputs.items()})
    return {key: value.float().numpy() for key, value in outputs.items()}


def _slots(name: str, part: Part, run: Callable[[Mapping[str, Array]], dict[str, Array]]) -> list[Finding]:
    """The same image in every slot of a batch, each time among other neighbours, answers as it does alone."""
    batch = max(part.batches)
    image = {key: value[:1] for key, value in part.vary(1, 101).items()}
    alone = run(image)
    findings = []
    for slot in range(batch):
        inputs = {key: value.copy() for key, value in part.vary(batch, 102 + slot).items()}
        for key, value in inputs.items():
            inputs[key] = _with_slot(value, slot, image[key])
        found = {key: value[slot : slot + 1] for key, value in run(inputs).items()}
        findings += _compare(name, f"slot {slot} of {batch} against alone", part, found, alone)
    return findings


def _with_slot(batch: Array, slot: int, row: Array) -> Array:
    """The batch with one row in a slot; the shorter of the two is padded with zeros, and masks say so."""
    shape = tuple(max(a, b) for a, b in zip(batch.shape[1:], row.shape[1:], strict=True))
    grown = np.zeros((len(batch), *shape), batch.dtype)
    grown[tuple(slice(0, n) for n in batch.shape)] = batch
    grown[slot] = 0
    grown[(slice(slot, slot + 1), *(slice(0, n) for n in row.shape[1:]))] = row
    return grown


def _compare(
    name: str, check: str, part: Part, found: Mapping[str, Array], wanted: Mapping[str, Array]
) -> list[Finding]:
    return [
        Finding(name, check, key, _difference(found[key], wanted[key]), part.tolerance.get(key, TOLERANCE))
        for key in wanted
    ]


def _difference(found: Any, wanted: Any) -> float:
    """Largest absolute difference, where both have a place; -inf equals -inf."""
    common = tuple(slice(0, min(a, b)) for a, b in zip(found.shape, wanted.shape, strict=True))
    a, b = (np.maximum(np.asarray(value[common], np.float64), _FILL) for value in (found, wanted))
    return float(np.abs(a - b).max(initial=0.0))
