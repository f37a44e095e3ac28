"""``tallymill export``: published weights to a bundle that sessions run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from tallymill.commands.base import DONE, Json, app, print_json
from tallymill.engine.bundles import Bundle, is_bundle, load_bundle
from tallymill.engine.detectors.buckets import Size, parse
from tallymill.errors import UsageError
from tallymill.exporters import acceptance
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.export import export as export_model
from tallymill.exporters.hub import bundle_folder
from tallymill.exporters.to_tensorrt import Target
from tallymill.exporters.to_torch import Programs
from tallymill.runners import console


@app.command
def export(
    model: str | None = None,
    *,
    to: Literal["onnx", "torch", "tensorrt"] = "onnx",
    weights: str | None = None,
    out: Annotated[Path | None, Parameter(help="The bundle's folder (default: in the cache).")] = None,
    buckets: str | None = None,
    precision: Literal["bf16", "fp16", "fp32"] | None = None,
    compute_capability: str | None = None,
    batch: str | None = None,
    photographs: Annotated[
        Path | None, Parameter(help="A folder of images on which the whole detector is compared too.")
    ] = None,
    check: Annotated[
        Path | None,
        Parameter(help="A bundle, by its folder or name: run it here, compare it with --weights, and record that."),
    ] = None,
    device: Annotated[str | None, Parameter(help="Of --check: auto (a card before the CPU), cpu, or a card.")] = None,
    as_json: Json = False,
) -> int:
    """Export a model's weights, compare the result with the model, and install it for ensembles; or --check a bundle.

    Parameters
    ----------
    model
        A model such as owlvit-base-patch32.
    to
        What runs it: ONNX Runtime, torch, or TensorRT.
    weights
        A folder with config.json and the weights, or a Hugging Face id (default: where the model is published); of
        OW-DETR its checkpoint, of RAFT a state dict, of Co-DETR an ONNX file.
    buckets
        Sizes of images that are graphs of their own, as heights and widths: 800x800,800x1066 (Grounding DINO and other
        models that take images of many shapes).
    precision
        Of engines of TensorRT: fp16 (the default) or fp32; of torch: fp32 (the default) or bf16. What does not bear
        less stays float32.
    compute_capability
        Of the cards that engines are for, such as 89 (default: that of the card of this machine).
    batch
        Sizes of batches of engines, one engine each: 8 (the default), or 1,8. Detectors fill the batches of the largest
        with images; parts that go row by row, as texts do, use the smallest, and no part uses two.
    """
    if check is not None:
        given = {"MODEL": model, "--out": out, "--buckets": buckets, "--precision": precision, "--batch": batch}
        given |= {"--to": None if to == "onnx" else to, "--compute-capability": compute_capability}
        return _tell(_checked(check, weights, device or "auto", photographs, given), as_json)
    if model is None:
        raise UsageError("no model given", hint="tallymill export MODEL, or --check FOLDER for a bundle that is there")
    if device is not None:
        raise UsageError("--device is of --check", hint="--compute-capability says what cards engines are for")
    options = {} if buckets is None else {"buckets": _sizes(buckets)}
    bundle = export_model(
        recipe_of(model),
        weights,
        out=out,
        options=options,
        engines=_target(to, precision, compute_capability, batch),
        programs=Programs(precision or "fp32") if to == "torch" else None,
        photographs=photographs,
        log=_log,
    )
    return _tell(bundle, as_json)


def _log(line: str) -> None:
    console.err.print(line, markup=False, soft_wrap=True)


def _checked(
    folder: Path, weights: str | None, device: str, photographs: Path | None, given: Mapping[str, object]
) -> Bundle:
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"{name} is of an export, and --check exports nothing", hint="leave it out")
    if not folder.exists() and is_bundle(bundle_folder(folder.name)):
        folder = bundle_folder(folder.name)  # by its name, as an ensemble has it
    recipe = recipe_of(load_bundle(folder).name)
    return acceptance.check(folder, recipe, weights, device=device, photographs=photographs, log=_log)


def _tell(bundle: Bundle, as_json: bool) -> int:
    if as_json:
        accepted = None if bundle.accepted is None else dict(bundle.accepted)
        print_json({"bundle": str(bundle.folder), "sha256": bundle.sha256, "accepted": accepted})
    else:
        console.tell(str(bundle.folder))
    return DONE


def _target(to: str, precision: str | None, capability: str | None, batch: str | None) -> Target | None:
    if to == "tensorrt":
        try:
            batches = tuple(int(each) for each in (batch or "8").split(","))
        except ValueError:
            raise UsageError(f"--batch {batch}: whole numbers such as 1,8") from None
        return Target(precision or "fp16", capability, batches)
    for name, value in {"compute-capability": capability, "batch": batch}.items():
        if value is not None:
            raise UsageError(f"--{name} is of engines", hint="--to tensorrt builds them")
    if to == "onnx" and precision is not None:
        raise UsageError("--precision is of engines and of programs", hint="--to tensorrt builds them, or --to torch")
    return None


def _sizes(text: str) -> list[Size]:
    try:
        return [parse(each) for each in text.split(",")]
    except ValueError as exc:
        raise UsageError(f"--buckets {text}: {exc}") from None
