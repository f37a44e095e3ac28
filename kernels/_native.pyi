# The compiled module takes only NumPy arrays that the public functions have checked; outputs are filled in place.
from typing import Any

import numpy as np
from numpy.typing import NDArray

def paths() -> list[str]: ...
def nms(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    offsets: NDArray[np.int64],
    iou_threshold: float,
    score_threshold: float,
    threads: int,
    path: str,
    indices: NDArray[np.int64],
    kept_offsets: NDArray[np.int64],
) -> int: ...
def soft_nms(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    offsets: NDArray[np.int64],
    gaussian: bool,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    threads: int,
    indices: NDArray[np.int64],
    kept_offsets: NDArray[np.int64],
    kept_scores: NDArray[np.float32],
) -> int: ...
def count_tally(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    offsets: NDArray[np.int64],
    iou_threshold: float,
    tau: float,
    least: NDArray[np.float32],
    thresholds: NDArray[np.float64],
    threads: int,
    soft: NDArray[np.float64],
    hard: NDArray[np.int64],
) -> bool: ...
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
def candidates(
    logits: NDArray[np.float32],
    boxes: NDArray[np.float32],
    columns: NDArray[np.int32],
    edges: NDArray[np.int32],
    requests: NDArray[np.int32],
    scale: NDArray[np.float32],
    least: float,
    found: NDArray[np.float32],
    best: NDArray[np.float32],
    request: NDArray[np.int64],
    saturated: NDArray[np.bool_],
    finite: NDArray[np.bool_],
    offsets: NDArray[np.int64],
) -> int: ...
def mask_iou(
    a_words: NDArray[np.uint64],
    a_start: NDArray[np.int64],
    a_area: NDArray[np.int64],
    a_box: NDArray[np.int32],
    b_words: NDArray[np.uint64],
    b_start: NDArray[np.int64],
    b_area: NDArray[np.int64],
    b_box: NDArray[np.int32],
    portable: bool,
    threads: int,
    iou: NDArray[np.float64],
) -> None: ...
def masks_lay_out(box: NDArray[np.int32], start: NDArray[np.int64]) -> int: ...
def masks_misplaced(box: NDArray[np.int32], start: NDArray[np.int64], words: int, height: int, width: int) -> int: ...
def masks_measure_arrays(arrays: NDArray[np.uint8], box: NDArray[np.int32]) -> None: ...
def masks_pack_arrays(
    arrays: NDArray[np.uint8],
    box: NDArray[np.int32],
    start: NDArray[np.int64],
    words: NDArray[np.uint64],
    area: NDArray[np.int64],
) -> None: ...
def masks_rle_decode(
    text: bytes,
    text_offsets: NDArray[np.int64],
    most: int,
    counts: NDArray[np.int64],
    offsets: NDArray[np.int64],
) -> tuple[int, int]: ...
def masks_rle_measure(
    counts: NDArray[np.int64],
    offsets: NDArray[np.int64],
    height: int,
    width: int,
    box: NDArray[np.int32],
    area: NDArray[np.int64],
) -> int: ...
def masks_rle_pack(
    counts: NDArray[np.int64],
    offsets: NDArray[np.int64],
    height: int,
    box: NDArray[np.int32],
    start: NDArray[np.int64],
    words: NDArray[np.uint64],
) -> None: ...
def masks_measure_ids(
    image: NDArray[Any], ids: NDArray[np.uint32], box: NDArray[np.int32], area: NDArray[np.int64]
) -> None: ...
def masks_pack_ids(
    image: NDArray[Any],
    ids: NDArray[np.uint32],
    box: NDArray[np.int32],
    start: NDArray[np.int64],
    words: NDArray[np.uint64],
) -> None: ...
def masks_ids_of_colours(rgb: NDArray[np.uint8], ids: NDArray[np.uint32]) -> None: ...
def assign_dense_f32(
    costs: NDArray[np.float32],
    rows: int,
    columns: int,
    maximize: bool,
    threads: int,
    path: str,
    column: NDArray[np.int64],
    total: NDArray[np.float64],
    complete: NDArray[np.bool_],
    undefined: NDArray[np.int64],
) -> int: ...
def assign_dense_f64(
    costs: NDArray[np.float64],
    rows: int,
    columns: int,
    maximize: bool,
    threads: int,
    path: str,
    column: NDArray[np.int64],
    total: NDArray[np.float64],
    complete: NDArray[np.bool_],
    undefined: NDArray[np.int64],
) -> int: ...
def assign_ragged_f32(
    costs: NDArray[np.float32],
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    starts: NDArray[np.int64],
    row_starts: NDArray[np.int64],
    maximize: bool,
    threads: int,
    path: str,
    column: NDArray[np.int64],
    total: NDArray[np.float64],
    complete: NDArray[np.bool_],
    undefined: NDArray[np.int64],
) -> int: ...
def assign_ragged_f64(
    costs: NDArray[np.float64],
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    starts: NDArray[np.int64],
    row_starts: NDArray[np.int64],
    maximize: bool,
    threads: int,
    path: str,
    column: NDArray[np.int64],
    total: NDArray[np.float64],
    complete: NDArray[np.bool_],
    undefined: NDArray[np.int64],
) -> int: ...
def match(
    boxes_a: NDArray[np.float32],
    offsets_a: NDArray[np.int64],
    boxes_b: NDArray[np.float32],
    offsets_b: NDArray[np.int64],
    gate: float,
    threads: int,
    path: str,
    partner: NDArray[np.int64],
    iou: NDArray[np.float32],
) -> int: ...
