"""The RUN folder: ``run.json`` says everything that shaped the numbers, and what may be continued with what."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tallymill.engine import devices
from tallymill.engine.ensemble import DetectorConfig, EnsembleConfig
from tallymill.engine.numbench.scores import ScorePlan
from tallymill.engine.settings import Settings
from tallymill.errors import RunError
from tallymill.runners.devices import ON_THE_CPU, DeviceChoice
from tallymill.runners.files import create_json, write_json
from tallymill.runners.files import versions as wrote
from tallymill.runners.record import fault_of
from tallymill.runners.sink import Stamps
from tallymill.runners.writing import naming_output

# A difference in any of these makes different numbers; the rest of run.json is for the record.
COMPARED = (
    "manifest.sha256",
    "manifest.rows",
    "manifest.image_root",
    "shard_items",
    "settings",
    "schedule",
    "keep_suppressed",
    "device",
    "source_created",
    "user_score.name",
    "user_score.sha256",
)
# What a difference says that a digest does not.
_MEANS = {
    "manifest.sha256": " (what the manifest's rows say, or the prompts given with them)",
    "manifest.image_root": " (the folder that image references start from)",
    "device": " (devices differ in the last bits of what they compute)",
    "source_created": " (the RUN that is scored again was made anew)",
    "user_score.sha256": " (what the score's file holds)",
}
_MEND = "put back the run.json that the sweep wrote, or sweep again into another folder"
_PACKAGES = (
    "tallymill",
    "numpy",
    "pyarrow",
    "onnxruntime",
    "onnxruntime-gpu",
    "torch",
    "opencv-python-headless",
    "pillow",
    "simplejpeg",
)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths inside a RUN, and its record."""

    path: Path

    @classmethod
    def to_write(cls, out: str | Path) -> RunFolder:
        """The folder that ``--out`` names: a RUN, or empty, or not there yet. Anything else is a ``RunError``."""
        path = Path(out)
        _require_utf8(path)
        with naming_output(path):
            if path.exists() and not path.is_dir():
                raise RunError(f"{path} is a file; --out names a folder")
        run = cls(path)
        if path.is_dir() and not os.path.exists(run.record_path):  # noqa: PTH110
            # Hidden files may be what a killed process left.
            other = next((entry.name for entry in path.iterdir() if not entry.name.startswith(".")), None)
            if other is not None:
                raise RunError(f"{path} is not empty ({other}) and is not a RUN", hint="choose another --out")
        return run

    @property
    def record_path(self) -> Path:
        """Where ``run.json`` stands."""
        return self.path / "run.json"

    @property
    def items_path(self) -> Path:
        """The canonical rows of the manifest."""
        return self.path / "items.arrow"

    def proposals_path(self, record: dict[str, Any]) -> Path:
        """Where the proposals are; a re-scored RUN refers to those of the RUN that it came from."""
        return self.path / str(record.get("proposals_of", "")) / "proposals"

    def read(self) -> dict[str, Any]:
        """The record, or a ``RunError`` when this is not a RUN."""
        _require_utf8(self.path)
        try:
            record = json.loads(self.record_path.read_text("utf-8"))
        except FileNotFoundError:
            raise RunError(f"{self.path} is not a RUN: it has no run.json") from None
        except OSError as exc:
            raise RunError(f"{self.record_path}: cannot be read: {exc.strerror}") from None
        except (ValueError, RecursionError) as exc:
            raise RunError(f"{self.record_path}: cannot be read: {exc}", hint=_MEND) from None
        fault = fault_of(record)
        if fault is not None:
            writer = record.get("versions") if isinstance(record, dict) else None
            told = writer.get("tallymill") if isinstance(writer, dict) else None
            other = wrote(told if isinstance(told, str) else None)
            raise RunError(f"{self.record_path} is no record of this tallymill: {fault}{other}", hint=_MEND)
        found: dict[str, Any] = record
        return found

    def parts(self, folder: str) -> list[Path]:
        """The part files of ``scores`` or ``proposals/DETECTOR`` that are there, in order."""
        return sorted((self.path / folder).glob("part-*.parquet"))

    def continue_with(self, record: dict[str, Any], *, hint: str | None = None) -> dict[str, Any]:
        """Write the record of a new run, or check that an existing one may be continued with it.

        Detectors may be added; anything else that differs is refused with the list of differences and the ``hint``.
        Gives the record in force.
        """
        if not self.record_path.exists() and create_json(self.record_path, record):
            return record
        before = self.read()
        found = list(differences(before, record))
        if found:
            raise RunError(
                f"{self.path} was made otherwise:\n  " + "\n  ".join(found),
                hint=hint
                or "choose another --out; temperatures, schedules and ensembles change without a model by "
                "`tallymill rescore`",
            )
        changed = {**record, "created": before["created"], "continued": before.get("continued", [])}
        changed["versions"] = before["versions"]
        if record["versions"] not in (before["versions"], *changed["continued"]):
            changed["continued"] = [*changed["continued"], record["versions"]]
        if changed != before:
            write_json(self.record_path, changed)
        return changed


