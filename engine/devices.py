"""Devices by name: what a user may ask for, which cards are here, and which runtimes could use one."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from tallymill.engine.sessions import ort
from tallymill.engine.words import counted
from tallymill.errors import UsageError

CPU = "cpu"
_FORMS = "one of auto, cpu, cuda, cuda:1 or, for several cards, cuda:0,1"


@dataclass(frozen=True, slots=True)
class Cards:
    """The NVIDIA cards here: how many, who says so, and, where that is known, what they are called and their compute
    capabilities, such as "89".
    """

    count: int
    told: str
    names: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()


def named(text: str) -> tuple[str, ...]:
    """``"cuda:0,1"`` -> ``("cuda:0", "cuda:1")``; ``"cuda"`` is the first card; ``"auto"`` -> ``()``, yet to be chosen.

    Raises ``UsageError`` for what names no device, or one device twice.
    """
    if text == "auto":
        return ()
    if text == CPU:
        return (CPU,)
    kind, colon, numbers = str(text).partition(":")
    if kind != "cuda":
        raise UsageError(f"device {text!r}: there is no such kind of device", hint=_FORMS)
    if not colon:
        return ("cuda:0",)
    found: list[str] = []
    for number in numbers.split(","):
        if not (number.isascii() and number.isdecimal() and len(number) < 5):
            raise UsageError(f"device {text!r}: {number!r} is not the number of a card", hint=_FORMS)
        name = f"cuda:{int(number)}"
        if name in found:
            raise UsageError(f"device {text!r}: {name} is named twice", hint=_FORMS)
        found.append(name)
    return tuple(found)


def require_there(text: str, devices: Sequence[str]) -> None:
    """Refuse ``devices``, as ``text`` names them, of which one is not here: a ``UsageError`` that says who says so."""
    if all(device == CPU for device in devices):
        return
    here = cards()
    absent = [device for device in devices if int(device.partition(":")[2]) >= here.count]
    if absent:
        hint = "use --device cpu, or a machine with an NVIDIA card, its driver, and torch or onnxruntime-gpu"
        if here.count:
            hint = f"cards are counted from cuda:0 to cuda:{here.count - 1}"
        raise UsageError(f"device {text!r}: {absent[0]} is not here: {here.told}", hint=hint)


def cards() -> Cards:
    """The cards that this process could use, by torch where it is installed for CUDA, else by ONNX Runtime.

    ONNX Runtime lists what it was built with, not what works: it is asked to open a session on one card after another.
    """
    torch = _torch_for_cuda()
    if torch is not None:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        names = tuple(str(torch.cuda.get_device_name(number)) for number in range(count))
        capabilities = tuple("{}{}".format(*torch.cuda.get_device_capability(number)) for number in range(count))
        told = f"torch {torch.__version__} finds {counted(count, 'card') if count else 'no card'}"
        return Cards(count, told, names, capabilities)
    if find_spec("onnxruntime") is None:
        return Cards(0, "no torch for CUDA and no onnxruntime is installed, which could find one")
    version, without = ort.version(), cannot_use_a_card("onnx")
    if without is not None:
        return Cards(0, without)
    count = ort.count_cards()
    return Cards(count, f"onnxruntime {version} finds {counted(count, 'card') if count else 'no card'}")


def cannot_use_a_card(runtime: str) -> str | None:
    """Why models of a bundle's ``runtime`` cannot run on a card with what is installed; None where they could."""
    if runtime == "onnx":
        if find_spec("onnxruntime") is None:
            return "onnxruntime is not installed"
        return None if ort.knows_cuda() else f"onnxruntime {ort.version()} has no CUDA (onnxruntime-gpu has)"
    if _torch_for_cuda() is None:
        return "no torch for CUDA is installed"
    if runtime in ("tensorrt", "tensorrt_rtx") and find_spec(runtime) is None:
        return f"{runtime} is not installed"
    return None


def _torch_for_cuda() -> Any:
    """The module, or None where torch is not installed or was built for the CPU alone."""
    if find_spec("torch") is None:
        return None
    torch: Any = importlib.import_module("torch")
    return None if torch.version.cuda is None else torch
