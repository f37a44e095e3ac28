"""Photographs of a user's own, on which the gate compares the whole detector besides its drawn pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.images import decode
from tallymill.errors import ImageError, UsageError
from tallymill.exporters.recipes.parts import ArrayOriginal, Given, Loaded

LEAST = 16  # pixels
T = TypeVar("T", Loaded, Given, Loaded | Given)


def read_photographs(folder: Path) -> dict[str, NDArray[np.uint8]]:
    """All files of a folder as RGB uint8 [H, W, 3], by name. Raises ``UsageError`` that names what is no image."""
    try:
        files = sorted(each for each in folder.iterdir() if each.is_file() and not each.name.startswith("."))
    except OSError as exc:
        raise UsageError(f"--photographs {folder}: {exc.strerror or exc}") from None
    if not files:
        raise UsageError(f"--photographs {folder}: no files in it")
    found = {}
    for file in files:
        try:
            found[file.name] = decode(file.read_bytes())
        except (ImageError, OSError) as exc:
            raise UsageError(f"--photographs {file}: {exc}", hint="give a folder with photographs alone") from None
        if min(found[file.name].shape[:2]) < LEAST:  # transformers takes a side of 1 or 3 for the channels
            raise UsageError(f"--photographs {file}: has a side below {LEAST} pixels", hint="give larger ones")
    return found


def with_photographs(loaded: T, photographs: Mapping[str, NDArray[np.uint8]] | None) -> T:
    """A model to be compared on these too. Raises ``UsageError`` for one that is no detector, or has no original."""
    if not photographs:
        return loaded
    if isinstance(loaded, Given) or isinstance(loaded.original, ArrayOriginal):
        raise UsageError(
            f"--photographs: a model of the family {loaded.family} is compared with no original on photographs",
            hint="leave it out",
        )
    return replace(loaded, photographs=photographs)