def _require_utf8(path: Path) -> None:
    """Arrow opens no file of another name, so that every part would seem to be missing."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise RunError(f"{str(path)!a}: the name of a RUN must be UTF-8", hint="give its folder another name") from None


def make_record(
    *,
    manifest: dict[str, Any],
    shard_items: int,
    ensemble: EnsembleConfig,
    model_hashes: dict[str, str | None],
    settings: Settings,
    plan: ScorePlan,
    keep_suppressed: bool,
    created: str,
    device: DeviceChoice = ON_THE_CPU,
    accepted: Mapping[str, Mapping[str, Any] | None] | None = None,
) -> dict[str, Any]:
    """Everything that shapes the numbers of a run, as it is written to ``run.json``.

    ``accepted`` is of detectors whose models are engines (see ``require_not_refused``).
    """
    return {
        "created": created,
        "manifest": manifest,
        "shard_items": shard_items,
        "ensemble": {
            "name": ensemble.name,
            "detectors": [
                {
                    "name": detector.name,
                    "family": detector.family,
                    "model": detector.model,
                    "model_sha256": model_hashes[detector.name],
                    "tau": float(detector.tau),
                    **({"accepted": accepted[detector.name]} if accepted and detector.name in accepted else {}),
                }
                for detector in ensemble.detectors
            ],
        },
        "settings": resolved(settings, ensemble).as_dict(),
        "schedule": list(plan.schedule),
        "keep_suppressed": keep_suppressed,
        "device": device.kind,
        "device_choice": device.as_dict(),
        "versions": versions(),
    }


def resolved(settings: Settings, ensemble: EnsembleConfig) -> Settings:
    """Settings with the ensemble's slices filled in where the user left them to it."""
    return settings if settings.slices is not None else replace(settings, slices=ensemble.slices)


def differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """Lines that say what differs between two records, apart from detectors that were added."""
    before, now = ({**record, "device": device_of(record)} for record in (before, now))
    for dotted in COMPARED:
        old, new = _at(before, dotted), _at(now, dotted)
        pairs = {dotted: (old, new)}
        if isinstance(old, dict) and isinstance(new, dict):
            pairs = {f"{dotted}.{key}": (old.get(key), new.get(key)) for key in sorted({*old, *new})}
        for name, (was, is_now) in pairs.items():
            if was != is_now:
                yield f"{name}{_MEANS.get(name, '')}: {_short(was)} in the RUN, {_short(is_now)} now"
    was, is_now = before.get("proposals_of"), now.get("proposals_of")
    if was != is_now:
        yield f"proposals_of: {_short(was)} in the RUN, {_short(is_now)} now"
    asked = {detector["name"]: detector for detector in now["ensemble"]["detectors"]}
    for detector in before["ensemble"]["detectors"]:
        other = asked.get(detector["name"])
        if other is None:
            yield f"ensemble.detectors: {detector['name']} is in the RUN but not asked for now"
            continue
        for key in ("family", "model_sha256", "tau"):
            if detector[key] != other[key]:
                yield f"{detector['name']}.{key}: {_short(detector[key])} in the RUN, {_short(other[key])} now"


def device_of(record: dict[str, Any]) -> str:
    """``cpu`` or ``cuda``, where the models of a run with this record ran."""
    return str(record.get("device", devices.CPU))


def stamps_of(record: dict[str, Any]) -> Stamps:
    """What part files of a run with this record carry."""
    shared = {
        key: _at(record, key) for key in ("manifest.sha256", "manifest.image_root", "shard_items", "keep_suppressed")
    }
    shared |= {key: record["settings"][key] for key in ("floor", "nms_iou", "slices", "window_edge", "max_pixels")}
    if "decoder" in record["settings"]:
        shared["decoder"] = record["settings"]["decoder"]
    if device_of(record) != devices.CPU:  # parts made on the CPU bear stamps from before there was a choice
        shared["device"] = device_of(record)
    # A model is what its file holds, wherever that lies.
    seen = {d["name"]: [d["name"], d["family"], d["model_sha256"]] for d in record["ensemble"]["detectors"]}
    taus = [d["tau"] for d in record["ensemble"]["detectors"]]
    scored = [shared, list(seen.values()), taus, record["settings"], record["schedule"], _at(record, "source_created")]
    if "user_score" in record:
        scored += [_at(record, "user_score.name"), _at(record, "user_score.sha256")]
    return Stamps(
        detectors={name: _digest([shared, detector]) for name, detector in seen.items()},
        scores=_digest(scored),
    )


def ensemble_of(record: dict[str, Any]) -> EnsembleConfig:
    """The ensemble that a record describes."""
    return EnsembleConfig(
        name=record["ensemble"]["name"],
        detectors=tuple(
            DetectorConfig(d["name"], d["family"], d["model"], d["tau"]) for d in record["ensemble"]["detectors"]
        ),
        slices=tuple(record["settings"]["slices"]),
    )


def plan_of(record: dict[str, Any]) -> ScorePlan:
    """How a record turns proposals into scores."""
    detectors = record["ensemble"]["detectors"]
    return ScorePlan(
        detectors=tuple(d["name"] for d in detectors),
        taus=tuple(d["tau"] for d in detectors),
        coverage=record["settings"]["coverage"],
        schedule=tuple(record["schedule"]),
    )


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that touch a pixel or a number."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # an extra that this run did without
            continue
    return found


def _at(record: dict[str, Any], dotted: str) -> Any:
    """The value at a dotted key; None where a record has no such key (one that only some runs have)."""
    value: Any = record
    for key in dotted.split("."):
        value = None if value is None else value.get(key)
    return value


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    # Two paths that are cut can look the same.
    return text if len(text) <= 60 or isinstance(value, str) else text[:57] + "..."
