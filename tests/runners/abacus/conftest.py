"""Small edits, and models that see bright rectangles, for the tests of a RUN."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

SIZE = (90, 120)
# A model of six boxes: where they are in the image (fractions, ymin xmin ymax xmax).
SPOTS = np.array([[0.1 + 0.5 * r, 0.05 + 0.3 * c, 0.4 + 0.5 * r, 0.25 + 0.3 * c] for r in (0, 1) for c in (0, 1, 2)])


def pixels_of(spot: int) -> tuple[slice, slice]:
    top, left, bottom, right = (SPOTS[spot] * [SIZE[0], SIZE[1], SIZE[0], SIZE[1]]).round().astype(int)
    return slice(top, bottom), slice(left, right)


def write_image(path: Path, spots: Sequence[int], *, shade: int = 60) -> str:
    """A dark picture in which things stand bright in some of the six spots; its name."""
    picture = np.full((*SIZE, 3), shade, np.uint8)
    picture += np.random.default_rng(0).integers(0, 12, (*SIZE, 1)).astype(np.uint8)
    for spot in spots:
        picture[pixels_of(spot)] = 250
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(path)
    return path.name


def write_model(path: Path, blind: Sequence[int] = ()) -> Path:
    """A model of the coco_ssd family: a cat wherever a spot is bright, but for those that it is blind to."""
    from onnx import TensorProto, helper, numpy_helper, save

    masks = np.zeros((1, 6, 300, 300, 1), np.float32)
    for spot, (top, left, bottom, right) in enumerate(SPOTS):
        if spot not in blind:
            rows, columns = ((np.array([a, b]) * 300).round().astype(int) for a, b in ((top, bottom), (left, right)))
            masks[0, spot, rows[0] + 4 : rows[1] - 4, columns[0] + 4 : columns[1] - 4] = 1
    masks /= np.maximum(masks.sum(axis=(2, 3, 4), keepdims=True), 1)
    only = np.full((1, 1, 90), -50, np.float32)
    only[0, 0, 16] = 0  # COCO id 17: cat
    weights = {
        "masks": masks / 255,
        "axes": np.array([1], np.int64),
        "sums": np.array([2, 3, 4], np.int64),
        "last": np.array([2], np.int64),
        "bias": np.array(-0.7, np.float32),
        "slope": np.array(20, np.float32),
        "only": only,
        "anchors": SPOTS.astype(np.float32).reshape(1, 6, 1, 4),
    }
    nodes = [
        helper.make_node("ReduceMean", ["image"], ["gray"], axes=[3], keepdims=1),
        helper.make_node("Unsqueeze", ["gray", "axes"], ["one"]),
        helper.make_node("Mul", ["one", "masks"], ["seen"]),
        helper.make_node("ReduceSum", ["seen", "sums"], ["light"], keepdims=0),
        helper.make_node("Add", ["light", "bias"], ["above"]),
        helper.make_node("Mul", ["above", "slope"], ["steep"]),
        helper.make_node("Unsqueeze", ["steep", "last"], ["wide"]),
        helper.make_node("Add", ["wide", "only"], ["logits"]),
        helper.make_node("Sigmoid", ["logits"], ["scores"]),
        helper.make_node("Identity", ["anchors"], ["boxes"]),
    ]
    graph = helper.make_graph(
        nodes,
        "spots",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 300, 300, 3])],
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 6, 90]),
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, 6, 1, 4]),
        ],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))
    return path


def write_suite(folder: Path, blind: Sequence[int] = ()) -> Path:
    """A suite of three such models; the second that confirms is ``blind`` to some spots."""
    lines = []
    for table, name, unseen in (("[segmenter]", "s", ()), ("[[confirmers]]", "a", ()), ("[[confirmers]]", "b", blind)):
        write_model(folder / f"{name}.onnx", unseen)
        lines += [table, f'name = "{name}"', 'family = "coco_ssd"', f'model = "{name}.onnx"']
    path = folder / "suite.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


Spots = Sequence[int]


def write_edits(folder: Path, *edits: tuple[str, Spots, Spots], **columns: Sequence[Any]) -> Path:
    """Edits as (instruction, spots of the source, spots of the edited image), in a manifest with further columns."""
    rows = []
    for number, (instruction, before, after) in enumerate(edits):
        row = {
            "edit_id": f"e{number}",
            "source": f"images/{write_image(folder / f'images/{number}-a.png', before)}",
            "edited": f"images/{write_image(folder / f'images/{number}-b.png', after)}",
            "instruction": instruction,
        }
        rows.append(row | {name: values[number] for name, values in columns.items()})
    path = folder / "edits.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_suite(tmp_path_factory.mktemp("suite"))


@pytest.fixture(scope="session")
def half_blind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of its detectors does not see the last two spots."""
    return write_suite(tmp_path_factory.mktemp("half-blind"), (4, 5))


@pytest.fixture(scope="session")
def edits_file() -> Callable[..., Path]:
    return write_edits


@pytest.fixture(scope="session")
def image_file() -> Callable[..., str]:
    return write_image


@pytest.fixture(scope="session")
def spots() -> tuple[Callable[[int], tuple[slice, slice]], tuple[int, int]]:
    """Where a spot is, and how large images are."""
    return pixels_of, SIZE
