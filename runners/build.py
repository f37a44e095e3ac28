"""From the record of a run to a pipeline that can score: model files found, sessions opened."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tallymill.engine.bundles import is_bundle, load_bundle
from tallymill.engine.clock import StageClock
from tallymill.engine.decoders.base import decoder_of, require_card
from tallymill.engine.ensemble import EnsembleConfig, build_proposer
from tallymill.engine.numbench.natural import parse_prompt
from tallymill.engine.numbench.scores import ScorePlan
from tallymill.engine.pipeline import Pipeline
from tallymill.engine.proposer import DetectOptions, WindowProposer
from tallymill.engine.settings import Settings
from tallymill.engine.sources.reader import ImageReader
from tallymill.errors import ManifestError, ModelError, UsageError
from tallymill.exporters import hub, to_torch
from tallymill.exporters.catalogue import CATALOGUE


@dataclass(frozen=True, slots=True)
class ModelFile:
    """Where a detector's model lies and what it contains."""

    path: Path
    sha256: str


def find_models(ensemble: EnsembleConfig) -> dict[str, ModelFile | None]:
    """The model file of each detector, None where it needs none. Models that are absent are one ``ModelError``."""
    found: dict[str, ModelFile | None] = {}
    missing: list[ModelError] = []
    for detector in ensemble.detectors:
        try:
            found[detector.name] = find_model(detector.model)
        except ModelError as exc:
            missing.append(exc)
    hints = dict.fromkeys(exc.hint for exc in missing if exc.hint)
    if len(hints) > 1:
        raise ModelError("\n  ".join(exc.message for exc in missing), hint="\n  ".join(hints))
    if missing:
        raise missing[0]  # what brings it brings the others
    return found


def find_model(model: str | None) -> ModelFile | None:
    """The file of a model, by a known name or a path; None for no model. One that is absent is a ``ModelError``."""
    if model is None:
        return None
    exported = _exported(model)
    if exported is not None and not is_bundle(hub.bundle_folder(model)):
        raise ModelError(
            f"the model {model!r} has not been exported (looked in {hub.bundle_folder(model)})",
            hint=f"tallymill export {exported}",
        )
    path = hub.bundle_folder(model) if exported is not None else Path(model)
    if is_bundle(path):
        return ModelFile(path, load_bundle(path).sha256)
    if not model.endswith(".onnx") and "/" not in model:
        path = hub.path(model)
    if not path.is_file():
        hint = "export a folder of weights first (tallymill export), and name the bundle" if path.is_dir() else None
        raise ModelError(f"{path}: no such model file or bundle", hint=hint)
    return ModelFile(path, hub.sha256(path))


def _exported(model: str) -> str | None:
    """What is given to ``export`` to make a bundle of this name, or None where that makes none."""
    if model in CATALOGUE:
        return f"{model} --to onnx"
    base, _, rest = model.partition("-torch-")
    if base in CATALOGUE and rest in to_torch.PRECISIONS:
        return f"{base} --to torch --precision {rest}"
    base, _, rest = model.partition("-tensorrt")
    return f"{base} --to tensorrt" if base in CATALOGUE and rest else None


def paths_of(models: Mapping[str, ModelFile | None]) -> dict[str, Path | None]:
    """Where the models lie."""
    return {name: None if model is None else model.path for name, model in models.items()}


def require_recorded(record: Mapping[str, Any], models: Mapping[str, str | None]) -> None:
    """Raise ``ModelError`` when a model is no longer the one that the record of a RUN names by its SHA-256."""
    for detector in record["ensemble"]["detectors"]:
        model = models[detector["name"]]
        if model is None:
            continue
        path = Path(model)
        if not path.exists():
            raise ModelError(f"{path}: no such model file or bundle")
        found = load_bundle(path).sha256 if is_bundle(path) else hub.sha256(path)
        if found != detector["model_sha256"]:
            raise ModelError(
                f"{path}: is not the model of {detector['name']!r} that this RUN was begun with",
                hint="it was exported anew meanwhile: begin another RUN",
            )


def require_loadable(
    ensemble: EnsembleConfig, models: dict[str, Path | None], devices: Sequence[str] = ("cpu",)
) -> None:
    """Open every part of every model once on each device, one model after the other. One that is damaged, of another
    family, or cannot use a device is a ``ModelError``: cards of one machine need not be alike, and an engine is for one
    kind.
    """
    for device in devices:
        for detector in ensemble.detectors:
            proposer = build_proposer(detector, models[detector.name], device)
            if isinstance(proposer, WindowProposer):
                proposer.detector.open_others()
            del proposer  # its memory, before the next one takes some
    if "torch" in sys.modules and any(device != "cpu" for device in devices):
        sys.modules["torch"].cuda.empty_cache()  # of a process that will only watch its workers


def build_pipeline(
    ensemble: EnsembleConfig,
    models: dict[str, Path | None],
    settings: Settings,
    plan: ScorePlan,
    *,
    image_root: str | None = None,
    keep_suppressed: bool = False,
    device: str = "cpu",
) -> Pipeline:
    """Open the sessions of every detector on a device, one thread each on the CPU."""
    require_card(settings.decoder, device)
    slices = ensemble.slices if settings.slices is None else settings.slices
    return Pipeline(
        proposers=[build_proposer(detector, models[detector.name], device) for detector in ensemble.detectors],
        plan=plan,
        options=DetectOptions(settings.floor, settings.nms_iou, slices, settings.window_edge, keep_suppressed),
        reader=ImageReader(image_root),
        max_pixels=settings.max_pixels,
        clock=StageClock(),
        decoder=decoder_of(settings.decoder, device),
    )


def plan_for(ensemble: EnsembleConfig, settings: Settings) -> ScorePlan:
    """How an ensemble scores under these settings."""
    detectors = ensemble.detectors
    return ScorePlan(tuple(d.name for d in detectors), tuple(d.tau for d in detectors), settings.coverage)


def read_prompt(text: str) -> list[tuple[str, int]]:
    """The targets of a prompt that was given as an argument: what cannot be read is wrong use, not a faulty file."""
    try:
        return parse_prompt(text)
    except ManifestError as exc:
        raise UsageError(exc.message, hint=exc.hint) from None
