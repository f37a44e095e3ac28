"""``tallymill export``: published weights to a bundle that sessions run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from tallymill.commands.base import DONE, Json, app, print_json
from tallymill.engine.detectors.buckets import Size, parse
from tallymill.errors import UsageError
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.export import export as export_model
from tallymill.runners import console


@app.command
def export(
    model: str,
    *,
    to: Literal["onnx"] = "onnx",
    weights: str | None = None,
    out: Annotated[Path | None, Parameter(help="The bundle's folder (default: in the cache).")] = None,
    buckets: str | None = None,
    as_json: Json = False,
) -> int:
    """Export a model's weights, compare the result with the model, and install it for ensembles.

    Parameters
    ----------
    model
        A model such as owlvit-base-patch32.
    to
        What runs it.
    weights
        A folder with config.json and the weights, or a Hugging Face id (default: where the model is published).
    buckets
        Sizes of images that are graphs of their own, as heights and widths: 800x800,800x1066 (Grounding DINO and other
        models that take images of many shapes).
    """
    del to
    options = {} if buckets is None else {"buckets": _sizes(buckets)}
    bundle = export_model(
        recipe_of(model), weights, out=out, options=options, log=lambda line: console.err.print(line, markup=False)
    )
    if as_json:
        print_json({"bundle": str(bundle.folder), "sha256": bundle.sha256})
    else:
        console.tell(str(bundle.folder))
    return DONE


def _sizes(text: str) -> list[Size]:
    try:
        return [parse(each) for each in text.split(",")]
    except ValueError as exc:
        raise UsageError(f"--buckets {text}: {exc}") from None
