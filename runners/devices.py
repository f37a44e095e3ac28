"""Which devices a run uses: what was asked for, or what suits its models and this machine; and how that is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tallymill.engine import devices
from tallymill.engine.bundles import CARD_ONLY, is_bundle, load_bundle
from tallymill.engine.words import listed
from tallymill.errors import ModelError, RunError


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """``devices`` are what the models run on; ``why`` says how ``auto`` came to them: None where it was not asked.

    ``cards`` are the names of the cards among them, as far as they are known.
    """

    asked: str
    devices: tuple[str, ...]
    why: str | None = None
    cards: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """``cpu`` or ``cuda``: numbers of one kind differ from those of the other in their last bits."""
        return self.devices[0].partition(":")[0]

    def as_dict(self) -> dict[str, Any]:
        """What ``run.json`` keeps beside the kind."""
        chosen: dict[str, Any] = {"asked": self.asked, "devices": list(self.devices)}
        if self.why is not None:
            chosen["why"] = self.why
        if self.cards:
            chosen["cards"] = list(self.cards)
        return chosen


ON_THE_CPU = DeviceChoice(devices.CPU, (devices.CPU,))


def require_device(asked: str) -> None:
    """Refuse what is no device, or is not here, with a ``UsageError``: it can be told before anything else is read."""
    devices.require_there(asked, devices.named(asked))


def choose_devices(
    asked: str,
    models: Mapping[str, Path | None],
    *,
    run: Path | None = None,
    made_on: str = "",
) -> DeviceChoice:
    """The devices for detectors whose models lie at these paths.

    ``made_on`` is the kind of device that the ``run`` to be continued was made on, which ``auto`` stays with: a
    ``RunError`` where that is not here. Otherwise ``auto`` is every card that is here if each model is a bundle whose
    runtime could use one, else the CPU; small graphs of fixed shapes stay on the CPU. A model that runs on cards alone
    is a ``ModelError`` where ``auto`` finds none for it.
    """
    found = devices.named(asked)
    if found:
        return DeviceChoice(asked, found, cards=_names(found))
    if run is not None:
        return _as_before(run, made_on)
    runtimes = {name: _runtime_of(path) for name, path in models.items() if path is not None}
    bound = [name for name, runtime in runtimes.items() if runtime in CARD_ONLY]
    plain = [name for name, runtime in runtimes.items() if runtime is None]
    if not bound and not runtimes:
        return _auto((devices.CPU,), "no detector has a model")
    if not bound and plain:
        return _auto((devices.CPU,), f"small graphs of fixed shapes are no work for a card: {listed(plain, 3)}")
    # What rules a card out without a look at cards comes first: torch takes seconds to import.
    against = next(filter(None, (devices.cannot_use_a_card(each or "onnx") for each in runtimes.values())), None)
    here = devices.Cards(0, against) if against is not None else devices.cards()
    if here.count:
        return _auto(tuple(f"cuda:{number}" for number in range(here.count)), here.told, here.names)
    if bound:
        raise ModelError(
            f"{listed(bound, 3)}: made for a card alone, and none can be used: {here.told}",
            hint="for the CPU, export the model --to onnx",
        )
    return _auto((devices.CPU,), here.told)


def _names(found: tuple[str, ...]) -> tuple[str, ...]:
    if found == (devices.CPU,):
        return ()
    names = devices.cards().names
    return tuple(names[int(device.partition(":")[2])] for device in found) if names else ()


def _auto(found: tuple[str, ...], why: str, names: tuple[str, ...] = ()) -> DeviceChoice:
    return DeviceChoice("auto", found, why, names)


def _as_before(run: Path, made_on: str) -> DeviceChoice:
    why = "the RUN was begun there"
    if made_on == devices.CPU:
        return _auto((devices.CPU,), why)
    here = devices.cards()
    if not here.count:
        raise RunError(
            f"{run} was begun on a card, and there is none here: {here.told}",
            hint="continue it on a machine with a card, or choose another --out: devices differ in the last bits",
        )
    return _auto(tuple(f"cuda:{number}" for number in range(here.count)), why, here.names)


def _runtime_of(path: Path) -> str | None:
    """A bundle's runtime; None for a graph alone."""
    return load_bundle(path).runtime if is_bundle(path) else None
