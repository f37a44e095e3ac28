"""The full set of prompts, counted anew by other means than the check's."""

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tallymill.engine.manifests.base import canonical_array
from tallymill.engine.numbench.factors import MODIFIER_GROUPS, MODIFIERS, count_range, modifier_group
from tallymill.engine.numbench.natural import parse_prompt
from tallymill.engine.numbench.prompts.build import _GROUPS, METADATA_KEY, SCHEMA, build, rows_sha256
from tallymill.engine.numbench.prompts.cores import single_cores
from tallymill.engine.numbench.prompts.streams import Stream
from tallymill.engine.numbench.prompts.text import one_of
from tallymill.errors import UsageError


@pytest.fixture(scope="module")
def cores(prompts):
    """The first prompt of each core, as a data frame of plain columns."""
    rows = prompts.take(pa.array(np.arange(0, 640_000, 4)))
    targets = rows["targets"].combine_chunks()
    flat = targets.flatten()
    first = targets.offsets.to_numpy()[:-1]
    last = targets.offsets.to_numpy()[1:] - 1
    names, counts = np.array(flat.field("category").to_pylist()), flat.field("count").to_numpy().astype(int)
    return {
        "single": rows["composition"].to_numpy() == "single",
        "a": names[first],
        "n": counts[first],
        "b": names[last],
        "m": counts[last],
        "layout": prompts["layout"].to_numpy()[2::4],
        "modifiers": prompts["modifiers"].take(pa.array(np.arange(1, 640_000, 4))).to_pylist(),
    }


def test_columns_and_size(prompts):
    assert prompts.schema.equals(SCHEMA)
    assert prompts.num_rows == 640_000
    assert {n: prompts[n].null_count for n in SCHEMA.names} == {
        n: 320_000 if n == "modifier_group" else 0 for n in SCHEMA.names
    }
    facts = json.loads(prompts.schema.metadata[METADATA_KEY])
    assert facts["seed"] == 0
    assert facts["kind"] == "full"
    assert len(facts["vocabulary_sha256"]) == 64


def test_every_text_and_id_once(prompts):
    for column in ("prompt_id", "text"):
        assert pc.count_distinct(prompts[column]).as_py() == 640_000
    assert pc.count_distinct(prompts["core_id"]).as_py() == 160_000


def test_counts_and_categories_exactly(cores):
    single, double = cores["single"], ~cores["single"]
    for category, count, of in (("a", "n", single), ("a", "n", double), ("b", "m", double)):
        assert Counter(cores[category][of].tolist()).most_common()[-1][1] == 50
        assert set(Counter(cores[category][of].tolist()).values()) == {50}
        numbers = Counter(cores[count][of].tolist())
        assert numbers == dict.fromkeys(range(1, 101), 800)


def test_no_targets_twice(cores):
    single, double = cores["single"], ~cores["single"]
    assert len(set(zip(cores["a"][single], cores["n"][single], strict=True))) == 80_000
    a, n, b, m = (cores[name][double].tolist() for name in "anbm")
    assert len({frozenset(((p, q), (r, s))) for p, q, r, s in zip(a, n, b, m, strict=True)}) == 80_000
    assert not any(p == r for p, r in zip(a, b, strict=True))


