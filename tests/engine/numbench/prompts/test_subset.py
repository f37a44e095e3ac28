"""The balanced subset, counted anew, and the assignment behind it."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from tallymill.engine.numbench.factors import count_range
from tallymill.engine.numbench.prompts.build import facts_of, rows_sha256
from tallymill.engine.numbench.prompts.matching import NOBODY, assign
from tallymill.engine.numbench.prompts.subset import choose_subset
from tallymill.errors import ManifestError


@pytest.fixture(scope="module")
def subset(prompts, words):
    return choose_subset(prompts, words[0])


def test_cells_categories_and_counts(subset):
    rows = subset.to_pylist()
    cells = Counter(
        (r["composition"], count_range(max(t["count"] for t in r["targets"])), r["layout"], r["appearance"])
        for r in rows
    )
    assert cells == dict.fromkeys(cells, 50)
    assert len(cells) == 64
    assert len({r["core_id"] for r in rows}) == 3200
    single = [r for r in rows if r["composition"] == "single"]
    assert set(Counter(r["targets"][0]["category"] for r in single).values()) == {1}
    double = Counter(t["category"] for r in rows if r["composition"] == "double" for t in r["targets"])
    assert len(double) == 1600
    assert set(double.values()) <= {1, 2, 3}
    assert Counter(double.values())[2] > 1400
    counts = Counter((r["targets"][0]["count"], r["layout"], r["appearance"]) for r in single)
    assert len(counts) == 800
    assert set(counts.values()) == {2}


def test_rows_of_the_full_set_in_its_order(prompts, subset):
    place = {name: row for row, name in enumerate(prompts["prompt_id"].to_pylist())}
    rows = [place[name] for name in subset["prompt_id"].to_pylist()]
    assert rows == sorted(rows)
    assert prompts.take(pa.array(rows)).equals(subset)
    assert facts_of(subset.schema) == facts_of(prompts.schema) | {
        "kind": "subset",
        "subset_seed": 0,
        "from_rows_sha256": rows_sha256(prompts),
    }


def test_the_subset_of_seed_0_stays_the_same(subset):
    assert rows_sha256(subset) == "ea11e67a9496cd3278b0c0c4cacb018c4b75152e4180f5e69b9f0fc96af957bf"


def test_rows_that_are_not_sound(prompts, words):
    table = prompts.slice(0, 8)
    table = table.set_column(4, "layout", pa.array(["free"] * 7 + ["heap"]))
    with pytest.raises(ManifestError, match=r"row 8 \('s-00001-.*-modified'\) is not a sound prompt"):
        choose_subset(table, words[0])
    with pytest.raises(ManifestError, match="is not a sound prompt"):
        choose_subset(prompts.slice(0, 8), [f"other {k}" for k in range(1600)])


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (slice(0, 320_000), "double prompts: no place for category"),
        (slice(320_000, None), "single prompts: 1600 categories find no count and layout"),
        (slice(0, None, 2), "the modified prompt of 's-"),
    ],
)
def test_prompts_that_are_too_few(prompts, words, kept, message):
    table = prompts.take(pa.array(np.arange(640_000)[kept]))
    with pytest.raises(ManifestError, match=message) as caught:
        choose_subset(table, words[0], file="x.parquet")
    assert "all 640,000 prompts" in caught.value.hint


ROOM = st.lists(st.integers(0, 3), min_size=6, max_size=6)


@given(st.lists(st.lists(st.integers(0, 5), unique=True), max_size=12), ROOM)
def test_as_many_rows_as_possible_have_a_place(choices, room):
    places = assign(choices, room)
    assert all(at == NOBODY or at in allowed for at, allowed in zip(places, choices, strict=True))
    used = Counter(at for at in places if at != NOBODY)
    assert all(used[at] <= room[at] for at in used)
    seats = np.repeat(np.arange(6), room)
    allowed = np.array([[seat in row for seat in seats.tolist()] for row in choices]).reshape(len(choices), len(seats))
    best = allowed[linear_sum_assignment(allowed, maximize=True)].sum()
    assert sum(used.values()) == best
