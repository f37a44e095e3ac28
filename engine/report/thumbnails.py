"""Small images for a page: WebP files, as data URIs."""

from __future__ import annotations

import base64
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

QUALITY = 75


def thumbnail(pixels: NDArray[np.uint8], long_side: int) -> tuple[bytes, tuple[int, int]]:
    """A WebP file of RGB ``pixels`` [H, W, 3], at most ``long_side`` pixels long and never enlarged, and its size
    (width, height).
    """
    image = Image.fromarray(pixels)
    image.thumbnail((long_side, long_side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "WEBP", quality=QUALITY, method=4)
    return file.getvalue(), image.size


def data_uri(webp: bytes | None) -> str | None:
    """What ``src`` of an image may hold."""
    return None if webp is None else f"data:image/webp;base64,{base64.b64encode(webp).decode()}"
