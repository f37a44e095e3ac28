from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from tallymill.engine.abacus.score import Edits, conservation, count_fidelity, row_of, spearman


@pytest.mark.parametrize(
    ("delivered", "requested", "wanted"), [(3, 3, 1), (0, 3, 0), (1, 3, 0.5), (9, 3, 0.5), (4, 1, 0.4)]
)
def test_count_fidelity_penalises_over_and_under_alike(delivered, requested, wanted):
    assert count_fidelity(delivered, requested) == wanted


@pytest.mark.parametrize(("delivered", "requested"), [(1, 0), (-1, 2)])
def test_nothing_is_requested_of_no_edit(delivered, requested):
    with pytest.raises(ValueError, match="wanted delivered"):
        count_fidelity(delivered, requested)


@pytest.mark.parametrize(("lost", "originals", "wanted"), [(0, 4, 1), (1, 4, 0.75), (9, 4, 0), (0, 0, 1), (3, 0, 1)])
def test_conservation_is_the_share_of_originals_that_is_left(lost, originals, wanted):
    assert conservation(lost, originals) == wanted


def made(n=60, images=20, seed=0):
    rng = np.random.default_rng(seed)
    requested = rng.integers(1, 6, n)
    delivered = rng.integers(0, 6, n)
    factors = np.column_stack([2 * np.minimum(delivered, requested) / (delivered + requested), rng.random((n, 2))])
    return Edits(rng.integers(0, images, n), delivered, requested, factors)


def test_the_score_is_the_product_of_averages():
    edits = made()
    row = row_of(edits, 0)
    means = edits.factors.mean(axis=0)
    assert [row.cf.value, row.sc.value, row.oc.value] == pytest.approx(means.tolist())
    assert row.score.value == pytest.approx(means.prod())
    assert row.mean_product.value == pytest.approx(edits.factors.prod(axis=1).mean())
    assert row.exact.value == (edits.delivered == edits.requested).mean()
    assert (row.edits, row.undefined) == (60, 0)
    assert row.score.low is None


def test_an_edit_without_a_factor_is_in_no_average_but_counts_as_exact_or_not():
    edits = made()
    edits.factors[7, 1] = np.nan
    row = row_of(edits, 0)
    rest = np.delete(edits.factors, 7, axis=0)
    assert row.cf.value == pytest.approx(rest[:, 0].mean())
    assert (row.edits, row.undefined) == (59, 1)
    assert row.exact.value == (edits.delivered == edits.requested).mean()


def test_intervals_resample_source_images():
    edits = made()
    row = row_of(edits, 500)
    scores = []
    images = np.unique(edits.image)
    for b in range(500):
        drawn = images[np.random.default_rng([0, b]).integers(0, len(images), len(images))]
        rows = np.concatenate([np.flatnonzero(edits.image == image) for image in drawn])
        scores.append(edits.factors[rows].mean(axis=0).prod())
    low, high = np.percentile(scores, [2.5, 97.5])
    assert (row.score.low, row.score.high) == (pytest.approx(low), pytest.approx(high))


def test_an_untouched_image_scores_nothing():
    """Under a plain average it would have 2/3."""
    edits = Edits(np.arange(3), np.zeros(3, np.int64), np.full(3, 4), np.tile([0.0, 1.0, 1.0], (3, 1)))
    row = row_of(edits)
    assert (row.cf.value, row.sc.value, row.oc.value, row.score.value) == (0, 1, 1, 0)


def test_no_edits_are_no_numbers():
    row = row_of(made().only(np.zeros(60, bool)))
    assert (row.edits, row.score.value, row.exact.value) == (0, None, None)


def test_the_order_of_edits_does_not_matter():
    edits = made()
    order = np.random.default_rng(1).permutation(60)
    other = Edits(*(getattr(edits, name)[order] for name in ("image", "delivered", "requested", "factors")))
    a, b = row_of(edits, 50), row_of(other, 50)
    assert a.score.value == pytest.approx(b.score.value, abs=1e-15)
    assert a.score.low == pytest.approx(b.score.low, abs=1e-15)


def test_spearman_is_that_of_scipy():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 6, 40), rng.integers(0, 6, 40)
    assert spearman(a, b) == pytest.approx(scipy.stats.spearmanr(a, b).statistic)
    assert spearman([1, 1], [2, 3]) is None
    assert spearman([1], [2]) is None
