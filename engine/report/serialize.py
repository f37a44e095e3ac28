"""An analysis for programs: a CSV a table, and JSON that can be read back."""

from __future__ import annotations

import csv
import io
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from tallymill.engine.estimates import Estimate
from tallymill.engine.numbench.analysis.results import Agreement, Analysis


def csv_tables(analysis: Analysis) -> dict[str, str]:
    """One CSV text a table of rows, by its name; also of those that are empty. An estimate x is x, x_low, x_high,
    x_null; a single detector's is ``single_cw:NAME`` and so on."""
    hints = typing.get_type_hints(Analysis)
    kinds = {f.name: typing.get_args(hints[f.name]) for f in fields(Analysis)}
    found = {name: kind[0] for name, kind in kinds.items() if kind and is_dataclass(kind[0]) and name != "agreement"}
    texts = {name: _csv(kind, getattr(analysis, name)) for name, kind in found.items()}
    if analysis.agreement is not None:
        texts["agreement"] = _csv(typing.get_type_hints(Agreement)["rows"].__args__[0], analysis.agreement.rows)
    return texts


def _csv(kind: Any, rows: Sequence[Any]) -> str:
    flat = [dict(_flat(row)) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row)) or [f.name for f in fields(kind)]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _flat(row: Any) -> Iterator[tuple[str, Any]]:
    for name in (f.name for f in fields(row)):
        value = getattr(row, name)
        if isinstance(value, Estimate):
            yield from _flat_estimate(name, value)
        elif isinstance(value, dict):
            for key, one in value.items():
                if isinstance(one, Estimate):
                    yield from _flat_estimate(f"{name}:{key}", one)
                else:
                    yield f"{name}:{key}", one
        else:
            yield name, value


def _flat_estimate(name: str, value: Estimate) -> Iterator[tuple[str, Any]]:
    yield name, value.value
    yield f"{name}_low", value.low
    yield f"{name}_high", value.high
    yield f"{name}_null", value.null_resamples


def as_json(analysis: Analysis) -> dict[str, Any]:
    """A JSON-ready form, which ``from_json`` reads back."""
    return asdict(analysis)


def from_json(value: Any) -> Analysis:
    """The analysis that ``as_json`` gave. Anything else is a ``ValueError``."""
    found = _typed(Analysis, value)
    assert isinstance(found, Analysis)
    return found


def _typed(kind: Any, value: Any) -> Any:
    """A value of JSON as the type that a field declares."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _typed(next(part for part in parts if part is not type(None)), value)
    if is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        if not isinstance(value, dict) or not value.keys() <= hints.keys():
            raise ValueError(f"not a {kind.__name__}")
        try:
            return kind(**{name: _typed(hints[name], one) for name, one in value.items()})
        except TypeError as exc:
            raise ValueError(f"not a {kind.__name__}: {exc}") from None
    if origin is list and isinstance(value, list):
        return [_typed(parts[0], one) for one in value]
    if origin is dict and isinstance(value, dict):
        return {name: _typed(parts[1], one) for name, one in value.items()}
    if kind is Any or (isinstance(kind, type) and isinstance(value, kind)) or (kind is float and type(value) is int):
        return value
    raise ValueError(f"{value!r} is not {kind}")
