from __future__ import annotations

import json

import pytest
import torch

from tallymill.bench import card
from tallymill.bench.card_models import open_random


def test_the_same_code_runs_without_a_card(monkeypatch, capsys):
    monkeypatch.setattr(card, "run", lambda **more: RUN(**more, models=("owlvit",)))
    assert card.main(["--cpu", "--small"]) == 0
    lines = capsys.readouterr().out.strip().split("\n")
    (model,) = json.loads(lines[-1])["models"]
    assert model["model"] == "owlvit"
    assert model["fault"] is None
    assert model["boxes"] > 50
    assert model["bf16_images_per_s"] > 0
    assert lines[0].startswith("name the CPU, torch ")


RUN = card.run


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_without_a_card_it_says_so(capsys):
    assert card.main([]) == 2
    assert "there is no GPU here" in capsys.readouterr().err


def test_a_difference_is_a_fault():
    detector, precision = open_random("owlvit", "cpu", small=True)
    proposer = card.WindowProposer(detector, place="cpu")
    files = card._files(2, 100)
    exact = card._detect(proposer, files, card.COMPARED)
    precision.name = "bf16"
    coarse = card._detect(proposer, files, card.COMPARED)
    assert card._fault(lambda: card._compare(exact, exact)) is None
    assert "differ" in card._fault(lambda: card._compare(exact, coarse))
