"""A session runs one exported model: named arrays in, named arrays out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Session(Protocol):
    """One loaded model on one device. Not thread-safe; a worker owns its sessions."""

    device: str

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model once. Shapes and dtypes are the model's own; a mismatch is a ``ModelError``."""
        ...


def stack(rows: list[Array]) -> Array:
    """Preprocessed inputs of equal shape [...] -> one batch [B, ...], without a copy for a batch of one."""
    return rows[0][None] if len(rows) == 1 else np.stack(rows)
