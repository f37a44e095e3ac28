"""Acceptance: a bundle is run by what will run it, on a device of this machine, and compared with its original.

The gate compares graphs, on the CPU, before anything is installed. An engine is another program: a compiler made it of
such a graph, and only a card of its kind can say what it answers. What was found is ``accepted`` of ``bundle.json``, or
``refused`` where it is not the same: they change no answer, so that a RUN goes on with its bundle.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tallymill.engine import devices
from tallymill.engine.bundles import CARD_ONLY, MANIFEST, Bundle, load_bundle
from tallymill.engine.words import listed
from tallymill.errors import ModelError, UsageError
from tallymill.exporters import gate, to_tensorrt, to_torch, weights
from tallymill.exporters.pairing import Bounds
from tallymill.exporters.photographs import read_photographs, with_photographs
from tallymill.exporters.recipes.parts import Loaded, Part, WeightsRecipe

_PACKAGES = ("tallymill", "torch", "tensorrt", "tensorrt_rtx", "onnxruntime", "onnxruntime-gpu")
_DRIVER = Path("/sys/module/nvidia/version")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a bundle can be run here: ``device`` is None where it cannot, and ``why`` says so."""

    device: str | None
    why: str = ""
    card: str | None = None


def place_of(runtime: str, capability: str | None = None) -> Place:
    """The first device here for a runtime, a card before the CPU; for engines, a card of their ``capability``."""
    against = devices.cannot_use_a_card(runtime)
    here = devices.Cards(0, against) if against is not None else devices.cards()
    for number in range(here.count):
        if runtime not in CARD_ONLY or here.capabilities[number : number + 1] == (capability,):
            return Place(f"cuda:{number}", card=here.names[number] if here.names else None)
    if runtime not in CARD_ONLY:
        return Place(devices.CPU)
    kinds = "" if capability is None else f" of compute capability {capability}"
    has = f", of {listed(here.capabilities, 8)}" if here.capabilities else ""
    return Place(None, f"there is no card{kinds} that could run them here: {here.told}{has}")


def place_for(engines: to_tensorrt.Target) -> Place:
    """Where engines can be run here that are built for a target."""
    return place_of(to_tensorrt.runtime().__name__, to_tensorrt.capability_of(engines))


def try_out(
    loaded: Loaded, bundle: Bundle, place: Place, log: Callable[[str], None]
) -> tuple[dict[str, Any], list[gate.Finding]]:
    """Run everything in a bundle on a device; what ``bundle.json`` keeps of that, and all that was found.

    Every part against the model in torch, alone and in each slot, of engines every one of them and in each slot that it
    has; then the whole, from pixels to boxes. The bounds are those of the gate for what the bundle computes in.
    """
    placed = bundle.on(place.device or devices.CPU)
    findings: list[gate.Finding] = []
    for name, part in loaded.parts.items():
        for size in _sizes(bundle, name):
            log(f"comparing {name} on {placed.device} with the model in torch{_engine(size)}")
            session = placed.session(name, threads=len(os.sched_getaffinity(0)), batch=size)
            found = gate.examine(name, _borne(bundle, part, size), session)
            findings += [replace(each, check=each.check + _engine(size)) for each in found]
    log(f"comparing the whole on {placed.device} with the original")
    findings += gate.examine_bundle(loaded, placed, _bounds(bundle))
    return _record(place, findings), findings


def _sizes(bundle: Bundle, part: str) -> list[int | None]:
    """The batches of a part's engines; None stands for whatever else runs it."""
    return [*sorted(bundle.engines[part])] if part in bundle.engines else [None]


def _engine(size: int | None) -> str:
    return "" if size is None else f", engine of {size}"


def _bounds(bundle: Bundle) -> Bounds:
    if bundle.precision == "fp32":
        return gate.EXACT
    return to_torch.Programs(bundle.precision).bounds if bundle.runtime == "torch" else to_tensorrt.HALF


