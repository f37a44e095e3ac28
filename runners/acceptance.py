"""What is known of the engines that a run is about to use: whether a card has ever been seen to run them rightly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tallymill.engine.bundles import CARD_ONLY, is_bundle, load_bundle
from tallymill.errors import ModelError


def require_not_refused(
    models: Mapping[str, Path | None], kind: str, *, unaccepted: bool = False
) -> dict[str, Mapping[str, Any] | None]:
    """Of each detector whose model is a bundle of engines, its acceptance as ``bundle.json`` has it, for ``run.json``.

    ``kind`` is that of the devices, "cpu" or "cuda". A bundle that was run on such a device and did not answer as its
    original is a ``ModelError``, and so are engines that nobody has run beside it, unless ``unaccepted`` ones are asked
    for: the weights, without which nothing can be compared, need not be where the card is. Whoever reads the scores
    then finds null in ``run.json``.
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
            if bundle.accepted is None and not unaccepted:
                raise ModelError(
                    f"{path}: the engines of {name} have never been compared with the model on a card",
                    hint=f"tallymill export --check {path} --weights WEIGHTS does it; or give --unaccepted",
                )
    return found
