"""Which RUNs are of one sweep, and which pairs are the same model asked jointly and one by one."""

from __future__ import annotations

import pytest

from tallymill.engine.physcount.predictions import read_predictions
from tallymill.engine.physcount.published import published_rows
from tallymill.engine.physcount.score import score
from tallymill.engine.report.physcount.plots import edge_of_setting, figures_of
from tallymill.engine.report.physcount.sweeps import pairs_of, sweeps_of


@pytest.fixture
def made(tmp_path, physcount_example):
    """Makes sets of predictions from (mode, settings)."""
    dataset = physcount_example.worked_dataset(tmp_path / "set")

    def of(*kinds):
        sets = []
        for place, (mode, settings) in enumerate(kinds):
            answers = physcount_example.true_answers(dataset, joint=mode == "joint")
            run = physcount_example.write_run(tmp_path / f"{place}", dataset, answers, mode=mode, **settings)
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


def test_files_are_in_no_sweep_and_no_pair(tmp_path, physcount_example):
    dataset = physcount_example.worked_dataset(tmp_path / "set")
    path = physcount_example.worked_predictions(tmp_path / "p.jsonl")
    sets = [read_predictions(path, dataset)] * 2
    assert [*pairs_of(sets)] == []
    assert sweeps_of([score(one, resamples=0) for one in sets]) == []


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
