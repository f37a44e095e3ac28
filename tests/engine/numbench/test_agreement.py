import math
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
import scipy.stats
from statsmodels.stats import inter_rater

from tallymill.engine.numbench.agreement import (
    Judged,
    agreement_rows,
    consensus,
    correlations,
    fleiss_kappa,
    human_scores,
)
from tallymill.errors import MissingExtraError, UsageError


def random_counts(seed: int, subjects: int, annotators: int, spread: int = 2) -> np.ndarray:
    rng = np.random.default_rng(seed)
    truth = rng.integers(1, 30, (subjects, 1))
    return np.clip(truth + rng.integers(-spread, spread + 1, (subjects, annotators)), 0, None)


@pytest.mark.parametrize("width", [1, 2, 5, 25])
@pytest.mark.parametrize(("subjects", "annotators"), [(1, 2), (40, 3), (200, 2), (77, 7)])
def test_kappa_is_that_of_statsmodels(subjects: int, annotators: int, width: int) -> None:
    counts = random_counts(subjects, subjects, annotators)
    binned = -(-counts // width)
    table, _ = inter_rater.aggregate_raters(binned)
    ours = fleiss_kappa(counts, width)
    if table.shape[1] == 1:
        assert ours is None
    else:
        assert ours == pytest.approx(inter_rater.fleiss_kappa(table), rel=1e-12, abs=1e-12)


def test_kappa_by_its_definition() -> None:
    """Three annotators, four images: by hand, Fleiss 1971."""
    counts = [[3, 3, 3], [3, 3, 4], [4, 5, 4], [5, 5, 5]]
    # Agreeing pairs: 1, 1/3, 1/3, 1. Shares: 5/12 three, 3/12 four, 4/12 five.
    observed = (1 + 1 / 3 + 1 / 3 + 1) / 4
    chance = (5**2 + 3**2 + 4**2) / 144
    assert fleiss_kappa(counts) == pytest.approx((observed - chance) / (1 - chance), rel=1e-14)
    # In bins of two, 3 and 4 are alike, and 5 is not.
    chance = (8**2 + 4**2) / 144
    observed = (1 + 1 + 1 / 3 + 1) / 4
    assert fleiss_kappa(counts, 2) == pytest.approx((observed - chance) / (1 - chance), rel=1e-14)


def test_kappa_at_its_ends() -> None:
    assert fleiss_kappa([[1, 1, 1], [2, 2, 2]]) == 1.0
    assert fleiss_kappa([[1, 2], [2, 1]]) == -1.0
    assert fleiss_kappa([[7, 7, 7], [7, 7, 7]]) is None
    assert fleiss_kappa([[0, 1], [1, 1]], 5) == pytest.approx(-1 / 3)  # nothing at all is a bin of its own
    assert fleiss_kappa([[1, 2], [5, 3]], 5) is None
    assert fleiss_kappa(np.empty((0, 3), np.int64)) is None
    assert fleiss_kappa([[1], [2]]) is None


def test_consensus_is_the_median() -> None:
    assert consensus([[3, 9, 4], [1, 1, 100]]).tolist() == [4.0, 1.0]
    assert consensus([[3, 6], [1, 1]]).tolist() == [4.5, 1.0]
    assert consensus([[9, 3, 5, 4]]).tolist() == [4.5]


def test_human_scores_are_equation_eight() -> None:
    """The worked check: three cats and two dogs asked, five cats and no dog seen."""
    counts = np.array([[5, 5, 5], [0, 0, 0], [2, 4, 3]])
    scores = human_scores(counts, np.array([3, 2, 4], np.uint16), np.array([0, 2, 3]))
    assert scores.tolist() == [0.16666666666666674, 0.75]


def judged(rows: list[Any], marks: bool = True) -> Judged:
    """Rows (system, item, [(requested, counts, soft)], score, annotators that marked its first target)."""
    targets = [target for row in rows for target in row[2]]
    return Judged(
        system=[row[0] for row in rows],
        item=[row[1] for row in rows],
        offsets=np.cumsum([0, *(len(row[2]) for row in rows)]),
        requested=np.array([t[0] for t in targets], np.uint16),
        counts=np.array([t[1] for t in targets], np.int64).reshape(len(targets), len(targets[0][1]) if targets else 3),
        soft=np.array([t[2] for t in targets], np.float64),
        cw_nps=np.array([row[3] for row in rows], np.float64),
        marks=np.array([row[4] * (t is row[2][0]) for row in rows for t in row[2]], np.int64) if marks else None,
        image_marks=np.array([row[4] for row in rows], np.int64) if marks else None,
    )


def study(seed: int = 0, images: int = 120) -> list[Any]:
    """Images of two systems, every third with two categories; every eleventh without a score."""
    rng = np.random.default_rng(seed)
    rows = []
    for k in range(images):
        targets, errors = [], []
        for _ in range(2 if k % 3 == 0 else 1):
            n = int(rng.integers(1, 101))
            seen = max(0, round(n * rng.uniform(0.4, 1.1)))
            counts = [max(0, seen + int(rng.integers(-1 - n // 20, 2 + n // 20))) for _ in range(3)]
            soft = float(seen * rng.uniform(0.8, 1.1))
            targets.append((n, counts, soft))
            errors.append(abs(soft - n) / n)
        score = max(0.0, 1.0 - sum(errors) / len(errors)) if k % 11 else math.nan
        if k % 11 == 0:
            targets = [(n, counts, math.nan) for n, counts, _ in targets]
        rows.append(("xy"[k % 2], f"i{k:03d}", targets, score, int(rng.integers(0, 4))))
    return rows


def recomputed(rows: list[Any]) -> dict[str, Any]:
    """One row of the table by scipy, statsmodels and NumPy."""
    has = [row for row in rows if not math.isnan(row[3])]
    human = [
        max(0.0, 1 - np.mean([abs(float(np.median(counts)) - n) / n for n, counts, _ in targets]))
        for _, _, targets, _, _ in has
    ]
    detector = [row[3] for row in has]
    table, _ = inter_rater.aggregate_raters(np.array([counts for row in rows for _, counts, _ in row[2]]))
    return {
        "images": len(rows),
        "scored": len(has),
        "judged": sum(len(row[2]) for row in rows),
        "kappa": inter_rater.fleiss_kappa(table),
        "pearson": scipy.stats.pearsonr(detector, human).statistic,
        "spearman": scipy.stats.spearmanr(detector, human).statistic,
        "human_cw": np.mean(human),
        "detector_cw": np.mean(detector),
        "difference": np.mean(np.abs(np.array(human) - detector)),
        "ambiguous_any": sum(row[4] >= 1 for row in rows),
        "ambiguous_most": sum(row[4] >= 2 for row in rows),
    }


def ranged(targets: list[Any], by: str) -> str:
    counts = [n for n, _, _ in targets]
    size = max(counts) if by == "max" else math.ceil(sum(counts) / len(counts))
    return ("1-25", "26-50", "51-75", "76-100")[(size - 1) // 25]


@pytest.mark.parametrize("by", ["max", "mean"])
def test_every_row_is_recomputed(by: str) -> None:
    rows = study()
    table = agreement_rows(judged(rows), ["y", "x"], range_by=by)
    assert Counter(row.system for row in table) == {"all": 5, "y": 5, "x": 5}
    assert [row.system for row in table[::5]] == ["all", "y", "x"]
    for row in table:
        mine = [r for r in rows if row.system in ("all", r[0])]
        mine = [r for r in mine if row.count_range in ("all", ranged(r[2], by))]
        for name, value in recomputed(mine).items():
            assert getattr(row, name) == pytest.approx(value, rel=1e-9), (row, name)
        assert row.stress_test == (row.count_range in ("51-75", "76-100"))
        assert (row.kappa_why, row.correlation_why) == (None, None)


def test_each_target_by_itself() -> None:
    """By "per-target" a double image is two, each with its own range and its own clipped error."""
    rows = study(4)
    single = []
    for system, item, targets, score, marks in rows:
        for k, (n, counts, soft) in enumerate(targets):
            own = max(0.0, 1 - abs(soft - n) / n) if not math.isnan(score) else math.nan
            single.append((system, f"{item}-{k}", [(n, counts, soft)], own, marks * (k == 0)))
    table = agreement_rows(judged(rows), ["x", "y"], range_by="per-target")
    assert table == agreement_rows(judged(single), ["x", "y"])


def test_an_image_without_a_score_has_none_for_any_target() -> None:
    """Of an image with a category that no detector knows the other category was counted all the same."""
    rows = [("x", "a", [(10, [8, 8, 8], 8.0), (10, [5, 5, 5], math.nan)], math.nan, 0)]
    every = agreement_rows(judged(rows), ["x"], range_by="per-target")[0]
    assert (every.images, every.scored) == (2, 0)


def test_a_mean_count_is_rounded_up() -> None:
    rows = [("x", "a", [(25, [8, 8, 8], 8.0), (26, [5, 5, 5], 5.0)], 0.5, 0)]
    for by, images in (("mean", [0, 1]), ("max", [0, 1]), ("per-target", [1, 1])):
        assert [row.images for row in agreement_rows(judged(rows), ["x"], range_by=by)[1:3]] == images
    low = [("x", "a", [(24, [8, 8, 8], 8.0), (26, [5, 5, 5], 5.0)], 0.5, 0)]
    assert [row.images for row in agreement_rows(judged(low), ["x"], range_by="mean")[1:3]] == [1, 0]


def test_no_order_leaves_a_trace() -> None:
    rows = study(7)
    first = agreement_rows(judged(rows), ["x", "y"])
    turned = [(s, i, [(n, c[::-1], soft) for n, c, soft in t], v, m) for s, i, t, v, m in reversed(rows)]
    assert agreement_rows(judged(turned), ["x", "y"]) == first


def test_what_does_not_exist_is_null_with_a_reason() -> None:
    rows = [
        ("x", "a", [(10, [8, 8, 8], 8.0)], 0.8, 0),
        ("x", "b", [(10, [8, 8, 8], 6.0)], 0.6, 0),
        ("x", "c", [(10, [8, 8, 8], 4.0)], 0.4, 2),
        ("x", "d", [(60, [50, 51, 50], 48.0)], 0.8, 0),
        ("x", "e", [(60, [30, 31, 30], 48.0)], 0.8, 0),
        ("x", "f", [(60, [55, 51, 50], 48.0)], 0.8, 0),
        ("x", "g", [(40, [33, 31, 30], math.nan)], math.nan, 0),
    ]
    every, low, middle, stress, most = agreement_rows(judged(rows, marks=False), ["x"])
    assert every.kappa is not None
    assert every.pearson is not None
    assert low.kappa is None
    assert "all counts are of one kind" in str(low.kappa_why)
    assert low.correlation_why == "the annotators' scores are all 0.8"
    assert stress.correlation_why == "the detectors' scores are all 0.8"
    assert (middle.images, middle.scored, middle.human_cw, middle.detector_cw) == (1, 0, None, None)
    assert middle.correlation_why == "fewer than 3 images with a score"
    assert middle.kappa is not None
    assert (most.images, most.kappa, most.kappa_why, most.difference) == (0, None, "no images", None)
    assert {row.ambiguous_any for row in (every, low, most)} == {None}
    one = [("x", "a", [(10, [8], 8.0)], 0.8, 1)]
    alone = agreement_rows(judged(one), ["x"])[0]
    assert (alone.kappa, alone.kappa_why) == (None, "a single annotator")
    assert (alone.ambiguous_any, alone.ambiguous_most) == (1, 1)


def test_half_of_the_annotators_are_not_most() -> None:
    rows = [("x", k, [(10, [8, 8, 8, 9], 8.0)], 0.8, marks) for k, marks in zip("abcd", (0, 1, 2, 3), strict=True)]
    row = agreement_rows(judged(rows), ["x"])[0]
    assert (row.ambiguous_any, row.ambiguous_most) == (3, 1)


def test_a_mark_is_of_one_target_where_each_stands_for_itself() -> None:
    rows = [("x", k, [(10, [8, 8, 8], 8.0), (60, [9, 9, 9], 9.0)], 0.5, marks) for k, marks in (("a", 2), ("b", 1))]
    for range_by, found in (("max", [(2, 1), (0, 0), (2, 1)]), ("per-target", [(2, 1), (2, 1), (0, 0)])):
        every, low, _, stress, _ = agreement_rows(judged(rows), ["x"], range_by=range_by)
        assert [(row.ambiguous_any, row.ambiguous_most) for row in (every, low, stress)] == found


def test_no_images_at_all() -> None:
    nothing = judged([], marks=False)
    for by in ("max", "mean", "per-target"):
        rows = agreement_rows(nothing, ["x"], range_by=by)
        assert [row.images for row in rows] == [0] * 5


def test_scores_that_are_nearly_alike_do_not_warn() -> None:
    x = np.array([0.5, 0.5, np.nextafter(0.5, 1)])
    assert isinstance(correlations(x, np.array([0.1, 0.2, 0.3])), tuple)


def test_a_width_of_no_bin_is_refused() -> None:
    with pytest.raises(UsageError, match="bin_width 0"):
        agreement_rows(judged(study()), ["x", "y"], bin_width=0)


def test_without_scipy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(MissingExtraError, match="scipy") as caught:
        agreement_rows(judged(study()), ["x", "y"])
    assert caught.value.hint == "pip install 'tallymill[report]'"
