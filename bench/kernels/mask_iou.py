"""Mask IoU beside pycocotools and matrix products, and what packing costs beside the other ways to make masks small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.bench.pairs import aligned, in_turns
from tallymill.bench.peers import library
from tallymill.errors import TallymillError
from tallymill.kernels.mask_iou import Masks, mask_iou

Bools = NDArray[np.bool_]
Peers = dict[str, Callable[[], Any]]

# Name, masks on either side, side of the image in pixels, and whether the masks of a side share the image out.
SCENES = (
    ("objects", 30, 50, 256, False),
    ("objects", 30, 50, 1024, False),
    ("panoptic", 60, 60, 1024, True),
)
CALLS = 20  # a turn: one call is too short to time alone, and would find what the peer before it left in the caches
MOST_PIXELS = 10**7  # as float32 a matrix product's operands have four bytes a pixel


def run(rounds: int = 7) -> dict[str, Any]:
    """Time all pairs of two sets of masks, and the packing of the second set, one thread, peers in turns.

    ``scenes`` has, for each scene, times in microseconds and their ratio to ours: ours, ours without AVX-512, ours with
    packing from run lengths, ``pycocotools.mask.iou`` (from compressed run lengths), and matrix products of float32 in
    NumPy and torch, whose operands are made beforehand. ``packing`` has rows for arrays, run lengths and panoptic
    images. NumPy's threads are as the environment has them.

    Raises:
        TallymillError: a peer or our own result is wrong.
        UsageError: a peer is not installed.
    """
    coco, torch = library("pycocotools.mask"), library("torch")
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        scenes, packing = [], []
        for number, (name, n, m, side, shared) in enumerate(SCENES):
            rng = np.random.default_rng(number)
            draw = partition if shared else objects
            one, other = draw(rng, n, side), draw(rng, m, side)
            about = {"scene": name, "masks": [n, m], "side": side}
            peers, meeting = _pairs(one, other, coco, torch)
            scenes.append(about | {"meeting": meeting, "rows": in_turns(_many(peers), rounds).rows(1e-6 * CALLS)})
            for form, ways in _packings(other, coco, shared).items():
                packing.append(about | {"from": form, "rows": in_turns(ways, rounds).rows(1e-6)})
        return {"rounds": rounds, "scenes": scenes, "packing": packing}
    finally:
        torch.set_num_threads(torch_threads)


def table(result: dict[str, Any]) -> str:
    """The result of ``run`` for reading."""
    rows = [["mask_iou, one thread", "us", "ratio"]]
    for scene in result["scenes"]:
        n, m = scene["masks"]
        rows.append(
            [f"{scene['scene']}, {n}x{m} of {scene['side']}^2, {scene['meeting']:.0%} of the boxes meet", "", ""]
        )
        rows += _cells(scene["rows"])
    for packing in result["packing"]:
        rows.append([f"{packing['masks'][1]} {packing['scene']} of {packing['side']}^2 from {packing['from']}", "", ""])
        rows += _cells(packing["rows"])
    return aligned(rows)


def objects(rng: np.random.Generator, masks: int, side: int) -> Bools:
    """Ellipses of 5 to 40 % of the image's side, anywhere: bool [masks, side, side]."""
    y, x = np.mgrid[:side, :side]
    centre, radius = rng.uniform(0, side, (masks, 2)), rng.uniform(0.025, 0.2, (masks, 2)) * side
    both = zip(centre, radius, strict=True)
    return np.array([((y - cy) / ry) ** 2 + ((x - cx) / rx) ** 2 <= 1 for (cy, cx), (ry, rx) in both], np.bool_)


