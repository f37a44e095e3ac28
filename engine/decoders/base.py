"""From the bytes of image files to pixels: how the pipeline asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tallymill.engine.arrays import Array
from tallymill.engine.images import decode
from tallymill.errors import ImageError, UsageError


class Decoder(Protocol):
    """Decodes files by twos and threes: ``at_once`` is the most that the pipeline holds decoded."""

    at_once: int

    def decode(self, files: Sequence[bytes], max_pixels: int) -> list[Array | ImageError]:
        """RGB uint8 [H, W, 3] of each file, upright, or what is wrong with it; a bad file is its own fault alone."""
        ...


class HostDecoder:
    """``images.decode``, one file after the other: what every odd file is read by, and the default everywhere."""

    at_once = 1

    def decode(self, files: Sequence[bytes], max_pixels: int) -> list[Array | ImageError]:
        """See ``Decoder``."""
        return [decoded(data, max_pixels) for data in files]


def decoded(data: bytes, max_pixels: int) -> Array | ImageError:
    """The pixels of one file on the host, or what is wrong with it."""
    try:
        return decode(data, max_pixels=max_pixels)
    except ImageError as exc:
        return exc


def decoder_of(name: str, device: str) -> Decoder:
    """The decoder that the setting ``decoder`` names, for a worker's device.

    Raises ``MissingExtraError`` where its package is not installed.
    """
    if name == "cpu":
        return HostDecoder()
    from tallymill.engine.decoders.nvimgcodec import NvImageCodec

    return NvImageCodec(device)


def require_card(name: str, device: str) -> None:
    """Refuse a decoder of the card where detectors run on the CPU: ``images.decode`` is what is fastest there."""
    if name != "cpu" and device == "cpu":
        raise UsageError(f"decoder={name} decodes on a card, and the device is 'cpu'", hint="give --device cuda")
