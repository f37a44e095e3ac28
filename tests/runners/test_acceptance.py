import pytest

from tallymill.errors import ModelError
from tallymill.runners.acceptance import require_not_refused


@pytest.fixture
def bundle(tmp_path, bundle_example):
    def make(name, runtime, **told):
        return bundle_example.write(tmp_path / name, name=name, runtime=runtime, **told)

    return make


ON_A_CARD = {"device": "cuda:1", "card": "NVIDIA L4"}


def test_of_engines_it_is_told_whether_they_were_accepted_and_warned_of_if_not(bundle, tmp_path, caplog):
    models = {
        "none": None,
        "file": tmp_path / "a.onnx",
        "graphs": bundle("graphs", "onnx", accepted=None),
        "seen": bundle("seen", "tensorrt", accepted=ON_A_CARD),
        "unseen": bundle("unseen", "tensorrt_rtx", accepted=None),
        "older": bundle("older", "tensorrt"),
    }
    assert require_not_refused(models, "cuda") == {"seen": ON_A_CARD, "unseen": None, "older": None}
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert (
        "unseen: its engines have never been compared with the model on a card; tallymill export --check" in caplog.text
    )
    assert str(models["unseen"]) in caplog.text


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
