"""What a session of torch says of a card that fails."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from tallymill.engine.sessions.pytorch import TorchSession
from tallymill.errors import DeviceError, ModelError, TallymillError


class Failing(TorchSession):
    """Of a program without inputs, which raises."""

    def __init__(self, device: str, text: str) -> None:
        self.device, self.model, self.inputs, self.outputs = device, Path("image.pt2"), (), ()
        self._torch, self._text = torch, text

    def _check_rows(self, _sent: Any) -> None:
        pass

    def _as_many_threads(self) -> Any:
        return nullcontext()

    def _on_device(self) -> Any:
        return nullcontext()

    def _run(self, _sent: Any) -> Any:
        raise RuntimeError(self._text)


@pytest.mark.parametrize(
    ("device", "text", "kind"),
    [
        ("cuda:0", "CUDA out of memory. Tried to allocate 2.00 GiB.", DeviceError),
        ("cuda:0", "CUDA error: an illegal memory access was encountered", DeviceError),
        ("cuda:0", "shape '[1, 3]' is invalid for input of size 4", ModelError),
        ("cuda:0", "CUDA driver error: invalid device context", DeviceError),
        ("cuda:0", "GET was unable to find an engine to execute this computation", DeviceError),
        ("cuda:0", "cuBLASLt error: not initialised", DeviceError),
        ("cpu", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.", DeviceError),
        ("cpu", "DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes.", DeviceError),
        ("cpu", "CUDA driver error: this would be odd", ModelError),
    ],
)
def test_a_card_that_fails_is_no_fault_of_an_image(device: str, text: str, kind: type[TallymillError]) -> None:
    with pytest.raises(kind, match=r"image\.pt2: "):
        Failing(device, text).run({})


class Answering(Failing):
    """Whose answers cannot be copied from the card, which is when a launch that failed is told."""

    class Answer:
        def __init__(self, text: str) -> None:
            self._text = text

        def cpu(self) -> Any:
            raise RuntimeError(self._text)

    def _run(self, _sent: Any) -> Any:
        return [self.Answer(self._text)]


def test_a_card_that_fails_is_told_when_its_answers_are_copied() -> None:
    with pytest.raises(DeviceError, match=r"image\.pt2: cuda:0 failed: CUDA error"):
        Answering("cuda:0", "CUDA error: an illegal memory access was encountered").run({})
