"""The benchmarks of ABACUS agree with what they are timed against."""

from __future__ import annotations

import pytest

from tallymill.bench import abacus, abacus_stages


def test_the_stages_are_those_of_the_libraries():
    result = abacus_stages.run(rounds=1)
    assert result["match"][0]["name"] == "tallymill"
    values = [row["value"] for row in result["masked"]]
    assert max(values) - min(values) < 0.005  # what is masked has no part in it
    assert "pycocotools" in abacus_stages.table(result)


def test_a_plain_script_comes_to_the_same_verdicts(monkeypatch):
    monkeypatch.setattr(abacus, "LAPS", 1)
    result = abacus.run(rounds=1)
    assert result["edits"] == 12
    names = ["tallymill, 2 workers", "tallymill, 1 worker", "script, 2 processes", "script, 1 process"]
    assert [row["name"] for row in result["rows"]] == names
    assert [list(row["ratios"]) for row in result["rows"]] == [names] * 4
    assert [row["ratios"][row["name"]] for row in result["rows"]] == [1] * 4
    first, *_, last = result["rows"]
    assert first["ratios"][last["name"]] * last["ratios"][first["name"]] == pytest.approx(1, abs=0.01)
    assert abacus.table(result).count("time/") == 4
