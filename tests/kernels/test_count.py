"""Counting and scoring: cpu equal to the reference in every bit, and both equal to values worked by hand."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tallymill.errors import UsageError
from tallymill.kernels import count
from tallymill.kernels.count import (
    MAX_RISING_TAU,
    Scores,
    accumulate,
    calibrate,
    raw_thresholds,
    reference,
    score,
    select,
    threshold,
)

BOTH = pytest.mark.parametrize("impl", ["cpu", "reference"])
SHIPPED = [0.93, 1.0, 1.15, 1.42]


def f32(*values: Any) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def i64(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def u8(*values: int) -> NDArray[np.uint8]:
    return np.array(values, np.uint8)


def u16(*values: int) -> NDArray[np.uint16]:
    return np.array(values, np.uint16)


def bits(values: NDArray[Any]) -> NDArray[Any]:
    return values.view(f"u{values.dtype.itemsize}")


def assert_same_bits(one: NDArray[Any], other: NDArray[Any]) -> None:
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(bits(one), bits(other))


# Equation 6.


@pytest.mark.parametrize("tau", SHIPPED)
def test_calibrate_is_equal_to_the_bit(tau: float) -> None:
    first, last = np.array([0.05, 1.0], np.float32).view(np.uint32)
    dense = np.linspace(first, last - 1, 1_000_000).astype(np.uint32).view(np.float32)
    assert dense[0] == np.float32(0.05)
    assert dense[-1] == np.nextafter(np.float32(1), np.float32(0))
    assert_same_bits(calibrate(dense, tau), calibrate(dense, tau, impl="reference"))


@pytest.mark.parametrize("tau", SHIPPED)
def test_calibrate_is_the_equation(tau: float) -> None:
    for p in (0.05, 0.3, 0.5, 0.7, 0.999):
        raw = float(np.float32(p))
        expected = np.float32(1 / (1 + math.exp(-math.log(raw / (1 - raw)) / tau)))
        assert calibrate(f32(p), tau)[0] == expected
    assert calibrate(f32(0.5), tau)[0] == 0.5


@BOTH
def test_calibrate_ends(impl: str) -> None:
    tiny, almost = np.float32(1e-45), np.nextafter(np.float32(1), np.float32(0))
    for tau in (1e-300, 0.05, 1.42, 1e300):
        ends = calibrate(f32(0, 1, -0.0), tau, impl=impl)
        assert_same_bits(ends, f32(0, 1, -0.0))
        low, high = calibrate(f32(tiny, almost), tau, impl=impl)
        assert 0 <= low <= 0.5 <= high <= 1
    assert calibrate(f32(tiny), 1e-300, impl=impl)[0] == 0
    assert calibrate(f32(almost), 1e-300, impl=impl)[0] == 1
    assert calibrate(np.empty(0, np.float32), 1.0, impl=impl).shape == (0,)


@pytest.mark.parametrize("tau", [0.016, 0.05, *SHIPPED, 20.0, 1e9])
def test_calibrate_is_the_definition_down_to_the_least_confidence(tau: float) -> None:
    """Evaluated several at a time, or one by one as the equation says: the same."""
    bits_of_some = np.random.default_rng(5).integers(0, f32(1).view(np.uint32)[0] + 1, 20_000)
    some = np.append(bits_of_some, [0, 1, f32(1).view(np.uint32)[0]]).astype(np.uint32).view(np.float32)
    rho = calibrate(some, tau)
    for raw, got in zip(some.astype(np.float64).tolist(), rho.tolist(), strict=True):
        try:
            expected = 1 / (1 + math.exp(-math.log(raw / (1 - raw)) / tau)) if 0 < raw < 1 else raw
        except OverflowError:
            expected = 0.0
        assert got == np.float32(expected)
    for few in range(1, 35):
        assert_same_bits(calibrate(some[:few], tau), rho[:few])


def test_temperature_one_leaves_confidences_as_they_are() -> None:
    every = np.arange(0, f32(1).view(np.uint32)[0] + 1, 999, dtype=np.uint32).view(np.float32)
    assert_same_bits(calibrate(every, 1.0), every)
    np.testing.assert_array_equal(calibrate(every, 1.0, impl="reference"), every)


@BOTH
def test_calibrate_takes_strides_and_leaves_its_input(impl: str) -> None:
    values = f32(0.1, 0.2, 0.3, 0.4)
    assert_same_bits(calibrate(values[::2], 1.15, impl=impl), calibrate(f32(0.1, 0.3), 1.15, impl=impl))
    assert_same_bits(values, f32(0.1, 0.2, 0.3, 0.4))


def test_calibrate_rises_with_confidence() -> None:
    dense = np.linspace(0, 1, 100_001).astype(np.float32)
    for tau in SHIPPED:
        assert (np.diff(calibrate(dense, tau)) >= 0).all()


# Equation 7.


def test_threshold_table() -> None:
    table = threshold(np.arange(1, 101, dtype=np.uint16)).tolist()
    assert table[:3] == [0.7] * 3
    assert table[9:] == [0.3] * 91
    assert table[3:9] == [0.7 - 0.4 * (n - 3) / 7 for n in range(4, 10)]
    # The same in exact arithmetic, rounded after each operation and nowhere else.
    for n in range(4, 10):
        product = float(Fraction(0.4) * (n - 3))
        assert table[n - 1] == float(Fraction(0.7) - Fraction(float(Fraction(product) / 7)))


def test_threshold_of_large_and_no_counts() -> None:
    assert threshold(u16(65535)).tolist() == [0.3]
    assert threshold(u16()).shape == (0,)


# Equation 6 turned round.


@pytest.mark.parametrize("tau", [0.05, *SHIPPED, 20.0])
def test_raw_thresholds_tell_what_calibrated_ones_do(tau: float) -> None:
    """Around the boundary of every count that can be asked for, and of other thresholds."""
    thresholds = np.concatenate([threshold(np.arange(1, 101, dtype=np.uint16)), np.linspace(0.001, 0.999, 101)])
    raw = raw_thresholds(thresholds, tau)
    near = raw.view(np.int32)[:, None] + np.arange(-200, 201)
    p = np.clip(near, 0, f32(1).view(np.int32)[0]).astype(np.int32).view(np.float32)
    counts = calibrate(p.ravel(), tau).reshape(p.shape).astype(np.float64) >= thresholds[:, None]
    np.testing.assert_array_equal(p >= raw[:, None], counts)
    assert_same_bits(raw, raw_thresholds(thresholds, tau, impl="reference"))


@pytest.mark.parametrize("tau", [0.05, 0.93, 20.0])
def test_raw_thresholds_far_from_the_boundary(tau: float) -> None:
    p = np.append(np.linspace(0, 1, 20_001), [1e-45, 1e-38]).astype(np.float32)
    for at in (1e-300, 1e-9, 0.3, 0.5, 0.7, 1 - 1e-12, 1.0):
        raw = raw_thresholds(np.array([at]), tau)
        np.testing.assert_array_equal(p >= raw, calibrate(p, tau).astype(np.float64) >= at)


@BOTH
def test_raw_thresholds_at_the_ends(impl: str) -> None:
    ends = np.array([-np.inf, -1.0, 0.0, -0.0, 1.0, np.nextafter(1.0, 2.0), np.inf])
    raw = raw_thresholds(ends, 20.0, impl=impl)
    assert raw.tolist() == [0.0, 0.0, 0.0, 0.0, 1.0, math.inf, math.inf]
    assert raw.dtype == np.float32
    # With a small temperature a confidence below 1 is calibrated to 1.
    assert raw_thresholds(np.array([1.0]), 0.05, impl=impl)[0] < 0.8
    assert raw_thresholds(np.empty(0), 1.0, impl=impl).shape == (0,)


@BOTH
def test_raw_thresholds_refuses(impl: str) -> None:
    with pytest.raises(ValueError, match=r"thresholds: .* got nan at 1"):
        raw_thresholds(np.array([0.3, np.nan]), 1.0, impl=impl)
    with pytest.raises(TypeError, match="thresholds: wanted dtype float64, got float32"):
        raw_thresholds(f32(0.3), 1.0, impl=impl)
    with pytest.raises(ValueError, match="tau: wanted at most 1048576, got 1048577"):
        raw_thresholds(np.array([0.3]), MAX_RISING_TAU + 1, impl=impl)
    with pytest.raises(ValueError, match="tau: wanted a finite number above 0, got 0"):
        raw_thresholds(np.array([0.3]), 0, impl=impl)


# Accumulation.


def tally(
    confidence: NDArray[np.float32],
    target: NDArray[np.uint8],
    item_offsets: NDArray[np.int64],
    target_offsets: NDArray[np.int64],
    thresholds: NDArray[np.float64],
    tau: float,
    impl: str,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    soft, hard = np.zeros(len(thresholds)), np.zeros(len(thresholds), np.int64)
    accumulate(confidence, target, item_offsets, target_offsets, thresholds, tau, soft, hard, impl=impl)
    return soft, hard


def one_target(confidence: NDArray[np.float32], at: float, tau: float, impl: str = "cpu") -> tuple[float, int]:
    boxes = len(confidence)
    soft, hard = tally(confidence, np.zeros(boxes, np.uint8), i64(0, boxes), i64(0, 1), np.array([at]), tau, impl)
    return float(soft[0]), int(hard[0])


@BOTH
def test_float32_of_a_threshold_may_be_below_it(impl: str) -> None:
    assert float(np.float32(0.7)) < 0.7
    assert one_target(f32(0.7), 0.7, 1.0, impl) == (0.0, 1)
    above = np.nextafter(np.float32(0.7), np.float32(1))
    assert one_target(f32(above), 0.7, 1.0, impl) == (float(above), 1)
    # float32(0.3) is above 0.3, and equality counts.
    assert one_target(f32(0.3), 0.3, 1.0, impl) == (float(np.float32(0.3)), 0)
    assert one_target(f32(0.5), 0.5, 1.42, impl) == (0.5, 1)
    assert one_target(f32(np.nextafter(np.float32(0.5), np.float32(0))), 0.3, 1.0, impl)[1] == 0


@BOTH
def test_boxes_go_to_their_own_targets(impl: str) -> None:
    soft, hard = tally(
        f32(0.75, 0.5, 0.25, 1.0, 0.75),
        u8(1, 0, 1, 0, 1),
        i64(0, 3, 3, 5),
        i64(0, 2, 3, 5),
        np.array([0.3, 0.3, 0.3, 0.9, 0.3]),
        1.0,
        impl,
    )
    assert soft.tolist() == [0.5, 0.75, 0.0, 1.0, 0.75]
    assert hard.tolist() == [1, 1, 0, 1, 1]


@BOTH
def test_detectors_add_up_in_place(impl: str) -> None:
    soft, hard = np.array([10.0]), i64(3)
    for tau in (1.0, 2.0):
        accumulate(f32(0.5, 0.9), u8(0, 0), i64(0, 2), i64(0, 1), np.array([0.3]), tau, soft, hard, impl=impl)
    rho = [float(calibrate(f32(0.9), tau)[0]) for tau in (1.0, 2.0)]
    assert soft.tolist() == [10.0 + 0.5 + rho[0] + 0.5 + rho[1]]
    assert hard.tolist() == [7]


@BOTH
def test_sums_follow_the_stored_order(impl: str) -> None:
    small = np.float32(2.0**-60)
    soft = np.array([1.0])
    accumulate(np.full(2, small), u8(0, 0), i64(0, 2), i64(0, 1), np.array([0.0]), 1.0, soft, i64(0), impl=impl)
    assert soft[0] == 1.0  # each is lost on its own
    assert one_target(f32(small, small, 1.0), 0.0, 1.0, impl)[0] == 1.0
    forward, _ = one_target(f32(1.0, 2.0**-53, 2.0**-53), 0.0, 1.0, impl)
    backward, _ = one_target(f32(2.0**-53, 2.0**-53, 1.0), 0.0, 1.0, impl)
    assert forward == 1.0
    assert backward == 1.0 + 2.0**-52


@pytest.mark.parametrize("low", [2.0**-20, 0.05])
@pytest.mark.parametrize("seed", range(5))
def test_sums_of_1024_boxes_are_exact_in_any_order(seed: int, low: float) -> None:
    rng = np.random.default_rng(seed)
    confidence = np.exp(rng.uniform(np.log(low), 0, 1024)).astype(np.float32)
    confidence[0] = low
    exact = float(sum(map(Fraction, confidence.tolist())))
    assert Fraction(exact) == sum(map(Fraction, confidence.tolist()))
    for _ in range(3):
        assert one_target(confidence, 0.0, 1.0)[0] == exact
        rng.shuffle(confidence)
    assert one_target(confidence, 0.0, 1.0, "reference")[0] == exact


@pytest.mark.parametrize("tau", [0.05, *SHIPPED, 20.0])
def test_hard_counts_do_not_depend_on_temperature(tau: float) -> None:
    confidence = np.random.default_rng(1).random(2000).astype(np.float32)
    confidence[:3] = [0.5, np.nextafter(np.float32(0.5), np.float32(0)), np.nextafter(np.float32(0.5), np.float32(1))]
    expected = int((confidence >= 0.5).sum())
    assert one_target(confidence, 0.3, tau)[1] == expected


def test_hard_counts_look_at_raw_confidence() -> None:
    below = np.nextafter(np.float32(0.5), np.float32(0))
    assert calibrate(f32(below), 20.0)[0] == 0.5  # rounding reaches the threshold
    assert one_target(f32(below), 0.3, 20.0) == (0.5, 0)


@BOTH
@pytest.mark.parametrize("items", [0, 2])
def test_nothing_to_add(items: int, impl: str) -> None:
    nothing = np.empty(0, np.float32), np.empty(0, np.uint8)
    offsets = np.zeros(items + 1, np.int64)
    soft, hard = tally(*nothing, offsets, offsets, np.empty(0), 1.0, impl)
    assert soft.shape == hard.shape == (0,)


def scene(seed: int) -> dict[str, Any]:
    """A batch of items with 0 to 3 targets, boxes only where there is a target, thresholds of equation 7."""
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, 4, rng.integers(0, 12))
    boxes = np.where(targets > 0, rng.integers(0, 40, len(targets)), 0)
    requested = rng.integers(1, 14, targets.sum()).astype(np.uint16)
    confidence = rng.random(boxes.sum()).astype(np.float32)
    known = [0.0, 1.0, 0.3, 0.5, 0.7]
    confidence[::7] = rng.choice(np.array(known, np.float32), len(confidence[::7]))
    return {
        "confidence": confidence,
        "target": rng.integers(0, np.repeat(targets, boxes)).astype(np.uint8),
        "item_offsets": np.cumsum([0, *boxes], dtype=np.int64),
        "target_offsets": np.cumsum([0, *targets], dtype=np.int64),
        "thresholds": threshold(requested),
        "requested": requested,
        "covering": rng.integers(0, 4, len(requested)).astype(np.uint8),
    }


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**32 - 1), st.sampled_from(SHIPPED))
def test_random_batches_from_boxes_to_scores(seed: int, tau: float) -> None:
    batch = scene(seed)
    requested, covering = batch.pop("requested"), batch.pop("covering")
    soft, hard = tally(**batch, tau=tau, impl="cpu")
    oracle_soft, oracle_hard = tally(**batch, tau=tau, impl="reference")
    assert_same_bits(soft, oracle_soft)
    assert_same_bits(hard, oracle_hard)
    scores = score(soft, hard, covering, requested, batch["target_offsets"])
    oracle = score(soft, hard, covering, requested, batch["target_offsets"], impl="reference")
    for one, other in zip(scores, oracle, strict=True):
        np.testing.assert_array_equal(one, other)
        assert_same_bits(one[~np.isnan(one)], other[~np.isnan(other)])


def crowd(seed: int, targets: NDArray[np.int64], boxes: NDArray[np.int64]) -> dict[str, Any]:
    """Items with so many targets and boxes; confidences in [0, 1] with the ends and the least ones among them."""
    rng = np.random.default_rng(seed)
    confidence = rng.random(boxes.sum()).astype(np.float32)
    confidence[::5] = rng.choice(f32(0, 1, 0.5, 0.3, 1e-45, 1e-38, 0.7), len(confidence[::5]))
    return {
        "confidence": confidence,
        "target": rng.integers(0, np.repeat(np.minimum(targets, 256), boxes)).astype(np.uint8),
        "item_offsets": np.cumsum([0, *boxes], dtype=np.int64),
        "target_offsets": np.cumsum([0, *targets], dtype=np.int64),
        "thresholds": rng.choice(np.array([0.0, 0.3, 0.5, 0.7, 1.0]), targets.sum()),
    }


CROWDS = {
    "many boxes an item": (i64(1, 2, 1, 0, 1), i64(1025, 3000, 0, 0, 2048)),
    "many targets an item": (i64(3, 127, 128, 129, 255, 256, 300, 0), i64(9, 200, 200, 200, 500, 500, 500, 0)),
    "empty items on the edges of a block": (i64(1, 1, 0, 1, 2, 1, 1), i64(2048, 0, 0, 0, 2048, 0, 1)),
    "one box an item": (np.full(5000, 1), np.full(5000, 1)),
    "nearly a block": (i64(1, 1, 1), i64(2047, 1, 1)),
}


@pytest.mark.parametrize("tau", [0.01, 0.93, 1.0, 20.0, 1e9])
@pytest.mark.parametrize("kind", CROWDS)
def test_crowds(kind: str, tau: float) -> None:
    batch = crowd(1, *CROWDS[kind])
    expected = tally(**batch, tau=tau, impl="reference")
    for one, other in zip(tally(**batch, tau=tau, impl="cpu"), expected, strict=True):
        assert_same_bits(one, other)


def test_more_thresholds_than_are_remembered() -> None:
    batch = crowd(2, np.full(1000, 2), np.full(1000, 7))
    batch["thresholds"] = np.random.default_rng(3).random(2000)
    expected = tally(**batch, tau=1.15, impl="reference")
    for one, other in zip(tally(**batch, tau=1.15, impl="cpu"), expected, strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 256])
def test_threads_change_no_bit(threads: int) -> None:
    batch = crowd(4, np.random.default_rng(4).integers(0, 4, 5000) + 1, np.random.default_rng(5).integers(0, 30, 5000))
    soft, hard = tally(**batch, tau=1.42, impl="cpu")
    again, votes = np.zeros_like(soft), np.zeros_like(hard)
    accumulate(**batch, tau=1.42, soft=again, hard=votes, threads=threads)
    assert_same_bits(again, soft)
    assert_same_bits(votes, hard)
    batch["target"][-1] = 255
    with pytest.raises(ValueError, match="names target 255"):
        accumulate(**batch, tau=1.42, soft=again, hard=votes, threads=threads)
    assert_same_bits(again, soft)


@BOTH
def test_soft_or_hard_counts_alone(impl: str) -> None:
    batch = crowd(6, i64(1, 2, 5, 0), i64(10, 20, 30, 0))
    expected_soft, expected_hard = tally(**batch, tau=1.15, impl=impl)
    soft, hard = np.zeros_like(expected_soft), np.zeros_like(expected_hard)
    accumulate(**batch, tau=1.15, soft=soft, hard=None, impl=impl)
    assert_same_bits(soft, expected_soft)
    accumulate(**(batch | {"thresholds": None}), tau=1.15, soft=None, hard=hard, impl=impl)
    assert_same_bits(hard, expected_hard)
    with pytest.raises(TypeError, match="soft, hard: wanted at least one of them"):
        accumulate(**batch, tau=1.15, soft=None, hard=None, impl=impl)
    with pytest.raises(TypeError, match=r"thresholds: .* for soft counts, got None"):
        accumulate(**(batch | {"thresholds": None}), tau=1.15, soft=soft, hard=None, impl=impl)
    batch["target"][5] = 1
    with pytest.raises(ValueError, match="box 5 of item 0 names target 1"):
        accumulate(**batch, tau=1.15, soft=soft, hard=None, impl=impl)


@pytest.mark.parametrize("targets", [1, 2, 3, 127, 128, 129, 255])
def test_a_target_that_is_not_there_is_found_anywhere(targets: int) -> None:
    for at in (0, 6, 7, 8, 19):
        for named in (targets, 255):
            which = np.zeros(20, np.uint8)
            which[at] = named
            hard = np.zeros(targets, np.int64)
            with pytest.raises(ValueError, match=f"target: box {at} of item 0 names target {named}"):
                accumulate(np.ones(20, np.float32), which, i64(0, 20), i64(0, targets), None, 1.0, None, hard)
            assert not hard.any()


# Equations 5 and 8.


@BOTH
def test_three_cats_and_two_dogs_asked_and_five_cats_seen(impl: str) -> None:
    scores = score(np.array([5.0, 0.0]), i64(5, 0), u8(1, 1), u16(3, 2), i64(0, 2), impl=impl)
    assert scores.cw_nps.tolist() == [0.16666666666666674]
    assert scores.b_nps.tolist() == [0.16666666666666674]
    assert isinstance(scores, Scores)


@BOTH
def test_counts_are_per_covering_detector(impl: str) -> None:
    scores = score(np.array([6.0, 1.0]), i64(7, 2), u8(3, 2), u16(2, 1), i64(0, 1, 2), impl=impl)
    assert scores.soft_count.tolist() == [2.0, 0.5]
    assert scores.hard_count.tolist() == [7 / 3, 1.0]
    assert scores.cw_nps.tolist() == [1.0, 0.5]
    assert scores.b_nps.tolist() == [1 - abs(7 / 3 - 2) / 2, 1.0]


@BOTH
def test_far_too_many_scores_zero(impl: str) -> None:
    scores = score(np.array([500.0, 2.0]), i64(500, 2), u8(1, 1), u16(1, 2), i64(0, 2), impl=impl)
    assert_same_bits(scores.cw_nps, np.array([0.0]))
    assert_same_bits(scores.b_nps, np.array([0.0]))


@BOTH
def test_no_reciprocals_and_no_contraction(impl: str) -> None:
    """All n up to 100 against Python's own float64, in which every operation rounds on its own."""
    n = np.arange(1, 101, dtype=np.uint16)
    soft = np.random.default_rng(2).random(100) * 3 * n
    scores = score(soft, n.astype(np.int64), np.full(100, 3, np.uint8), n, np.arange(0, 101, 2), impl=impl)
    errors = [abs(s / 3 - wanted) / wanted for s, wanted in zip(soft.tolist(), n.tolist(), strict=True)]
    expected = [max(0.0, 1 - (errors[i] + errors[i + 1]) / 2) for i in range(0, 100, 2)]
    assert scores.cw_nps.tolist() == expected
    products = [abs(s * (1 / 3) - wanted) * (1 / wanted) for s, wanted in zip(soft.tolist(), n.tolist(), strict=True)]
    assert expected != [max(0.0, 1 - (products[i] + products[i + 1]) / 2) for i in range(0, 100, 2)]


