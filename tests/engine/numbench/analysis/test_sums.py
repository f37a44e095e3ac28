"""The parts that everything is added up with: no order shows in them."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymill.engine import exact_sum
from tallymill.engine.exact_sum import ExactSums, rounded
from tallymill.engine.numbench.analysis.codes import Codes, Names, coded
from tallymill.engine.numbench.analysis.estimates import Estimates
from tallymill.engine.numbench.analysis.images import whole_scores
from tallymill.engine.numbench.analysis.tallies import PromptUses, Tallies

NUMBERS = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300)


@given(st.lists(st.tuples(NUMBERS, st.integers(0, 2)), max_size=60), st.integers(0, 60))
def test_growing_sums_are_those_of_fsum(pairs, cut):
    values = np.array([value for value, _ in pairs], np.float64)
    groups = np.array([group for _, group in pairs], np.int64)
    sums = ExactSums()
    sums.add(values[:cut], groups[:cut], 2 if (groups[:cut] < 2).all() else 3)
    sums.add(values[cut:], groups[cut:], 3)
    for group, total in enumerate(sums.exact(4)):
        assert rounded(total) == math.fsum(values[groups == group])


def test_growing_sums_take_so_many_at_once(monkeypatch):
    monkeypatch.setattr(exact_sum, "MAX_VALUES", 2)
    with pytest.raises(ValueError, match="at most 2, got 3"):
        ExactSums().add(np.ones(3), np.zeros(3, np.int64), 1)


def test_scores_are_whole_numbers():
    scores = np.array([0.0, 1.0, 0.16666666666666674, 2.0**-53, np.nan])
    whole = whole_scores(scores, np.array([True] * 4 + [False]))
    assert whole.tolist() == [0, 1 << 53, 1501199875790166, 1, 0]
    assert np.ldexp(whole[2].astype(np.float64), -53) == scores[2]


def test_more_levels_than_there_is_room_for():
    codes = Codes(2)
    assert codes.of(["a", None, "a"]).tolist() == [0, 1, 0]
    assert not codes.full
    assert codes.of(["b", "a"]).tolist() == [2, 0]
    assert codes.full
    assert codes.levels == ["a", None]


@pytest.mark.parametrize("kind", ["plain", "chunked", "dictionary", "numbers"])
def test_codes_of_columns(kind):
    values = [3, None, 4, 3] if kind == "numbers" else ["3", None, "4", "3"]
    column = pa.array(values)
    if kind == "chunked":
        column = pa.chunked_array([column[:1], column[1:]])
    if kind == "dictionary":
        column = column.dictionary_encode()
    codes = Codes(9)
    found = coded(column, codes)
    assert [codes.levels[code] for code in found.tolist()] == ["3", None, "4", "3"]


def test_names_keep_their_final_numbers():
    names = Names()
    first = names.add(pa.array(["b", "a"]))
    again = names.add(pa.array(["a", "c"]))
    final = names.settle()
    assert names.settled.to_pylist() == ["b", "a", "c"]
    assert [final[first], final[first + 1], final[again], final[again + 1]] == [0, 1, 1, 2]
    passing = names.add(pa.array(["d", "b"]))
    assert names.settle()[[0, 1, 2, passing, passing + 1]].tolist() == [0, 1, 2, 3, 0]
    assert names.settle().tolist() == [0, 1, 2, 3]


def test_uses_of_prompts():
    uses = PromptUses()
    for prompts, prompt, system in (("ab", [0, 1, 1, -1], [0, 0, 1, 1]), ("bc", [0, 0, 1], [0, 1, 0])):
        uses.add(pa.array(list(prompts)), np.array(prompt), np.array(system))
        uses.settle()
    assert sorted(uses.of(0).tolist()) == [1, 1, 2]
    assert uses.of(1).tolist() == [2]
    assert uses.of(2).tolist() == []


@pytest.mark.parametrize("seed", range(4))
def test_of_very_many_names_the_same_are_kept(seed):
    met = [(0, f"reason {k % 50:02d}", f"item {k:03d}") for k in range(200)]
    tallies = Tallies("other", limit=8)
    order = np.random.default_rng(seed).permutation(len(met))
    for start in range(0, len(met), 7):
        tallies.add(met[k] for k in order[start : start + 7])
    found = tallies.of(0)
    assert [(name, tally.images, tally.first) for name, tally in found] == [
        *((f"reason {k:02d}", 4, f"item {k:03d}") for k in range(8)),
        ("other", 168, "item 008"),
    ]
    assert tallies.of(1) == []


@pytest.mark.parametrize("number", [1, 2, 3, 40, 2000])
def test_intervals_are_those_of_numpy(number):
    values = np.random.default_rng(number).normal(size=(number, 3))
    values[: number // 2, 1] = np.nan
    values[:, 2] = np.nan
    estimates = Estimates({"x": np.array([[1.0, 2.0, np.nan]])}, {"x": values})
    for place in range(3):
        found = estimates("x", place)
        kept = values[~np.isnan(values[:, place]), place]
        assert found.null_resamples == number - len(kept)
        if len(kept):
            assert [found.low, found.high] == np.percentile(kept, [2.5, 97.5]).tolist()
        else:
            assert (found.value, found.low, found.high) == (None, None, None)
