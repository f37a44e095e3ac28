"""Labels dealt to cores so that every level of several factors gets its even share of each label."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.numbench.prompts.streams import Stream

Ints = NDArray[np.int64]
LABELS = 3


def deal(groups: Ints, along: Ints, short: Ints, stream: Stream) -> Ints:
    """A label of 0, 1, 2 for each core: inside every group their numbers differ by one at most.

    The groups 0 .. G-1 have equally many cores, 2 more than a multiple of 3; ``short`` int64 [G] names the label of
    each group that gets one core less than the other two. Inside a group cores are dealt to in order of ``along``,
    three at a time, so that its levels are about even too.
    """
    size = len(groups) // len(short)
    blocks = np.argsort(stream.keys(len(short), size // LABELS, LABELS), axis=2, kind="stable")
    rest = (short[:, None] + np.array([1, 2])) % LABELS
    labels = np.empty(len(groups), np.int64)
    labels[stream.order_within(groups, along)] = np.hstack([blocks.reshape(len(short), -1), rest]).ravel()
    return labels


def even_out(labels: Ints, groups: Ints, factors: Sequence[Ints], stream: Stream, *, rounds: int) -> Ints:
    """The same labels, exchanged between cores of one group so that they spread evenly over each of the ``factors``.

    ``groups`` and each factor are int64 [cores], levels from 0. Exchanges inside a group change nothing about how many
    of each label it has. Each round pairs the cores of a group at random and exchanges the labels of those pairs that
    lower the sum of squared shares, no two of which touch the same level. Ends when, for every level of every factor,
    the numbers of the labels differ by one at most, or after ``rounds``.
    """
    labels = labels.copy()
    tables = [_table(factor, labels) for factor in factors]
    for _ in range(rounds):
        if all(int(np.ptp(table, axis=1).max()) <= 1 for table in tables):
            break
        first, second = _pairs(labels, groups, stream)
        change = np.zeros(len(first), np.int64)
        for table, factor in zip(tables, factors, strict=True):
            change += _change(table, factor[first], factor[second], labels[first], labels[second])
        best = np.flatnonzero(change < 0)
        best = best[np.argsort(change[best], kind="stable")]
        best = best[_apart(factors, first[best], second[best])]
        first, second = first[best], second[best]
        labels[first], labels[second] = labels[second], labels[first]
        tables = [_table(factor, labels) for factor in factors]
    return labels


def _table(factor: Ints, labels: Ints) -> Ints:
    """How often each label stands at each level: int64 [levels, labels]."""
    levels = int(factor.max()) + 1
    return np.bincount(factor * LABELS + labels, minlength=levels * LABELS).reshape(levels, LABELS)


def _pairs(labels: Ints, groups: Ints, stream: Stream) -> tuple[Ints, Ints]:
    """Disjoint random pairs of cores of one group that have different labels."""
    order = stream.order_within(groups)
    order = order[: len(order) // 2 * 2]
    first, second = order[::2], order[1::2]
    wanted = (groups[first] == groups[second]) & (labels[first] != labels[second])
    return first[wanted], second[wanted]


def _change(table: Ints, a: Ints, b: Ints, x: Ints, y: Ints) -> Ints:
    """By how much an exchange changes half the sum of squares: level a gives up label x for y, level b y for x."""
    change = table[a, y] - table[a, x] + table[b, x] - table[b, y] + 2
    return np.where(a == b, 0, change)


def _apart(factors: Sequence[Ints], first: Ints, second: Ints) -> NDArray[np.bool_]:
    """Which pairs are the earliest at all the levels that they touch."""
    kept = np.ones(len(first), np.bool_)
    place = np.arange(len(first))
    for factor in factors:
        earliest = np.full(int(factor.max()) + 1, len(first))
        np.minimum.at(earliest, factor[first], place)
        np.minimum.at(earliest, factor[second], place)
        kept &= (earliest[factor[first]] == place) & (earliest[factor[second]] == place)
    return kept
