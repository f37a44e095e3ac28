"""JPEG files by way of simplejpeg: what their headers say, and their pixels."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from tallymill.errors import ImageError

RGB = NDArray[np.uint8]

_ORIENTATION_TAG = 0x0112

USUAL_CODINGS = frozenset({0xC0, 0xC1, 0xC2})  # baseline, extended and progressive, with Huffman codes
# Gray, and 4:4:4, 4:2:2, 4:2:0, 4:4:0.
USUAL_SAMPLINGS = frozenset({b"\x11", b"\x11\x11\x11", b"\x21\x11\x11", b"\x22\x11\x11", b"\x12\x11\x11"})


@dataclass(slots=True)
class JpegHeader:
    """What is known of a JPEG file before its first scan, which starts at the byte ``scan``."""

    width: int = 0
    height: int = 0
    components: int = 0
    coding: int = 0  # marker of the frame
    bits: int = 0
    names: bytes = b""  # of the components
    sampling: bytes = b""  # of each component, horizontal and vertical in a byte
    adobe: int | None = None  # how Adobe's segment says that colours are stored
    orientation: int = 1  # of EXIF, 1 to 8
    profile: bool = False  # an ICC profile is present
    scan: int = 0

    @property
    def is_ycc(self) -> bool:
        """Whether three components are YCbCr, as libjpeg finds out; if not they may be RGB."""
        return self.adobe == 1 or (self.adobe is None and self.names != b"RGB")


def decode(data: bytes, header: JpegHeader) -> RGB | None:
    """RGB uint8 [H, W, 3], not turned upright; None where simplejpeg does not know the chroma subsampling.

    Raises ``ValueError`` when the file is cut short or corrupt.
    """
    if header.profile:
        # libjpeg treats a garbled profile as corrupt data; without it the pixels are the same.
        data = without_metadata(data, header.scan)
    space = "CMYK" if header.components == 4 else "RGB"
    try:
        pixels: RGB = simplejpeg.decode_jpeg(data, space)
    except ValueError as error:
        if "subsampling" not in str(error):
            raise
        return None
    if space == "CMYK":
        ink = Image.frombytes("CMYK", (header.width, header.height), (~pixels).tobytes())
        pixels = np.asarray(ink.convert("RGB"))
    return pixels


def read_header(data: bytes) -> JpegHeader:
    """Walk the segments up to the first scan. Raises ``ImageError`` when they are cut short or corrupt."""
    header = JpegHeader()
    for marker, start, end in _segments(data):
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            header.bits, header.height, header.width, header.components = struct.unpack_from(">BHHB", data, start)
            header.coding = marker
            header.names, header.sampling = data[start + 6 : end : 3], data[start + 7 : end : 3]
        elif marker == 0xEE and data[start : start + 5] == b"Adobe" and end - start >= 12:
            header.adobe = data[start + 11]
        elif marker == 0xE1 and data[start : start + 6] == b"Exif\0\0":
            header.orientation = exif_orientation(data[start:end])
        elif marker == 0xE2 and data[start : start + 12] == b"ICC_PROFILE\0":
            header.profile = True
        elif marker == 0xDA:
            header.scan = start - 4
            return header
    raise ImageError("the file is cut short (no pixels after the JPEG header)")


def _segments(data: bytes) -> list[tuple[int, int, int]]:
    """Marker, start and end of the payload of each segment up to the first scan."""
    segments = []
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            raise ImageError(f"the file is corrupt (no JPEG marker at byte {at})")
        marker = data[at + 1]
        if marker == 0xFF or marker == 0x01 or 0xD0 <= marker <= 0xD7:  # a fill byte, or a marker without payload
            at += 1 if marker == 0xFF else 2
            continue
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        segments.append((marker, at + 4, end))
        if marker in (0xD9, 0xDA):
            break
        at = end
    return segments


def without_metadata(data: bytes, scan: int) -> bytes:
    """The same file without comments and application segments, but for those that say how colours are stored."""
    kept = [data[:2]]
    for marker, start, end in _segments(data)[:-1]:
        if marker in (0xE0, 0xEE) or not (0xE0 <= marker <= 0xEF or marker == 0xFE):
            kept.append(data[start - 4 : end])
    return b"".join([*kept, data[scan:]])


def exif_orientation(exif: bytes) -> int:
    """The orientation (1 to 8) that an EXIF block states; 1 where it states none or makes no sense."""
    tiff = exif.removeprefix(b"Exif\0\0")
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 8:
        return 1
    (ifd,) = struct.unpack_from(order + "I", tiff, 4)
    if ifd + 2 > len(tiff):
        return 1
    (entries,) = struct.unpack_from(order + "H", tiff, ifd)
    for at in range(ifd + 2, min(ifd + 2 + 12 * entries, len(tiff) - 11), 12):
        tag, kind = struct.unpack_from(order + "HH", tiff, at)
        if tag == _ORIENTATION_TAG:
            (value,) = struct.unpack_from(order + ("I" if kind == 4 else "H"), tiff, at + 8)
            return value if 1 <= value <= 8 else 1
    return 1
