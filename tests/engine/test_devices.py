import importlib.machinery
from types import SimpleNamespace

import pytest

from tallymill.engine import devices
from tallymill.engine.devices import Cards, cannot_use_a_card, cards, named, require_there
from tallymill.engine.sessions import ort
from tallymill.errors import UsageError


@pytest.fixture
def installed(monkeypatch):
    """Pretend that only these packages are installed."""

    def only(**packages):
        spec = importlib.machinery.ModuleSpec("package", None)
        monkeypatch.setattr(devices, "find_spec", lambda name: spec if name in packages else None)
        monkeypatch.setattr(devices.importlib, "import_module", lambda name: packages[name])

    return only


def torch_with(count, cuda="13.0"):
    return SimpleNamespace(
        __version__="2.14",
        version=SimpleNamespace(cuda=cuda),
        cuda=SimpleNamespace(
            is_available=lambda: count > 0,
            device_count=lambda: count,
            get_device_name=lambda number: f"card {number}",
            get_device_capability=lambda number: (12 - number, 0),
        ),
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("auto", ()),
        ("cpu", ("cpu",)),
        ("cuda", ("cuda:0",)),
        ("cuda:1", ("cuda:1",)),
        ("cuda:0,1", ("cuda:0", "cuda:1")),
        ("cuda:12,3", ("cuda:12", "cuda:3")),
    ],
)
def test_devices_by_name(text, found):
    assert named(text) == found


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("tpu", "no such kind"),
        ("", "no such kind"),
        ("CUDA", "no such kind"),
        ("cpu:0", "no such kind"),
        ("0", "no such kind"),
        (3, "no such kind"),
        ("cuda:", "'' is not the number of a card"),
        ("cuda:-1", "'-1' is not the number of a card"),
        ("cuda:0,", "'' is not the number of a card"),
        ("cuda:0, 1", "' 1' is not the number of a card"),
        ("cuda:0,cuda:1", "'cuda:1' is not the number of a card"),
        ("cuda:٣", "is not the number of a card"),
        ("cuda:0,1,0", "cuda:0 is named twice"),
        ("cuda:1,01", "cuda:1 is named twice"),
    ],
)
def test_what_names_no_device_is_refused_with_the_forms(text, fault):
    with pytest.raises(UsageError) as caught:
        named(text)
    assert f"device {text!r}: " in caught.value.message
    assert fault in caught.value.message
    assert "cuda:0,1" in caught.value.hint


def test_the_cpu_is_there_and_nobody_is_asked(monkeypatch):
    monkeypatch.setattr(devices, "cards", lambda: pytest.fail("asked"))
    require_there("cpu", ("cpu",))
    require_there("auto", ())


@pytest.mark.parametrize(
    ("count", "text", "absent", "hint"),
    [
        (0, "cuda", "cuda:0", "use --device cpu"),
        (2, "cuda:0,2", "cuda:2", "cuda:0 to cuda:1"),
        (2, "cuda:0,1", None, ""),
    ],
)
def test_a_card_that_is_not_there(count, text, absent, hint, monkeypatch):
    monkeypatch.setattr(devices, "cards", lambda: Cards(count, "somebody said so"))
    if absent is None:
        require_there(text, named(text))
        return
    with pytest.raises(UsageError, match=f"device '{text}': {absent} is not here: somebody said so") as caught:
        require_there(text, named(text))
    assert hint in caught.value.hint


def test_cards_are_counted_by_torch(installed):
    installed(torch=torch_with(2))
    assert cards() == Cards(2, "torch 2.14 finds 2 cards", ("card 0", "card 1"), ("120", "110"))
    installed(torch=torch_with(0))
    assert cards() == Cards(0, "torch 2.14 finds no card")


@pytest.mark.parametrize("packages", [{}, {"torch": torch_with(0, cuda=None)}])
def test_without_torch_for_cuda_onnx_runtime_is_asked(packages, installed, monkeypatch):
    installed(onnxruntime=None, **packages)
    monkeypatch.setattr(ort, "version", lambda: "1.31")
    monkeypatch.setattr(ort, "knows_cuda", lambda: False)
    monkeypatch.setattr(ort, "count_cards", lambda: pytest.fail("asked"))
    assert cards() == Cards(0, "onnxruntime 1.31 has no CUDA (onnxruntime-gpu has)")
    monkeypatch.setattr(ort, "knows_cuda", lambda: True)
    monkeypatch.setattr(ort, "count_cards", lambda: 1)
    assert cards() == Cards(1, "onnxruntime 1.31 finds 1 card")
    monkeypatch.setattr(ort, "count_cards", lambda: 0)
    assert cards() == Cards(0, "onnxruntime 1.31 finds no card")


def test_where_nothing_can_tell_it_is_said(installed):
    installed()
    assert cards() == Cards(0, "no torch for CUDA and no onnxruntime is installed, which could find one")


@pytest.mark.parametrize(
    ("runtime", "packages", "why"),
    [
        ("onnx", {}, "onnxruntime is not installed"),
        ("torch", {}, "no torch for CUDA is installed"),
        ("torch", {"torch": torch_with(0, cuda=None)}, "no torch for CUDA is installed"),
        ("torch", {"torch": torch_with(0)}, None),
        ("tensorrt", {"torch": torch_with(0)}, "tensorrt is not installed"),
        ("tensorrt_rtx", {"torch": torch_with(0), "tensorrt": None}, "tensorrt_rtx is not installed"),
        ("tensorrt", {"torch": torch_with(0), "tensorrt": None}, None),
        ("tensorrt", {"tensorrt": None}, "no torch for CUDA is installed"),
    ],
)
def test_why_a_runtime_cannot_use_a_card(runtime, packages, why, installed):
    installed(**packages)
    assert cannot_use_a_card(runtime) == why
