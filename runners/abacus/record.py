"""``run.json`` of a RUN that verifies edits: everything that shapes its evidence, and with what it may be continued."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tallymill import __version__
from tallymill.engine.abacus.settings import EditSettings
from tallymill.engine.abacus.suite import Suite
from tallymill.errors import RunError, UsageError
from tallymill.runners.build import ModelFile
from tallymill.runners.devices import DeviceChoice
from tallymill.runners.files import create_json, write_json
from tallymill.runners.run_folder import RunFolder, versions

KIND = "abacus"
_MEND = "put back the run.json that `abacus score` wrote, or score again into another folder"
_MEANS = {
    "manifest.sha256": " (what the manifest's rows say)",
    "manifest.image_root": " (the folder that image references start from)",
    "panoptic.sha256": " (the annotations)",
    "device": " (devices differ in the last bits of what they compute)",
}
_COMPARED = ("manifest.sha256", "manifest.rows", "manifest.image_root", "panoptic.sha256", "shard_items", "device")
_OF_A_MODEL = {"name", "family", "sha256"}
_NEEDED: dict[str, type | tuple[type, ...]] = {
    "created": str,
    "manifest": dict,
    "shard_items": int,
    "suite": dict,
    "models": dict,
    "settings": dict,
    "device": str,
    "versions": dict,
}


def make_record(
    *,
    manifest: dict[str, Any],
    panoptic: dict[str, Any] | None,
    shard_items: int,
    suite: Suite,
    models: Mapping[str, ModelFile | None],
    masks: bool,
    settings: EditSettings,
    device: DeviceChoice,
) -> dict[str, Any]:
    """What a new RUN says of itself. ``masks``: whether the segmenter gives masks, and not only boxes."""
    name = suite.segmenter.name
    return {
        "kind": KIND,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
        "tallymill": __version__,
        "manifest": manifest,
        "panoptic": panoptic,
        "shard_items": shard_items,
        "suite": suite.as_dict(),
        "models": {part: _entry(name, family, models[name]) for part, name, family in suite.roles()},
        "instances": f"masks of {name}" if masks else f"boxes of {name} in the place of masks, also of annotated ones",
        "settings": settings.as_dict(),
        "device": device.kind,
        "device_choice": device.as_dict(),
        "versions": versions(),
    }


def _entry(name: str, family: str, model: ModelFile | None) -> dict[str, str | None]:
    return {"name": name, "family": family, "sha256": None if model is None else model.sha256}


def begin(run: RunFolder, record: dict[str, Any]) -> dict[str, Any]:
    """Write the record of a new RUN, or check that the one that is there may be continued: the record in force.

    Anything that shapes evidence and differs is a ``RunError`` with the list of differences.
    """
    if not run.record_path.exists() and create_json(run.record_path, record):
        return record
    before = read_record(run.path)
    found = list(_differences(before, record))
    if found:
        raise RunError(f"{run.path} was made otherwise:\n  " + "\n  ".join(found), hint="choose another --out")
    if record["versions"] not in (before["versions"], *before.get("continued", [])):
        before = {**before, "continued": [*before.get("continued", []), record["versions"]]}
        write_json(run.record_path, before)
    return before


def read_record(path: Path) -> dict[str, Any]:
    """The record of a RUN of this kind, or a ``RunError``."""
    file = path / "run.json"
    try:
        record = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path} is not a RUN: it has no run.json", hint="`abacus score --out` makes one") from None
    except OSError as exc:
        raise RunError(f"{file}: cannot be read: {exc.strerror}") from None
    except (ValueError, RecursionError) as exc:
        raise RunError(f"{file}: cannot be read: {exc}", hint=_MEND) from None
    if not isinstance(record, dict) or record.get("kind") != KIND:
        raise RunError(f"{file}: not of ABACUS", hint="a RUN of ABACUS is a folder that `abacus score --out` made")
    wrong = next((name for name, kind in _NEEDED.items() if not isinstance(record.get(name), kind)), None)
    if wrong is not None or type(record["manifest"].get("rows")) is not int or record["shard_items"] < 1:
        raise RunError(f"{file}: {wrong or 'manifest.rows or shard_items'} is not as it must be", hint=_MEND)
    try:
        parts = [part for part, _, _ in Suite.from_dict(record["suite"]).roles()]
        EditSettings.from_dict(record["settings"])
    except (UsageError, TypeError, KeyError) as exc:
        raise RunError(f"{file}: {exc}", hint=_MEND) from None
    models = record["models"]
    if {*models} != {*parts} or not all(isinstance(each, dict) and {*each} == _OF_A_MODEL for each in models.values()):
        raise RunError(f"{file}: models is not as it must be", hint=_MEND)
    return record


def stamp_of(record: dict[str, Any]) -> str:
    """What the part files of a RUN with this record carry."""
    shaped = [_at(record, dotted) for dotted in _COMPARED] + [record["models"], record["settings"]]
    return hashlib.sha256(json.dumps(shaped, sort_keys=True).encode()).hexdigest()[:32]


def _differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for dotted in _COMPARED:
        if _at(before, dotted) != _at(now, dotted):
            yield _line(dotted, _at(before, dotted), _at(now, dotted))
    for part in dict.fromkeys((*before["models"], *now["models"])):
        was, is_now = before["models"].get(part), now["models"].get(part)
        if was != is_now:
            yield f"models.{part}: {model_in_words(was)} in the RUN, {model_in_words(is_now)} now"
    for name in sorted({*before["settings"], *now["settings"]}):
        if before["settings"].get(name) != now["settings"].get(name):
            yield _line(f"settings.{name}", before["settings"].get(name), now["settings"].get(name))


def model_in_words(model: Mapping[str, str | None] | None) -> str:
    """An entry of ``models``: "centernet (centernet, SHA-256 ...)"."""
    if model is None:
        return "none"
    made = "built in" if model["sha256"] is None else f"SHA-256 {model['sha256']}"
    return f"{model['name']} ({model['family']}, {made})"


def _line(name: str, was: Any, is_now: Any) -> str:
    return f"{name}{_MEANS.get(name, '')}: {was!r} in the RUN, {is_now!r} now"


def _at(record: dict[str, Any], dotted: str) -> Any:
    value: Any = record
    for key in dotted.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value
