from __future__ import annotations

from dataclasses import replace

import pytest

from tallymill.engine.detectors.centernet import CenterNet
from tallymill.engine.detectors.coco_ssd import CocoSsd
from tallymill.engine.detectors.nanodet import NanoDet
from tallymill.engine.sessions.base import TensorSpec
from tallymill.errors import ModelError

FAMILIES = {"coco-ssd": CocoSsd, "nanodet": NanoDet, "centernet": CenterNet}


@pytest.mark.parametrize("kind", FAMILIES.values())
@pytest.mark.parametrize("other", FAMILIES.values())
def test_a_model_of_another_family_is_refused_before_anything_runs(array_session, kind, other):
    session = array_session(other, {})
    if kind is other:
        assert kind(session).session is session
        return
    with pytest.raises(ModelError, match=r"^arrays\.onnx: not a model of the family ") as caught:
        kind(session, "mine")
    assert "`family` and `model` of the detector 'mine'" in caught.value.hint
    for wanted in {out.name for out in kind.outputs} - {out.name for out in other.outputs}:
        assert f"wanted output {wanted} float32 [1, " in str(caught.value)
    assert f"the model has only {', '.join(out.name for out in other.outputs)}" in str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "fault"),
    [
        (
            [("image", "uint8", (1, 300, 300, 3))],
            "wanted input image float32 [1, 300, 300, 3], the model has image uint8 ",
        ),
        ([("image", "float32", (1, 3, 300, 300))], "the model has image float32 [1, 3, 300, 300]"),
        ([("image", "float32", (None, 320, None, 3))], "the model has image float32 [?, 320, ?, 3]"),
        ([("image", "float32", (300, 300, 3))], "the model has image float32 [300, 300, 3]"),
        ([("pixels", "float32", (1, 300, 300, 3))], "the model has only pixels; wanted no input pixels"),
        ([("image", "float32", None), ("scale", "float32", (1,))], "wanted no input scale"),
        ([], "the model has only none"),
    ],
)
def test_what_is_wanted_and_what_there_is(array_session, inputs, fault):
    session = array_session(CocoSsd, {})
    session.inputs = tuple(TensorSpec(*each) for each in inputs)
    with pytest.raises(ModelError) as caught:
        CocoSsd(session)
    assert fault in str(caught.value)


@pytest.mark.parametrize("shape", [None, (None, None, None, 3), (1, 300, 300, 3)])
def test_what_a_model_leaves_open_and_further_outputs_are_no_fault(array_session, shape):
    session = array_session(CocoSsd, {})
    session.inputs = (replace(session.inputs[0], shape=shape),)
    session.outputs += (TensorSpec("features", "float32", (1, 7)),)
    CocoSsd(session)


@pytest.mark.models
@pytest.mark.parametrize("name", FAMILIES)
def test_the_shipped_models_declare_what_their_families_want(session_of, name):
    session = session_of(name)
    assert session.inputs == FAMILIES[name].inputs
    assert {spec.name for spec in session.outputs} == {spec.name for spec in FAMILIES[name].outputs}
    FAMILIES[name](session)


@pytest.mark.models
def test_a_shipped_model_under_another_family_is_named_with_its_file(session_of):
    session = session_of("coco-ssd")
    with pytest.raises(ModelError, match=r"family 'centernet'.*wanted output heat") as caught:
        CenterNet(session)
    assert str(caught.value).startswith(f"{session.model}: ")
