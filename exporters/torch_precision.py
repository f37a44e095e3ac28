"""Mixed precision, decided in a program of torch: products in bfloat16, everything else in float32.

A matrix product, a convolution or attention takes bfloat16, sums in float32 and gives bfloat16, which becomes float32
at once: normalisation, softmax, residual sums and box arithmetic are never computed in less. Products that lead to an
output, a place or a choice without a normalisation between stay in float32 altogether: bfloat16 has 8 bits, and a
coordinate among 1333 pixels needs more. (Autocast would choose by other tables on the CPU than on a card, and would
leave the last products of a head in bfloat16.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tallymill.exporters.precision import ONLY

_PRODUCTS = {
    *("linear", "matmul", "mm", "bmm", "addmm", "conv1d", "conv2d", "conv_transpose2d"),
    "scaled_dot_product_attention",
}
# What may be asked of bfloat16 with the same result: it moves values, or picks some of them.
_MOVES = {
    *(
        "alias",
        "clone",
        "contiguous",
        "detach",
        "detach_",
        "dropout",
        "expand",
        "flatten",
        "permute",
        "relu",
        "reshape",
        "select",
    ),
    *("slice", "squeeze", "transpose", "unflatten", "unsqueeze", "view"),
}
_SMOOTH = {"gelu", "silu"}  # the same, where the result is rounded to bfloat16 anyway
_VIEWS = _MOVES - {"clone", "dropout", "relu"}
# What makes places, choices or angles of its inputs; ``grid_sampler`` of its second.
_EXACT = {
    *("acos", "argmax", "argmin", "argsort", "ceil", "cos", "cumsum", "eq", "exp", "floor", "ge", "gt", "le", "log"),
    *("log2", "lt", "max", "min", "pow", "round", "sin", "sort", "special_logit", "topk"),
}
_NORMALISED = {"batch_norm", "group_norm", "layer_norm", "native_layer_norm"}


def halve(program: Any, family: str) -> int:
    """Rewrite an exported program in place; how many products are computed in bfloat16."""
    return _Halving(program, ONLY.get(family)).apply()


class _Halving:
    def __init__(self, program: Any, only: re.Pattern[str] | None) -> None:
        import torch

        self._torch, self._program, self._graph = torch, program, program.graph
        self._mutated = {_root(node.args[0]) for node in self._graph.nodes if mutates(node)}
        exact = self._exact_products()
        self._chosen = {
            node
            for node in self._graph.nodes
            if packet(node) in _PRODUCTS
            and node not in exact
            and self._is_float(node)
            and _root(node) not in self._mutated
            and (only is None or only.search(_module(node)))
        }
        self._halves: dict[Any, Any] = {}  # a node of float32, and one of bfloat16 with the same values
        self._weights = {
            spec.arg.name: spec.target
            for spec in program.graph_signature.input_specs
            if spec.kind.name in ("PARAMETER", "BUFFER") and spec.target in program.state_dict
        }

    def apply(self) -> int:
        for node in list(self._graph.nodes):
            if node in self._chosen:
                self._halve(node, [each for each in node.all_input_nodes if self._is_float(each)])
            elif self._may_move(node):
                self._halve(node, [node.args[0]])
        for node in reversed(list(self._graph.nodes)):
            if packet(node) == "to" and not node.users:
                self._graph.erase_node(node)
        self._program.graph_module.recompile()
        return len(self._chosen)

    def _may_move(self, node: Any) -> bool:
        """Whether a node can be given bfloat16 in the place of what was made float32 of it."""
        name = packet(node)
        if name not in _MOVES | _SMOOTH or node.args[0] not in self._halves or _root(node) in self._mutated:
            return False
        moved = name in _MOVES or all(user in self._chosen for user in node.users)
        return packet(node.args[0]) == "to" and moved

    def _halve(self, node: Any, inputs: list[Any]) -> None:
        """Let a node compute in bfloat16, and what read it read float32 that is made of it."""
        for each in inputs:
            node.replace_input_with(each, self._half_of(each, node))
        self._retype(node, self._torch.bfloat16)
        with self._graph.inserting_after(node):
            whole = self._cast(node, self._torch.float32)
        node.replace_all_uses_with(whole, delete_user_cb=lambda user: user is not whole)
        self._halves[whole] = node

    def _half_of(self, node: Any, user: Any) -> Any:
        if node in self._halves:
            return self._halves[node]
        if node.name in self._weights and all(each in self._chosen for each in node.users):
            self._halve_weight(node)
            return node
        with self._graph.inserting_before(user):
            source = node
            if node.args and packet(user) == "scaled_dot_product_attention" and node in user.args[3:4]:
                source = self._bounded(node)
            half = self._cast(source, self._torch.bfloat16)
        if source is node:
            self._halves[node] = half
        return half

    def _bounded(self, mask: Any) -> Any:
        """A mask whose least value is one that bfloat16 has: the least of float32 would become -inf, and NaN."""
        least = self._torch.finfo(self._torch.bfloat16).min
        bounded = self._graph.call_function(self._torch.ops.aten.clamp.default, (mask, least))
        bounded.meta["val"] = mask.meta["val"]
        return bounded

    def _halve_weight(self, node: Any) -> None:
        name = self._weights[node.name]
        value = self._program.state_dict[name]
        if value.dtype == self._torch.float32:
            half = value.detach().to(self._torch.bfloat16)
            self._program.state_dict[name] = self._torch.nn.Parameter(half, requires_grad=False)
            self._retype(node, self._torch.bfloat16)

    def _cast(self, node: Any, dtype: Any) -> Any:
        made = self._graph.call_function(self._torch.ops.aten.to.dtype, (node, dtype))
        made.meta["val"] = node.meta["val"].to(dtype)
        return made

    def _retype(self, node: Any, dtype: Any) -> None:
        node.meta["val"] = node.meta["val"].to(dtype)

    def _is_float(self, node: Any) -> bool:
        return bool(getattr(node.meta.get("val"), "dtype", None) == self._torch.float32)

    def _exact_products(self) -> set[Any]:
        """Products from which a path without a normalisation leads to what needs to be exact."""
        seeds = [each for node in self._graph.nodes for each in _exact_inputs(node)]
        found, exact = set(), set()
        while seeds:
            node = seeds.pop()
            if node in found or packet(node) in _NORMALISED:
                continue
            found.add(node)
            if packet(node) in _PRODUCTS:
                exact.add(node)
            else:
                seeds += node.all_input_nodes
        return exact


def _exact_inputs(node: Any) -> Iterator[Any]:
    """The inputs of a node that it needs as exact as they can be had."""
    name = packet(node)
    if node.op == "output" or name in _EXACT:
        yield from node.all_input_nodes
    elif name == "grid_sampler":
        yield node.args[1]
    elif name == "to" and not node.meta["val"].dtype.is_floating_point:
        yield node.args[0]


def _root(node: Any) -> Any:
    """The node whose memory a node is a view of, as far as ``_VIEWS`` lead."""
    while packet(node) in _VIEWS or mutates(node):
        node = node.args[0]
    return node


def mutates(node: Any) -> bool:
    """Whether a node writes to one of its inputs."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable) and packet(node) != "detach_"


def _module(node: Any) -> str:
    """The path of the module that a node comes from: ``model.backbone.layers.0``."""
    paths = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
    return f"{paths[-1]}." if paths else ""


def packet(node: Any) -> str:
    """``aten.linear.default`` -> ``linear``; "" of what is no operator of torch."""
    return str(getattr(getattr(node.target, "overloadpacket", None), "__name__", ""))
