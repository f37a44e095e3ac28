"""JSON values as the dataclass that they were written from, each checked against the type of its field."""

from __future__ import annotations

import math
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

_NAMES = {str: "text", int: "a whole number", float: "a number or null", bool: "true or false"}


def typed(kind: Any, value: Any, where: str = "") -> Any:
    """``value`` as ``kind``: a dataclass of texts, numbers, tuples and dictionaries; null is NaN where a float stands.

    What does not fit is a ``ValueError`` that names its key.
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else typed(next(part for part in parts if part is not type(None)), value, where)
    if is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(kind, value, where)
    if origin is tuple:
        _require(isinstance(value, list), value, "a list", where)
        return tuple(typed(parts[0], one, f"{where}[{place}]") for place, one in enumerate(value))
    if origin is dict:
        _require(isinstance(value, dict), value, "an object", where)
        return {name: typed(parts[1], one, f"{where}.{name}") for name, one in value.items()}
    if kind is float and value is None:
        return math.nan
    fits = type(value) is kind or (kind is float and type(value) is int and abs(value) < 1 << 53)
    _require(fits, value, _NAMES[kind], where)
    return value


def _dataclass(kind: Any, value: Any, where: str) -> Any:
    _require(isinstance(value, dict), value, "an object", where or "the whole")
    hints = typing.get_type_hints(kind)
    above = f"{where}." if where else ""
    for field in fields(kind):
        if field.name not in value and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{above}{field.name} is missing")
    for name in value:
        if name not in hints:
            raise ValueError(f"{above}{name} is not known to this version")
    return kind(**{name: typed(hints[name], one, f"{above}{name}") for name, one in value.items()})


def _require(fits: bool, value: Any, what: str, where: str) -> None:
    if not fits:
        text = repr(value)
        raise ValueError(f"{where} is {text if len(text) <= 40 else text[:37] + '...'}, not {what}")
