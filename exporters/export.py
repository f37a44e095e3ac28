"""From published weights to a bundle that has passed the gate."""

from __future__ import annotations

import inspect
import json
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tallymill.engine.bundles import FORMAT, MANIFEST, Bundle, digest_of, is_bundle, load_bundle
from tallymill.engine.ensemble import open_detector
from tallymill.engine.sessions.ort import OnnxRuntimeSession
from tallymill.errors import MissingExtraError, ModelError, UsageError
from tallymill.exporters import acceptance, gate, to_tensorrt, to_torch, weights
from tallymill.exporters.common_weights import CommonWeights
from tallymill.exporters.given import copy, examine
from tallymill.exporters.hub import bundle_folder, leftovers, scratch_prefix, sha256, sync
from tallymill.exporters.photographs import read_photographs, with_photographs
from tallymill.exporters.recipes.parts import Given, Loaded, WeightsRecipe
from tallymill.exporters.to_onnx import OPSET, export_part

_EXPORTING = "torch, transformers or onnxruntime"
_ELSEWHERE = "--out FOLDER takes another place, and TALLYMILL_CACHE another cache"
_PACKAGES = ("tallymill", "torch", "transformers", "onnx", "onnxscript", "onnxruntime")


def _silent(_line: str) -> None:
    pass


def export(
    recipe: WeightsRecipe,
    source: str | Path | None = None,
    *,
    out: Path | None = None,
    options: Mapping[str, Any] | None = None,
    engines: to_tensorrt.Target | None = None,
    programs: to_torch.Programs | None = None,
    photographs: Path | None = None,
    log: Callable[[str], None] = _silent,
) -> Bundle:
    """Export a model to ONNX, or to ``programs`` of torch, put it before the gate, and install it.

    ``source`` is the folder or the Hugging Face id of the weights (default: where the recipe's model is published);
    ``out`` the folder of the bundle (default: in the cache, where ensembles find it by the model's name); ``options``
    what the recipe takes besides, such as ``buckets``; ``engines`` what engines of TensorRT are built for; a bundle of
    them, or of programs, is named after that too. A bundle that was there is replaced when the new one is whole.
    Raises ``ModelError`` when weights cannot be had or exported, when ``out`` is something else than a bundle, or when
    the graph differs from the model: then nothing is installed; ``UsageError`` for an option that the recipe does not
    know.

    ``photographs`` is a folder of images on which the whole detector is compared too.

    Engines are run too, where there is a card that can, and are not installed unless they answer as the model does (see
    ``acceptance``); where there is none, the last lines of the ``log`` say so.
    """
    if not recipe.given:
        with MissingExtraError.unless("torch", "transformers", "onnxscript", extra="export"):
            import torch  # noqa: F401
            import transformers  # noqa: F401
    if engines is not None and programs is not None:
        raise UsageError("a bundle has engines of TensorRT or programs of torch, not both")
    if engines is not None:
        to_tensorrt.check(engines)
    source = recipe.weights if source is None else source
    target = bundle_folder(_name(recipe.name, engines, programs)) if out is None else out
    known = _known(recipe, options or {})
    if out is not None:  # the cache is our own
        require_free(out)  # before the work, and again when it is done
    pictures = None if photographs is None else read_photographs(photographs)
    log(f"loading {source}")
    loaded = with_photographs(recipe.load(source, **known), pictures)
    if isinstance(loaded, Given) and engines is not None:
        raise UsageError(f"the model {recipe.name} comes as ONNX files, of which no engines are built yet")
    if isinstance(loaded, Given) and programs is not None:
        raise UsageError(f"the model {recipe.name} comes as ONNX files, which torch does not run")
    if isinstance(loaded, Loaded) and engines is not None:
        to_tensorrt.check_parts(loaded)
    place = None if engines is None else acceptance.place_for(engines)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _tidy(target.parent)
        with tempfile.TemporaryDirectory(prefix=scratch_prefix(target.name), dir=target.parent) as scratch:
            built = Path(scratch) / "bundle"
            built.mkdir()
            if isinstance(loaded, Given):
                findings = _build_given(recipe, source, loaded, built, log)
            elif programs is not None:
                findings = _build_programs(recipe, source, loaded, built, programs, log)
            else:
                findings = _build(recipe, source, loaded, built, engines, place, log)
            _refuse(recipe.name, findings, "the exported graph is not the model", _EXPORTING)
            log(gate.in_short(findings))
            if place is not None and place.device is not None and isinstance(loaded, Loaded):
                _accept(recipe.name, loaded, built, place, log)
            if out is not None:
                require_free(out)
            _replace(built, target, Path(scratch) / "before")
    except OSError as exc:
        raise ModelError(f"{target}: cannot be written: {exc}", hint=_ELSEWHERE) from exc
    if place is not None and place.device is None:
        log(f"The engines have been run by nothing yet: {place.why}. On a machine with such a card:")
        log(f"  tallymill export --check {target} --weights {source}")
    return load_bundle(target)


