"""The settings of ABACUS that a user can change: recorded in ``run.json``, set with ``--set NAME=VALUE``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from tallymill.engine.images import MAX_PIXELS
from tallymill.errors import UsageError

_SHARES = ("presence", "repair_iou", "match_iou", "confirm_confidence", "confirm_iou", "pair_iou", "nms_iou")
_WHOLE = {"margin": 1, "erase_margin": 1, "erase_radius": 1, "crop_side": 1, "max_pixels": 1}


@dataclass(frozen=True, slots=True)
class EditSettings:
    """Everything besides the models that shapes a verdict.

    ``presence``: least gated score of a segmented instance. ``repair_iou``: a segmented instance of the source that
    overlaps none of the panoptic ones so much is added to them. ``match_iou``: masks less alike are not matched.
    ``erase_margin``, ``erase_radius``: pixels by which preserved instances grow before they are painted over, and of
    the inpainting. ``confirm_confidence``, ``confirm_iou``: of a detector's box that confirms a candidate.
    ``pair_iou``: least box IoU of what went and what came in its place. ``margin``: pixels by which instances grow
    before the rest is background. ``crop_scale``, ``crop_side``: how much larger than its box a crop is, and the least
    short side it is brought to. ``nms_iou``: of detectors and of a segmenter that gives boxes. ``slices``: of the
    detectors.
    ``max_pixels``: an image larger than this is an error row.
    """

    presence: float = 0.5
    repair_iou: float = 0.5
    match_iou: float = 0.3
    erase_margin: int = 7
    erase_radius: int = 3
    confirm_confidence: float = 0.5
    confirm_iou: float = 0.5
    pair_iou: float = 0.5
    margin: int = 17
    crop_scale: float = 1.2
    crop_side: int = 224
    nms_iou: float = 0.5
    slices: tuple[int, ...] = ()
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        for name in (*_SHARES, "crop_scale"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise UsageError(f"{name}={value!r}: must be a number")
            object.__setattr__(self, name, float(value))
        for name in _SHARES:
            if not 0 < getattr(self, name) <= 1:
                raise UsageError(f"{name}={getattr(self, name)}: must lie in (0, 1]")
        if not 1 <= self.crop_scale <= 10:
            raise UsageError(f"crop_scale={self.crop_scale}: must lie in [1, 10]")
        for name, least in _WHOLE.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise UsageError(f"{name}={value!r}: must be a whole number, at least {least}")
        if not (isinstance(self.slices, tuple | list) and all(type(k) is int and 2 <= k <= 16 for k in self.slices)):
            raise UsageError(f"slices={self.slices!r}: must be a list of whole numbers in 2..16, such as [2, 3]")
        object.__setattr__(self, "slices", tuple(self.slices))

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready form; ``from_dict`` reads it back."""
        return {**asdict(self), "slices": list(self.slices)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> EditSettings:
        """Read what ``as_dict`` wrote."""
        return cls(**{**values, "slices": tuple(values["slices"])})


SETTINGS = tuple(field.name for field in fields(EditSettings))


def with_changes(settings: EditSettings, changes: Iterable[str]) -> EditSettings:
    """Apply ``NAME=VALUE`` strings, values as JSON. Unknown names are a ``UsageError``."""
    for text in changes:
        name, equals, raw = text.partition("=")
        if not equals or name not in SETTINGS:
            raise UsageError(f"--set {text}: not a setting", hint=f"NAME=VALUE with NAME one of {', '.join(SETTINGS)}")
        try:
            value = json.loads(raw)
        except ValueError:
            raise UsageError(f"--set {name}={raw}: not a number or list") from None
        settings = replace(settings, **{name: value})
    return settings
