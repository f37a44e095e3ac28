"""What a prompt says: targets, layout, modifiers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tallymill.engine.numbench.factors import GREATEST_COUNT, LAYOUTS, MODIFIERS

ARRANGED = {
    "free": "",
    "grid": ", arranged in a regular grid",
    "scene": ", placed naturally in a scene",
    "random": ", scattered at random positions",
}
Ints = NDArray[np.int64]


def prompt_texts(
    names: Sequence[str],
    plurals: Sequence[str],
    categories: Ints,
    counts: Ints,
    layouts: Ints,
    modifiers: Ints,
) -> pa.Array:
    """The texts of prompts, such as "generate 11 cats and 9 dogs, arranged in a regular grid, blurry, overlapping".

    ``categories`` (positions in ``names``) and ``counts`` (0 to 100) are int64 [prompts, targets], the first target
    always given and a count of 0 where there is no second one; ``layouts`` are positions in ``LAYOUTS``, ``modifiers``
    bits for ``MODIFIERS``. The plural stands unless the count is 1 (see ``one_of``).
    """
    words = pa.array([*map(one_of, names, plurals), *plurals], pa.string())
    numbers = pa.array([str(n) for n in range(GREATEST_COUNT + 1)], pa.string())

    def target(column: int) -> pa.Array:
        many = counts[:, column] != 1
        chosen = words.take(pa.array(categories[:, column] + len(names) * many))
        return pc.binary_join_element_wise(numbers.take(pa.array(counts[:, column])), chosen, " ")

    parts = [pa.scalar("generate "), target(0)]
    if counts.shape[1] == 2:
        second = pc.binary_join_element_wise(pa.scalar(" and "), target(1), "")
        parts.append(pc.if_else(pa.array(counts[:, 1] > 0), second, pa.scalar("")))
    ends = pa.array([arranged + _modified(terms) for arranged in map(ARRANGED.__getitem__, LAYOUTS) for terms in _SETS])
    parts.append(ends.take(pa.array(layouts * len(_SETS) + modifiers)))
    return pc.binary_join_element_wise(*parts, "")


def one_of(name: str, plural: str) -> str:
    """How a prompt asks for one: by the name, but for "1 pair of scissors" as for "2 pairs of scissors"."""
    return f"pair of {name}" if plural == f"pairs of {name}" else name


def terms_of(modifiers: int) -> list[str]:
    """The terms that bits stand for, in the order in which prompts keep them."""
    return [term for place, term in enumerate(MODIFIERS) if modifiers >> place & 1]


def _modified(modifiers: int) -> str:
    return "".join(f", {term}" for term in terms_of(modifiers))


_SETS = range(1 << len(MODIFIERS))
