from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tallymill.engine.sessions.base import TensorSpec
from tallymill.engine.upscaling.conv2x import Conv2x
from tallymill.errors import ModelError


class Doubling:
    """Repeats pixels, and adds what it is told to."""

    device = "cpu"
    model = Path("doubling.onnx")
    inputs = (TensorSpec("image", "float32", (None, 3, None, None)),)
    outputs = (TensorSpec("enlarged", "float32", (None, None, None, None)),)

    def __init__(self, more=0.0):
        self.more = more

    def run(self, inputs):
        return {"enlarged": inputs["image"].repeat(2, 2).repeat(2, 3) + np.float32(self.more)}


def test_levels_are_rounded_and_held_to_their_range():
    image = np.array([[[0, 100, 254]]], np.uint8)
    assert Conv2x(Doubling(1.6)).upscale(image).tolist() == [[[2, 102, 255]] * 2] * 2
    assert Conv2x(Doubling(-1.6)).upscale(image)[0, 0].tolist() == [0, 98, 252]


def test_what_is_not_finite_is_an_error():
    with pytest.raises(ModelError, match="not finite"):
        Conv2x(Doubling(np.nan)).upscale(np.zeros((2, 2, 3), np.uint8))


def test_a_model_of_something_else_is_refused():
    session = Doubling()
    session.inputs = (TensorSpec("image", "uint8", (None, 3, None, None)),)
    with pytest.raises(ModelError, match="conv2x"):
        Conv2x(session)