def _borne(bundle: Bundle, part: Part, size: int | None) -> Part:
    """A part with the tolerances of what a bundle computes in, and with batches that fill an engine of ``size``."""
    whole = part
    if bundle.precision != "fp32":
        part = to_torch.lenient(part) if bundle.runtime == "torch" else to_tensorrt.lenient(part)
    if size is None:
        return part
    # Large images are too large for the CPU's memory in batches of an engine, so torch is given fewer at once.
    module = _in_pieces(part.module, max(whole.batches))
    return replace(part, batches=tuple(sorted({1, size})), module=module)


def _in_pieces(module: Callable[..., Mapping[str, Any]], most: int) -> Callable[..., dict[str, Any]]:
    """The same function of batches, computed from at most ``most`` rows at once."""
    import torch

    def run(**inputs: Any) -> dict[str, Any]:
        rows = len(next(iter(inputs.values())))
        pieces = [
            module(**{key: value[first : first + most] for key, value in inputs.items()})
            for first in range(0, rows, most)
        ]
        return {key: torch.cat([piece[key] for piece in pieces]) for key in pieces[0]}

    return run


def _record(place: Place, findings: Sequence[gate.Finding]) -> dict[str, Any]:
    """What is kept of a trial: where, with what, how many comparisons, and of each output the one nearest its bound."""
    nearest: dict[tuple[str, str], gate.Finding] = {}
    for finding in findings:
        known = nearest.setdefault((finding.part, finding.output), finding)
        if _share(finding) > _share(known):
            nearest[finding.part, finding.output] = finding
    on_a_card = place.device != devices.CPU
    return {
        "device": place.device,
        "card": place.card,
        "driver": _DRIVER.read_text("utf-8").strip() if on_a_card and _DRIVER.is_file() else None,
        "versions": versions(_PACKAGES),
        "comparisons": len(findings),
        "largest": [as_dict(finding) for finding in nearest.values()],
    }


def _share(finding: gate.Finding) -> float:
    """How much of what is borne a difference is; more than any other where it is refused."""
    if not finding.passed:
        return math.inf
    return finding.difference / finding.tolerance if finding.tolerance else finding.difference


def as_dict(finding: gate.Finding) -> dict[str, Any]:
    """A finding as ``bundle.json`` has it: a difference that is no number of JSON is null."""
    names = ("part", "check", "output", "difference", "tolerance", "compared")
    values = {name: getattr(finding, name) for name in names}
    return {**values, "difference": finding.difference if math.isfinite(finding.difference) else None}


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Versions of those packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def told(findings: Sequence[gate.Finding]) -> Iterator[str]:
    """Lines about what was refused, the first few."""
    faults = [finding for finding in findings if not finding.passed]
    yield from map(str, faults[:8])
    if len(faults) > 8:
        yield f"and {len(faults) - 8} more"


def check(
    folder: Path,
    recipe: WeightsRecipe,
    source: str | Path | None = None,
    *,
    device: str = "auto",
    photographs: Path | None = None,
    log: Callable[[str], None] = lambda _line: None,
) -> Bundle:
    """Try out a bundle that is there (see ``try_out``) against its weights; ``bundle.json`` records what came of it.

    ``recipe`` is that of the bundle's model; ``source`` and ``photographs`` as for ``export``; ``device`` one of this
    machine, or "auto": a card that the runtime could use, else the CPU. Raises ``ModelError`` when the bundle differs
    from the original (it is ``refused``, then), when it cannot be run here, or when the weights are not those that it
    was made of; ``UsageError`` for a model of which there are no weights, or a device that is not here.
    """
    bundle = load_bundle(folder)
    manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    made_of = _source_of(bundle, manifest).name
    if source is None and "/" not in made_of and not recipe.given:
        raise UsageError(
            f"{folder} was made of {made_of!r}, which is no id", hint="--weights names that folder or file"
        )
    place = _chosen(bundle, manifest, device)
    pictures = None if photographs is None else read_photographs(photographs)
    loaded = _original(bundle, manifest, recipe, recipe.weights if source is None else source, log)
    loaded = with_photographs(loaded, pictures)
    record, findings = try_out(loaded, bundle, place, log)
    if all(finding.passed for finding in findings):
        log(gate.in_short(findings))
        write(folder, {"accepted": record, "refused": _elsewhere(bundle.refused, place)})
        return load_bundle(folder)
    write(folder, {"accepted": _elsewhere(bundle.accepted, place), "refused": record})
    lines = "\n  ".join(told(findings))
    raise ModelError(
        f"{folder}: on {place.card or place.device} it does not answer as its original, and is refused:\n  {lines}",
        hint="export it anew here; other versions of the runtime or of the driver may do it rightly",
    )


