"""Which RUNs are of one sweep, and which pairs are the same model asked jointly and one by one."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tallymill.engine.physcount.predictions import read_predictions
from tallymill.engine.physcount.published import published_rows
from tallymill.engine.physcount.score import score
from tallymill.engine.report.physcount.plots import edge_of_setting, figures_of
from tallymill.engine.report.physcount.sweeps import notes_of, pairs_of, sweeps_of


@pytest.fixture
def made(tmp_path, physcount_example):
    """Makes sets of predictions from (mode, settings)."""
    dataset = physcount_example.worked_dataset(tmp_path / "set")

    def of(*kinds):
        sets = []
        for place, (mode, settings) in enumerate(kinds):
            answers = physcount_example.true_answers(dataset, joint=mode == "joint")
            served = settings.pop("served", None)
            run = physcount_example.write_run(tmp_path / f"{place}", dataset, answers, mode=mode, **settings)
            record = json.loads((run / "run.json").read_text())
            (run / "run.json").write_text(json.dumps({**record, "served": served}))
            sets.append(read_predictions(run, dataset))
        return sets, [score(one, resamples=20) for one in sets]

    return of


def test_a_sweep_differs_in_the_long_edge_alone(made):
    kinds = [("independent", {"long_edge": edge}) for edge in (1024, 512)]
    _, found = made(*kinds, ("independent", {"long_edge": 256, "temperature": 1.0}), ("joint", {"long_edge": 2048}))
    [sweep] = sweeps_of(found)
    assert [edge for edge, _ in sweep.points] == [512, 1024]
    assert (sweep.model, sweep.mode) == ("tiny", "independent")


def test_a_pair_differs_in_the_mode_alone(made):
    sets, _ = made(
        ("independent", {"long_edge": 512}),
        ("joint", {}),
        ("independent", {}),
        ("joint", {"long_edge": 512, "model": "other"}),
        ("joint", {"temperature": 1.0}),
    )
    assert [*pairs_of(sets)] == [(1, 2)]


def test_what_was_served_otherwise_is_in_no_sweep_and_no_pair(made):
    def served(*arguments, model="m", python="python"):
        return {"model": model, "python": python, "arguments": [*arguments]}

    kinds = [
        ("independent", {"long_edge": 1024, "served": served("--max-model-len=8192")}),
        ("independent", {"long_edge": 512, "served": served("--quantization=fp8")}),
        ("independent", {"long_edge": 256, "served": served("--max-model-len=8192", model="other")}),
        ("independent", {"long_edge": 128, "served": served("--max-model-len=8192", python="other/python")}),
        ("joint", {"long_edge": 512, "served": served()}),
        ("joint", {"long_edge": 512, "served": served("--quantization=fp8")}),
    ]
    sets, found = made(*kinds)
    assert [[edge for edge, _ in sweep.points] for sweep in sweeps_of(found)] == [[128, 1024]]
    assert [*pairs_of(sets)] == [(5, 1)]


def test_sets_that_were_made_alike_all_stand_at_their_edge(made):
    kinds = [("independent", {"long_edge": edge}) for edge in (512, 1024, 512)]
    sets, found = made(*kinds, ("joint", {"long_edge": 512}))
    found = [dataclasses.replace(one, name=f"m{place}") for place, one in enumerate(found)]
    [sweep] = sweeps_of(found)
    assert [(edge, one.name) for edge, one in sweep.points] == [(512, "m0"), (512, "m2"), (1024, "m1")]
    assert notes_of([sweep]) == ["m0, m2 were made alike: all of them stand at 512 px."]
    assert notes_of(sweeps_of(found[:2])) == []
    assert sweeps_of([found[0], found[2]]) == []
    assert [*pairs_of(sets)] == [(3, 0), (3, 2)]


def test_files_are_in_no_sweep_and_no_pair(made, tmp_path, physcount_example):
    """Not even one of the name and the answers of a RUN that is in both."""
    sets, found = made(("independent", {"long_edge": 512}), ("independent", {}), ("joint", {}))
    assert ([*pairs_of(sets)], len(sweeps_of(found))) == ([(2, 1)], 1)
    dataset = sets[1].dataset
    answers = physcount_example.true_answers(dataset)
    file = read_predictions(physcount_example.write_predictions(tmp_path / "tiny.jsonl", answers), dataset)
    assert (file.name, {**file.answers}) == (sets[1].name, {**sets[1].answers})
    assert [*pairs_of([sets[0], file, sets[2]])] == []
    assert [*pairs_of([sets[0], sets[1], file])] == []
    assert sweeps_of([found[0], score(file, resamples=0), found[2]]) == []


def test_figures_of_what_there_is(made):
    _, found = made(("independent", {}), ("independent", {"long_edge": 512}))
    settings = [row for row in published_rows() if row.setting]
    assert [edge_of_setting(row) for row in settings] == [512, 1024, 2048, 4096, 4096]
    figures = figures_of(found, sweeps_of(found), settings)
    assert {*figures} == {"families", "counts", "resolution"}
    assert "Qwen3.8-27B, joint †" in figures["resolution"].narrow
    assert figures["families"].broad == ""
    assert {*figures_of(found[:1], [])} == {"families", "counts"}
    assert figures_of(found[:1], []) == figures_of(found[:1], [])
    assert figures_of([], []) == {}
