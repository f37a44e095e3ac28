"""Where a bundle can be run; what comes of running it is in tests/export."""

import math

import pytest

from tallymill.engine import devices
from tallymill.engine.devices import Cards
from tallymill.exporters import acceptance
from tallymill.exporters.acceptance import Place, place_of
from tallymill.exporters.gate import Finding


@pytest.fixture
def here(monkeypatch):
    def pretend(*capabilities, without=None):
        names = tuple(f"card {number}" for number in range(len(capabilities)))
        monkeypatch.setattr(devices, "cards", lambda: Cards(len(names), "somebody looked", names, capabilities))
        monkeypatch.setattr(devices, "cannot_use_a_card", lambda runtime: without and f"{runtime}: {without}")

    return pretend


def test_engines_are_run_on_a_card_of_their_kind(here):
    here("90", "89", "89")
    assert place_of("tensorrt_rtx", "89") == Place("cuda:1", card="card 1")
    assert place_of("tensorrt", "90") == Place("cuda:0", card="card 0")
    nowhere = place_of("tensorrt_rtx", "120")
    assert nowhere.device is None
    assert nowhere.why.endswith(
        "no card of compute capability 120 that could run them here: somebody looked, of 90, 89, 89"
    )
    assert place_of("tensorrt_rtx", None).device is None


def test_without_cards_or_what_uses_them_engines_are_not_run(here):
    here()
    assert place_of("tensorrt_rtx", "89").why.endswith("here: somebody looked")
    here("89", without="is not installed")
    assert place_of("tensorrt_rtx", "89").why.endswith("here: tensorrt_rtx: is not installed")


def test_other_runtimes_take_the_first_card_or_the_cpu(here):
    here("90", "89")
    assert place_of("torch") == Place("cuda:0", card="card 0")
    here("90", without="is not installed")
    assert place_of("onnx") == Place("cpu")


def test_a_record_keeps_of_every_output_what_is_nearest_to_its_bound():
    findings = [
        Finding("image", "batch of 1", "boxes", 0.1, 0.2, 4),
        Finding("image", "slot 2", "boxes", 0.3, 0.9, 4),
        Finding("image", "slot 2", "logits", math.nan, 0.9, 4),
        Finding("image", "slot 3", "logits", 0.8, 0.9, 4),
        Finding("whole", "count", "boxes", 0.0, 0.0, 4),
    ]
    record = acceptance._record(Place("cuda:0", card="NVIDIA L4"), findings)
    assert (record["device"], record["card"], record["comparisons"]) == ("cuda:0", "NVIDIA L4", 5)
    kept = [(each["part"], each["check"], each["output"], each["difference"]) for each in record["largest"]]
    assert kept == [
        ("image", "batch of 1", "boxes", 0.1),
        ("image", "slot 2", "logits", None),
        ("whole", "count", "boxes", 0.0),
    ]
