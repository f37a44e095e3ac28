"""Images are chosen alike however many are read at once, and whatever a manifest calls their composition."""

import pyarrow as pa
import pytest

import tallymill
from tallymill.runners.numbench import gallery
from tallymill.runners.numbench.gallery import choose
from tallymill.runners.run import Run

KEY = (0, None)


@pytest.mark.parametrize("number", [1, 3, 50])
def test_images_as_bad_as_one_another_are_chosen_alike_whatever_is_read_at_once(
    number, item, made, tmp_path, monkeypatch
):
    rows = [item(k, {"cat": 10}, counted=[(0, 0, 7, 10)[k % 4]]) for k in range(160)]
    run = Run(made(tmp_path, rows))
    assert len(run.shards) == 10
    scores = run.scores
    order = gallery._hashes(scores["item_id"].combine_chunks(), 5).tolist()
    worst = sorted(range(160), key=lambda k: (scores["cw_nps"][k].as_py(), order[k]))[:number]
    found = []
    for at_once in (1 << 15, 1):
        monkeypatch.setattr(gallery, "_AT_ONCE", at_once)
        found.append(choose([run], number, seed=5, workers=2)[KEY])
    assert found[0] == found[1]
    assert [c.row for c in found[0] if c.group == "worst"] == worst


def test_a_composition_that_is_none_of_those_that_are_known_goes_by_the_number_of_targets(item, made, tmp_path):
    words = ("crowd", "x1", "x2", None)
    rows = [item(k, {"cat": 3}, **({"composition": words[k]} if words[k] else {})) for k in range(4)]
    run = Run(made(tmp_path, rows))

    def cells(**options):
        return [chosen.cell.composition for chosen in choose([run], 4, **options)[KEY]]

    assert set(cells()) == {"crowd", "x1", "x2", "single"}
    assert sorted(cells(compositions={"single", "double", "crowd"})) == ["crowd", "single", "single", "single"]


def test_a_composition_that_is_no_text_is_none(tmp_path):
    table = pa.table({"item_id": ["a"], "image": ["a.jpg"], "targets": ["cat=3"], "composition": [["x"]]})
    tallymill.sweep(table, tmp_path / "RUN", ensemble="synthetic", workers=0)
    [chosen] = choose([Run(tmp_path / "RUN")], 1)[KEY]
    assert chosen.cell.composition == "single"
