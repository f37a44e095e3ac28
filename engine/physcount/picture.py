"""From the bytes of an image to what a model is sent.

An upright still JPEG, PNG, WebP or GIF within the limit goes as it is, unless it has transparency. Everything else is
decoded by the one policy for all images (``engine/images.py``), made smaller where it is too large, and goes as PNG: so
every server sees the same pixels, whatever it makes of EXIF, 16 bits, CMYK, frames or alpha (which is dropped).
"""

from __future__ import annotations

import base64
import io
import struct
from dataclasses import dataclass

from PIL import Image
from PIL.GifImagePlugin import GifImageFile

from tallymill.engine import jpeg
from tallymill.engine.images import decode
from tallymill.engine.jpeg import exif_orientation

LONG_EDGE = 4096
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_WITH_ALPHA = (4, 6)  # colour types: gray and RGB with an alpha channel
_VP8X_ALPHA = 0x10


@dataclass(frozen=True, slots=True)
class Picture:
    """What is sent: a file of type ``mime``, of ``width`` x ``height`` pixels; ``original``: the very bytes given."""

    mime: str
    data: bytes
    width: int
    height: int
    original: bool

    def data_url(self) -> bytes:
        """``data:image/png;base64,…``."""
        return f"data:{self.mime};base64,".encode() + base64.b64encode(self.data)


def to_send(data: bytes, *, long_edge: int = LONG_EDGE) -> Picture:
    """What a model is sent of an image file, its longer edge at most ``long_edge`` pixels.

    Smaller images are never made larger; larger ones keep their proportions, rounded to whole pixels, by Lanczos.
    Raises ``ImageError`` for whatever is no whole image, also where its bytes would have gone as they are.
    """
    pixels = decode(data)
    height, width = pixels.shape[:2]
    size = fitted(width, height, long_edge)
    mime = _goes_as_it_is(data)
    if mime is not None and size == (width, height):
        return Picture(mime, data, width, height, original=True)
    image = Image.fromarray(pixels)
    if image.size != size:
        image = image.resize(size, Image.Resampling.LANCZOS)
    return Picture("image/png", _png(image), *size, original=False)


def fitted(width: int, height: int, long_edge: int) -> tuple[int, int]:
    """Width and height after proportional reduction to ``long_edge``; halves are rounded up, and no side vanishes."""
    longest = max(width, height)
    if longest <= long_edge:
        return width, height
    scaled = [max(1, (2 * side * long_edge + longest) // (2 * longest)) for side in (width, height)]
    return scaled[0], scaled[1]


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)  # the smaller file of a higher level takes longer than it saves
    return file.getvalue()


def _goes_as_it_is(data: bytes) -> str | None:
    """The type of a file that every decoder reads alike; None for all others. The file has been decoded before."""
    if data.startswith(b"\xff\xd8\xff"):
        header = jpeg.read_header(data)
        return "image/jpeg" if header.orientation == 1 and header.components in (1, 3) else None
    if data.startswith(_PNG):
        return "image/png" if _is_plain_png(data) else None
    if data.startswith(b"RIFF"):
        return "image/webp" if _is_plain_webp(data) else None
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif" if _is_plain_gif(data) else None
    return None


def _is_plain_png(data: bytes) -> bool:
    """Whether a PNG has at most 8 bits a sample, one frame, no transparency, and stands upright."""
    at = len(_PNG)
    while at + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        payload = data[at + 8 : at + 8 + length]
        if kind == b"IHDR" and (payload[8] > 8 or payload[9] in _PNG_WITH_ALPHA):
            return False
        if kind in (b"acTL", b"tRNS") or (kind == b"eXIf" and exif_orientation(payload) != 1):
            return False
        if kind == b"IEND":
            break
        at += 12 + length
    return True


def _is_plain_gif(data: bytes) -> bool:
    """Whether a GIF has one frame and no transparency. What follows it may be anything: then it is not plain."""
    try:
        with GifImageFile(io.BytesIO(data)) as image:
            return not image.is_animated and "transparency" not in image.info
    except (OSError, SyntaxError, ValueError, struct.error):
        return False


def _is_plain_webp(data: bytes) -> bool:
    """Whether a WebP has one frame, no transparency, and stands upright."""
    at = 12
    while at + 8 <= len(data):
        kind, length = struct.unpack_from("<4sI", data, at)
        payload = data[at + 8 : at + 8 + length]
        if kind in (b"ANIM", b"ANMF", b"ALPH") or (kind == b"VP8L" and _vp8l_has_alpha(payload)):
            return False
        if kind == b"VP8X" and payload[:1] and payload[0] & _VP8X_ALPHA:
            return False
        if kind == b"EXIF" and exif_orientation(payload) != 1:
            return False
        at += 8 + length + length % 2
    return True


def _vp8l_has_alpha(payload: bytes) -> bool:
    """The bit behind the signature and twice 14 bits of size."""
    return len(payload) >= 5 and bool(payload[4] & 0x10)