@BOTH
def test_errors_are_summed_in_target_order(impl: str) -> None:
    soft = np.random.default_rng(3).random(60)
    ones = np.ones(60, np.int64)
    scores = score(soft, ones, ones.astype(np.uint8), ones.astype(np.uint16), np.arange(0, 61, 3), impl=impl)
    errors = [abs(s - 1) for s in soft.tolist()]
    triples = list(zip(errors[::3], errors[1::3], errors[2::3], strict=True))
    forward = [1 - (a + b + c) / 3 for a, b, c in triples]
    assert scores.cw_nps.tolist() == forward
    assert forward != [1 - (c + b + a) / 3 for a, b, c in triples]


@BOTH
def test_uncovered_and_targetless_items_have_no_score(impl: str) -> None:
    scores = score(
        np.array([2.0, 0.0, 3.0, 9.0]), i64(2, 0, 3, 9), u8(1, 0, 1, 0), u16(2, 1, 3, 1), i64(0, 2, 2, 3, 4), impl=impl
    )
    for counts in (scores.soft_count, scores.hard_count):
        np.testing.assert_array_equal(counts, [2.0, np.nan, 3.0, np.nan])
    for values in (scores.cw_nps, scores.b_nps):
        np.testing.assert_array_equal(values, [np.nan, np.nan, 1.0, np.nan])