def _elsewhere(record: Mapping[str, Any] | None, place: Place) -> Mapping[str, Any] | None:
    """A record, unless it is of the same kind of device, of which there is a newer one now."""
    kinds = [str(device).partition(":")[0] for device in ((record or {}).get("device"), place.device)]
    return record if kinds[0] != kinds[1] else None


def _chosen(bundle: Bundle, manifest: Mapping[str, Any], device: str) -> Place:
    """The device to check a bundle on."""
    named = devices.named(device)
    if len(named) > 1:
        raise UsageError(f"device {device!r}: a bundle is checked on one device", hint="name one, such as cuda:0")
    devices.require_there(device, named)
    if named == (devices.CPU,):
        return Place(devices.CPU)
    if named:
        names, number = devices.cards().names, int(named[0].partition(":")[2])
        return Place(named[0], card=names[number] if names else None)
    place = place_of(bundle.runtime, manifest.get("tensorrt", {}).get("compute_capability"))
    if place.device is None:
        raise ModelError(f"{bundle.folder}: engines are run to be checked: {place.why}")
    return place


def _original(
    bundle: Bundle,
    manifest: Mapping[str, Any],
    recipe: WeightsRecipe,
    source: str | Path,
    log: Callable[[str], None],
) -> Loaded:
    """The model that a bundle was made of. Raises ``ModelError`` when it is another one."""
    if recipe.given:
        raise UsageError(f"the model {recipe.name} comes as ONNX files, and there is no original to compare it with")
    local = weights.is_local(source)
    if local:  # of an id the files are there when it has been loaded
        _require_same(bundle, manifest, source)
    buckets = [tuple(size) for size in bundle.numbers.get("buckets") or ()]
    takes = buckets and "buckets" in inspect.signature(recipe.load).parameters
    log(f"loading {source}")
    loaded = recipe.load(source, **({"buckets": buckets} if takes else {}))
    if not isinstance(loaded, Loaded):
        raise TypeError(f"{recipe.name} has no original")
    if not local:
        _require_same(bundle, manifest, source)
    numbers = json.loads(json.dumps(dict(loaded.numbers)))
    if (loaded.family, set(loaded.parts), numbers) != (bundle.family, set(bundle.parts), dict(bundle.numbers)):
        raise ModelError(
            f"{source}: what is made of these weights now is not what {bundle.folder} was made of",
            hint="export it anew (tallymill export)",
        )
    return loaded


def _source_of(bundle: Bundle, manifest: Mapping[str, Any]) -> weights.Origin:
    try:
        told = manifest["source"]
        return weights.Origin(str(told["weights"]), told["revision"], dict(told["files"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise bundle.error("does not say what weights it was made of") from None


def _require_same(bundle: Bundle, manifest: Mapping[str, Any], source: str | Path) -> None:
    difference = _source_of(bundle, manifest).unlike(weights.origin(source))
    if difference is not None:
        raise ModelError(
            f"{source}: these are not the weights that {bundle.folder} was made of ({difference})",
            hint="--weights names the folder or the file that was exported",
        )


def write(folder: Path, changes: Mapping[str, Any]) -> None:
    """Change entries of a manifest that change no answers. Its file is whole at all times: a sweep may read it."""
    file = folder / MANIFEST
    manifest = {**json.loads(file.read_text("utf-8")), **changes}
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".", delete=False, encoding="utf-8") as scratch:
        built = Path(scratch.name)
        try:
            scratch.write(json.dumps(manifest, indent=2) + "\n")
            scratch.flush()
            os.fsync(scratch.fileno())
            built.chmod(file.stat().st_mode)
            built.replace(file)
        except BaseException:
            built.unlink(missing_ok=True)
            raise
