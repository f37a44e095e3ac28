"""A RUN to calibrate with true objects for it, and two RUNs over images that are there."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tallymill
from tallymill.runners.run import Run, load

ITEMS = 60


@pytest.fixture(scope="session")
def run(tmp_path_factory, manifest_file, ensemble_file) -> Run:
    """Synthetic proposals of images that were never there; shards of 16."""
    folder = tmp_path_factory.mktemp("calibrate")
    manifest = manifest_file(folder / "manifest.jsonl", ITEMS)
    ensemble = ensemble_file(folder / "ensemble.toml", "a", "b", taus=(1.0, 1.42))
    tallymill.sweep(manifest, folder / "run", ensemble=ensemble, workers=0, shard_items=16)
    return load(folder / "run")


@pytest.fixture(scope="session")
def images(tmp_path_factory, image_folder, image_ensemble_file) -> Path:
    """A folder with the RUNs ``one`` and ``two`` over different pictures; one picture of ``one`` is no picture."""
    folder = tmp_path_factory.mktemp("images")
    ensemble = image_ensemble_file(folder / "ensemble.toml", "m")
    image_folder(folder / "one-images", 5)
    (folder / "one-images" / "3.png").write_bytes(b"no picture")
    image_folder(folder / "two-images", 8)
    for k in range(5):  # the same shades as in the other folder
        (folder / "two-images" / f"{k}.png").unlink()
    lines = (folder / "two-images" / "metadata.jsonl").read_text().splitlines(keepends=True)[5:]
    (folder / "two-images" / "metadata.jsonl").write_text("".join(lines))
    for name in ("one", "two"):
        tallymill.sweep(folder / f"{name}-images", folder / name, ensemble=ensemble, workers=0)
    write_lines(
        folder / "truth.jsonl", [{"item_id": f"{k}.png", "category": "cat", "box": [0, 0, 20, 20]} for k in range(5)]
    )
    return folder


def true_objects(run: Run, detector: str = "a", seed: int = 0) -> list[dict[str, Any]]:
    """True objects where a detector has boxes, more often where it is sure; every tenth image has none."""
    rng = random.Random(seed)
    categories = {row["item_id"]: [t["category"] for t in row["targets"]] for row in run.scores.to_pylist()}
    rows = []
    for k, row in enumerate(run.proposals(detector).to_pylist()):
        for p, target, box in zip(row["confidence"], row["target"], row["box"], strict=True):
            if k % 10 and rng.random() < p**2:
                rows.append({"item_id": row["item_id"], "category": categories[row["item_id"]][target], "box": box})
    return rows


def write_lines(path: Path, rows: list[Any]) -> Path:
    """A file of these rows, as JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def objects() -> Callable[..., list[dict[str, Any]]]:
    return true_objects


@pytest.fixture(scope="session")
def write() -> Callable[[Path, list[Any]], Path]:
    return write_lines