@BOTH
def test_no_items(impl: str) -> None:
    scores = score(np.empty(0), i64(), u8(), u16(), i64(0), impl=impl)
    assert [part.shape for part in scores] == [(0,)] * 4
    assert [part.dtype for part in scores] == [np.float64] * 4


# Arguments.


def adding() -> dict[str, Any]:
    return {
        "confidence": f32(0.5, 0.6, 0.7),
        "target": u8(0, 1, 0),
        "item_offsets": i64(0, 2, 3),
        "target_offsets": i64(0, 2, 3),
        "thresholds": np.array([0.3, 0.3, 0.3]),
        "tau": 1.15,
        "soft": np.zeros(3),
        "hard": i64(0, 0, 0),
    }


def scoring() -> dict[str, Any]:
    return {
        "soft": np.array([1.0, 2.0]),
        "hard": i64(1, 2),
        "covering": u8(1, 1),
        "requested": u16(1, 2),
        "target_offsets": i64(0, 2),
    }


def read_only(values: NDArray[Any]) -> NDArray[Any]:
    values.setflags(write=False)
    return values


@BOTH
@pytest.mark.parametrize(
    ("argument", "value", "error", "message"),
    [
        ("confidence", [0.5], TypeError, "confidence: wanted a NumPy array of float32, got list"),
        ("confidence", np.zeros(3), TypeError, "confidence: wanted dtype float32, got float64"),
        ("confidence", f32(0.5, np.nan, 0.7), ValueError, r"confidence: wanted values in \[0, 1\], got nan at 1"),
        ("confidence", f32(0.5, 0.6, 1.5), ValueError, r"confidence: wanted values in \[0, 1\], got 1.5 at 2"),
        ("confidence", f32(-0.5, 0.6, 0.5), ValueError, r"confidence: wanted values in \[0, 1\], got -0.5 at 0"),
        ("target", u8(0, 1), ValueError, r"target: wanted shape \[3\], got \[2\]"),
        ("target", i64(0, 1, 0), TypeError, "target: wanted dtype uint8, got int64"),
        ("target", u8(0, 2, 0), ValueError, "target: box 1 of item 0 names target 2, but the item has 2"),
        ("target", u8(0, 1, 1), ValueError, "target: box 2 of item 1 names target 1, but the item has 1"),
        ("item_offsets", i64(0, 3), ValueError, "target_offsets: .* items as item_offsets, 1, got 2"),
        ("item_offsets", i64(0, 4, 3), ValueError, "item_offsets: .* never fall, got 4, 3 at 1"),
        ("item_offsets", i64(0, 2, 4), ValueError, "item_offsets: .* end at the number of boxes, 3, got 4"),
        ("target_offsets", i64(0, 2, 2), ValueError, "target_offsets: .* end at the number of targets, 3, got 2"),
        ("target_offsets", i64(0, 0, 3), ValueError, "target: box 0 of item 0 names target 0, but the item has 0"),
        ("thresholds", f32(0.3, 0.3, 0.3), TypeError, "thresholds: wanted dtype float64, got float32"),
        ("thresholds", np.array([0.3, 1.1, 0.3]), ValueError, r"thresholds: wanted values in \[0, 1\], got 1.1 at 1"),
        ("thresholds", np.array([0.3, np.nan, 0.3]), ValueError, r"thresholds: .* got nan at 1"),
        ("threads", 0, ValueError, "threads: wanted 1 to 256, got 0"),
        ("threads", 257, ValueError, "threads: wanted 1 to 256, got 257"),
        ("tau", 0.0, ValueError, "tau: wanted a finite number above 0, got 0.0"),
        ("tau", math.inf, ValueError, "tau: wanted a finite number above 0, got inf"),
        ("tau", math.nan, ValueError, "tau: wanted a finite number above 0, got nan"),
        ("soft", np.zeros(2), ValueError, r"soft: wanted shape \[3\], got \[2\]"),
        ("soft", np.zeros(3, np.float32), TypeError, "soft: wanted dtype float64, got float32"),
        ("soft", np.zeros(6)[::2], ValueError, "soft: .* changed in place"),
        ("hard", np.zeros(6, np.int64)[::2], ValueError, "hard: .* changed in place"),
        ("hard", read_only(i64(0, 0, 0)), ValueError, "hard: .* writable"),
        ("hard", np.zeros(3), TypeError, "hard: wanted dtype int64, got float64"),
    ],
)
def test_wrong_arguments_add_nothing(
    argument: str, value: Any, error: type[Exception], message: str, impl: str
) -> None:
    arguments = adding() | {argument: value}
    with pytest.raises(error, match=message):
        accumulate(**arguments, impl=impl)
    assert not arguments["soft"].any()
    assert not arguments["hard"].any()


