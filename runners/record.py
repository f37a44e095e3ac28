"""What ``run.json`` must hold to be read: each key with the kind of its value, so that a fault is named by its key."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from tallymill.engine.ensemble import DetectorConfig
from tallymill.engine.numbench.scores import MAX_COUNT
from tallymill.engine.settings import Settings
from tallymill.errors import UsageError

MOST_SHARDS = 10_000_000

_Kind = tuple[str, Callable[[Any], bool]]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _share(value: Any) -> bool:
    return _number(value) and 0 <= value <= 1


def _optional(kind: _Kind) -> _Kind:
    return f"{kind[0]} or null", lambda value: value is None or kind[1](value)


_TEXT: _Kind = ("text", lambda value: isinstance(value, str))
_PATH: _Kind = ("a path", lambda value: isinstance(value, str) and "\0" not in value)
_OBJECT: _Kind = ("an object", lambda value: isinstance(value, dict))
_TEXTS: _Kind = (
    "a list of texts",
    lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
)
_FLAG: _Kind = ("true or false", lambda value: isinstance(value, bool))
_WHOLE: _Kind = ("a whole number of at least 1", lambda value: type(value) is int and value >= 1)
_COUNT: _Kind = ("a whole number", lambda value: type(value) is int and value >= 0)
_TEMPERATURE: _Kind = ("a positive number", lambda value: _number(value) and value > 0)
_SCHEDULE: _Kind = (
    f"{MAX_COUNT} numbers in 0..1",
    lambda value: isinstance(value, list) and len(value) == MAX_COUNT and all(map(_share, value)),
)
_DETECTORS: _Kind = (
    "a list of objects, at least one",
    lambda value: isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value),
)
_NEEDED: dict[str, _Kind] = {
    "created": _TEXT,
    "manifest": _OBJECT,
    "manifest.source": _TEXT,
    "manifest.image_root": _optional(_PATH),
    "manifest.rows": _WHOLE,
    "manifest.sha256": _TEXT,
    "shard_items": _WHOLE,
    "ensemble": _OBJECT,
    "ensemble.name": _TEXT,
    "ensemble.detectors": _DETECTORS,
    "settings": _OBJECT,
    "schedule": _SCHEDULE,
    "keep_suppressed": _FLAG,
    "versions": _OBJECT,
}
_PERHAPS: dict[str, _Kind] = {
    "manifest.prompts": _optional(_OBJECT),
    "rescored_from": _TEXT,
    "source_created": _TEXT,
    "proposals_of": _PATH,
    "user_score": _OBJECT,
    "user_score.name": _TEXT,
    "user_score.sha256": _optional(_TEXT),
    "device": ("cpu or cuda", lambda value: value in ("cpu", "cuda")),
    "device_choice": _OBJECT,
    "device_choice.cards": _TEXTS,
    "continued": ("a list", lambda value: isinstance(value, list)),
}
_PROMPTS: dict[str, _Kind] = {"rows": _COUNT, "used": _COUNT}
_DETECTOR: dict[str, _Kind] = {
    "name": _TEXT,
    "family": _TEXT,
    "model": _optional(_TEXT),
    "model_sha256": _optional(_TEXT),
    "tau": _TEMPERATURE,
}
_PERHAPS_OF_DETECTOR: dict[str, _Kind] = {"accepted": _optional(_OBJECT)}


def require_shards(rows: int, size: int) -> None:
    """Refuse to begin a RUN that could not be read."""
    if rows > MOST_SHARDS * size:
        raise UsageError(
            f"{rows:,} items in shards of {size:,} are more than {MOST_SHARDS:,} shards",
            hint=f"choose larger shards: --shard-items {-(-rows // MOST_SHARDS)} or more",
        )


def fault_of(record: Any) -> str | None:
    """The first thing in a record that no reader could work with; None where there is none."""
    if not isinstance(record, dict):
        return "it is no JSON object"
    return next(_faults(record), None)


def _faults(record: dict[str, Any]) -> Iterator[str]:
    yield from _of(record, _NEEDED, needed=True)
    yield from _of(record, _PERHAPS, needed=False)
    prompts = record["manifest"].get("prompts")
    if prompts is not None:
        yield from _of(prompts, _PROMPTS, needed=True, prefix="manifest.prompts.")
    rows, size = record["manifest"]["rows"], record["shard_items"]
    if rows > MOST_SHARDS * size:  # they are listed before anything is read
        yield f"manifest.rows is {rows:,} in shards of {size:,}: more than {MOST_SHARDS:,} shards"
    names = set()
    for place, detector in enumerate(record["ensemble"]["detectors"]):
        where = f"ensemble.detectors[{place}]"
        yield from _of(detector, _DETECTOR, needed=True, prefix=f"{where}.")
        yield from _of(detector, _PERHAPS_OF_DETECTOR, needed=False, prefix=f"{where}.")
        try:
            DetectorConfig(detector["name"], detector["family"], detector["model"], detector["tau"])
        except UsageError as exc:
            yield f"{where}: {exc.message}"
        if detector["name"] in names:
            yield f"{where}.name: {detector['name']!r} was there before"
        names.add(detector["name"])
    yield from _settings(record["settings"])


def _of(values: dict[str, Any], kinds: dict[str, _Kind], *, needed: bool, prefix: str = "") -> Iterator[str]:
    for dotted, (what, fits) in kinds.items():
        *above, key = dotted.split(".")
        inside: Any = values
        for name in above:
            inside = inside.get(name) if isinstance(inside, dict) else None
        if not isinstance(inside, dict) or key not in inside:
            if needed:
                yield f"{prefix}{dotted} is missing"
        elif not fits(inside[key]):
            yield f"{prefix}{dotted} is {_short(inside[key])}, not {what}"


def _settings(values: dict[str, Any]) -> Iterator[str]:
    known = Settings().as_dict()
    for name in known:
        if name not in values:
            yield f"settings.{name} is missing"
    for name in values:
        if name not in known and name != "decoder":
            yield f"settings.{name} is not known to this version"
    if not isinstance(values["slices"], list):
        yield f"settings.slices is {_short(values['slices'])}, not a list"
    try:
        Settings.from_dict(values)
    except UsageError as exc:
        yield f"settings: {exc.message}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