def _accept(name: str, loaded: Loaded, built: Path, place: acceptance.Place, log: Callable[[str], None]) -> None:
    """Run what was built on a card, and record that it answers as the model. Raises ``ModelError`` if it does not."""
    record, findings = acceptance.try_out(loaded, load_bundle(built), place, log)
    fault = f"on {place.card or place.device} the engines do not answer as the model"
    _refuse(name, findings, fault, f"{to_tensorrt.runtime().__name__} or of the driver")
    acceptance.write(built, {"accepted": record})


def _name(model: str, engines: to_tensorrt.Target | None, programs: to_torch.Programs | None) -> str:
    if programs is not None:
        return to_torch.name_of(model, programs)
    return model if engines is None else to_tensorrt.name_of(model, engines)


def _known(recipe: WeightsRecipe, options: Mapping[str, Any]) -> Mapping[str, Any]:
    takes = inspect.signature(recipe.load).parameters
    for name in options:
        if name not in takes:
            raise UsageError(f"the model {recipe.name} is exported without {name}", hint=f"leave out --{name}")
    return options


def _build(
    recipe: WeightsRecipe,
    source: str | Path,
    loaded: Loaded,
    folder: Path,
    engines: to_tensorrt.Target | None,
    place: acceptance.Place | None,
    log: Callable[[str], None],
) -> list[gate.Finding]:
    """Write the files of a bundle; what the gate found. ``place`` is where ``engines`` can be run."""
    findings: list[gate.Finding] = []
    files: list[Path] = []
    common = {part.weights: CommonWeights(folder / part.weights) for part in loaded.parts.values() if part.weights}
    for name, part in loaded.parts.items():
        log(f"exporting {name}")
        files += export_part(part, folder / f"{name}.onnx", common.get(part.weights or ""), grid_sample=engines is None)
        log(f"comparing {name} with the model in torch")
        findings += gate.examine(name, part, OnnxRuntimeSession(folder / f"{name}.onnx", threads=gate.cores()))
    files += _tokenizer(loaded, folder)
    manifest = _manifest(recipe, source, loaded, list(dict.fromkeys(files)))
    _write(folder, manifest)
    if all(finding.passed for finding in findings):
        log("comparing the whole with the original")
        findings += gate.examine_bundle(loaded, load_bundle(folder, gated=False))
        if engines is not None and all(finding.passed for finding in findings):
            device = None if place is None else place.device
            findings += _build_engines(manifest, loaded, folder, engines, device, log)
    _write(folder, {**manifest, "gate": [acceptance.as_dict(finding) for finding in findings]})
    return findings


def _build_programs(
    recipe: WeightsRecipe,
    source: str | Path,
    loaded: Loaded,
    folder: Path,
    programs: to_torch.Programs,
    log: Callable[[str], None],
) -> list[gate.Finding]:
    """Write the files of a bundle for torch; what the gate found."""
    files, findings = to_torch.into_programs(loaded, folder, programs, log)
    files += _tokenizer(loaded, folder)
    manifest = _manifest(recipe, source, loaded, files, suffix="pt2")
    manifest.update(runtime="torch", precision=programs.precision, opset=None)
    _write(folder, manifest)
    if all(finding.passed for finding in findings):
        log("comparing the whole with the original")
        findings += gate.examine_bundle(loaded, load_bundle(folder, gated=False), programs.bounds)
    _write(folder, {**manifest, "gate": [acceptance.as_dict(finding) for finding in findings]})
    return findings


def _tokenizer(loaded: Loaded, folder: Path) -> list[Path]:
    """The file of the tokenizer, if the model has one."""
    if loaded.tokenizer is None:
        return []
    file = folder / "tokenizer.json"
    file.write_text(loaded.tokenizer, "utf-8")
    return [file]


