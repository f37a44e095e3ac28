import pytest

from tallymill.errors import ModelError
from tallymill.runners.acceptance import require_not_refused


@pytest.fixture
def bundle(tmp_path, bundle_example):
    def make(name, runtime, **told):
        return bundle_example.write(tmp_path / name, name=name, runtime=runtime, **told)

    return make


ON_A_CARD = {"device": "cuda:1", "card": "NVIDIA L4"}


def test_engines_that_nobody_ran_are_refused_unless_they_are_asked_for(bundle, tmp_path):
    models = {
        "none": None,
        "file": tmp_path / "a.onnx",
        "graphs": bundle("graphs", "onnx", accepted=None),
        "seen": bundle("seen", "tensorrt", accepted=ON_A_CARD),
    }
    assert require_not_refused(models, "cuda") == {"seen": ON_A_CARD}
    for name, runtime, told in (("unseen", "tensorrt_rtx", {"accepted": None}), ("older", "tensorrt", {})):
        with_it = {**models, name: bundle(name, runtime, **told)}
        with pytest.raises(ModelError, match=f"the engines of {name} have never been compared") as caught:
            require_not_refused(with_it, "cuda")
        assert f"--check {with_it[name]} " in caught.value.hint
        assert require_not_refused(with_it, "cuda", unaccepted=True) == {"seen": ON_A_CARD, name: None}


@pytest.mark.parametrize(
    ("device", "kind", "refused"), [("cuda:1", "cuda", True), ("cuda:1", "cpu", False), ("cpu", "cpu", True)]
)
def test_what_failed_on_such_a_device_is_not_used_there(device, kind, refused, bundle):
    models = {"torch": bundle("torch", "torch", accepted=None, refused={"device": device, "card": None})}
    if not refused:
        assert require_not_refused(models, kind) == {}
        return
    with pytest.raises(ModelError, match=f"did not answer as its original when it was checked on {device}") as caught:
        require_not_refused(models, kind)
    assert "--check" in caught.value.hint