def test_a_category_is_asked_for_in_every_range_alike(cores):
    single = cores["single"]
    ranges = Counter(zip(cores["a"][single].tolist(), ((cores["n"][single] - 1) // 25).tolist(), strict=True))
    assert set(ranges.values()) == {12, 13}


def test_which_count_a_category_has_is_left_to_chance():
    """Two categories share about half of their counts: neither copies nor complements of one another."""
    cores = single_cores(0)
    matrix = np.zeros((1600, 100))
    matrix[cores.categories[:, 0], cores.counts[:, 0] - 1] = 1
    shared = (matrix @ matrix.T)[np.triu_indices(1600, 1)]
    # Rows with 12 or 13 of 25 in each range share 25 on average, with a standard deviation of about 2.55.
    assert abs(shared.mean() - 25) < 0.05
    assert 2.4 < shared.std() < 2.7
    assert shared.min() > 5
    assert shared.max() < 45


def test_layouts_within_one_and_within_5_percent(cores):
    for slot, of, least, most in (
        ("n", cores["single"], 266, 267),
        ("n", ~cores["single"], 254, 280),
        ("m", ~cores["single"], 254, 280),
    ):
        numbers = Counter(zip(cores[slot][of].tolist(), cores["layout"][of].tolist(), strict=True))
        assert len(numbers) == 300
        assert least <= min(numbers.values())
        assert max(numbers.values()) <= most
    halves = [Counter(cores["layout"][of].tolist()) for of in (cores["single"], ~cores["single"])]
    assert [sorted(half.values()) for half in halves] == [[26_666, 26_667, 26_667]] * 2
    assert min(halves[0], key=halves[0].get) != min(halves[1], key=halves[1].get)
    # Nothing asks for that, but it does no harm: each category sees each layout 16 to 18 times in 50.
    numbers = Counter(zip(cores["a"].tolist(), cores["layout"].tolist(), cores["single"].tolist(), strict=True))
    assert set(numbers.values()) <= {16, 17, 18}


def test_layouts_of_prompts(prompts):
    assert Counter(prompts["layout"].to_pylist()) == {
        "free": 320_000,
        "grid": 106_668,
        "scene": 106_666,
        "random": 106_666,
    }


def test_modifiers(cores):
    for of in (cores["single"], ~cores["single"]):
        sets = [terms for terms, wanted in zip(cores["modifiers"], of, strict=True) if wanted]
        assert Counter(map(len, sets)) == {2: 40_000, 3: 40_000}
        assert Counter(term for terms in sets for term in terms) == dict.fromkeys(MODIFIERS, 25_000)
        assert all(terms == sorted(terms, key=MODIFIERS.index) for terms in sets)
        by_set = Counter(map(tuple, sets))
        assert {n for terms, n in by_set.items() if len(terms) == 2} == {1428, 1429}
        assert {n for terms, n in by_set.items() if len(terms) == 3} == {714, 715}


def test_terms_stand_in_the_order_of_table_3():
    assert (
        *("blurry", "deformed", "low quality", "artifacts"),
        *("overlapping", "merged", "partial", "cropped"),
    ) == MODIFIERS


def test_rows_say_the_same_in_all_their_columns(prompts):
    """A sample of rows, put together by hand and read back by the parser of prompts."""
    arranged = {
        "free": "",
        "grid": ", arranged in a regular grid",
        "scene": ", placed naturally in a scene",
        "random": ", scattered at random positions",
    }
    for row in prompts.take(pa.array(np.arange(0, 640_000, 997))).to_pylist():
        things = [
            f"{t['count']} " + (t["category"] if t["count"] == 1 else t["category"].replace("thing", "things"))
            for t in row["targets"]
        ]
        terms = row["modifiers"]
        assert row["text"] == f"generate {' and '.join(things)}{arranged[row['layout']]}" + "".join(
            f", {term}" for term in terms
        )
        assert row["prompt_id"] == f"{row['core_id']}-{row['layout']}-{row['appearance']}"
        assert row["core_id"][0] == row["composition"][0]
        assert row["count_range"] == count_range(max(t["count"] for t in row["targets"]))
        assert row["modifier_group"] == (modifier_group(terms) if terms else None)
        assert (row["appearance"] == "modified") == bool(terms)


def test_a_count_of_one_takes_the_singular(prompts):
    texts = prompts.filter(pc.match_substring_regex(prompts["text"], "^generate 1 thing 0000$"))["text"].to_pylist()
    assert len(texts) <= 1
    assert not pc.any(pc.match_substring_regex(prompts["text"], r"\b1 things|\b([2-9]|\d\d+) thing ")).as_py()


def test_what_is_counted_by_the_pair_is_one_pair():
    assert one_of("scissors", "pairs of scissors") == "pair of scissors"
    assert one_of("cat", "cats") == "cat"


def test_the_rows_of_seed_0_stay_the_same(prompts):
    """Prompt ids are cited: whatever changes these rows is a new benchmark."""
    assert rows_sha256(prompts) == "a7765310250b036e1778b5c5681a86eeebb7da121979b4161ea606777ad52785"


def test_another_seed_gives_other_cores():
    assert not np.array_equal(single_cores(0).counts, single_cores(1).counts)


@pytest.mark.parametrize("seed", [-1, 1.0, True, None, "0"])
def test_a_seed_that_is_none(seed):
    with pytest.raises(UsageError, match="whole number, 0 or more"):
        single_cores(seed)


def test_a_great_seed():
    assert len(Stream(10**40, "x").keys(3)) == 3


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a"] * 1599, "1,599 categories"),
        ([f"thing {k % 1599}" for k in range(1600)], "'thing 0': stands twice"),
        ([*(f"thing {k}" for k in range(1599)), ""], "is empty"),
    ],
)
def test_a_vocabulary_that_is_none(names, message):
    with pytest.raises(UsageError, match=message):
        build(names, [f"{name}s" for name in names])


def test_real_prompts_are_read_back():
    from tallymill.runners.numbench.prompts import build_prompts

    table = build_prompts(seed=1)
    for row in table.take(pa.array(np.arange(1, 640_000, 3989))).to_pylist():
        assert parse_prompt(row["text"]) == [(t["category"], t["count"]) for t in row["targets"]]
    assert canonical_array(table["targets"].chunk(0)).type == table["targets"].type


def test_every_set_of_modifiers_has_one_of_the_groups():
    assert {*_GROUPS.drop_null().to_pylist()} == {*MODIFIER_GROUPS}
    assert _GROUPS.null_count == 1
