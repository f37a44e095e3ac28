"""Parts of a model to ONNX files, with a dynamic batch, through the exporter that transformers ships."""

from __future__ import annotations

import ast
import contextlib
from pathlib import Path
from typing import Any

from tallymill.errors import MissingExtraError, ModelError
from tallymill.exporters.common_weights import CommonWeights
from tallymill.exporters.quiet import quiet
from tallymill.exporters.recipes.parts import Part
from tallymill.exporters.sampling import without_grid_sample

OPSET = 20  # LayerNormalization is one node from 17 on, GridSample and Gelu from 20
_LARGE = 1_900_000_000  # protobuf ends at 2 GiB: above this, weights go into a file beside the graph


def export_part(
    part: Part, file: Path, weights: CommonWeights | None = None, *, grid_sample: bool = True
) -> list[Path]:
    """Write one part as ``file``; the files written, the graph first. Raises ``ModelError`` when tracing fails.

    ``weights`` is where the part keeps its weights beside others; without, they are in the graph where that can hold
    them. Nodes are named after the module of the model that they come from. Without ``grid_sample`` the graph has no
    such node (see ``sampling``).
    """
    with MissingExtraError.unless("torch", "transformers", "onnxscript", "onnx", extra="export"):
        import onnx_ir
        import torch  # noqa: F401
        import transformers.exporters  # noqa: F401
    try:
        program = trace(part, grid_sample=grid_sample)
    except Exception as exc:  # the exporters raise errors of many kinds, and what they say is for us to read
        raise ModelError(f"{file.stem}: cannot be exported to ONNX: {type(exc).__name__}: {exc}") from exc
    for value in program.graph.initializers.values():
        value.metadata_props.clear()
    for node in program.graph.all_nodes():
        if not grid_sample and node.op_type == "GridSample":
            raise ModelError(f"{file.stem}: the node {node.name} samples with GridSample, which was to be replaced")
        node.name = _scoped(node)
        node.metadata_props.clear()  # stack traces of the tracer, with paths of this machine
        node.doc_string = None
    if weights is not None:
        weights.take(program)
        onnx_ir.save(program, str(file))
        return [file, weights.file]
    size = sum(value.const_value.nbytes for value in program.graph.initializers.values() if value.const_value)
    if size < _LARGE:
        onnx_ir.save(program, str(file))
        return [file]
    data = file.with_suffix(".onnx.data")
    onnx_ir.save(program, str(file), external_data=data.name)
    return [file, data]


def trace(part: Part, *, grid_sample: bool = True) -> Any:
    """The graph of one part, simplified: a model of ``onnx_ir``. This takes nearly all of the time of an export."""
    import torch
    from transformers.exporters import OnnxConfig, OnnxExporter

    dynamic = {name: dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for name, axes in part.dynamic.items()}
    shapes = {name: dynamic.get(name, {}) for name in part.inputs}
    config = OnnxConfig(dynamic_shapes=shapes, opset_version=OPSET, optimize=False)
    sampling = contextlib.nullcontext() if grid_sample else without_grid_sample()
    with quiet(), sampling, torch.no_grad():
        program: Any = OnnxExporter().export(part.module, dict(part.inputs), config=config).program
        _simplify(program)
    return program


def _simplify(program: Any) -> None:
    """Fold constants and drop what is not needed.

    The optimiser of the exporter would also match patterns to rewrite, which takes half of the time of an export, and
    which ONNX Runtime does by itself when it loads the graph.
    """
    from onnx_ir import passes
    from onnx_ir.passes import common
    from onnxscript.optimizer import fold_constants_ir

    common.InlinePass()(program)
    # A constant that is resized would be computed in Python, element by element: minutes.
    fold_constants_ir(
        program, onnx_shape_inference=True, should_fold=lambda node: False if node.op_type == "Resize" else None
    )
    passes.Sequential(
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedFunctionsPass(),
        common.RemoveUnusedOpsetsPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.LiftSubgraphInitializersToMainGraphPass(),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.OutputFixPass(),
        common.NameFixPass(),
    )(program)


def _scoped(node: Any) -> str:
    """The name of a node behind that of its module: ``model.decoder.layers.0.fc1/node_linear_13``."""
    scopes = ast.literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]"))
    return f"{scopes[-2]}/{node.name}" if len(scopes) > 1 and scopes[-2] else str(node.name)
