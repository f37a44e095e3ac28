"""Manifests, small image models and ways to look at a RUN for the tests of the runners."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

# A shell starts background jobs with SIGINT ignored, and children inherit that: here it has to arrive.
_START = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
COMMAND = (sys.executable, "-c", f"{_START}; from tallymill.cli import main; main()")


def write_manifest(path: Path, n: int, start: int = 0) -> Path:
    """``n`` items without image files: every third asks for two categories; counts run through 1..100."""
    with path.open("w", encoding="utf-8") as file:
        for k in range(start, start + n):
            targets = [{"category": f"thing {k % 7}", "count": k % 100 + 1}]
            if k % 3 == 0:
                targets.append({"category": "dog", "count": (7 * k) % 100 + 1})
            row = {"item_id": f"item-{k}", "image": f"{k}.jpg", "targets": targets, "layout": ("grid", "scene")[k % 2]}
            file.write(json.dumps(row) + "\n")
    return path


def write_ensemble(path: Path, *names: str, taus: Sequence[float] = ()) -> Path:
    """A TOML file of synthetic detectors."""
    lines = []
    for k, name in enumerate(names):
        lines += ["[[detectors]]", f'name = "{name}"', 'family = "synthetic"']
        lines += [f"tau = {taus[k]}"] if taus else []
    path.write_text("\n".join(lines) + "\n")
    return path


def write_images(folder: Path, n: int) -> Path:
    """A folder of ``n`` small pictures of different shades, each asking for cats and dogs."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for k in range(n):
        Image.fromarray(np.full((30 + k, 40, 3), (37 * k) % 256, np.uint8)).save(folder / f"{k}.png")
        rows.append({"file_name": f"{k}.png", "targets": {"cat": k % 5 + 1, "dog": 2}})
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def write_model(path: Path, seed: int = 0) -> Path:
    """A model of the coco_ssd family with six anchors, whose scores follow the brightness of the window."""
    from onnx import TensorProto, helper, numpy_helper, save

    rng = np.random.default_rng(seed)
    corner, side = rng.uniform(0.0, 0.6, (1, 6, 1, 2)), rng.uniform(0.1, 0.4, (1, 6, 1, 2))
    boxes = np.concatenate([corner, corner + side], axis=-1).astype(np.float32)
    weights = {
        "base": rng.normal(0, 1, (1, 6, 90)).astype(np.float32),
        "slope": rng.normal(0, 2 / 255, (1, 6, 90)).astype(np.float32),
        "anchors": boxes,
    }
    nodes = [
        helper.make_node("ReduceMean", ["image"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "slope"], ["moved"]),
        helper.make_node("Add", ["moved", "base"], ["logits"]),
        helper.make_node("Sigmoid", ["logits"], ["scores"]),
        helper.make_node("Identity", ["anchors"], ["boxes"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 300, 300, 3])],
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 6, 90]),
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, 6, 1, 4]),
        ],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))
    return path


def write_image_ensemble(path: Path, *names: str) -> Path:
    """A TOML file of such models, each of its own."""
    lines = []
    for name in names:
        write_model(path.parent / f"{name}.onnx", seed=sum(name.encode()))
        lines += ["[[detectors]]", f'name = "{name}"', 'family = "coco_ssd"', f'model = "{name}.onnx"']
    path.write_text("\n".join(lines) + "\n")
    return path


def read_contents(run: Path) -> dict[str, list[dict[str, Any]]]:
    """Every row of every part file, by the file's place in the RUN."""
    return {
        str(file.relative_to(run)): pq.read_table(file).to_pylist()
        for folder in ("proposals", "scores")
        for file in sorted((run / folder).rglob("*.parquet"))
    }


def read_times(run: Path) -> dict[str, int]:
    """When each part file was last written, in nanoseconds, with its inode."""
    return {
        str(file.relative_to(run)): hash((file.stat().st_mtime_ns, file.stat().st_ino))
        for folder in ("proposals", "scores")
        for file in sorted((run / folder).rglob("*.parquet"))
    }


def run_command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False, **options)


@pytest.fixture(scope="session")
def manifest_file() -> Callable[..., Path]:
    return write_manifest


@pytest.fixture(scope="session")
def ensemble_file() -> Callable[..., Path]:
    return write_ensemble


@pytest.fixture(scope="session")
def image_folder() -> Callable[..., Path]:
    return write_images


@pytest.fixture(scope="session")
def model_file() -> Callable[..., Path]:
    return write_model


@pytest.fixture(scope="session")
def image_ensemble_file() -> Callable[..., Path]:
    return write_image_ensemble


@pytest.fixture(scope="session")
def contents() -> Callable[[Path], dict[str, list[dict[str, Any]]]]:
    return read_contents


@pytest.fixture(scope="session")
def times() -> Callable[[Path], dict[str, int]]:
    return read_times


@pytest.fixture(scope="session")
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    return run_command


@pytest.fixture(scope="session")
def command_line() -> tuple[str, ...]:
    """What starts the command line, for tests that end it themselves."""
    return COMMAND
