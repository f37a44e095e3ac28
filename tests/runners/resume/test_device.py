"""A RUN is continued on the kind of device that it was begun on: the synthetic detector lets a card be pretended."""

import json

import pytest

import tallymill
from tallymill.engine import devices
from tallymill.engine.devices import Cards
from tallymill.engine.ensemble import build_proposer
from tallymill.engine.sessions.ort import OnnxRuntimeSession
from tallymill.engine.settings import Settings
from tallymill.errors import DeviceError, ModelError, RunError, UsageError


@pytest.fixture
def manifest(tmp_path, manifest_file):
    return manifest_file(tmp_path / "m.jsonl", 48)


@pytest.fixture
def here(monkeypatch):
    def pretend(count):
        monkeypatch.setattr(
            devices,
            "cards",
            lambda: Cards(count, f"somebody finds {count}", tuple(f"NVIDIA {number}" for number in range(count))),
        )

    return pretend


def record(run):
    return json.loads((run / "run.json").read_text())


def sweep(manifest, run, device="auto", **options):
    return tallymill.sweep(manifest, run, ensemble="synthetic", device=device, workers=0, **options)


def test_the_choice_and_its_reason_are_recorded(manifest, tmp_path, here):
    sweep(manifest, tmp_path / "RUN")
    assert record(tmp_path / "RUN")["device"] == "cpu"
    assert record(tmp_path / "RUN")["device_choice"] == {
        "asked": "auto",
        "devices": ["cpu"],
        "why": "no detector has a model",
    }
    here(2)
    sweep(manifest, tmp_path / "CARD", "cuda:1")
    assert record(tmp_path / "CARD")["device"] == "cuda"
    assert record(tmp_path / "CARD")["device_choice"] == {
        "asked": "cuda:1",
        "devices": ["cuda:1"],
        "cards": ["NVIDIA 1"],
    }


@pytest.mark.parametrize(("first", "second"), [("cpu", "cuda"), ("cuda:0", "cpu"), ("auto", "cuda:1")])
def test_another_kind_of_device_is_refused_with_the_difference(first, second, manifest, tmp_path, here, contents):
    here(2)
    sweep(manifest, tmp_path / "RUN", first, part=(1, 3))
    before = contents(tmp_path / "RUN"), record(tmp_path / "RUN")
    with pytest.raises(RunError, match=r'device \(devices differ .*\): "(cpu|cuda)" in the RUN, "(cuda|cpu)" now'):
        sweep(manifest, tmp_path / "RUN", second)
    assert (contents(tmp_path / "RUN"), record(tmp_path / "RUN")) == before


def test_other_cards_continue_it_and_auto_stays_with_its_kind(manifest, tmp_path, here):
    run = tmp_path / "RUN"
    here(2)
    sweep(manifest, run, "cuda:1", part=(1, 3))
    sweep(manifest, run, "cuda:0,1", part=(2, 3))
    here(1)
    assert sweep(manifest, run).complete
    assert record(run)["device_choice"]["why"] == "the RUN was begun there"
    assert record(run)["device_choice"]["devices"] == ["cuda:0"]


def test_auto_says_that_the_card_of_the_run_is_not_here(manifest, tmp_path, here):
    here(1)
    sweep(manifest, tmp_path / "RUN", "cuda", part=(1, 3))
    here(0)
    with pytest.raises(RunError, match="RUN was begun on a card, and there is none here: somebody finds 0"):
        sweep(manifest, tmp_path / "RUN")
    with pytest.raises(UsageError, match="'cuda': cuda:0 is not here: somebody finds 0"):
        sweep(manifest, tmp_path / "RUN", "cuda")


def test_auto_on_a_run_of_the_cpu_looks_for_no_card(manifest, tmp_path, monkeypatch):
    sweep(manifest, tmp_path / "RUN", "cpu", part=(1, 3))
    monkeypatch.setattr(devices, "cards", lambda: pytest.fail("asked"))
    assert sweep(manifest, tmp_path / "RUN").complete


