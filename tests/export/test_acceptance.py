"""Engines are accepted by running them. In their place stand graphs, run by ONNX Runtime in batches of one size."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import skimage.data
from PIL import Image

import tallymill
from tallymill.cli import main
from tallymill.engine import devices
from tallymill.engine.bundles import load_bundle
from tallymill.engine.devices import Cards
from tallymill.engine.sessions import trt
from tallymill.engine.sessions.ort import OnnxRuntimeSession
from tallymill.engine.sessions.trt import filled, size_for
from tallymill.errors import DeviceError, ModelError, UsageError
from tallymill.exporters import acceptance, engine_layers, gate, to_tensorrt
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.export import export
from tallymill.exporters.to_tensorrt import Engine, Target

RECIPE = recipe_of("owlvit-base-patch32")
TARGET = Target("fp16", "89", (1, 7))
CARD = Cards(2, "torch finds 2 cards", ("NVIDIA H200", "NVIDIA L4"), ("90", "89"))
NONE = Cards(0, "torch finds no card")


class StandIn:
    """Does with batches what ``TensorRtSession`` does, where an engine is a graph. ``fault`` spoils what one makes of a
    batch; ``opened`` is what has been opened where.
    """

    opened: ClassVar[set[tuple[str, str]]] = set()
    fault = staticmethod(lambda _file, outputs: outputs)

    def __init__(self, engines, *, module, device, batch=None):
        assert module == "tensorrt_rtx"
        self.batch = size_for(batch, list(engines))
        self.model = engines[self.batch]
        self.session = OnnxRuntimeSession(self.model)
        self.device, self.inputs, self.outputs = "cpu", self.session.inputs, self.session.outputs
        self.opened.add((device, self.model.name))

    def run(self, inputs):
        rows = len(next(iter(inputs.values())))
        pieces = []
        for first in range(0, rows, self.batch):
            batch = {key: filled(value[first : first + self.batch], self.batch) for key, value in inputs.items()}
            found = self.fault(self.model.name, self.session.run(batch))
            pieces.append({key: value[: min(self.batch, rows - first)] for key, value in found.items()})
        return {key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]}


class Machine:
    """TensorRT for RTX that makes stand-ins, on a machine with ``cards``."""

    def __init__(self, monkeypatch):
        self.cards = CARD
        rtx = SimpleNamespace(__name__="tensorrt_rtx", __version__="1.7")
        monkeypatch.setattr(gate, "PICTURES", ((64, 64), (100, 60)))
        monkeypatch.setattr(to_tensorrt, "runtime", lambda: rtx)
        monkeypatch.setattr(to_tensorrt, "check", lambda _target: None)
        monkeypatch.setattr(to_tensorrt, "build", self.build)
        monkeypatch.setattr(engine_layers, "dtypes_of", lambda _trt, file, _device: self.layers(file))
        monkeypatch.setattr(devices, "cards", lambda: self.cards)
        monkeypatch.setattr(devices, "cannot_use_a_card", lambda _runtime: None)
        monkeypatch.setattr(trt, "TensorRtSession", StandIn)

    @staticmethod
    def layers(file):
        return {"gemm": {"float16": 2, file.name: 1}}

    @staticmethod
    def build(_trt, graph, file, *_more):
        shutil.copyfile(graph, file)
        return Engine(file, 1.0, file.stat().st_size)


@pytest.fixture(scope="module")
def machine():
    with pytest.MonkeyPatch.context() as patch:
        yield Machine(patch)


@pytest.fixture
def card(machine):
    """Sets the cards of the machine, until the test ends."""
    yield partial(setattr, machine, "cards")
    machine.cards = CARD


@pytest.fixture(scope="module")
def exported(machine, small_folder, tmp_path_factory):
    """A bundle that has been accepted, and one that nobody has run; what was said, and opened."""
    folder, log = tmp_path_factory.mktemp("exported"), []
    StandIn.opened.clear()
    for name, cards in (("seen", CARD), ("unseen", NONE)):
        machine.cards = cards
        export(RECIPE, small_folder("owlvit"), out=folder / name, engines=TARGET, log=log.append)
    machine.cards = CARD
    return SimpleNamespace(folder=folder, log=log, opened=set(StandIn.opened))


@pytest.fixture
def made(exported, tmp_path):
    """The same two for a test to change."""
    copies = {name: Path(shutil.copytree(exported.folder / name, tmp_path / name)) for name in ("seen", "unseen")}
    return SimpleNamespace(**copies, **vars(exported))


def spoil(monkeypatch, fault):
    monkeypatch.setattr(StandIn, "fault", staticmethod(fault))


def lost_slot(file, outputs):
    """The last slot of the large engine of images answers as the first: small batches never show it."""
    if file == "vision-b7.engine":
        outputs = {key: np.concatenate([value[:-1], value[:1]]) for key, value in outputs.items()}
    return outputs


def small_alone(file, outputs):
    """Only the engine for single images is wrong, which detectors of images do not use."""
    return {key: value * np.float32(1.1) for key, value in outputs.items()} if file == "vision-b1.engine" else outputs


def told(folder):
    return json.loads((folder / "bundle.json").read_text())


def test_engines_are_run_where_there_is_a_card_of_their_kind(made):
    accepted = told(made.seen)["accepted"]
    assert load_bundle(made.seen).accepted == accepted
    assert (accepted["device"], accepted["card"]) == ("cuda:1", "NVIDIA L4")
    assert {"torch", "onnxruntime"} <= set(accepted["versions"])
    assert made.opened == {("cuda:1", f"{part}-b{batch}.engine") for part in ("vision", "text") for batch in (1, 7)}
    near = {(each["part"], each["output"]): each for each in accepted["largest"]}
    assert {"vision", "text", "whole"} == {part for part, _ in near}
    assert all(each["difference"] <= each["tolerance"] and each["compared"] for each in near.values())
    assert near["vision", "embeds"]["check"].endswith((", engine of 1", ", engine of 7"))
    assert accepted["comparisons"] > len(near)
    built = told(made.seen)["tensorrt"]["built"]["vision"]
    assert (built["dtypes_of"], built["dtypes"]) == ("engine", {"gemm": {"float16": 2, "vision-b7.engine": 1}})


def test_where_there_is_no_such_card_the_last_lines_say_so_and_what_to_run(made, small_folder):
    assert told(made.unseen)["accepted"] is None
    assert told(made.unseen)["tensorrt"]["built"]["vision"]["dtypes_of"] == "graph"
    assert "MatMul" in told(made.unseen)["tensorrt"]["built"]["vision"]["dtypes"]
    said, command = made.log[-2:]
    assert "run by nothing yet: there is no card of compute capability 89" in said
    assert "torch finds no card" in said
    assert command.strip() == f"tallymill export --check {made.folder / 'unseen'} --weights {small_folder('owlvit')}"
    assert load_bundle(made.unseen).sha256 == load_bundle(made.seen).sha256  # what is known of it is no part of it


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lost_slot, "vision, slot 6 of 7 against alone, engine of 7"),
        (small_alone, "vision, batch of 1 against torch, engine of 1"),
    ],
)
@pytest.mark.usefixtures("machine")
def test_engines_that_answer_wrongly_are_not_installed(fault, said, small_folder, tmp_path, monkeypatch):
    spoil(monkeypatch, fault)
    with pytest.raises(ModelError, match="on NVIDIA L4 the engines do not answer as the model; nothing was") as caught:
        export(RECIPE, small_folder("owlvit"), out=tmp_path / "owl", engines=TARGET)
    assert said in caught.value.message
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("machine")
def test_a_card_that_fails_installs_nothing(small_folder, tmp_path, monkeypatch):
    def fail(file, _outputs):
        raise DeviceError(f"{file}: TensorRT could not run it")

    spoil(monkeypatch, fail)
    with pytest.raises(DeviceError, match="could not run it"):
        export(RECIPE, small_folder("owlvit"), out=tmp_path / "owl", engines=TARGET)
    assert not list(tmp_path.iterdir())


def test_a_bundle_is_checked_where_the_card_is(made, small_folder, monkeypatch, capsys):
    weights, before = small_folder("owlvit"), load_bundle(made.unseen).sha256
    spoil(monkeypatch, lost_slot)
    with pytest.raises(ModelError, match="on NVIDIA L4 it does not answer as its original, and is refused:") as caught:
        acceptance.check(made.unseen, RECIPE, weights)
    assert "slot 6 of 7" in caught.value.message
    assert (told(made.unseen)["accepted"], told(made.unseen)["refused"]["card"]) == (None, "NVIDIA L4")
    spoil(monkeypatch, lambda _file, outputs: outputs)
    with pytest.raises(SystemExit) as ended:
        main(["export", "--check", str(made.unseen), "--weights", str(weights), "--json"])
    assert not ended.value.code
    assert json.loads(capsys.readouterr().out)["accepted"]["card"] == "NVIDIA L4"
    assert (told(made.unseen)["accepted"]["device"], told(made.unseen)["refused"]) == ("cuda:1", None)
    assert load_bundle(made.unseen).sha256 == before
    assert {file.name for file in made.unseen.iterdir()} == {file.name for file in made.seen.iterdir()}


def test_what_cannot_be_checked_is_told(made, card, small_folder, capsys):
    weights = small_folder("owlvit")
    with pytest.raises(ModelError, match=r"these are not the weights that .* was made of"):
        acceptance.check(made.unseen, RECIPE, small_folder("owlv2"))
    with pytest.raises(ModelError, match="run on an NVIDIA card, not on the device 'cpu'"):
        acceptance.check(made.unseen, RECIPE, weights, device="cpu")
    with pytest.raises(UsageError, match="cuda:2 is not here"):
        acceptance.check(made.unseen, RECIPE, weights, device="cuda:2")
    card(Cards(1, "torch finds 1 card", ("NVIDIA H200",), ("90",)))
    with pytest.raises(ModelError, match=r"no card of compute capability 89 .*: torch finds 1 card, of 90"):
        acceptance.check(made.unseen, RECIPE, weights)
    assert (told(made.unseen)["accepted"], told(made.unseen).get("refused")) == (None, None)
    for more in (["owlvit-base-patch32"], ["--to", "torch"], ["--batch", "8"]):
        with pytest.raises(SystemExit) as ended:
            main(["export", "--check", str(made.unseen), *more])
        assert ended.value.code == 2
        assert "--check exports nothing" in capsys.readouterr().err


def test_an_engine_of_halves_that_computes_in_float32_is_refused(machine, small_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "layers", lambda _file: {"gemm": {"float32": 3}})
    with pytest.raises(ModelError, match="vision, layers of the engine: halves"):
        export(RECIPE, small_folder("owlvit"), out=tmp_path / "owl", engines=TARGET)
    assert not (tmp_path / "owl").exists()


@pytest.mark.usefixtures("machine")
def test_bundles_of_graphs_are_checked_too(small_folder, tmp_path):
    bundle = export(RECIPE, small_folder("owlvit"), out=tmp_path / "owl")
    assert told(tmp_path / "owl")["accepted"] is None
    checked = acceptance.check(bundle.folder, RECIPE, small_folder("owlvit"), device="cpu")
    assert (checked.accepted["device"], checked.accepted["card"], checked.accepted["driver"]) == ("cpu", None, None)


@pytest.fixture
def sweep(tmp_path):
    """Sweeps two pictures with the bundle of a folder, on a card."""
    for place, picture in enumerate((skimage.data.chelsea(), skimage.data.coffee())):
        Image.fromarray(picture).resize((80, 60)).save(tmp_path / f"{place}.png")
    row = '{{"item_id": "i{0}", "image": "{0}.png", "targets": [{{"category": "cat", "count": 1}}]}}\n'
    (tmp_path / "items.jsonl").write_text("".join(row.format(place) for place in (0, 1)))

    def run(bundle, out, **options):
        (tmp_path / "e.toml").write_text(f'[[detectors]]\nname = "owl"\nfamily = "owlvit"\nmodel = "{bundle}"\n')
        options = {"device": "cuda:1", "workers": 0, **options}
        tallymill.sweep(tmp_path / "items.jsonl", tmp_path / out, ensemble=tmp_path / "e.toml", **options)
        return json.loads((tmp_path / out / "run.json").read_text())["ensemble"]["detectors"][0]

    return run


def test_a_sweep_with_engines_that_nobody_ran_is_refused_unless_asked_for(made, sweep, tmp_path, small_folder):
    assert sweep(made.seen, "SEEN")["accepted"]["card"] == "NVIDIA L4"
    with pytest.raises(ModelError, match="the engines of owl have never been compared with the model on a card") as no:
        sweep(made.unseen, "RUN", part=(1, 2), shard_items=1)
    assert f"tallymill export --check {made.unseen}" in (no.value.hint or "")
    assert not (tmp_path / "RUN").exists()
    assert sweep(made.unseen, "RUN", part=(1, 2), shard_items=1, unaccepted=True)["accepted"] is None
    assert tallymill.load(tmp_path / "RUN").summary().done == 1
    acceptance.check(made.unseen, RECIPE, small_folder("owlvit"))
    assert sweep(made.unseen, "RUN", shard_items=1)["accepted"]["card"] == "NVIDIA L4"  # and the RUN goes on
    assert tallymill.load(tmp_path / "RUN").summary().complete


def test_a_sweep_with_engines_that_were_refused_is_refused(made, sweep, tmp_path, small_folder, monkeypatch):
    spoil(monkeypatch, lost_slot)
    with pytest.raises(ModelError, match="it does not answer"):
        acceptance.check(made.unseen, RECIPE, small_folder("owlvit"))
    with pytest.raises(ModelError, match="did not answer as its original when it was checked on NVIDIA L4"):
        sweep(made.unseen, "RUN")
    assert not (tmp_path / "RUN").exists()


def test_what_a_kind_of_device_said_stays_beside_what_the_other_says():
    here = acceptance.Place("cpu")
    assert acceptance._elsewhere({"device": "cuda:0"}, here) == {"device": "cuda:0"}
    assert acceptance._elsewhere({"device": "cpu"}, here) is None
    assert acceptance._elsewhere(None, here) is None
    assert acceptance._elsewhere({"device": "cuda:0"}, acceptance.Place("cuda:1")) is None
