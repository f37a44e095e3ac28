"""What is known of the engines that a run is about to use: whether a card has ever been seen to run them rightly."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tallymill.engine.bundles import CARD_ONLY, is_bundle, load_bundle
from tallymill.errors import ModelError

_LOG = logging.getLogger(__name__)


def require_not_refused(models: Mapping[str, Path | None], kind: str) -> dict[str, Mapping[str, Any] | None]:
    """Of each detector whose model is a bundle of engines, its acceptance as ``bundle.json`` has it, for ``run.json``.

    ``kind`` is that of the devices, "cpu" or "cuda". A bundle that was run on such a device and did not answer as its
    original is a ``ModelError``. Of engines that nobody has run the log warns, which goes to standard error, and they
    are used: they are built on one machine for cards of others, where the weights, without which nothing can be
    compared, need not be. Whoever reads the scores finds null in ``run.json``.
    """
    found = {}
    for name, path in models.items():
        if path is None or not is_bundle(path):
            continue
        bundle = load_bundle(path)
        if bundle.refused is not None and str(bundle.refused.get("device")).partition(":")[0] == kind:
            raise ModelError(
                f"{path}: did not answer as its original when it was checked on"
                f" {bundle.refused.get('card') or bundle.refused.get('device')}",
                hint=f"export it anew here, or check it again: tallymill export --check {path}",
            )
        if bundle.runtime in CARD_ONLY:
            found[name] = bundle.accepted
            if bundle.accepted is None:
                _LOG.warning(
                    "warning: %s: its engines have never been compared with the model on a card; "
                    "tallymill export --check %s --weights WEIGHTS does it",
                    name,
                    path,
                )
    return found
