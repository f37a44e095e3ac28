"""The 160,000 cores of NumBench: what is asked for, where it is to stand, and which terms modify it (paper, Table 2).

Balance is exact by construction; chance decides everything else, and the seed decides chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.numbench.factors import COUNT_RANGES, GREATEST_COUNT, GUIDED, MODIFIERS
from tallymill.engine.numbench.prompts.dealing import Ints, deal, even_out
from tallymill.engine.numbench.prompts.streams import Stream

CATEGORIES, COUNTS = 1_600, GREATEST_COUNT
PER_CATEGORY, PER_COUNT = 50, 800
CORES = CATEGORIES * PER_CATEGORY  # of each composition
NO_CATEGORY = -1

# Enough that nothing is left of the complementary rows that a matrix begins with.
_TRADES = 32
# The layout that gets one core less than the other two, by composition: they differ, so that the two together are as
# even as can be (106,668 / 106,666 / 106,666 prompts).
_SHORT_SINGLE, _SHORT_DOUBLE = GUIDED.index("scene"), GUIDED.index("random")


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores of one composition.

    ``categories`` (positions in the vocabulary) and ``counts`` (1 to 100) are int64 [cores, targets]; ``layouts``
    int64 [cores], positions in ``GUIDED``; ``modifiers`` uint8 [cores], bit i for the i-th of ``MODIFIERS``.
    """

    categories: Ints
    counts: Ints
    layouts: Ints
    modifiers: NDArray[np.uint8]


def single_cores(seed: int) -> Cores:
    """80,000 cores of one target: a category 50 times, a count 800 times, no pair of both twice."""
    cells = _cells(Stream(seed, "single targets"))
    categories, counts = cells[:, :1], cells[:, 1:]
    layouts = _layouts(categories, counts, _SHORT_SINGLE, Stream(seed, "single layouts"))
    return Cores(categories, counts, layouts, _modifiers(counts, layouts, Stream(seed, "single modifiers")))


def double_cores(seed: int) -> Cores:
    """80,000 cores of two targets with distinct categories; each slot is balanced like the single cores.

    The slots are joined at random, so that their counts are independent; no set of two targets stands twice.
    """
    first = _cells(Stream(seed, "double targets, first"))
    second = _cells(Stream(seed, "double targets, second"))
    second = _joined(first, second, Stream(seed, "double targets, joined"))
    categories = np.stack([first[:, 0], second[:, 0]], axis=1)
    counts = np.stack([first[:, 1], second[:, 1]], axis=1)
    layouts = _layouts(categories, counts, _SHORT_DOUBLE, Stream(seed, "double layouts"))
    return Cores(categories, counts, layouts, _modifiers(counts, layouts, Stream(seed, "double modifiers")))


def _cells(stream: Stream) -> Ints:
    """80,000 (category, count) in random order, none twice: int64 [80000, 2].

    A random 0/1 matrix of categories by counts with 50 ones a row and 800 a column. A row has 12 or 13 ones in each of
    the four count ranges, so that every category is asked for about equally often in each. It begins as random rows,
    each with its complement, which gives the sums; then rows trade at random, which keeps them (the curveball
    algorithm: Strona et al., Nature Communications 5, 2014).
    """
    matrix = _complementary_rows(stream)
    for _ in range(_TRADES):
        order = stream.order(CATEGORIES)
        _trade(matrix, order[::2], order[1::2], stream)
    cells = np.argwhere(matrix.reshape(CATEGORIES, COUNTS))
    cells[:, 1] += 1
    return cells[stream.order(CORES)]


