"""What the gate refuses: each fault is a real one of exports, put into a real one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tallymill.errors import ModelError
from tallymill.exporters import gate
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.export import export
from tallymill.exporters.recipes.parts import Part
from tallymill.exporters.to_onnx import export_part

RECIPE = recipe_of("owlvit-base-patch32")


class Sampling(torch.nn.Module):
    """Bilinear sampling at places that the input names, as in deformable attention."""

    def forward(self, image, places):
        return {"found": torch.nn.functional.grid_sample(image, places, align_corners=False).flatten(1)}


def part(module=None):
    def vary(batch, seed):
        rng = np.random.default_rng(seed)
        places = rng.uniform(-1.2, 1.2, (batch, 4, 4, 2)).astype(np.float32)
        return {"image": rng.standard_normal((batch, 3, 8, 8), np.float32), "places": places}

    examples = {name: torch.from_numpy(value) for name, value in vary(2, 0).items()}
    return Part(module or Sampling(), examples, {"image": (0,), "places": (0,)}, vary)


class Wrong:
    """A session that does to the answer of torch what a broken engine does."""

    def __init__(self, fault):
        self.part, self.fault = part(), fault

    def run(self, inputs):
        return self.fault(gate.reference(self.part, inputs))


def refused(session):
    return {finding.check for finding in gate.examine("sampling", part(), session) if not finding.passed}


def test_a_right_session_passes():
    assert not refused(Wrong(lambda found: found))


def test_a_batch_that_leaks_into_its_neighbour_is_refused():
    def leak(found):
        return {"found": found["found"] + 0.01 * np.roll(found["found"], 1, axis=0) * (len(found["found"]) > 1)}

    assert {"batch of 2 against torch", "slot 0 of 5 against alone", "slot 4 of 5 against alone"} <= refused(
        Wrong(leak)
    )


def test_a_slot_that_is_lost_in_larger_batches_is_refused():
    def lose(found):
        found["found"][4:] = 0
        return found

    assert refused(Wrong(lose)) == {"batch of 5 against torch", "slot 4 of 5 against alone"}


def test_an_answer_that_is_not_finite_is_refused():
    assert "batch of 1 against torch" in refused(Wrong(lambda found: {"found": found["found"] * np.nan}))


def test_an_answer_of_another_shape_is_refused():
    assert "batch of 1 against torch" in refused(Wrong(lambda found: {"found": found["found"][:, :3]}))


def test_an_export_that_is_another_model_is_refused(tmp_path):
    class Nearest(Sampling):
        def forward(self, image, places):
            found = torch.nn.functional.grid_sample(image, places, mode="nearest", align_corners=False)
            return {"found": found.flatten(1)}

    from tallymill.engine.sessions.ort import OnnxRuntimeSession

    export_part(part(Nearest()), tmp_path / "sampling.onnx")
    assert "batch of 2 against torch" in refused(OnnxRuntimeSession(tmp_path / "sampling.onnx"))


@pytest.mark.parametrize("numbers", [{"mean": [0.0, 0.0, 0.0]}, {"resample": "bilinear"}, {"template": "{}"}])
def test_a_detector_that_prepares_its_input_otherwise_is_refused(numbers, owl_folder, tmp_path):
    def load(weights):
        loaded = RECIPE.load(weights)
        return replace(loaded, numbers={**loaded.numbers, **numbers})

    with pytest.raises(ModelError, match="nothing was installed") as caught:
        export(replace(RECIPE, load=load), owl_folder("owlvit"), out=tmp_path / "bundle")
    assert "against the original" in caught.value.message
    assert not list(tmp_path.iterdir())


def test_what_was_installed_before_stays_when_its_successor_is_refused(owl_folder, tmp_path):
    before = export(RECIPE, owl_folder("owlvit"), out=tmp_path / "bundle")

    def load(weights):
        loaded = RECIPE.load(weights)
        return replace(loaded, numbers={**loaded.numbers, "std": [1.0, 1.0, 1.0]})

    with pytest.raises(ModelError, match="nothing was installed"):
        export(replace(RECIPE, load=load), owl_folder("owlvit"), out=tmp_path / "bundle")
    assert export(RECIPE, owl_folder("owlvit"), out=tmp_path / "bundle").sha256 == before.sha256


class Best(torch.nn.Module):
    """The two greatest values of a row, by place, and what is made of them, in a text that may be padded."""

    def forward(self, values, mask, picked=None):
        values = values.masked_fill(~mask, -torch.inf)
        best, own = torch.topk(values, 2, dim=1)
        chosen = values.gather(1, own if picked is None else picked)
        if picked is None:
            best, picked = chosen, own
        return {"picked": picked, "best": torch.stack([best, chosen], -1), "made": picked.float() ** 2}


def choosing():
    def vary(batch, seed):
        rng = np.random.default_rng(seed)
        length = int(rng.integers(4, 9))
        values = rng.integers(0, 4, (batch, length)).astype(np.float32)  # ties
        return {"values": values, "mask": np.ones((batch, length), np.bool_)}

    return Part(Best(), {}, {"values": (0, 1), "mask": (0, 1)}, vary, choices=("picked",))


@pytest.mark.parametrize(
    ("pick", "passes"),
    [
        (lambda values: np.argsort(-values, axis=1, kind="stable")[:, :2], True),
        (lambda values: np.argsort(-values[:, ::-1], axis=1, kind="stable")[:, :2] * -1 + values.shape[1] - 1, True),
        (lambda values: np.argsort(-values, axis=1, kind="stable")[:, 1:3], False),
        (lambda values: np.argsort(-values, axis=1, kind="stable")[:, [0, 0]], False),
    ],
    ids=["the first of equals", "the last of equals", "not the best", "one twice"],
)
def test_any_of_equals_may_be_picked_and_what_is_made_of_it_is_compared(pick, passes):
    class Engine:
        def run(self, inputs):
            values = np.where(inputs["mask"], inputs["values"], -np.inf).astype(np.float32)
            picked = pick(values)
            chosen = np.take_along_axis(values, picked, 1)
            return {
                "picked": picked,
                "best": np.stack([chosen, chosen], -1),
                "made": picked.astype(np.float32) ** 2,
            }

    findings = gate.examine("best", choosing(), Engine())
    assert all(finding.passed for finding in findings) == passes


def test_parts_keep_what_they_share_in_one_file(tmp_path):
    from tallymill.engine.sessions.ort import OnnxRuntimeSession
    from tallymill.exporters.common_weights import CommonWeights

    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 64)

    class Layer(torch.nn.Module):
        def __init__(self, times):
            super().__init__()
            self.linear, self.times = linear, times

        def forward(self, x):
            return {"y": self.linear(x) * self.times}

    def vary(batch, seed):
        return {"x": np.random.default_rng(seed).standard_normal((batch, 64), np.float32)}

    weights = CommonWeights(tmp_path / "all.weights")
    for times in (1.0, 2.0):
        one = Part(Layer(times), {"x": torch.zeros(2, 64)}, {"x": (0,)}, vary)
        file = tmp_path / f"{times}.onnx"
        assert export_part(one, file, weights) == [file, weights.file]
        assert all(finding.passed for finding in gate.examine("layer", one, OnnxRuntimeSession(file)))
        assert file.stat().st_size < 64 * 64 * 4
    assert weights.file.stat().st_size == 64 * 64 * 4
