"""Which detectors score together: a short TOML file, or a shipped name."""

from __future__ import annotations

import importlib
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tallymill.engine.bundles import Bundle, load_bundle
from tallymill.engine.detectors.base import Detector
from tallymill.engine.proposer import Proposer, WindowProposer
from tallymill.engine.sessions.ort import OnnxRuntimeSession
from tallymill.errors import ModelError, UsageError

SHIPPED = Path(__file__).parent / "ensembles"
# Families of detectors: module and class. Those of ``BUNDLED`` are made of a bundle, the others of one graph, or none.
FAMILIES = {
    "coco_ssd": ("tallymill.engine.detectors.coco_ssd", "CocoSsd"),
    "nanodet": ("tallymill.engine.detectors.nanodet", "NanoDet"),
    "centernet": ("tallymill.engine.detectors.centernet", "CenterNet"),
    "synthetic": ("tallymill.engine.detectors.synthetic", "Synthetic"),
    "owlvit": ("tallymill.engine.detectors.owl", "Owl"),
    "owlv2": ("tallymill.engine.detectors.owl", "Owl"),
    "grounding_dino": ("tallymill.engine.detectors.grounding_dino", "GroundingDino"),
    "ow_detr": ("tallymill.engine.detectors.ow_detr", "OwDetr"),
    "co_detr": ("tallymill.engine.detectors.co_detr", "CoDetr"),
    "d_fine": ("tallymill.engine.detectors.rt_detr", "RtDetr"),
    "rt_detr": ("tallymill.engine.detectors.rt_detr", "RtDetr"),
    "rf_detr": ("tallymill.engine.detectors.rf_detr", "RfDetr"),
    "sam3": ("tallymill.engine.detectors.sam3", "Sam3"),
}
BUNDLED = frozenset(FAMILIES) - {"coco_ssd", "nanodet", "centernet", "synthetic"}
MAX_DETECTORS = 255  # the number that cover a target is stored as uint8
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class DetectorConfig:
    """One detector of an ensemble. ``model`` is a known name, or the path of an ONNX file or a bundle, or None."""

    name: str
    family: str
    model: str | None = None
    tau: float = 1.0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"detector name {self.name!r}: letters, digits, '.', '_' and '-' only (it names a folder)")
        if self.family not in FAMILIES:
            raise UsageError(f"detector {self.name}: family {self.family!r} is not one of {', '.join(FAMILIES)}")
        if (self.model is None) != (self.family == "synthetic"):
            raise UsageError(f"detector {self.name}: family {self.family!r} needs {_needs(self.family)}")
        number = isinstance(self.tau, int | float) and not isinstance(self.tau, bool)
        if not (number and 0.0 < self.tau < float("inf")):
            raise UsageError(f"detector {self.name}: tau = {self.tau!r} must be a positive number")


def _needs(family: str) -> str:
    return "no model" if family == "synthetic" else "a model: a catalogue name or a path to an ONNX file or a bundle"


@dataclass(frozen=True, slots=True)
class EnsembleConfig:
    """Detectors in the order in which their boxes are summed, and the slices that they look at by default."""

    name: str
    detectors: tuple[DetectorConfig, ...]
    slices: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        names = [detector.name for detector in self.detectors]
        if not names:
            raise UsageError(f"ensemble {self.name!r} has no detectors")
        if len(names) > MAX_DETECTORS:
            raise UsageError(
                f"ensemble {self.name!r} has {len(names)} detectors; at most {MAX_DETECTORS} can be summed"
            )
        if len(set(names)) < len(names):
            raise UsageError(f"ensemble {self.name!r}: detector names repeat: {', '.join(names)}")


def load_ensemble(name_or_path: str | Path) -> EnsembleConfig:
    """Read a shipped ensemble by name, or a TOML file by path. Faults are a ``UsageError`` naming the file."""
    path = SHIPPED / f"{name_or_path}.toml"
    if not path.is_file():
        path = Path(name_or_path)
    if not path.is_file():
        shipped = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.toml")))
        raise UsageError(f"no ensemble {str(name_or_path)!r}", hint=f"one of {shipped}, or a path to a .toml file")
    try:
        return _parse(tomllib.loads(path.read_text("utf-8")), path)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path}: not a TOML file: {exc}") from None
    except UsageError as exc:
        raise UsageError(f"{path}: {exc}", hint="see engine/ensembles/coco-cpu.toml for the form") from None


def _parse(values: dict[str, Any], path: Path) -> EnsembleConfig:
    unknown = set(values) - {"name", "slices", "detectors"}
    if unknown:
        raise UsageError(f"unknown key {sorted(unknown)[0]!r}; known: name, slices, detectors")
    slices = values.get("slices", [])
    if not isinstance(slices, list) or not all(type(k) is int and 2 <= k <= 16 for k in slices):
        raise UsageError(f"slices = {slices!r} must be a list of whole numbers in 2..16, such as [2, 3]")
    detectors = values.get("detectors", [])
    if not isinstance(detectors, list) or not all(isinstance(detector, dict) for detector in detectors):
        raise UsageError("detectors must be [[detectors]] tables")
    return EnsembleConfig(
        name=str(values.get("name", path.stem)),
        detectors=tuple(_detector(detector, path.parent) for detector in detectors),
        slices=tuple(slices),
    )


def _detector(values: dict[str, Any], folder: Path) -> DetectorConfig:
    unknown = set(values) - {"name", "family", "model", "tau"}
    if unknown:
        raise UsageError(f"unknown detector key {sorted(unknown)[0]!r}; known: name, family, model, tau")
    for key in ("name", "family"):
        if key not in values:
            raise UsageError(f"a detector without {key}")
    for key in ("name", "family", "model"):
        if not isinstance(values.get(key, ""), str):
            raise UsageError(f"detector {key} {values[key]!r} must be text")
    model = values.get("model")
    if isinstance(model, str) and (model.endswith(".onnx") or "/" in model):
        model = str((folder / model).resolve())
    return DetectorConfig(values["name"], values["family"], model, values.get("tau", 1.0))


def build_proposer(config: DetectorConfig, model: Path | None, device: str = "cpu") -> Proposer:
    """Load one detector's model to a device and put it behind the interface that the pipeline drives."""
    module, name = FAMILIES[config.family]
    kind = getattr(importlib.import_module(module), name)
    if model is None:
        proposer: Proposer = kind(config.name)
        return proposer
    if config.family not in BUNDLED:
        detector: Detector = kind(OnnxRuntimeSession(model, device=device), config.name)
        return WindowProposer(detector)
    bundle = load_bundle(model).on(device)
    if bundle.family != config.family:
        raise ModelError(
            f"{bundle.folder}: is of the family {bundle.family!r}; the detector {config.name!r} is {config.family!r}",
            hint=f'family = "{bundle.family}" in the ensemble, or another model',
        )
    return WindowProposer(open_detector(bundle, config.name))


def open_detector(bundle: Bundle, name: str) -> Detector:
    """The detector that a bundle is made for. Of engines it fills the batches; otherwise its family says how many."""
    if bundle.family not in BUNDLED:
        raise bundle.error(f"no detector of the family {bundle.family!r} is made of a bundle")
    module, kind = FAMILIES[bundle.family]
    options = {} if bundle.batch is None else {"batch": bundle.batch}
    detector: Detector = getattr(importlib.import_module(module), kind)(bundle, name, **options)
    return detector
