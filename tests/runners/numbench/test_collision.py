"""``tallymill.collision`` and the command: the model as numbers, a table and a plot."""

from __future__ import annotations

import json
import sys

import pytest

import tallymill
from tallymill import cli
from tallymill.errors import MissingExtraError, UsageError
from tallymill.runners import console


@pytest.fixture
def call(capsys, monkeypatch):
    """Run a command in this process: exit code, standard output, standard error."""

    def run(*arguments):
        monkeypatch.setattr(console, "out", console._console(sys.stdout, stderr=False))
        monkeypatch.setattr(console, "err", console._console(sys.stderr, stderr=True))
        code = cli.run(["collision", *arguments])
        return code, *capsys.readouterr()

    return run


def test_closed_form_and_simulation_stand_side_by_side():
    model = tallymill.collision(50, [0.0, 0.5], [1, 10, 60], trials=2_000, seed=3)
    uniform, half = model.curves
    assert (uniform.effective_capacity, half.effective_capacity) == (50.0, 100.0)
    ten = uniform.points[1]
    assert ten.expected == pytest.approx(50 * (1 - (1 - 1 / 50) ** 10))
    assert ten.leading == pytest.approx(45 / 50)
    assert ten.deficit == pytest.approx(10 - ten.expected)
    assert ten.distinct <= ten.bound
    for curve in model.curves:
        assert curve.points[0].z is None  # one object is always visible
        for point in curve.points[1:]:
            assert abs(point.z) < 4
            assert point.simulated == pytest.approx(point.expected, rel=0.02)
    assert half.points[-1].distinct == 0  # 60 objects in 50 regions


def test_the_result_is_the_seed_s_whatever_the_workers():
    first = tallymill.collision(50, [0.3], trials=500, seed=3, workers=1)
    assert tallymill.collision(50, [0.3], trials=500, seed=3, workers=2) == first
    assert tallymill.collision(50, [0.3], trials=500, seed=4) != first


def test_without_trials_nothing_is_simulated(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)  # and numba is not asked for
    point = tallymill.collision(50, [0.3], [10], trials=0).curves[0].points[0]
    assert (point.simulated, point.z) == (None, None)


def test_full_coordination_has_an_infinite_capacity():
    curve = tallymill.collision(50, [1.0], [50, 51], trials=0).curves[0]
    assert curve.effective_capacity is None
    assert [point.deficit for point in curve.points] == [0, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capacity": 0}, "capacity 0"),
        ({"capacity": 10**9}, "capacity"),
        ({"coordination": [1.5]}, "coordination 1.5"),
        ({"coordination": [float("nan")]}, "coordination nan"),
        ({"coordination": []}, "no coordination"),
        ({"counts": []}, "no count"),
        ({"counts": [0]}, "count 0"),
        ({"counts": [1001]}, "count 1001"),
        ({"trials": -1}, "trials -1"),
        ({"seed": -1}, "seed -1"),
        ({"workers": -1}, "workers"),
        ({"out": "plot.jpg"}, "plot.jpg"),
    ],
)
def test_what_makes_no_sense_is_told(change, message):
    with pytest.raises(UsageError, match=message):
        tallymill.collision(**{"trials": 0, **change})


def test_the_command_shows_a_table_a_coordination(call):
    code, out, err = call("--capacity", "60", "--coordination", "0", "--coordination", "0.7", "--trials", "1000")
    assert (code, err) == (0, "")
    assert "M = 60, lambda = 0: A = M/q is 60" in out
    assert "M = 60, lambda = 0.7: A = M/q is 200" in out
    assert "and 80 more counts" in out
    assert "standard errors" in out


def test_the_command_s_json_has_every_count(call):
    code, out, _ = call("--counts", "5,1-3, 9", "--trials", "100", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["capacity"], found["trials"], found["seed"]) == (100, 100, 0)
    assert [point["count"] for point in found["curves"][0]["points"]] == [1, 2, 3, 5, 9]
    assert found["curves"][0]["points"][0]["z"] is None


@pytest.mark.parametrize("counts", ["", "0", "1-", "5-3", "1-1001", "ten", "1-99999999999", "-4", "1;2"])
def test_counts_that_cannot_be_read_are_told(call, counts):
    code, out, err = call(f"--counts={counts}", "--trials", "0")
    assert (code, out) == (2, "")
    assert "count" in err


@pytest.mark.parametrize("arguments", [(), ("--counts", "7"), ("--coordination", "1"), ("--counts", "1")])
@pytest.mark.parametrize("name", ["plot.png", "plot.SVG"])
def test_the_plot_is_written(call, tmp_path, name, arguments):
    target = tmp_path / "new" / name
    code, out, _ = call("--trials", "50", "--out", str(target), *arguments)
    assert code == 0
    assert str(target) in out
    assert target.read_bytes().startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")
    assert [path.name for path in target.parent.iterdir()] == [name]


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"tallymill\[report\]"):
        tallymill.collision(trials=0, out=tmp_path / "plot.png")
    assert [*tmp_path.iterdir()] == []
