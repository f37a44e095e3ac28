"""One of every odd image file that has to be read, and of every broken one that must become an error row.

``make()`` returns file name -> (bytes, expectation). ``expectation.rgb`` is what a good file shows, within
``expectation.tolerance`` a sample on average; ``expectation.reason`` is part of what is said about a bad one.
"""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass

import numpy as np
from PIL import Image


@dataclass(frozen=True)
class Expectation:
    rgb: np.ndarray | None = None
    tolerance: float = 0.0
    reason: str | None = None

    @property
    def good(self) -> bool:
        return self.reason is None

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width, upright."""
        return None if self.rgb is None else self.rgb.shape[:2]


LOSSY = 4.0


def make() -> dict[str, tuple[bytes, Expectation]]:
    picture = scene()
    files = {}
    for part in (jpegs, pngs, tiffs, others):
        for name, (data, rgb, tolerance) in part(picture).items():
            files[name] = (data, Expectation(np.ascontiguousarray(rgb), tolerance))
    for name, (data, reason) in broken().items():
        files[name] = (data, Expectation(reason=reason))
    return files


def scene(height: int = 20, width: int = 40) -> np.ndarray:
    """A smooth picture without any symmetry, its top left corner red."""
    y, x = np.mgrid[0:height, 0:width]
    rgb = np.stack([60 + 3 * x, 40 + 8 * y, 200 - 2 * x - 3 * y], -1).astype(np.uint8)
    rgb[:8, :8] = (250, 10, 10)
    return rgb


def encode(pixels: np.ndarray | Image.Image, kind: str, **options) -> bytes:
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def jpeg(pixels: np.ndarray | Image.Image, **options) -> bytes:
    return encode(pixels, "JPEG", **{"quality": 95, "subsampling": 0, **options})


def cmyk(planes: np.ndarray) -> Image.Image:
    return Image.frombytes("CMYK", planes.shape[1::-1], planes.tobytes())


def exif(orientation: int) -> bytes:
    block = Image.Exif()
    block[0x0112] = orientation
    return block.tobytes()


def upright(stored: np.ndarray, orientation: int) -> np.ndarray:
    """EXIF 2.3, table 6, spelled with NumPy alone."""
    return {
        1: lambda a: a,
        2: np.fliplr,
        3: lambda a: np.rot90(a, 2),
        4: np.flipud,
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, -1),
        7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
        8: lambda a: np.rot90(a, 1),
    }[orientation](stored)


def gray_to_rgb(gray: np.ndarray) -> np.ndarray:
    return np.repeat(gray[..., None], 3, axis=2)


# JPEG


def jpegs(picture):
    plain = jpeg(picture)
    gray = picture[..., 1]
    icc = b"no colour profile" * 100
    wrong_icc = jpeg(picture, icc_profile=icc).replace(b"ICC_PROFILE\0\x01\x01", b"ICC_PROFILE\0\x07\x02")
    files = {f"exif_{n}.jpg": (jpeg(picture, exif=exif(n)), upright(picture, n), LOSSY) for n in range(1, 9)}
    files |= {
        "exif_0.jpg": (jpeg(picture, exif=exif(0)), picture, LOSSY),
        "exif_9.jpg": (jpeg(picture, exif=exif(9)), picture, LOSSY),
        "exif_garbage.jpg": (jpeg(picture, exif=b"Exif\0\0II*\0\xff\xff\xff\xff"), picture, LOSSY),
        "progressive.jpg": (jpeg(picture, progressive=True), picture, LOSSY),
        "subsampled.jpg": (jpeg(picture, subsampling=2), picture, 2 * LOSSY),
        "odd_subsampling.jpg": (odd_subsampling(), np.full((16, 16, 3), 128, np.uint8), 0),
        "rgb_components.jpg": (jpeg(picture, keep_rgb=True), picture, LOSSY),
        "gray.jpg": (jpeg(gray), gray_to_rgb(gray), LOSSY),
        "png_by_name_jpeg_by_content.png": (plain, picture, LOSSY),
        "garbage_after_the_end.jpg": (plain + np.random.default_rng(5).bytes(1024), picture, LOSSY),
        "fill_bytes.jpg": (plain.replace(b"\xff\xdb", b"\xff\xff\xff\xdb", 1), picture, LOSSY),
        "icc_garbage.jpg": (jpeg(picture, icc_profile=icc), picture, LOSSY),
        "icc_wrong_sequence.jpg": (wrong_icc, picture, LOSSY),
        "two_frames.mpo": (mpo(picture), picture, LOSSY),
        "one_pixel.jpg": (jpeg(picture[:1, :1]), picture[:1, :1], LOSSY),
    }
    # CMYK as Adobe writes it (inverted): ink alone, then the same as YCC + black.
    ink = np.dstack([255 - picture, np.zeros_like(gray)])
    files["cmyk_adobe_0.jpg"] = (jpeg(cmyk(ink)), picture, LOSSY)
    files["cmyk_adobe_2.jpg"] = (ycck(picture), picture, LOSSY)
    return files


def mpo(picture: np.ndarray) -> bytes:
    second = Image.fromarray(picture[::-1].copy())
    return encode(picture, "MPO", quality=95, subsampling=0, save_all=True, append_images=[second])


def ycck(picture: np.ndarray) -> bytes:
    """Four components, the first three turned to YCC, with Adobe's transform 2.

    The planes are stored as if they were CMYK (which Pillow inverts on its way out, hence ``255 -``); then the
    marker is told that they are YCCK. The stored CMY is the picture's RGB, and YCCK holds the YCC of its inverse.
    """
    ycc = np.asarray(Image.fromarray(255 - picture).convert("YCbCr"))
    black = np.full(picture.shape[:2], 255, np.uint8)
    planes = np.dstack([ycc, black])
    data = bytearray(jpeg(cmyk(255 - planes)))
    data[data.index(b"Adobe") + 11] = 2
    return bytes(data)


def odd_subsampling() -> bytes:
    """A gray square of 16x16 whose blue difference alone has four blocks: simplejpeg does not know that kind."""
    data = bytearray(jpeg(np.full((16, 16, 3), 128, np.uint8)))
    frame = data.index(b"\xff\xc0")
    data[frame + 11], data[frame + 14], data[frame + 17] = 0x11, 0x22, 0x11
    scan = data.index(b"\xff\xda")
    scan += 2 + int.from_bytes(data[scan + 2 : scan + 4], "big")
    # Every block: no change of mean, then end of block. Luminance 00 1010, chrominance 00 00; padded with ones.
    bits = "001010" + "0000" * 5
    bits += "1" * (-len(bits) % 8)
    return bytes(data[:scan]) + int(bits, 2).to_bytes(len(bits) // 8, "big") + b"\xff\xd9"


# PNG


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(pixels: np.ndarray, colour: int, *chunks: bytes) -> bytes:
    """A PNG from samples [H, W, ...] of 8 or 16 bits; colour 0 gray, 2 RGB, 4 gray + alpha, 6 RGBA."""
    height, width = pixels.shape[:2]
    bits = 8 * pixels.dtype.itemsize
    rows = pixels.astype(pixels.dtype.newbyteorder(">")).reshape(height, -1)
    raw = b"".join(b"\0" + row.tobytes() for row in rows)
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    body = png_chunk(b"IDAT", zlib.compress(raw))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks) + body + png_chunk(b"IEND", b"")


def pngs(picture):
    gray = picture[..., 1]
    alpha = np.linspace(0, 255, gray.size).reshape(gray.shape).astype(np.uint8)
    rgba = np.dstack([picture, alpha])
    deep = np.random.default_rng(6).integers(0, 65536, (20, 40, 4)).astype(np.uint16)
    levels = np.arange(256, dtype=np.uint16)
    ramp = (levels * 256 + levels * 37 % 256)[None]
    high = (deep >> 8).astype(np.uint8)
    indexed = Image.fromarray(picture).quantize(32)
    shown = np.asarray(indexed.convert("RGB"))
    bilevel = gray > 100
    icc = png_chunk(b"iCCP", b"x\0\0" + b"not deflated")
    files = {
        "rgb.png": (encode(picture, "PNG"), picture, 0),
        "gray.png": (encode(gray, "PNG"), gray_to_rgb(gray), 0),
        "gray_alpha.png": (png(np.dstack([gray, alpha]), 4), gray_to_rgb(gray), 0),
        "rgba.png": (encode(rgba, "PNG"), picture, 0),
        "palette.png": (encode(indexed, "PNG"), shown, 0),
        "palette_transparent_index.png": (encode(indexed, "PNG", transparency=3), shown, 0),
        "palette_transparent_bytes.png": (encode(indexed, "PNG", transparency=bytes(range(32))), shown, 0),
        "one_bit.png": (encode(Image.fromarray(bilevel), "PNG"), gray_to_rgb(bilevel * np.uint8(255)), 0),
        "ramp_16_bit.png": (png(ramp, 0), gray_to_rgb((ramp >> 8).astype(np.uint8)), 0),
        "gray_alpha_16_bit.png": (png(deep[..., :2], 4), gray_to_rgb(high[..., 0]), 0),
        "rgb_16_bit.png": (png(deep[..., :3], 2), high[..., :3], 0),
        "rgba_16_bit.png": (png(deep, 6), high[..., :3], 0),
        "icc_garbage.png": (png(picture, 2, icc), picture, 0),
        "animation_without_frames.png": (png(picture, 2, png_chunk(b"acTL", bytes(8))), picture, 0),
        "animated.png": (animated(picture, "PNG"), picture, 0),
        "jpeg_by_name_png_by_content.jpg": (encode(picture, "PNG"), picture, 0),
        "text_bomb.png": (png(picture, 2, text_bomb()), picture, 0),
    }
    files |= {f"exif_{n}.png": (encode(picture, "PNG", exif=exif(n)), upright(picture, n), 0) for n in (3, 6)}
    return files


def text_bomb() -> bytes:
    return png_chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(70_000_000), 1))


def animated(picture: np.ndarray, kind: str, **options) -> bytes:
    frames = [Image.fromarray(255 - picture), Image.fromarray(picture[:, ::-1].copy())]
    return encode(picture, kind, save_all=True, append_images=frames, duration=50, **options)


# TIFF


def tiff(pixels: np.ndarray, photometric: int, extra: int | None = None, order: str = "<") -> bytes:
    """An uncompressed TIFF from samples [H, W] or [H, W, C] of 8, 16 or 32 bits, one strip."""
    height, width = pixels.shape[:2]
    samples = pixels.shape[2] if pixels.ndim == 3 else 1
    body = pixels.astype(pixels.dtype.newbyteorder(order)).tobytes()
    sample_format = {"u": 1, "i": 2, "f": 3}[pixels.dtype.kind]
    tags = {256: width, 257: height, 258: 8 * pixels.dtype.itemsize, 259: 1, 262: photometric, 273: 0}
    tags |= {277: samples, 278: height, 279: len(body), 339: sample_format}
    if extra is not None:
        tags[338] = extra
    start = 8 + 2 + 12 * len(tags) + 4
    many = struct.pack(order + f"{samples}H", *[tags[258]] * samples)
    formats = struct.pack(order + f"{samples}H", *[sample_format] * samples)
    tags[273] = start + len(many) + len(formats)
    entries = b""
    for tag in sorted(tags):
        count, value, kind = 1, tags[tag], 4
        if tag in (258, 339):
            kind, count = 3, samples
            inline = many if tag == 258 else formats
            if samples <= 2:
                entries += struct.pack(order + "HHI", tag, kind, count) + inline.ljust(4, b"\0")
                continue
            value = start if tag == 258 else start + len(many)
            entries += struct.pack(order + "HHII", tag, kind, count, value)
            continue
        entries += struct.pack(order + "HHII", tag, kind, count, value)
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 8)
    return head + struct.pack(order + "H", len(tags)) + entries + bytes(4) + many + formats + body


def tiffs(picture):
    gray = picture[..., 1]
    deep = np.random.default_rng(7).integers(0, 65536, (20, 40, 4)).astype(np.uint16)
    high = (deep >> 8).astype(np.uint8)
    ink = np.dstack([255 - picture, np.zeros_like(gray)])
    indexed = Image.fromarray(picture).quantize(32)
    bilevel = gray > 100
    files = {
        "rgb.tif": (encode(picture, "TIFF"), picture, 0),
        "rgb_deflate.tif": (encode(picture, "TIFF", compression="tiff_deflate"), picture, 0),
        "rgb_jpeg.tif": (encode(picture, "TIFF", compression="jpeg", quality=95), picture, 2 * LOSSY),
        "gray.tif": (encode(gray, "TIFF"), gray_to_rgb(gray), 0),
        "cmyk.tif": (encode(cmyk(ink), "TIFF"), picture, 0),
        "palette.tif": (encode(indexed, "TIFF"), np.asarray(indexed.convert("RGB")), 0),
        "one_bit.tif": (
            encode(Image.fromarray(bilevel), "TIFF", compression="group4"),
            gray_to_rgb(bilevel * np.uint8(255)),
            0,
        ),
        "rgba.tif": (tiff(np.dstack([picture, gray]), 2, extra=2), picture, 0),
        "pages.tif": (animated(picture, "TIFF"), picture, 0),
        "too_many_entries.tif": (too_many_entries(picture), picture, 0),
    }
    for order, name in (("<", ""), (">", "_big_endian")):
        files[f"gray_16_bit{name}.tif"] = (tiff(deep[..., 0], 1, order=order), gray_to_rgb(high[..., 0]), 0)
        files[f"rgb_16_bit{name}.tif"] = (tiff(deep[..., :3], 2, order=order), high[..., :3], 0)
    files["white_is_zero_16_bit.tif"] = (tiff(deep[..., 0], 0), gray_to_rgb(~high[..., 0]), 0)
    files["rgba_16_bit.tif"] = (tiff(deep, 2, extra=2), high[..., :3], 0)
    for n in (2, 6):
        files[f"exif_{n}.tif"] = (encode(picture, "TIFF", exif=exif(n)), upright(picture, n), 0)
        options = {"exif": exif(n), "compression": "tiff_lzw"}
        files[f"exif_{n}_lzw.tif"] = (encode(picture, "TIFF", **options), upright(picture, n), 0)
    return files


def too_many_entries(picture: np.ndarray) -> bytes:
    """Its orientation is a list of two numbers: odd metadata that Pillow warns about."""
    data = bytearray(encode(picture, "TIFF", exif=exif(1)))
    tag = data.index(struct.pack("<HHI", 0x0112, 3, 1))
    data[tag + 4] = 2
    return bytes(data)


# Everything else


def others(picture):
    gray = picture[..., 1]
    few = Image.fromarray(picture).quantize(32)
    shown = np.asarray(few.convert("RGB"))
    rgba = np.dstack([picture, np.full_like(gray, 60)])
    deltas = [Image.fromarray(255 - picture).quantize(32)]
    return {
        "still.gif": (encode(few, "GIF"), shown, 0),
        "transparent.gif": (encode(few, "GIF", transparency=5), shown, 0),
        "animated.gif": (encode(few, "GIF", save_all=True, append_images=deltas), shown, 0),
        "gray.gif": (encode(gray, "GIF"), gray_to_rgb(gray), 0),
        "lossless.webp": (encode(picture, "WEBP", lossless=True), picture, 0),
        "lossy.webp": (encode(picture, "WEBP", quality=95), picture, 2 * LOSSY),
        "alpha.webp": (encode(rgba, "WEBP", lossless=True, exact=True), picture, 0),
        "animated.webp": (animated(picture, "WEBP", lossless=True), picture, 0),
        "exif_6.webp": (encode(picture, "WEBP", lossless=True, exif=exif(6)), upright(picture, 6), 0),
        "rgb.bmp": (encode(picture, "BMP"), picture, 0),
        "palette.bmp": (encode(few, "BMP"), shown, 0),
        "one_bit.bmp": (encode(Image.fromarray(gray > 100), "BMP"), gray_to_rgb((gray > 100) * np.uint8(255)), 0),
        "rgb.avif": (encode(picture, "AVIF", quality=95, subsampling="4:4:4"), picture, LOSSY),
        "exif_6.avif": (
            encode(picture, "AVIF", quality=95, subsampling="4:4:4", exif=exif(6)),
            upright(picture, 6),
            LOSSY,
        ),
        "animated.avif": (animated(picture, "AVIF", quality=95, subsampling="4:4:4"), picture, LOSSY),
    }


# Broken


def broken():
    large = np.random.default_rng(8).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    plain, flat = jpeg(large), encode(large, "PNG")
    page = b"\n<!DOCTYPE html><html><body>404 Not Found</body></html>"
    return {
        "empty.jpg": (b"", "the file is empty"),
        "html.jpg": (page, "HTML page"),
        "git_lfs.jpg": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        "zeros.jpg": (bytes(500), "zeros only"),
        "text.jpg": (b"a cat on a mat", "not an image"),
        "signature_only.png": (flat[:8], "cut short"),
        "cut.jpg": (plain[: len(plain) // 2], "cut short"),
        "cut_in_header.jpg": (plain[:100], "cut short"),
        "cut_at_the_end.jpg": (plain[:-2], "cut short"),
        "corrupt.jpg": (corrupt(plain), "corrupt"),
        "corrupt_cmyk.jpg": (corrupt(jpeg(cmyk(np.dstack([large, large[..., 0]])))), "corrupt"),
        "corrupt_header.jpg": (plain.replace(b"\xff\xdb", b"\x00\x01\x02\xff\xdb", 1), "corrupt"),
        "cut.png": (flat[: len(flat) // 2], "cut short"),
        "corrupt.png": (corrupt(flat), "corrupt"),
        "huge.png": (declares(flat, 30000, 30000), "declares 30000x30000 pixels"),
        "nothing.png": (declares(flat, 0, 64), "declares 0x64 pixels"),
        "cut.bmp": (encode(large, "BMP")[:-500], "cut short"),
        "cut.gif": (encode(large, "GIF")[:-500], "cut short"),
        "cut.tif": (encode(large, "TIFF", compression="tiff_deflate")[:-500], "corrupt"),
        "cut.webp": (encode(large, "WEBP")[:-50], "cut short"),
        "cut.avif": (encode(large, "AVIF")[:-50], "cut short"),
        "huge.jpg": (plain.replace(struct.pack(">HH", 64, 64), struct.pack(">HH", 65500, 65500), 1), "65500x65500"),
        "huge.gif": (huge_gif(), "declares 20000x20000 pixels"),
        "huge.bmp": (huge_bmp(), "declares 30000x30000 pixels"),
        "huge.tif": (tiff(np.zeros((1, 1), np.uint8), 1).replace(*huge_tag()), "30000x30000"),
        "float.tif": (tiff(np.zeros((4, 4), np.float32), 1), "mode F"),
        "signed.tif": (tiff(np.zeros((4, 4), np.int32), 1), "mode I"),
    }


def corrupt(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes(range(100, 130)) + data[middle + 30 :]


def declares(data: bytes, width: int, height: int) -> bytes:
    head = png_chunk(b"IHDR", struct.pack(">II", width, height) + data[24:29])
    return data[:8] + head + data[33:]


def huge_gif() -> bytes:
    data = bytearray(encode(np.zeros((4, 4), np.uint8), "GIF"))
    data[6:10] = struct.pack("<HH", 20000, 20000)
    return bytes(data)


def huge_bmp() -> bytes:
    data = bytearray(encode(np.zeros((4, 4, 3), np.uint8), "BMP"))
    data[18:26] = struct.pack("<II", 30000, 30000)
    return bytes(data)


def huge_tag() -> tuple[bytes, bytes]:
    small = struct.pack("<HHIIHHII", 256, 4, 1, 1, 257, 4, 1, 1)
    return small, struct.pack("<HHIIHHII", 256, 4, 1, 30000, 257, 4, 1, 30000)
