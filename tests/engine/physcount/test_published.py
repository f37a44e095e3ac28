"""The published figures, as far as they can be checked by arithmetic."""

from __future__ import annotations

from tallymill.engine.physcount.data import FAMILIES, MODES
from tallymill.engine.physcount.published import TOTALS, published_rows


def test_the_table():
    rows = published_rows()
    models = [row for row in rows if not row.setting]
    assert len(models) == len({row.model for row in models}) == 40
    assert [row.score for row in models] == sorted((row.score for row in models), reverse=True)
    assert all([*row.mae] == [*row.nae] == [*FAMILIES] for row in models)
    assert {row.model for row in rows if row.setting} == {"Qwen3.8-27B"}


def test_every_group_accuracy_is_a_number_of_groups():
    assert f"{87 / 651:.2%}" == "13.36%"
    for row in published_rows():
        groups = round(row.group_acc / 100 * TOTALS["groups"])
        assert f"{100 * groups / TOTALS['groups']:.2f}" == f"{row.group_acc:.2f}", row.model


def test_the_setting_of_the_table_is_among_the_settings():
    alone, setting = (
        next(row for row in published_rows() if (row.model, row.setting) == ("Qwen3.8-27B", of))
        for of in ("", "4,096 px, independent")
    )
    assert (alone.nae, alone.score, alone.group_acc, alone.phys_gnd) == (
        setting.nae,
        setting.score,
        setting.group_acc,
        setting.phys_gnd,
    )


def test_totals_add_up():
    assert sum(TOTALS[f"{family} questions"] for family in FAMILIES) == TOTALS["questions"]
    assert sum(TOTALS[f"{mode} appearances"] for mode in MODES) == TOTALS["appearances"]
    assert TOTALS["appearance questions"] == TOTALS["groups"]
