import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymill.engine.numbench import labelling
from tallymill.engine.numbench.labelling import label_proposals, pair_iou
from tallymill.errors import UsageError


def one_by_one(boxes, confidence, target, truth_boxes, truth_target, iou=0.5):
    """The procedure as it is told: proposal after proposal, the surest first."""
    free = np.ones(len(truth_target), np.bool_)
    label = np.zeros(len(confidence), np.bool_)
    for i in np.argsort(-np.asarray(confidence, np.float64), kind="stable"):
        overlap = pair_iou(np.repeat(boxes[i : i + 1], len(truth_boxes), axis=0), truth_boxes)
        overlap = np.where(free & (truth_target == target[i]), overlap, -1.0)
        if len(overlap) and overlap.max() >= iou:
            label[i] = True
            free[overlap.argmax()] = False
    return label


def crowd(rng, proposals, truths, targets):
    """Boxes on a coarse grid: IoUs and confidences tie, and many want the same box."""

    def boxes(n):
        corner = rng.integers(0, 4, (n, 2))
        return np.concatenate([corner, corner + rng.integers(1, 5, (n, 2))], axis=1).astype(np.float64)

    confidence = (rng.integers(0, 6, proposals) / 8).astype(np.float32)
    sets = rng.integers(0, targets, proposals), rng.integers(0, targets, truths)
    return boxes(proposals), confidence, sets[0], boxes(truths), sets[1]


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 40),
    st.integers(0, 25),
    st.integers(1, 4),
    st.sampled_from([1, 7, 1 << 18]),
)
def test_all_at_once_is_one_by_one(seed: int, proposals: int, truths: int, targets: int, pairs: int) -> None:
    case = crowd(np.random.default_rng(seed), proposals, truths, targets)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labelling, "PAIRS_AT_ONCE", pairs)
        for iou in (0.5, 0.2):
            boxes, confidence, target, truth_boxes, truth_target = case
            ours = label_proposals(boxes, confidence, target, truth_boxes, truth_target, iou)
            theirs = one_by_one(boxes, confidence, target, truth_boxes, truth_target, iou)
            assert ours.tolist() == theirs.tolist()


def test_a_long_chain_of_displaced_proposals() -> None:
    # Every proposal fits every truth; the surest come last, so that each round throws out many.
    boxes = np.array([[0.0, 0.0, 100.0, 100.0 + k / 10] for k in range(60)])
    confidence = np.linspace(0.1, 0.9, 60).astype(np.float32)
    same = np.zeros(60, np.int64)
    label = label_proposals(boxes, confidence, same, boxes[:40], same[:40])
    assert label.tolist() == one_by_one(boxes, confidence, same, boxes[:40], same[:40]).tolist()
    assert label.sum() == 40


def label(
    boxes: list[list[float]], p: list[float], target: list[int], truth: list[list[float]], of: list[int]
) -> list[bool]:
    return label_proposals(boxes, p, target, truth, of).tolist()


A, B = [0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0]


def test_of_two_proposals_on_one_truth_the_surer_wins() -> None:
    assert label([A, A], [0.4, 0.6], [0, 0], [A], [0]) == [False, True]


def test_ties_go_to_the_first_stored() -> None:
    assert label([A, A], [0.5, 0.5], [0, 0], [A], [0]) == [True, False]


def test_another_target_never_matches() -> None:
    assert label([A, B], [0.9, 0.9], [1, 1], [A, B], [0, 1]) == [False, True]


def test_a_proposal_takes_the_truth_it_overlaps_most() -> None:
    near, nearer = [0.0, 0.0, 10.0, 12.0], [0.0, 0.0, 10.0, 11.0]
    # The sure one takes `nearer`; the second, equal to it in place, is left `near`, and a third finds nothing.
    assert label([A, A, A], [0.9, 0.8, 0.7], [0, 0, 0], [near, nearer], [0, 0]) == [True, True, False]
    # Greedy, not optimal: the sure proposal takes the only truth that the other could have had.
    wide = [0.0, 0.0, 10.0, 16.0]
    assert label([A, [0.0, 0.0, 10.0, 5.0]], [0.9, 0.8], [0, 0], [A, wide], [0, 0]) == [True, False]


def test_iou_of_exactly_a_half_is_enough() -> None:
    half, less = [0.0, 0.0, 10.0, 5.0], [0.0, 0.0, 10.0, 4.99]
    assert label([half], [0.9], [0], [A], [0]) == [True]
    assert label([less], [0.9], [0], [A], [0]) == [False]


def test_no_truth_no_proposals_and_degenerate_boxes() -> None:
    assert label([A], [0.9], [0], [], []) == [False]
    assert label([], [], [], [A], [0]) == []
    point = [5.0, 5.0, 5.0, 5.0]
    assert label([point], [0.9], [0], [point], [0]) == [False]


def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(UsageError, match="lengths differ"):
        label_proposals([A], [0.1, 0.2], [0], [A], [0])