def _complementary_rows(stream: Stream) -> NDArray[np.bool_]:
    """bool [1600, 4, 25]: random rows with 13, 13, 12 and 12 ones in the ranges in random order, and complements."""
    ranges, width = len(COUNT_RANGES), COUNTS // len(COUNT_RANGES)
    half = CATEGORIES // 2
    ones = np.array([width // 2 + 1, width // 2 + 1, width // 2, width // 2])
    ones = ones[np.argsort(stream.keys(half, ranges), axis=1, kind="stable")]
    rows = _ranks(stream.keys(half, ranges, width)) < ones[:, :, None]
    return np.concatenate([rows, ~rows])


def _trade(matrix: NDArray[np.bool_], first: Ints, second: Ints, stream: Stream) -> None:
    """Pairs of rows share out anew, in each range, the counts that only one of the two has; sums stay."""
    a, b = matrix[first], matrix[second]
    differ = a != b
    keys = stream.keys(*a.shape)
    keys[~differ] = np.iinfo(np.uint64).max
    taken = _ranks(keys) < (a & differ).sum(axis=2, keepdims=True)
    matrix[first] = np.where(differ, taken, a)
    matrix[second] = np.where(differ, ~taken, b)


def _ranks(keys: NDArray[np.uint64]) -> Ints:
    """The rank of each key among those of its last axis."""
    order = np.argsort(keys, axis=-1, kind="stable")
    ranks = np.empty(keys.shape, np.int64)
    np.put_along_axis(ranks, order, np.broadcast_to(np.arange(keys.shape[-1]), keys.shape), axis=-1)
    return ranks


def _joined(first: Ints, second: Ints, stream: Stream) -> Ints:
    """``second`` in an order in which no core has one category twice and no two cores the same set of targets."""
    while len(bad := _clashes(first, second)):
        for row, other in zip(bad.tolist(), stream.below(len(second), len(bad)).tolist(), strict=True):
            second[[row, other]] = second[[other, row]]
    return second


def _clashes(first: Ints, second: Ints) -> Ints:
    """Cores with one category twice, and cores whose set of targets an earlier one has."""
    codes = np.stack([cells[:, 0] * (COUNTS + 1) + cells[:, 1] for cells in (first, second)], axis=1)
    codes.sort(axis=1)
    sets = codes[:, 0] * (CATEGORIES * (COUNTS + 1)) + codes[:, 1]
    fresh = np.zeros(len(sets), np.bool_)
    fresh[np.unique(sets, return_index=True)[1]] = True
    return np.flatnonzero((first[:, 0] == second[:, 0]) | ~fresh)


def _layouts(categories: Ints, counts: Ints, short: int, stream: Stream) -> Ints:
    """A guided layout a core: even to within one in all, and for each count of the first target.

    For the counts of a second target as well, and for the categories of both, as far as exchanges bring it.
    """
    groups = counts[:, 0] - 1
    labels = deal(groups, counts[:, -1], _short_labels(short, stream), stream)
    if counts.shape[1] == 2:
        labels = even_out(labels, groups, [counts[:, 1] - 1], stream, rounds=200)
        groups = groups * COUNTS + counts[:, 1] - 1
    return even_out(labels, groups, list(categories.T), stream, rounds=60)


def _short_labels(short: int, stream: Stream) -> Ints:
    """Which layout gets 266 of a count's 800 cores, the others 267: ``short`` for 34 counts, each other for 33.

    Every three consecutive counts have each layout once, so that the count ranges are even too.
    """
    blocks = np.argsort(stream.keys(COUNTS // 3, 3), axis=1, kind="stable")
    return np.append(blocks.ravel(), short)


def _modifiers(counts: Ints, layouts: Ints, stream: Stream) -> NDArray[np.uint8]:
    """Two terms for half of the cores, three for the other; each term in 25,000 cores of the composition.

    Both are dealt along the order of counts and layouts, so that they are even there too.
    """
    order = stream.order_within(counts[:, 0], layouts)
    couples = order.reshape(-1, 2)
    swapped = (stream.below(2, len(couples)) == 1)[:, None]
    couples = np.where(swapped, couples[:, ::-1], couples)
    modifiers = np.zeros(len(order), np.uint8)
    for column, terms in enumerate((2, 3)):
        modifiers[couples[:, column]] = _term_sets(terms, len(couples), stream)
    return modifiers


def _term_sets(terms: int, n: int, stream: Stream) -> NDArray[np.uint8]:
    """``n`` sets of ``terms`` modifiers as bits: each set equally often to within one, each modifier exactly so.

    Whole blocks of all sets in random order; the 16 that are left over for n = 40,000 are two orbits under the cyclic
    group of order 8, each of which has every modifier equally often.
    """
    size = len(MODIFIERS)
    sets = np.array([_bits(chosen) for chosen in combinations(range(size), terms)], np.uint8)
    blocks, left = divmod(n, len(sets))
    whole = sets[np.argsort(stream.keys(blocks, len(sets)), axis=1, kind="stable")].ravel()
    names = stream.order(size)
    starts = {2: ((0, 1), (0, 3)), 3: ((0, 1, 3), (0, 2, 5))}[terms]
    rest = [_bits(names[[(at + turn) % size for at in start]]) for start in starts for turn in range(size)]
    assert len(rest) == left
    return np.roll(np.append(whole, np.array(rest, np.uint8)), int(stream.below(n, 1)[0]))


def _bits(places: object) -> int:
    return int(np.bitwise_or.reduce(1 << np.asarray(places)))