def _build_engines(
    manifest: dict[str, Any],
    loaded: Loaded,
    folder: Path,
    engines: to_tensorrt.Target,
    device: str | None,
    log: Callable[[str], None],
) -> list[gate.Finding]:
    """Put engines in the place of the graphs, in the folder and in the manifest; what was found of them."""
    record, findings = to_tensorrt.into_engines(loaded, folder, engines, log, device)
    for file in folder.iterdir():
        if file.suffix != ".engine" and file.name not in (manifest["tokenizer"], MANIFEST):
            file.unlink()
    hashes = _hashes(file for file in sorted(folder.iterdir()) if file.name != MANIFEST)
    manifest.update(record, files=hashes)
    return findings


def _build_given(
    recipe: WeightsRecipe, source: str | Path, given: Given, folder: Path, log: Callable[[str], None]
) -> list[gate.Finding]:
    """Write the files of a bundle of graphs that were made elsewhere; what was found of them."""
    manifest = _manifest(recipe, source, given, copy(given, folder))
    _write(folder, manifest)
    log("checking what it takes and gives")
    findings = examine(open_detector(load_bundle(folder, gated=False), recipe.name), given, log)
    _write(folder, {**manifest, "gate": [acceptance.as_dict(finding) for finding in findings]})
    return findings


def _manifest(
    recipe: WeightsRecipe, source: str | Path, loaded: Loaded | Given, files: Sequence[Path], suffix: str = "onnx"
) -> dict[str, Any]:
    tokenizer = loaded.tokenizer if isinstance(loaded, Loaded) else None
    hashes = _hashes(files)
    origin = weights.origin(source)
    return {
        "format": FORMAT,
        "name": recipe.name,
        "family": loaded.family,
        "runtime": "onnx",
        "precision": "fp32",
        "parts": {name: f"{name}.{suffix}" for name in loaded.parts},
        "numbers": dict(loaded.numbers),
        "tokenizer": None if tokenizer is None else "tokenizer.json",
        "files": hashes,
        "source": {
            "weights": origin.name,
            "revision": origin.revision,
            "sha256": origin.sha256,
            "files": dict(origin.files),
            "licence": recipe.licence,
        },
        "opset": OPSET if isinstance(loaded, Loaded) else None,
        "accepted": None,
        "versions": {"python": platform.python_version(), **acceptance.versions(_PACKAGES)},
    }


def _hashes(files: Iterable[Path]) -> dict[str, str]:
    return {file.name: sha256(file) for file in files}


def _write(folder: Path, manifest: dict[str, Any]) -> None:
    text = json.dumps({**manifest, "sha256": digest_of(manifest)}, indent=2)
    (folder / MANIFEST).write_text(text + "\n", "utf-8")


def _refuse(name: str, findings: Sequence[gate.Finding], fault: str, others: str) -> None:
    lines = list(acceptance.told(findings))
    if lines:
        raise ModelError(
            "\n  ".join([f"{name}: {fault}; nothing was installed:", *lines]),
            hint=f"other versions of {others} may export it rightly",
        )


def require_free(target: Path) -> None:
    """Nothing but a bundle, or an empty folder, is replaced, and no file beside a bundle's is lost.

    Raises ``ModelError``.
    """
    if not target.exists():
        return
    hint = "remove it, or --out FOLDER takes another place"
    if not target.is_dir() or (any(target.iterdir()) and not is_bundle(target)):
        raise ModelError(f"{target}: is there and is no bundle", hint=hint)
    try:
        listed = {MANIFEST, *json.loads((target / MANIFEST).read_bytes())["files"]} if is_bundle(target) else set()
    except (OSError, ValueError, KeyError, TypeError):
        raise ModelError(f"{target}: is there, and its {MANIFEST} cannot be read", hint=hint) from None
    others = sorted(each.name for each in target.iterdir() if each.name not in listed)
    if others:
        raise ModelError(f"{target}: holds {others[0]}, which is not of the bundle there", hint=hint)


def _replace(built: Path, target: Path, before: Path) -> None:
    """Put a bundle in the place of another, which comes back if that fails."""
    for file in (*built.iterdir(), built):
        sync(file)
    if target.exists():
        target.rename(before)
    try:
        built.rename(target)
    except BaseException:
        if before.exists():
            before.rename(target)
        raise
    sync(target.parent)
    shutil.rmtree(before, ignore_errors=True)


def _tidy(folder: Path) -> None:
    """Remove what exports that were killed have left; a bundle that one of them had moved aside comes back."""
    for scratch, name in leftovers(folder):
        before = scratch / "before"
        if before.exists() and not (folder / name).exists():
            before.rename(folder / name)
        shutil.rmtree(scratch, ignore_errors=True)
