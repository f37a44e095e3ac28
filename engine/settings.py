"""The settings of SPEC that a user can change: recorded in ``run.json``, set with ``--set NAME=VALUE``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from tallymill.errors import UsageError

Coverage = Literal["covered", "all"]
Decoding = Literal["cpu", "nvimgcodec"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything besides the models that shapes a proposal or a score.

    ``floor``: least raw confidence that is recorded. ``nms_iou``: boxes overlapping more than this are suppressed.
    ``slices``: sliced inference with k x k windows for each listed k; None leaves it to the ensemble, () turns it off.
    ``window_edge``: a box that ends within so many pixels of a window's inner edge is dropped as cut.
    ``coverage``: D of equations 5 and 8 counts the detectors that cover the category ("covered") or "all".
    ``max_pixels``: an image larger than this is an error row.
    ``decoder``: what decodes plain JPEG files, "cpu" or, on a card, "nvimgcodec", whose pixels differ by a level here
    and there.
    """

    floor: float = 0.05
    nms_iou: float = 0.5
    slices: tuple[int, ...] | None = None
    window_edge: float = 1.0
    coverage: Coverage = "covered"
    max_pixels: int = 178_000_000
    decoder: Decoding = "cpu"

    def __post_init__(self) -> None:
        self._check_types()
        if not 0.0 < self.floor <= 0.5:
            raise UsageError(f"floor={self.floor}: must lie in (0, 0.5]", hint="hard counts need every p >= 0.5")
        if not 0.0 <= self.nms_iou <= 1.0:
            raise UsageError(f"nms_iou={self.nms_iou}: must lie in [0, 1]")
        if self.slices is not None and any(k < 2 or k > 16 for k in self.slices):
            raise UsageError(f"slices={list(self.slices)}: each must lie in 2..16", hint="slices=[] turns slicing off")
        if not 0.0 <= self.window_edge <= sys.float_info.max:
            raise UsageError(f"window_edge={self.window_edge}: must be pixels, 0 or more")
        if self.coverage not in get_args(Coverage):
            raise UsageError(f"coverage={self.coverage!r}: must be one of {', '.join(get_args(Coverage))}")
        if self.max_pixels < 1:
            raise UsageError(f"max_pixels={self.max_pixels}: must be positive")
        if self.decoder not in get_args(Decoding):
            raise UsageError(f"decoder={self.decoder!r}: must be one of {', '.join(get_args(Decoding))}")
        # One value, one form: settings are hashed, and stamped into files.
        object.__setattr__(self, "floor", float(self.floor))
        object.__setattr__(self, "nms_iou", float(self.nms_iou))
        object.__setattr__(self, "window_edge", float(self.window_edge))
        object.__setattr__(self, "slices", None if self.slices is None else tuple(self.slices))

    def _check_types(self) -> None:
        for name in ("floor", "nms_iou", "window_edge"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise UsageError(f"{name}={value!r}: must be a number")
        if self.slices is not None and not (
            isinstance(self.slices, tuple | list) and all(type(k) is int for k in self.slices)
        ):
            raise UsageError(f"slices={self.slices!r}: must be a list of whole numbers, such as [2, 3]")
        if type(self.max_pixels) is not int:
            raise UsageError(f"max_pixels={self.max_pixels!r}: must be a whole number")

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready form; ``from_dict`` reads it back. The decoder is in it where it is not the default: parts of
        runs from before there was a choice stay theirs.
        """
        values = asdict(self)
        if self.decoder == "cpu":
            del values["decoder"]
        values["slices"] = None if self.slices is None else list(self.slices)
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Settings:
        """Read what ``as_dict`` wrote."""
        slices = values["slices"]
        return cls(**{**values, "slices": None if slices is None else tuple(slices)})


def with_overrides(settings: Settings, overrides: Iterable[str]) -> Settings:
    """Apply ``NAME=VALUE`` strings (values as JSON; a bare word is a string). Unknown names are a ``UsageError``."""
    known = {f.name: f.type for f in fields(Settings)}
    for text in overrides:
        name, equals, raw = text.partition("=")
        if not equals or name not in known:
            raise UsageError(f"--set {text}: not a setting", hint=f"NAME=VALUE with NAME one of {', '.join(known)}")
        settings = replace(settings, **{name: _value(name, raw)})
    return settings


def _value(name: str, raw: str) -> Any:
    if name in ("coverage", "decoder"):
        return raw
    try:
        value = json.loads(raw)
    except ValueError:  # no JSON, or a number of thousands of digits
        raise UsageError(f"--set {name}={raw}: not a number or list") from None
    whole = isinstance(value, float) and value.is_integer()
    return int(value) if name == "max_pixels" and whole else value