def partition(rng: np.random.Generator, masks: int, side: int) -> Bools:
    """Segments that share the image out, each around a point of its own, with borders in steps of four pixels."""
    y, x = np.mgrid[: side // 4, : side // 4]
    # The points are near those of a grid, so that two partitions resemble one another.
    columns = int(np.ceil(np.sqrt(masks)))
    points = (np.array(np.divmod(np.arange(masks), columns)).T + rng.uniform(0, 1, (masks, 2))) * (side // 4) / columns
    nearest = np.argmin([(y - cy) ** 2 + (x - cx) ** 2 for cy, cx in points], axis=0)
    return np.asarray(nearest.repeat(4, axis=0).repeat(4, axis=1) == np.arange(masks)[:, None, None], np.bool_)


def _many(peers: Peers) -> Peers:
    def calls(peer: Callable[[], Any]) -> Callable[[], Any]:
        def call_often() -> None:
            for _ in range(CALLS):
                peer()

        return call_often

    return {name: calls(peer) for name, peer in peers.items()}


def _cells(rows: list[dict[str, Any]]) -> list[list[str]]:
    return [[f"  {row['name']}", f"{row['time']:.1f}", f"{row['ratio']:.2f}"] for row in rows]


def _encoded(arrays: Bools, coco: Any) -> Any:
    return coco.encode(np.asfortranarray(arrays.transpose(1, 2, 0).view(np.uint8)))


def _pairs(one: Bools, other: Bools, coco: Any, torch: Any) -> tuple[Peers, float]:
    """The peers, all of which give the same, and the share of pairs whose boxes meet."""
    a, b = Masks.from_arrays(one), Masks.from_arrays(other)
    rle_a, rle_b, crowd = _encoded(one, coco), _encoded(other, coco), [0] * len(other)
    peers: Peers = {
        "tallymill": lambda: mask_iou(a, b),
        "tallymill, portable": lambda: mask_iou(a, b, impl="portable"),
        "tallymill, packed from run lengths each time": lambda: mask_iou(Masks.from_rle(rle_a), Masks.from_rle(rle_b)),
        "pycocotools": lambda: coco.iou(rle_a, rle_b, crowd),
    }
    if other.size <= MOST_PIXELS:
        flat_a, flat_b = (masks.reshape(len(masks), -1).astype(np.float32) for masks in (one, other))
        torch_a, torch_b = torch.from_numpy(flat_a), torch.from_numpy(flat_b)
        peers["numpy, matrix product"] = lambda: _of_common(flat_a @ flat_b.T, a, b)
        peers["torch, matrix product"] = lambda: _of_common((torch_a @ torch_b.T).numpy(), a, b)
    expected = mask_iou(a, b, impl="reference") if other.size <= MOST_PIXELS else peers["pycocotools"]()
    for name, peer in peers.items():
        if not np.array_equal(peer(), expected):
            raise TallymillError(f"{name} gives another IoU than the reference")
    (ax1, ay1, ax2, ay2), (bx1, by1, bx2, by2) = a.box.T[:, :, None], b.box.T[:, None]
    meet = (ax1 < bx2) & (bx1 < ax2) & (ay1 < by2) & (by1 < ay2)
    return peers, round(float(meet.mean()), 3)


def _of_common(common: NDArray[np.float32], a: Masks, b: Masks) -> NDArray[np.float64]:
    exact = common.astype(np.float64)  # whole numbers below 2^24
    return np.asarray(exact / (a.area[:, None] + b.area - exact), np.float64)


def _packings(arrays: Bools, coco: Any, shared: bool) -> dict[str, Peers]:
    rles, columns = _encoded(arrays, coco), np.asfortranarray(arrays.transpose(1, 2, 0).view(np.uint8))
    forms: dict[str, Peers] = {
        "arrays": {
            "tallymill": lambda: Masks.from_arrays(arrays),
            "numpy.packbits": lambda: np.packbits(arrays, axis=-1),
            "pycocotools encode, arrays in its order": lambda: coco.encode(columns),
        },
        "run lengths": {
            "tallymill": lambda: Masks.from_rle(rles),
            "pycocotools decode, to a byte a pixel": lambda: coco.decode(rles),
        },
    }
    if shared:
        image = np.full(arrays.shape[1:], 0, np.uint32)
        ids = np.arange(1, len(arrays) + 1, dtype=np.uint32) * 70001
        for own, mask in zip(ids, arrays, strict=True):
            image[mask] = own
        rgb = np.stack([image & 255, image >> 8 & 255, image >> 16], axis=2).astype(np.uint8)
        forms["a panoptic image"] = {
            "tallymill": lambda: Masks.from_panoptic(rgb, ids),
            "numpy, to a byte a pixel": lambda: _segments(rgb, ids),
        }
    for form, ways in forms.items():
        if not np.array_equal(ways["tallymill"]().to_arrays(), arrays):
            raise TallymillError(f"masks packed from {form} are not the masks that were drawn")
    return forms


def _segments(rgb: NDArray[np.uint8], ids: NDArray[np.uint32]) -> Bools:
    wide = rgb.astype(np.uint32)
    return np.asarray(wide[..., 0] + 256 * wide[..., 1] + 65536 * wide[..., 2] == ids[:, None, None], np.bool_)