def test_a_run_from_before_devices_could_be_chosen_goes_on_on_the_cpu(manifest, tmp_path, contents, times):
    run = tmp_path / "RUN"
    sweep(manifest, run)
    before, when = contents(run), times(run)
    old = {key: value for key, value in record(run).items() if key != "device_choice"}
    for values in (old, {key: value for key, value in old.items() if key != "device"}):
        (run / "run.json").write_text(json.dumps(values))
        assert tallymill.load(run).summary().complete
        sweep(manifest, run)
        assert (contents(run), times(run)) == (before, when)  # nothing was done anew


def test_a_rescored_run_keeps_the_device_of_its_proposals(manifest, tmp_path, here):
    here(1)
    sweep(manifest, tmp_path / "RUN", "cuda")
    tallymill.rescore(tmp_path / "RUN", tmp_path / "AGAIN", taus={"synthetic-a": 1.5})
    assert record(tmp_path / "AGAIN")["device"] == "cuda"
    here(0)  # no model is run
    tallymill.rescore(tmp_path / "RUN", tmp_path / "AGAIN", taus={"synthetic-a": 1.5})


def test_a_model_that_cannot_use_the_device_leaves_nothing_behind(tmp_path, image_folder, image_ensemble_file, here):
    here(1)
    images = image_folder(tmp_path / "images", 2)
    tiny = image_ensemble_file(tmp_path / "tiny.toml", "one")
    with pytest.raises(ModelError, match=r"one\.onnx: the device 'cuda:0' was asked for, and this ONNX Runtime"):
        tallymill.sweep(images, tmp_path / "RUN", ensemble=tiny, device="cuda", workers=0)
    assert not (tmp_path / "RUN").exists()


def test_models_are_opened_on_every_card_before_work_begins(manifest, tmp_path, here, monkeypatch):
    here(3)
    opened = []

    def build(detector, model, device="cpu"):
        opened.append(device)
        if device == "cuda:2":
            raise ModelError("cuda:2 is of another kind")
        return build_proposer(detector, model, device)

    monkeypatch.setattr("tallymill.runners.build.build_proposer", build)
    sweep(manifest, tmp_path / "RUN", "cuda:0,1", part=(1, 3))
    assert set(opened) == {"cuda:0", "cuda:1"}  # the only worker uses the first
    before = record(tmp_path / "RUN")
    for name in ("RUN", "OTHER"):
        with pytest.raises(ModelError, match="cuda:2 is of another kind"):
            sweep(manifest, tmp_path / name, "cuda:0,2")
    assert record(tmp_path / "RUN") == before
    assert not (tmp_path / "OTHER").exists()


def test_a_card_that_fails_ends_the_sweep_and_writes_no_error_rows(
    tmp_path, image_folder, image_ensemble_file, monkeypatch
):
    images = image_folder(tmp_path / "images", 40)
    tiny = image_ensemble_file(tmp_path / "tiny.toml", "one")
    run, left = OnnxRuntimeSession.run, iter(range(100))

    def fails_in_the_second_shard(self, inputs):
        if next(left) == 99:
            raise DeviceError("cuda:0 failed", hint="go on")
        return run(self, inputs)

    monkeypatch.setattr(OnnxRuntimeSession, "run", fails_in_the_second_shard)
    options = {"ensemble": tiny, "workers": 0, "settings": Settings(slices=(2,))}
    with pytest.raises(DeviceError, match="cuda:0 failed"):
        tallymill.sweep(images, tmp_path / "RUN", **options)
    monkeypatch.setattr(OnnxRuntimeSession, "run", run)
    summary = tallymill.load(tmp_path / "RUN").summary()
    assert (summary.done, summary.error) == (16, 0)
    summary = tallymill.sweep(images, tmp_path / "RUN", **options)
    assert (summary.done, summary.error) == (40, 0)
