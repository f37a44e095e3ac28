"""Which models verify edits together: a short TOML file, or a shipped name."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tallymill.engine.abacus.settings import EditSettings, with_changes
from tallymill.engine.ensemble import DetectorConfig
from tallymill.engine.flow.dis import FAMILY as DIS
from tallymill.engine.flow.raft import FAMILY as RAFT
from tallymill.engine.upscaling.conv2x import FAMILY as CONV2X
from tallymill.engine.upscaling.swin2sr import FAMILY as SWIN2SR
from tallymill.errors import UsageError

SHIPPED = Path(__file__).parent / "suites"
DEFAULT = "abacus-cpu"
FLOWS, UPSCALERS = (DIS, RAFT), (CONV2X, SWIN2SR)
_KEYS = ("name", "segmenter", "confirmers", "flow", "upscaler", "settings")


@dataclass(frozen=True, slots=True)
class ImageModel:
    """A model whose answer is no boxes; ``model`` is a known name, or a path, or None where the family needs none."""

    family: str
    model: str | None


@dataclass(frozen=True, slots=True)
class Suite:
    """The models of the stages. ``upscaler`` None: crops are enlarged without one. ``settings`` are those that the
    models need where they are not the usual ones.
    """

    name: str
    segmenter: DetectorConfig
    confirmers: tuple[DetectorConfig, DetectorConfig]
    flow: ImageModel
    upscaler: ImageModel | None
    settings: EditSettings = field(default_factory=EditSettings)

    def __post_init__(self) -> None:
        names = [detector.name for detector in self.detectors]
        if len(set(names)) < len(names):
            raise UsageError(f"suite {self.name!r}: names of detectors repeat: {', '.join(names)}")

    @property
    def detectors(self) -> tuple[DetectorConfig, ...]:
        """The segmenter, then the two that confirm."""
        return (self.segmenter, *self.confirmers)

    def models(self) -> Iterator[tuple[str, str | None]]:
        """(role, model) of each: a detector's role is its name."""
        for detector in self.detectors:
            yield detector.name, detector.model
        yield "flow", self.flow.model
        if self.upscaler is not None:
            yield "upscaler", self.upscaler.model

    def roles(self) -> Iterator[tuple[str, str, str]]:
        """(part that it plays, name, family) of each model; the name is that of ``models``."""
        for part, detector in zip(("segmenter", "confirmer 1", "confirmer 2"), self.detectors, strict=True):
            yield part, detector.name, detector.family
        yield "flow", "flow", self.flow.family
        if self.upscaler is not None:
            yield "upscaler", "upscaler", self.upscaler.family

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready form; ``from_dict`` reads it back."""
        detectors = [{"name": d.name, "family": d.family, "model": d.model} for d in self.detectors]
        found: dict[str, Any] = {"name": self.name, "segmenter": detectors[0], "confirmers": detectors[1:]}
        found["flow"] = {"family": self.flow.family, "model": self.flow.model}
        if self.upscaler is not None:
            found["upscaler"] = {"family": self.upscaler.family, "model": self.upscaler.model}
        return found

    @classmethod
    def from_dict(cls, values: dict[str, Any], folder: Path | None = None) -> Suite:
        """A suite from the values of a TOML file; paths of models start from ``folder``. Raises ``UsageError``."""
        unknown = sorted(set(values) - set(_KEYS))
        if unknown:
            raise UsageError(f"unknown key {unknown[0]!r}; known: {', '.join(_KEYS)}")
        confirmers = values.get("confirmers")
        if not isinstance(confirmers, list) or len(confirmers) != 2:
            raise UsageError("wanted two [[confirmers]]: an instance counts where both see it")
        upscaler = values.get("upscaler")
        return cls(
            str(values.get("name", "suite")),
            _detector(values.get("segmenter"), "segmenter", folder),
            (_detector(confirmers[0], "confirmers", folder), _detector(confirmers[1], "confirmers", folder)),
            _image_model(values.get("flow", {"family": DIS}), "flow", FLOWS, folder),
            None if upscaler is None else _image_model(upscaler, "upscaler", UPSCALERS, folder),
            _settings(values.get("settings", {})),
        )


def load_suite(name_or_path: str | Path) -> Suite:
    """Read a shipped suite by name, or a TOML file by path. Faults are a ``UsageError`` naming the file."""
    path = SHIPPED / f"{name_or_path}.toml"
    if not path.is_file():
        path = Path(name_or_path)
    if not path.is_file():
        shipped = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.toml")))
        raise UsageError(f"no suite {str(name_or_path)!r}", hint=f"one of {shipped}, or a path to a .toml file")
    try:
        return Suite.from_dict({"name": path.stem, **tomllib.loads(path.read_text("utf-8"))}, path.parent)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path}: not a TOML file: {exc}") from None
    except UsageError as exc:
        raise UsageError(
            f"{path}: {exc.message}", hint=f"see engine/abacus/suites/{DEFAULT}.toml for the form"
        ) from None


def _settings(values: Any) -> EditSettings:
    table = values if isinstance(values, dict) else {"settings": values}
    return with_changes(EditSettings(), (f"{name}={json.dumps(value)}" for name, value in table.items()))


def _detector(values: Any, where: str, folder: Path | None) -> DetectorConfig:
    table = _table(values, where, ("name", "family", "model"))
    for key in ("name", "family"):
        if key not in table:
            raise UsageError(f"{where}: {key} is missing")
    return DetectorConfig(table["name"], table["family"], _placed(table.get("model"), folder))


def _image_model(values: Any, where: str, families: tuple[str, ...], folder: Path | None) -> ImageModel:
    table = _table(values, where, ("family", "model"))
    family, model = table.get("family"), table.get("model")
    if family not in families:
        raise UsageError(f"{where}: family {family!r} is not one of {', '.join(families)}")
    if (model is None) != (family == DIS):
        raise UsageError(f"{where}: family {family!r} needs {'no model' if family == DIS else 'a model'}")
    return ImageModel(family, _placed(model, folder))


def _table(values: Any, where: str, keys: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise UsageError(f"wanted a table {where} of {', '.join(keys)}")
    for key, value in values.items():
        if key not in keys:
            raise UsageError(f"{where}: unknown key {key!r}; known: {', '.join(keys)}")
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{where}: {key} {value!r} must be text")
    return values


def _placed(model: str | None, folder: Path | None) -> str | None:
    if model is None or folder is None or not (model.endswith(".onnx") or "/" in model):
        return model
    return str((folder / model).resolve())
