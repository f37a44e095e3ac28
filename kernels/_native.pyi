# The compiled module takes only NumPy arrays that the public functions have checked; outputs are filled in place.
import numpy as np
from numpy.typing import NDArray

def paths() -> list[str]: ...
def nms(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    offsets: NDArray[np.int64],
    iou_threshold: float,
    threads: int,
    indices: NDArray[np.int64],
    kept_offsets: NDArray[np.int64],
) -> int: ...
def nms_valid(boxes: NDArray[np.float32], scores: NDArray[np.float32], usable: NDArray[np.bool_]) -> None: ...
def count_calibrate(confidence: NDArray[np.float32], tau: float, rho: NDArray[np.float32]) -> None: ...
def count_misplaced(
    target: NDArray[np.uint8], item_offsets: NDArray[np.int64], target_offsets: NDArray[np.int64]
) -> int: ...
def count_raw_thresholds(thresholds: NDArray[np.float64], tau: float, raw: NDArray[np.float32]) -> None: ...
def count_accumulate(
    confidence: NDArray[np.float32],
    target: NDArray[np.uint8],
    item_offsets: NDArray[np.int64],
    target_offsets: NDArray[np.int64],
    thresholds: NDArray[np.float64] | None,
    tau: float,
    soft: NDArray[np.float64] | None,
    hard: NDArray[np.int64] | None,
    threads: int,
) -> bool: ...
def count_score(
    soft: NDArray[np.float64],
    hard: NDArray[np.int64],
    covering: NDArray[np.uint8],
    requested: NDArray[np.uint16],
    target_offsets: NDArray[np.int64],
    soft_count: NDArray[np.float64],
    hard_count: NDArray[np.float64],
    cw_nps: NDArray[np.float64],
    b_nps: NDArray[np.float64],
) -> None: ...
def select(
    scores: NDArray[np.float32],
    classes: NDArray[np.int64],
    floor: float,
    request: NDArray[np.int64],
    cell: NDArray[np.int64],
    kept: NDArray[np.float32],
) -> int: ...
def select_peaks(
    scores: NDArray[np.float32],
    classes: NDArray[np.int64],
    floor: float,
    width: int,
    request: NDArray[np.int64],
    cell: NDArray[np.int64],
    kept: NDArray[np.float32],
) -> int: ...
