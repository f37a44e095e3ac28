"""The lines of anybody's JSONL file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tallymill.engine.manifests.base import Faults, brief
from tallymill.engine.physcount.parse import json_float, json_integer, no_constant
from tallymill.errors import ManifestError


class _TwiceError(ValueError):
    """A key that stands twice in an object: JSON decoders take the last one, and say nothing."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise _TwiceError(f"the key {brief(name)} stands twice")
    return found


_DECODER = json.JSONDecoder(
    parse_int=json_integer, parse_float=json_float, parse_constant=no_constant, object_pairs_hook=_once
)


def bytes_of(path: Path) -> bytes:
    """What is in a file of predictions, or a ``ManifestError``."""
    try:
        return path.read_bytes()
    except OSError as exc:
        raise ManifestError(
            f"{path}: {exc.strerror or exc}", hint="--predictions names a RUN folder or a JSONL file"
        ) from None


def lines(name: str, data: bytes, faults: Faults) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """The objects of a JSONL file, each with its place in words and its line.

    Lines end at line feeds alone, for answers may hold any other separator.
    """
    for number, line in enumerate(data.split(b"\n"), 1):
        at = f"{name}, line {number}"
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            row = _DECODER.decode(text) if text else None
        except _TwiceError as exc:
            faults.add(at, str(exc))
        except UnicodeDecodeError as exc:
            faults.add(f"{at}, byte {exc.start + 1}", "not UTF-8")
        except (ValueError, RecursionError) as exc:
            faults.add(at, f"not JSON: {exc}", value=line[:120].decode("utf-8", "replace"))
        else:
            if isinstance(row, dict):
                yield at, number, row
            elif text:
                faults.add(at, "not an object", value=row)
