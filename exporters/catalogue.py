"""The models that are exported from published weights, by name."""

from __future__ import annotations

from collections.abc import Mapping

from tallymill.errors import UsageError
from tallymill.exporters.recipes import co_detr, grounding_dino, ow_detr, owl, raft, rf_detr, rt_detr, sam3, swin2sr
from tallymill.exporters.recipes.parts import WeightsRecipe

_FAMILIES = (grounding_dino, owl, ow_detr, rf_detr, co_detr, rt_detr, sam3, raft, swin2sr)
CATALOGUE: Mapping[str, WeightsRecipe] = {recipe.name: recipe for family in _FAMILIES for recipe in family.RECIPES}


def recipe_of(name: str) -> WeightsRecipe:
    """The recipe of a model. Raises ``UsageError`` that names those there are."""
    if name not in CATALOGUE:
        raise UsageError(f"there is no model {name!r} to export", hint=f"one of {', '.join(CATALOGUE)}")
    return CATALOGUE[name]