@pytest.mark.parametrize(
    ("argument", "value", "error", "message"),
    [
        ("soft", np.array([1.0, np.nan]), ValueError, r"soft: wanted values in \[0, inf\), got nan at 1"),
        ("soft", np.array([1.0, np.inf]), ValueError, r"soft: wanted values in \[0, inf\), got inf at 1"),
        ("soft", np.array([-1.0, 0.0]), ValueError, r"soft: wanted values in \[0, inf\), got -1.0 at 0"),
        ("hard", i64(1, -2), ValueError, r"hard: wanted values in \[0, 2\^63\), got -2 at 1"),
        ("hard", i64(1), ValueError, r"hard: wanted shape \[2\], got \[1\]"),
        ("covering", i64(1, 1), TypeError, "covering: wanted dtype uint8, got int64"),
        ("requested", i64(1, 1), TypeError, "requested: wanted dtype uint16, got int64"),
        ("requested", u16(1, 0), ValueError, "requested: wanted counts of at least 1, got 0 at 1"),
        ("target_offsets", i64(0, 1), ValueError, "target_offsets: .* end at the number of targets, 2, got 1"),
    ],
)
def test_wrong_arguments_of_score(argument: str, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        score(**(scoring() | {argument: value}))


def test_wrong_arguments_of_the_others() -> None:
    with pytest.raises(ValueError, match="tau: wanted a finite number above 0, got -1"):
        calibrate(f32(0.5), -1)
    with pytest.raises(ValueError, match=r"confidence: wanted shape \[any\], got \[1, 1\]"):
        calibrate(f32(0.5).reshape(1, 1), 1)
    with pytest.raises(ValueError, match="requested: wanted counts of at least 1, got 0 at 0"):
        threshold(u16(0))
    with pytest.raises(TypeError, match="requested: wanted dtype uint16, got int64"):
        threshold(np.arange(1, 3))


def test_strided_and_read_only_inputs() -> None:
    expected = tally(**{name: value for name, value in adding().items() if name not in ("soft", "hard")}, impl="cpu")
    arguments = adding()
    for name in ("confidence", "target", "item_offsets", "target_offsets", "thresholds"):
        arguments[name] = read_only(np.repeat(arguments[name], 2))[::2]
    accumulate(**arguments)
    assert_same_bits(arguments["soft"], expected[0])
    assert_same_bits(arguments["hard"], expected[1])
    strided: dict[str, Any] = {name: np.repeat(value, 2)[::2] for name, value in scoring().items()}
    for one, other in zip(score(**strided), score(**scoring()), strict=True):
        assert_same_bits(one, other)


def test_select() -> None:
    assert [select(name) for name in ("auto", "cpu", "reference")] == ["cpu", "cpu", "reference"]
    assert (select("auto", "cuda"), select("gpu"), select("cpu", "cuda")) == ("gpu", "gpu", "cpu")
    with pytest.raises(UsageError, match="count: no implementation 'fast'"):
        select("fast")


@pytest.mark.parametrize("name", ["calibrate", "raw_thresholds", "accumulate", "score"])
def test_a_named_implementation_runs_or_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {
        "calibrate": {"confidence": f32(0.5), "tau": 1.0},
        "raw_thresholds": {"thresholds": np.array([0.3]), "tau": 1.15},
        "accumulate": adding(),
        "score": scoring(),
    }[name]
    ran: list[str] = []
    original = getattr(reference, name)

    def recorded(*args: Any) -> Any:
        ran.append(name)
        return original(*args)

    monkeypatch.setattr(reference, name, recorded)
    operation = getattr(count, name)
    operation(**arguments)
    operation(**arguments, impl="cpu")
    assert ran == []
    operation(**arguments, impl="reference")
    assert ran == [name]
    with pytest.raises(UsageError, match="no implementation 'numba'"):
        operation(**arguments, impl="numba")
