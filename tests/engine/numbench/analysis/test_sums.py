"""The parts that everything is added up with: no order shows in them."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymill.engine import exact_sum
from tallymill.engine.exact_sum import ExactSums, rounded
from tallymill.engine.numbench.analysis import tallies as tallies_module
from tallymill.engine.numbench.analysis import units
from tallymill.engine.numbench.analysis.codes import Codes, Names, coded
from tallymill.engine.numbench.analysis.grid import Axes, Grid
from tallymill.engine.numbench.analysis.images import whole_scores
from tallymill.engine.numbench.analysis.leaves import Leaves
from tallymill.engine.numbench.analysis.tallies import Met, PromptUses, Tallies, Tally
from tallymill.engine.numbench.factors import LAYOUTS, MODIFIER_GROUPS

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
def test_of_very_many_names_the_commonest_are_kept(seed, monkeypatch):
    """Whatever the order: also those that sort last and come late."""
    monkeypatch.setattr(tallies_module, "_WAITING_NAMES", 20)
    met = [
        (0, f"reason {k:03d}", f"item {k:03d}-{n}") for k in range(200) for n in range(9 if k >= 192 else 1 + (k == 5))
    ]
    tallies = Tallies("other", limit=10)
    order = np.random.default_rng(seed).permutation(len(met))
    for start in range(0, len(met), 7):
        system, name, item = zip(*(met[k] for k in order[start : start + 7]), strict=True)
        tallies.add(Met.of(np.array(system), pa.array(name), pa.array(item)))
    found = tallies.of(0)
    assert [(name, tally.images, tally.first) for name, tally in found] == [
        *((f"reason {k:03d}", 9, f"item {k:03d}-0") for k in range(192, 200)),
        ("reason 005", 2, "item 005-0"),
        ("reason 000", 1, "item 000-0"),
        ("other", 190, "item 001-0"),
    ]
    assert tallies.of(1) == []


def test_names_without_an_id_and_by_system():
    tallies = Tallies("other")
    tallies.add(Met.of(np.array([1, 0, 1, 1]), pa.array(["b", "b", "a", "b"]), None))
    tallies.add(Met.of(np.array([1]), pa.array(["a"]), None))
    assert tallies.of(0) == [("b", Tally(1, ""))]
    assert tallies.of(1) == [("a", Tally(2, "")), ("b", Tally(2, ""))]


def made_up_grid(seed, systems=2, cores=7):
    """A grid of random leaves: several counts and some unscored images in most places."""
    rng = np.random.default_rng(seed)
    looks = [("clean", None), *(("modified", group) for group in MODIFIER_GROUPS), ("unknown", None)]
    axes = Axes([f"s{k}" for k in range(systems)], ["single"], [*LAYOUTS, "unknown"], looks, [])
    size = 400
    leaves = Leaves(0)
    leaves.names.add(pa.array([f"core {k}" for k in range(cores)]))
    leaves.names.settle()
    leaves.core = rng.integers(0, cores, size)
    scored = rng.integers(0, 3, size)
    scores = [rng.integers(0, 1 << 53, size) * (scored > 0) for _ in range(2)]
    parts = [part for score in scores for part in (score >> 26, score & ((1 << 26) - 1))]
    leaves.values = [scored, *np.zeros((2, size), np.int64), *parts]
    place = {name: rng.integers(0, n, size).astype(np.int32) for name, n in (("system", systems), ("layout", 5))}
    place |= {"look": rng.integers(0, 5, size).astype(np.int32), "composition": np.zeros(size, np.int32)}
    return Grid(axes, leaves, **place, count=np.full(size, 3, np.int32), stratum=np.zeros(size, np.int32))


def paired_by_hand(grid, contrast, system):
    """The differences of each core that has both sides, as ``Contrast`` says it."""
    found = []
    number, cw = (
        grid.leaves.number(0),
        sum(part * unit for part, unit in zip(grid.leaves.sums(0), (2**-27, 2**-53), strict=True)),
    )
    for core in range(7):
        held_levels = []
        for held in range(5):
            own = (grid.leaves.core == core) & (grid.system == system)
            own &= (grid.look if contrast.factor == "layout" else grid.layout) == held
            sides = [own & of[grid.layout, grid.look] for of in (contrast.level, contrast.reference)]
            if all(number[side].sum() for side in sides):
                held_levels.append(np.subtract(*(cw[side].sum() / number[side].sum() for side in sides)))
        if held_levels:
            found.append(np.mean(held_levels))
    return found


@pytest.mark.parametrize("at_once", [1, 40, 1 << 20])
def test_paired_differences_by_hand(monkeypatch, at_once):
    monkeypatch.setattr(units, "_LEAVES", at_once)
    grid = made_up_grid(at_once)
    of = units.units_of(grid, units.cores_by_id(grid))
    number, cw, _ = units.paired_sums(of)
    block = [units.block_of(of, one) for one in of.blocks()]
    assert [c.name for c in of.contrasts] == ["grid", "scene", "random", "guided", "modified", *MODIFIER_GROUPS]
    for system in range(2):
        for x, contrast in enumerate(of.contrasts):
            found = paired_by_hand(grid, contrast, system)
            assert number[system, x] == len(found) > 0
            np.testing.assert_allclose(cw[system, x], math.fsum(found), rtol=1e-13, atol=1e-13)
            np.testing.assert_allclose(sum(b.paired_cw[:, system, x].sum() for b in block), cw[system, x], rtol=1e-13)
            assert sum(b.paired[:, system, x].sum() for b in block) == len(found)


def test_units_of_one_leaf_are_not_paired(monkeypatch):
    grid = made_up_grid(0, cores=400)
    grid.leaves.core[:] = np.arange(400)
    monkeypatch.setattr(units, "differences", lambda *_: pytest.fail("there is nothing to compare"))
    number, cw, b = units.paired_sums(units.units_of(grid))
    assert not np.any([number, cw, b])
