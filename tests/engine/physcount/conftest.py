"""A dataset small enough to work out by hand, as files and as objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tallymill.engine.physcount.data import Dataset, read_dataset


def group_row(
    group: str = "g1", image: str = "i1", modes: tuple[str, ...] = ("direct",), **more: Any
) -> dict[str, Any]:
    """A line of annotations.jsonl: an appearance a mode, all of different entities."""
    appearances = [
        {"appearance_id": f"a{n}", "entity_id": f"e{n}", "mode": mode, "x": 0.25, "y": 0.5}
        for n, mode in enumerate(modes)
    ]
    row = {"group_id": group, "image_id": image, "image": f"images/{image}.png", "width": 8, "height": 6}
    return {**row, "appearances": appearances, **more}


def question_row(question: str = "q1", group: str = "g1", image: str = "i1", **more: Any) -> dict[str, Any]:
    """A line of questions.jsonl."""
    return {
        "question_id": question,
        "group_id": group,
        "image_id": image,
        "image": f"images/{image}.png",
        "question_type": "appearance",
        "question": "How many?",
        "answer": 1,
        **more,
    }


def write_dataset(root: Path, questions: list[Any], groups: list[Any]) -> Path:
    """The files of a dataset; a row that is a text is written as it is. Every image that a row names is there."""
    (root / "data").mkdir(parents=True)
    (root / "images").mkdir()
    for name, rows in (("questions", questions), ("annotations", groups)):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (root / "data" / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines), "utf-8")
    for row in groups:
        if isinstance(row, dict) and str(row.get("image", "")).startswith("images/"):
            Image.fromarray(np.zeros((6, 8, 3), np.uint8)).save(root / row["image"])
    return root


@pytest.fixture
def dataset_of(tmp_path: Path) -> Callable[[list[Any], list[Any]], Dataset]:
    """A dataset from rows."""
    return lambda questions, groups: read_dataset(write_dataset(tmp_path / "data-set", questions, groups))
