import pytest

from tallymill.engine import devices
from tallymill.engine.devices import Cards
from tallymill.errors import ModelError, RunError, UsageError
from tallymill.runners import devices as choosing
from tallymill.runners.devices import choose_devices, require_device


@pytest.fixture
def here(monkeypatch):
    """So many cards, and these runtimes that could use one."""

    def pretend(count, *runtimes):
        monkeypatch.setattr(
            devices,
            "cards",
            lambda: Cards(count, f"somebody finds {count}", tuple(f"NVIDIA {number}" for number in range(count))),
        )
        monkeypatch.setattr(devices, "cannot_use_a_card", lambda each: None if each in runtimes else f"{each}: cannot")

    return pretend


@pytest.fixture
def models(tmp_path, monkeypatch):
    """Paths of models by name; a name is ``runtime`` or ``graph`` or ``none``."""
    monkeypatch.setattr(choosing, "_runtime_of", lambda path: None if path.name == "graph" else path.name)
    return lambda *kinds: {f"d-{kind}": None if kind == "none" else tmp_path / kind for kind in kinds}


def test_what_is_asked_for_is_what_is_used(here, models):
    here(2, "onnx")
    chosen = choose_devices("cuda:1,0", models("onnx"))
    assert (chosen.devices, chosen.kind) == (("cuda:1", "cuda:0"), "cuda")
    assert chosen.as_dict() == {"asked": "cuda:1,0", "devices": ["cuda:1", "cuda:0"], "cards": ["NVIDIA 1", "NVIDIA 0"]}
    assert choose_devices("cpu", models("onnx")).as_dict() == {"asked": "cpu", "devices": ["cpu"]}


def test_a_device_is_refused_before_anything_is_read(here):
    here(1)
    require_device("auto")
    require_device("cuda:0")
    with pytest.raises(UsageError, match="cuda:1 is not here"):
        require_device("cuda:1")


@pytest.mark.parametrize(
    ("kinds", "count", "runtimes", "found", "why"),
    [
        (["onnx", "torch"], 2, ["onnx", "torch"], ("cuda:0", "cuda:1"), "somebody finds 2"),
        (["onnx", "none"], 1, ["onnx"], ("cuda:0",), "somebody finds 1"),
        (["onnx"], 0, ["onnx"], ("cpu",), "somebody finds 0"),
        (["onnx", "torch"], 1, ["torch"], ("cpu",), "onnx: cannot"),
        (["none"], 1, ["onnx"], ("cpu",), "no detector has a model"),
        (["graph"], 1, ["onnx"], ("cpu",), "small graphs of fixed shapes are no work for a card: d-graph"),
        (["graph", "onnx"], 1, ["onnx"], ("cpu",), "small graphs of fixed shapes are no work for a card: d-graph"),
        (["graph", "tensorrt"], 1, ["onnx", "tensorrt"], ("cuda:0",), "somebody finds 1"),
        (["onnx", "tensorrt_rtx"], 1, ["onnx", "tensorrt_rtx"], ("cuda:0",), "somebody finds 1"),
    ],
)
def test_auto_takes_cards_where_every_model_can_use_one(kinds, count, runtimes, found, why, here, models):
    here(count, *runtimes)
    chosen = choose_devices("auto", models(*kinds))
    assert (chosen.asked, chosen.devices, chosen.why) == ("auto", found, why)
    assert bool(chosen.cards) == (chosen.kind == "cuda")


@pytest.mark.parametrize(
    ("kinds", "count", "runtimes", "why"),
    [
        (["onnx", "tensorrt"], 0, ["onnx", "tensorrt"], "somebody finds 0"),
        (["tensorrt"], 1, [], "tensorrt: cannot"),
        (["graph", "tensorrt"], 1, ["tensorrt"], "onnx: cannot"),
    ],
)
def test_auto_refuses_what_runs_on_cards_alone_where_there_is_none(kinds, count, runtimes, why, here, models):
    here(count, *runtimes)
    with pytest.raises(ModelError, match=f"d-tensorrt: made for a card alone, and none can be used: {why}"):
        choose_devices("auto", models(*kinds))


def test_auto_asks_for_cards_only_where_one_could_be_used(here, models, monkeypatch):
    here(1)
    monkeypatch.setattr(devices, "cards", lambda: pytest.fail("asked"))
    for kinds in (["none"], ["graph"], ["onnx"]):
        assert choose_devices("auto", models(*kinds)).devices == ("cpu",)


def test_auto_stays_with_what_the_run_was_made_on(here, models, tmp_path):
    here(1, "onnx")
    on_the_cpu = choose_devices("auto", models("onnx"), run=tmp_path, made_on="cpu")
    assert (on_the_cpu.devices, on_the_cpu.why) == (("cpu",), "the RUN was begun there")
    assert choose_devices("auto", models("none"), run=tmp_path, made_on="cuda").devices == ("cuda:0",)
    here(0, "onnx")
    with pytest.raises(RunError, match="was begun on a card, and there is none here: somebody finds 0") as caught:
        choose_devices("auto", models("onnx"), run=tmp_path, made_on="cuda")
    assert str(tmp_path) in caught.value.message


def test_the_runtime_is_that_of_the_bundle(tmp_path, bundle_example):
    bundle_example.write(tmp_path, runtime="tensorrt")
    with pytest.raises(ModelError, match="mine: made for a card alone"):
        choose_devices("auto", {"mine": tmp_path, "other": tmp_path / "m.onnx"})
