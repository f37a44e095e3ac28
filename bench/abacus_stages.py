"""The stages of an edit that need no model: masks matched beside pycocotools and SciPy, consistency beside MS-SSIM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from tallymill.bench.kernels.mask_iou import objects
from tallymill.bench.pairs import aligned, in_turns
from tallymill.bench.peers import library
from tallymill.engine.abacus.consistency import WEIGHTS, appearance, consistency, luma
from tallymill.engine.abacus.match import match
from tallymill.errors import TallymillError
from tallymill.kernels.mask_iou import Masks

Peers = dict[str, Callable[[], Any]]
SIDE, SOURCE, EDITED = 1024, 30, 50
LEAST = 0.3
SHARES = (0.25, 0.5, 0.75)
EQUAL = 1e-5  # of MS-SSIM without a mask


def run(rounds: int = 7) -> dict[str, Any]:
    """Times in milliseconds of an edit of 30 and 50 instances at 1024 x 1024, one thread, peers in turns.

    ``match``: mask IoU and matching, without a flow, from packed masks and from arrays, beside pycocotools and SciPy.
    ``consistency``: masked MS-SSIM, and the whole term, beside MS-SSIM of torchmetrics without a mask, and beside
    scikit-image, which has SSIM alone, at the same five scales. ``masked``: what masked MS-SSIM says of an image with
    noise where a share of it is masked, beside what it says of the whole; the noise is everywhere alike. Raises
    ``TallymillError`` when peers match otherwise or find another value, ``UsageError`` when one is not installed.
    """
    torch = library("torch")
    threads, of_torch = cv2.getNumThreads(), torch.get_num_threads()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    try:
        return {
            "rounds": rounds,
            "match": in_turns(_matching(), rounds).rows(1e-3),
            "consistency": in_turns(_consistency(), rounds).rows(1e-3),
            "masked": _masked(),
        }
    finally:
        cv2.setNumThreads(threads)
        torch.set_num_threads(of_torch)


def table(result: dict[str, Any]) -> str:
    """The result of ``run`` for reading."""
    rows = [["an edit at 1024^2, one thread", "ms", "ratio"]]
    for name in ("match", "consistency"):
        rows.append([name, "", ""])
        rows += [[f"  {row['name']}", f"{row['time']:.2f}", f"{row['ratio']:.2f}"] for row in result[name]]
    shares = [["masked MS-SSIM of equal noise", "value"]]
    shares += [[f"  {row['masked']:.0%} masked", f"{row['value']:.4f}"] for row in result["masked"]]
    return f"{aligned(rows)}\n\n{aligned(shares)}"


def _matching() -> Peers:
    coco, optimize = library("pycocotools.mask"), library("scipy.optimize")
    rng = np.random.default_rng(0)
    source = objects(rng, SOURCE, SIDE)
    edited = np.concatenate([np.roll(source, 5, axis=2), objects(rng, EDITED - SOURCE, SIDE)])
    packed = Masks.from_arrays(source), Masks.from_arrays(edited)
    encoded = [coco.encode(np.asfortranarray(each.transpose(1, 2, 0).view(np.uint8))) for each in (source, edited)]

    def libraries() -> NDArray[np.int64]:
        similarity = coco.iou(encoded[0], encoded[1], [0] * EDITED)
        similarity[similarity < LEAST] = 0
        rows, columns = optimize.linear_sum_assignment(similarity, maximize=True)
        partner = np.full(SOURCE, -1, np.int64)
        partner[rows] = np.where(similarity[rows, columns] > 0, columns, -1)
        return partner

    if not np.array_equal(match(*packed, None, LEAST).partner, libraries()):
        raise TallymillError("pycocotools and SciPy match other instances")
    return {
        "tallymill": lambda: match(*packed, None, LEAST),
        "tallymill, packed from arrays each time": lambda: match(
            Masks.from_arrays(source), Masks.from_arrays(edited), None, LEAST
        ),
        "pycocotools, SciPy": libraries,
    }


def _images() -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.bool_]]:
    rng = np.random.default_rng(1)
    smooth = np.asarray(cv2.GaussianBlur(rng.uniform(0, 255, (SIDE, SIDE, 3)), (0, 0), 3), np.float64)
    image = (255 * (smooth - smooth.min()) / np.ptp(smooth)).astype(np.uint8)
    noisy = np.clip(image + rng.normal(0, 12, image.shape), 0, 255).astype(np.uint8)
    return image, noisy, np.asarray(~objects(rng, 12, SIDE).any(axis=0), np.bool_)


def _consistency() -> Peers:
    metrics, torch, torchmetrics = (
        library(name) for name in ("skimage.metrics", "torch", "torchmetrics.functional.image")
    )
    image, noisy, free = _images()
    a, b = luma(image), luma(noisy)
    flow = np.zeros((SIDE, SIDE, 2), np.float32)
    tensors = [torch.from_numpy(each)[None, None] for each in (a, b)]

    def torch_unmasked() -> float:
        return float(torchmetrics.multiscale_structural_similarity_index_measure(*tensors, data_range=255.0))

    whole = appearance(a, b, np.ones_like(free))
    if whole is None or abs(whole - torch_unmasked()) > EQUAL:
        raise TallymillError(f"MS-SSIM of the whole image is {whole}, of torchmetrics {torch_unmasked()}")

    def unmasked() -> list[float]:
        x: Any = a
        y: Any = b
        found = []
        for scale in range(len(WEIGHTS)):
            if scale:
                x, y = (cv2.resize(each, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA) for each in (x, y))
            options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "data_range": 255}
            found.append(float(metrics.structural_similarity(x, y, **options)))
        return found

    return {
        "masked MS-SSIM": lambda: appearance(a, b, free),
        "consistency, from RGB": lambda: consistency(image, noisy, flow, free),
        "torchmetrics, MS-SSIM, unmasked": torch_unmasked,
        "scikit-image, SSIM at five scales, unmasked": unmasked,
    }


def _masked() -> list[dict[str, float]]:
    """Masked are squares of 64 pixels, of which the share is drawn; in both images something else stands there."""
    image, noisy, _ = _images()
    a, b = luma(image), luma(noisy)
    rng = np.random.default_rng(2)
    order = rng.permutation((SIDE // 64) ** 2).reshape(SIDE // 64, SIDE // 64)
    rank = order.repeat(64, axis=0).repeat(64, axis=1) / order.size
    found = []
    for share in (0.0, *SHARES):
        hidden = rank < share
        x, y = (np.where(hidden, np.float32(level), each) for level, each in ((20, a), (230, b)))
        value = appearance(x, y, ~hidden)
        found.append({"masked": share, "value": round(value if value is not None else np.nan, 5)})
    return found
