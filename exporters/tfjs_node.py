"""One node of a tfjs graph, and what a handler that converts it looks like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tallymill.errors import ModelError
from tallymill.exporters.tfjs_builder import Array, Builder, Value


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the tfjs graph, its attributes decoded to Python values."""

    name: str
    op: str
    inputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)

    def error(self, problem: str) -> ModelError:
        """An error that names this node and its operator."""
        return ModelError(f"node {self.name!r} ({self.op}): {problem}")

    def constant(self, value: Value, what: str) -> Array:
        """The constant behind an operand that ONNX needs to know at conversion."""
        if value.data is None:
            raise self.error(f"{what} is not a constant")
        return value.data


Handler = Callable[[Builder, Node, Sequence[Value]], list[Value]]


def registrar(table: dict[str, Handler]) -> Callable[..., Callable[[Handler], Handler]]:
    """A decorator factory that enters a handler into ``table`` under one or more operator names."""

    def named(*names: str) -> Callable[[Handler], Handler]:
        def register(handler: Handler) -> Handler:
            table.update(dict.fromkeys(names, handler))
            return handler

        return register

    return named
