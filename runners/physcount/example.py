"""``physcount example``: the drawn dataset, written in the format of the release."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tallymill.engine.physcount.data import ANNOTATIONS, QUESTIONS, Dataset, read_dataset
from tallymill.engine.physcount.example import scenes
from tallymill.errors import UsageError
from tallymill.runners.files import appearing

SCENES = 12


def example(out: str | Path, *, scenes_wanted: int = SCENES, seed: int = 0) -> Dataset:
    """Draw ``scenes_wanted`` pictures with their questions into a new folder, the same bytes for the same seed.

    Raises ``UsageError`` for a folder that holds something, and for numbers that make no sense.
    """
    root = Path(out)
    for name, value, least in (("scenes", scenes_wanted, 1), ("seed", seed, 0)):
        if value < least:
            raise UsageError(f"{name} {value}: must be {least} or more")
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise UsageError(f"--out {root} is not an empty folder", hint="name a folder that does not exist yet")
    groups: list[dict[str, Any]] = []
    questions: list[dict[str, Any]] = []
    for scene in scenes(scenes_wanted, seed=seed):
        _write(root / scene.groups[0]["image"], _encoded(scene.pixels, scene.groups[0]["image"]))
        groups += scene.groups
        questions += scene.questions
    _write(root / ANNOTATIONS, _lines(groups))
    _write(root / QUESTIONS, _lines(questions))
    return read_dataset(root)


def _encoded(pixels: np.ndarray[Any, np.dtype[np.uint8]], name: str) -> bytes:
    file = io.BytesIO()
    if name.endswith(".jpg"):
        Image.fromarray(pixels).save(file, "JPEG", quality=92)
    else:
        Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _lines(rows: Sequence[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _write(path: Path, data: bytes) -> None:
    with appearing(path) as temporary:
        temporary.write_bytes(data)
