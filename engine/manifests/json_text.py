"""JSON as manifests need it: repeated keys are kept, NaN is refused, every failure is one ``ValueError``."""

from __future__ import annotations

import json
from typing import Any


class RepeatedKeys(dict[str, Any]):
    """An object in which a key stands twice; ``pairs`` has all of them in order."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    return values if len(values) == len(pairs) else RepeatedKeys(pairs)


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)


def load_json(text: str) -> Any:
    """Decode one JSON document; ``ValueError`` names the column (and the line, where there are several)."""
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        at = f"column {error.colno}" if "\n" not in text.strip() else f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"not JSON at {at}: {error.msg}") from None
    except RecursionError:
        raise ValueError("not JSON that can be read: nested too deeply") from None
    if "\\u" in text:
        _refuse_surrogates(value)
    return value


def _refuse_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is not text") from None
