"""A PhysCount dataset small enough to work out by hand, as rows, files and objects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tallymill.engine.physcount.data import Dataset, read_dataset


def group_row(group: Any = "g1", on: Any = "i1", modes: Sequence[str] = ("direct",), **more: Any) -> dict[str, Any]:
    """A line of annotations.jsonl: an appearance a mode, all of different entities."""
    appearances = [
        {"appearance_id": f"a{n}", "entity_id": f"e{n}", "mode": mode, "x": 0.25, "y": 0.5}
        for n, mode in enumerate(modes)
    ]
    row = {"group_id": group, "image_id": on, "image": f"images/{on}.png", "width": 8, "height": 6}
    return {**row, "appearances": appearances, **more}


def question_row(key: Any = "q1", group: Any = "g1", on: Any = "i1", **more: Any) -> dict[str, Any]:
    """A line of questions.jsonl."""
    return {
        "question_id": key,
        "group_id": group,
        "image_id": on,
        "image": f"images/{on}.png",
        "question_type": "appearance",
        "question": "How many?",
        "answer": 1,
        **more,
    }


def write_dataset(root: Path, questions: Sequence[Any], groups: Sequence[Any]) -> Path:
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


# Question: its group, image, family, true answer, and what is answered; docs/physcount.md works it out on paper.
WORKED = {
    "a1": ("g1", "i1", "appearance", 5, "5"),
    "e1": ("g1", "i1", "entity", 3, "3"),
    "e2": ("g1", "i1", "entity", 4, "5"),
    "f1": ("g1", "i1", "image_formation", 2, "1"),
    "c1": ("g1", "i1", "correspondence", 1, "1"),
    "c2": ("g1", "i1", "correspondence", 0, "1"),
    "a2": ("g2", "i1", "appearance", 10, "8"),
    "e3": ("g2", "i1", "entity", 4, "4"),
    "a3": ("g3", "i2", "appearance", 2, "2"),
    "e4": ("g3", "i2", "entity", 2, "two"),
    "a4": ("g4", "i2", "appearance", 3, "3"),
}


def worked_dataset(root: Path) -> Dataset:
    """The dataset of the worked example."""
    questions = [
        question_row(key, group, image, question_type=family, answer=answer)
        for key, (group, image, family, answer, _) in WORKED.items()
    ]
    groups = [
        group_row("g1", "i1", ("direct", "reflection")),
        group_row("g2", "i1"),
        group_row("g3", "i2", ("direct", "through_glass")),
        group_row("g4", "i2"),
    ]
    return read_dataset(write_dataset(root, questions, groups))


def write_predictions(path: Path, responses: Mapping[str, Any]) -> Path:
    """A predictions file of responses."""
    rows = [json.dumps({"question_id": key, "response": response}) for key, response in responses.items()]
    path.write_text("".join(row + "\n" for row in rows), "utf-8")
    return path


def worked_predictions(path: Path) -> Path:
    """The predictions of the worked example."""
    return write_predictions(path, {key: said for key, (*_, said) in WORKED.items()})


def write_run(
    run: Path,
    dataset: Dataset,
    responses: Mapping[str, Any],
    *,
    model: str = "tiny",
    mode: str = "independent",
    errors: Mapping[str, str] | None = None,
    **settings: Any,
) -> Path:
    """A RUN of ``physcount ask``: a response a question, or a group's joint response by its id; ``errors`` failed."""
    run.mkdir(parents=True)
    record: dict[str, Any] = {
        "kind": "physcount",
        "created": "2026-01-01T00:00:00+00:00",
        "tallymill": "1.0",
        "model": model,
        "endpoint": "http://localhost:8000/v1",
        "served": None,
        "mode": mode,
        "settings": {"long_edge": 4096, "temperature": None, "reasoning_effort": "high", **settings},
        "prompt_sha256": "ab" * 32,
        "data": {"root": str(dataset.root), "sha256": dataset.sha256},
        "selection": {"limit": None, "groups": [], "group_ids": None},
        "versions": {"python": "3.12"},
    }
    (run / "run.json").write_text(json.dumps(record), "utf-8")
    rows = []
    for group in dataset.groups.values():
        ids = [question.question_id for question in group.questions]
        for key, asked in [(group.group_id, ids)] if mode == "joint" else [(key, [key]) for key in ids]:
            row = {"question_ids": asked, "group_id": group.group_id, "status": "answered", "finish_reason": "stop"}
            if errors is not None and key in errors:
                rows.append({**row, "status": "failed", "response": None, "error": errors[key]})
            elif key in responses:
                rows.append({**row, "response": responses[key], "error": None})
    (run / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return run


def true_answers(dataset: Dataset, *, plus: int = 0, joint: bool = False) -> dict[str, str]:
    """Responses for ``write_run``: the true counts, or ``plus`` more."""
    if joint:
        return {key: str([q.answer + plus for q in group.questions]) for key, group in dataset.groups.items()}
    return {question.question_id: str(question.answer + plus) for question in dataset.questions}
