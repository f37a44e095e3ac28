"""The benchmark of detection times only what agrees: its peers on small models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tallymill.bench import detect
from tallymill.errors import TallymillError


@pytest.fixture(params=["owlvit", "grounding_dino"])
def model(request, small_folder, monkeypatch):
    """A small model in the place of the published one."""
    monkeypatch.setattr(detect, "make_folder", lambda family, _folder: small_folder(family))
    cases = [replace(each, options={"buckets": ((96, 96),)} if each.alone else {}) for each in detect.CASES]
    monkeypatch.setattr(detect, "CASES", tuple(cases))
    return detect.MODELS[request.param != "owlvit"]


def test_peers_agree_and_are_timed_in_turns(model):
    result = detect.run(images=2, rounds=1, models=[model])
    ours, pipeline, passes = result["models"][model]["peers"]
    assert ours["ratio"] == 1
    assert min(each["images_per_s"] for each in (ours, pipeline, passes)) > 0
    assert f"{model}, transformers, one pass" in detect.table(result)


def test_another_answer_is_not_timed(model, monkeypatch):
    answer = detect.Ours.__call__

    def moved(self, *args):
        return [(boxes + np.float32(9), scores) for boxes, scores in answer(self, *args)]

    monkeypatch.setattr(detect.Ours, "__call__", moved)
    with pytest.raises(TallymillError, match="the peers do not agree"):
        detect.run(images=2, rounds=1, models=[model])
