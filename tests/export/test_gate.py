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
