"""The full set of prompts, built once for all tests of this folder."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tallymill.engine.numbench.prompts.build import build

# What stands for the vocabulary here: names that no other is a part of.
NAMES = [f"thing {k:04d}" for k in range(1600)]
PLURALS = [f"things {k:04d}" for k in range(1600)]


@pytest.fixture(scope="session")
def words() -> tuple[list[str], list[str]]:
    return NAMES, PLURALS


@pytest.fixture(scope="session")
def prompts() -> pa.Table:
    return build(NAMES, PLURALS, seed=0)
