"""JPEG files by the batch with NVIDIA's nvImageCodec, on the card that the detectors run on.

Only plain files go there: those for which there is nothing to decide. Whatever else is in a batch, and whatever it
does not decode, goes through ``images.decode``, which has the policy for odd files and says what is wrong with bad
ones.

On a card, pixels differ from those of ``images.decode`` by a level here and there (another inverse transform), and data
that are corrupt in the middle of a file are not noticed: that is what the choice costs. The card's part is written
against the documentation and HAS NOT BEEN RUN ON A CARD; the tests run the same code on nvImageCodec's CPU backend.
"""

from __future__ import annotations

import importlib
import os
import struct
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from tallymill.engine import jpeg
from tallymill.engine.arrays import Array
from tallymill.engine.decoders.base import decoded
from tallymill.errors import ImageError, MissingExtraError

AT_ONCE = 16
LARGEST = 1 << 25  # pixels; a larger file is decoded by itself, on the host


class NvImageCodec:
    """See the module. ``device``: "cpu" (the CPU backend, for tests), "cuda:0", …"""

    at_once = AT_ONCE

    def __init__(self, device: str) -> None:
        codec = _package()
        self._codec, self._device = codec, device
        if device == "cpu":
            self._torch, number, backends = None, codec.NVIMGCODEC_DEVICE_CPU_ONLY, [codec.Backend(codec.CPU_ONLY)]
        else:
            with MissingExtraError.unless("torch", extra="gpu"):
                import torch
            self._torch, number, backends = torch, int(device.partition(":")[2] or 0), None
        # Chroma is interpolated as libjpeg does it by default, and so everything else that reads such files.
        self._decoder = codec.Decoder(
            device_id=number, max_num_cpu_threads=1, backends=backends, options=":fancy_upsampling=1"
        )
        self._how = codec.DecodeParams(apply_exif_orientation=False, color_spec=codec.ColorSpec.SRGB)

    def decode(self, files: Sequence[bytes], max_pixels: int) -> list[Array | ImageError]:
        """See ``Decoder``."""
        plain = [place for place, data in enumerate(files) if is_plain(data, min(max_pixels, LARGEST))]
        there = dict(zip(plain, self._decode([files[place] for place in plain]), strict=True))
        found = (there.get(place) for place in range(len(files)))
        return [decoded(data, max_pixels) if one is None else one for data, one in zip(files, found, strict=True)]

    def _decode(self, files: Sequence[bytes]) -> list[Array | None]:
        """RGB of each, None of what nvImageCodec gives no image for."""
        if not files:
            return []
        streams = [self._codec.CodeStream(data) for data in files]
        if self._torch is None:
            images = self._decoder.decode(streams, params=self._how)
            return [None if image is None else np.asarray(image) for image in images]
        stream = self._torch.cuda.current_stream(self._device).cuda_stream
        images = self._decoder.decode(streams, params=self._how, cuda_stream=stream)
        return [None if image is None else self._torch.from_dlpack(image) for image in images]


def is_plain(data: bytes, max_pixels: int) -> bool:
    """Whether a file is a JPEG with nothing to decide: whole, baseline or progressive, 8 bits, gray or YCbCr in one of
    the usual samplings, upright, no colour profile, and of at most ``max_pixels``.
    """
    if not data.startswith(b"\xff\xd8\xff") or data[-2:] != b"\xff\xd9":
        return False
    try:
        header = jpeg.read_header(data)
    except (ImageError, struct.error, LookupError):
        return False
    return (
        header.coding in jpeg.USUAL_CODINGS
        and header.bits == 8
        and (header.components == 1 or (header.components == 3 and header.is_ycc))
        and header.sampling in jpeg.USUAL_SAMPLINGS
        and header.orientation == 1
        and not header.profile
        and 0 < header.width * header.height <= max_pixels
    )


def _package() -> Any:
    if find_spec("nvidia") is None or find_spec("nvidia.nvimgcodec") is None:
        raise MissingExtraError.of("nvidia-nvimgcodec-cu13", "gpu")
    # It writes what it makes of every bad file to standard error, unless it is told not to before it is imported.
    os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")
    return importlib.import_module("nvidia.nvimgcodec")
