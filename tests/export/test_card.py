from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest
import torch

from tallymill.bench import card, card_programs
from tallymill.bench.card_models import BATCH, open_random
from tallymill.bench.faults import fault_of
from tallymill.engine.sessions.pytorch import TorchSession
from tallymill.errors import ModelError


def test_the_same_code_runs_without_a_card(monkeypatch, capsys):
    monkeypatch.setattr(card, "run", lambda **more: RUN(**more, models=("owlvit",)))
    assert card.main(["--cpu", "--small"]) == 0
    lines = capsys.readouterr().out.strip().split("\n")
    result = json.loads(lines[-1])
    (model,) = result["models"]
    assert model["model"] == "owlvit"
    assert model["fault"] is None
    assert model["boxes"] > 50
    assert model["bf16_images_per_s"] > 0
    assert lines[0].startswith("name the CPU, torch ")
    told = [(each["precision"], each["graphs"]) for each in result["programs"]]
    assert told == [(each, graphs) for each in ("fp32", "bf16") for graphs in ("not asked for", "off: no card")]
    for program in result["programs"]:
        assert program["fault"] is None
        assert 0 <= program["of_bound"] <= 1
        assert program["images_per_s"] > 0
    assert result["programs"][2]["of_bound"] > 0
    assert sum(line.startswith("owlvit vision ") and line.rstrip().endswith("fine") for line in lines) == 4


RUN = card.run


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_without_a_card_it_says_so(capsys):
    assert card.main([]) == 2
    assert "there is no GPU here" in capsys.readouterr().err


@pytest.mark.parametrize("family", card.FAMILIES)
def test_every_family_can_be_opened_small(family):
    """The bench does as much, and ends where one cannot."""
    detector, _ = open_random(family, "cpu", small=True)
    assert detector.spec.batch == BATCH


def test_a_difference_is_a_fault():
    detector, precision = open_random("owlvit", "cpu", small=True)
    proposer = card.WindowProposer(detector, place="cpu")
    files = card._files(2, 100)
    exact = card._detect(proposer, files, card.COMPARED)
    precision.name = "bf16"
    coarse = card._detect(proposer, files, card.COMPARED)
    assert fault_of(lambda: card._compare(exact, exact)) is None
    assert "differ" in fault_of(lambda: card._compare(exact, coarse))


class Wrong(TorchSession):
    """Answers every run as the first, as a graph does that does not read what it is given."""

    def run(self, inputs):
        self.answer = getattr(self, "answer", None) or super().run(inputs)
        return self.answer


def test_a_program_that_answers_otherwise_is_a_fault(monkeypatch):
    monkeypatch.setattr(card_programs, "TorchSession", Wrong)
    rows = card_programs.programs(torch, "cpu", small=True)
    assert len(rows) == 4
    assert all(re.match(r"(embeds|shift|scale|boxes) differs by .*, and .* is borne", row["fault"]) for row in rows)
    result = {"device": {}, "kernels": [], "models": [], "programs": rows}
    assert card.faults(result) == 4
    assert rows[0]["fault"] in card.table(result)


def test_a_program_that_cannot_be_exported_is_a_fault_of_its_rows(monkeypatch):
    def fails(*_given, precision, **_more):
        raise ModelError(f"vision: cannot be exported as {precision}")

    monkeypatch.setattr(card_programs, "export_part", fails)
    rows = card_programs.programs(torch, "cpu", small=True)
    assert [row["fault"] for row in rows] == [
        f"vision: cannot be exported as {p}" for p in ("fp32", "bf16") for _ in "ab"
    ]
    assert "nan" in card.table({"device": {}, "kernels": [], "models": [], "programs": rows})


def test_a_card_without_graphs_where_they_were_asked_for_is_a_fault():
    session = SimpleNamespace(device="cuda:0", eager="a CUDA graph could not be captured: operation not permitted")
    assert "runs without CUDA graphs: a CUDA graph could not" in str(fault_of(lambda: card_programs.captured(session)))
    session.eager = None
    assert card_programs.captured(session) == "captured"
