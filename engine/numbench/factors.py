"""The factors of NumBench by which scores are told apart (paper, Table 2), and the words they are written with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeVar, get_args, overload

import numpy as np
from numpy.typing import NDArray

from tallymill.errors import UsageError

COUNT_RANGES = ("1-25", "26-50", "51-75", "76-100")
# Human agreement and detector-human correlation weaken above 50: results there are stress tests (Table 5).
STRESS_RANGES = frozenset({"51-75", "76-100"})
COMPOSITIONS = ("single", "double")
FREE = "free"
GUIDED = ("grid", "scene", "random")
LAYOUTS = (FREE, *GUIDED)
APPEARANCES = ("clean", "modified")
# In the order of the paper's Table 3, which prompts keep: what degrades quality, then what hides instances.
MODIFIERS = ("blurry", "deformed", "low quality", "artifacts", "overlapping", "merged", "partial", "cropped")
EVIDENCE_MODIFIERS = frozenset({"overlapping", "merged", "partial", "cropped"})
QUALITY, EVIDENCE, MIXED = MODIFIER_GROUPS = ("quality", "evidence", "mixed")
LEAST_COUNT, GREATEST_COUNT = 1, 100

# How an image with several counts gets one range: by its largest, by their mean rounded up, or each target by its own
# (for analysis only).
RangeBy = Literal["max", "mean", "per-target"]
T = TypeVar("T", bound=np.signedinteger[Any])


def require_range_by(range_by: str) -> None:
    """``UsageError`` for a word that is no ``RangeBy``."""
    if range_by not in get_args(RangeBy):
        raise UsageError(f"range_by {range_by!r}: must be one of {', '.join(get_args(RangeBy))}")


def count_range(count: int) -> str:
    """The range that a count of 1 to 100 lies in."""
    if not LEAST_COUNT <= count <= GREATEST_COUNT:
        raise ValueError(f"count {count} lies outside {LEAST_COUNT}..{GREATEST_COUNT}")
    return COUNT_RANGES[int(range_codes(np.int64(count)))]


@overload
def range_codes(counts: np.int64) -> np.int64: ...
@overload
def range_codes(counts: NDArray[T]) -> NDArray[T]: ...
def range_codes(counts: Any) -> Any:
    """The place in ``COUNT_RANGES`` of counts of 1 to 100, of their own signed dtype."""
    return (counts - 1) // 25


def modifier_group(modifiers: Iterable[str]) -> str:
    """Whether terms change visual quality, the evidence for instances, or both."""
    kinds = {modifier in EVIDENCE_MODIFIERS for modifier in modifiers}
    return MIXED if len(kinds) == 2 else EVIDENCE if True in kinds else QUALITY


def ordered(found: Iterable[str], known: Sequence[str]) -> list[str]:
    """Each different name once: known ones first, in their order; then the others by name."""
    names = set(found)
    return [name for name in known if name in names] + sorted(names - set(known))
