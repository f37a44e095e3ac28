"""A part of a model to ``PART.pt2``: a program of ``torch.export`` that needs torch alone to run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tallymill.engine.sessions.pytorch import TOLD, TorchSession
from tallymill.errors import MissingExtraError, ModelError, UsageError
from tallymill.exporters import gate
from tallymill.exporters.pairing import Bounds
from tallymill.exporters.precision import WHOLE_PARTS
from tallymill.exporters.quiet import quiet
from tallymill.exporters.recipes.parts import Loaded, Part
from tallymill.exporters.torch_precision import halve, mutates, packet

PRECISIONS = ("fp32", "bf16")
SHARE = 0.05  # of the root mean square of an output: what bfloat16 may cost
# What only checks values that were the case in tracing, and devices and types that may be others here.
_CHECKS = ("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range_for_size", "sym_constrain_range")


@dataclass(frozen=True, slots=True)
class Programs:
    """What programs of torch compute in: one of ``PRECISIONS``."""

    precision: str = "fp32"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise UsageError(f"--precision {self.precision}: of torch, one of {', '.join(PRECISIONS)}")

    @property
    def bounds(self) -> Bounds:
        """How far the whole model may be from the original."""
        return gate.EXACT if self.precision == "fp32" else Bounds(box=4.0, score=0.02, half=True)


def name_of(model: str, programs: Programs) -> str:
    """The name of the bundle of a model for torch."""
    return f"{model}-torch-{programs.precision}"


def into_programs(
    loaded: Loaded, folder: Path, programs: Programs, log: Callable[[str], None]
) -> tuple[list[Path], list[gate.Finding]]:
    """Write the parts of a model into a folder; the files, and what the gate found of them on the CPU."""
    common = {part.weights: CommonTensors(folder / part.weights) for part in loaded.parts.values() if part.weights}
    files: list[Path] = []
    for name, part in loaded.parts.items():
        log(f"exporting {name}")
        weights, precision = common.get(part.weights or ""), programs.precision
        files += export_part(part, folder / f"{name}.pt2", weights, family=loaded.family, precision=precision)
    for weights in common.values():
        weights.write()
    findings: list[gate.Finding] = []
    for name, part in loaded.parts.items():
        log(f"comparing {name} with the model in torch")
        borne = part if programs.precision == "fp32" else lenient(part)
        findings += gate.examine(name, borne, TorchSession(folder / f"{name}.pt2", threads=gate.cores()))
    return list(dict.fromkeys(files)), findings


def lenient(part: Part) -> Part:
    """The part with the tolerances of bfloat16."""
    return replace(part, tolerance=gate.relative(part, SHARE))


class CommonTensors:
    """The file of the weights that several programs of a model have in common, each of them there once."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._values: dict[str, Any] = {}

    def take(self, program: Any) -> None:
        """Move the weights of a program into the file; in the program, one number each stands in their place.

        Programs of one module call the same weight by the same name.
        """
        import torch

        for name, value in program.state_dict.items():
            known = self._values.setdefault(name, value.detach())
            if known.shape != value.shape or known.dtype != value.dtype or not torch.equal(known, value):
                raise ModelError(f"{self.file}: programs disagree about the weight {name}")
            stands_in = value.detach().new_zeros(()).expand(value.shape)
            is_parameter = isinstance(value, torch.nn.Parameter)
            program.state_dict[name] = torch.nn.Parameter(stands_in, False) if is_parameter else stands_in

    def write(self) -> None:
        """Write the file, when all programs have been taken."""
        import torch

        # Of views, all that they are views of would be written.
        torch.save({name: value.clone() for name, value in sorted(self._values.items())}, self.file)


def export_part(
    part: Part, file: Path, weights: CommonTensors | None = None, *, family: str = "", precision: str = "fp32"
) -> list[Path]:
    """Write one part as ``file``; the files written, the program first. Raises ``ModelError`` when tracing fails.

    ``weights`` is where the part keeps its weights beside others (``CommonTensors.write`` ends that). With bf16,
    matrix products and convolutions are computed in bfloat16, but for those that lead straight to an output.
    """
    program = trace(part, file.stem)
    if precision == "bf16" and file.stem not in WHOLE_PARTS:
        halve(program, family)
    taken = program.graph_signature.user_inputs
    if set(taken) != set(part.inputs):
        raise ModelError(f"{file.stem}: its program takes {', '.join(taken)}, its module {', '.join(part.inputs)}")
    write(program, file, weights)
    return [file] if weights is None else [file, weights.file]


def write(program: Any, file: Path, weights: CommonTensors | None = None) -> None:
    """Write a program as sessions read it: with the names of its inputs and outputs, and nothing of this machine."""
    import torch

    told = {
        "inputs": list(program.graph_signature.user_inputs),
        "outputs": _outputs(program),
        "weights": None if weights is None else weights.file.name,
    }
    _anonymise(program)
    if weights is not None:
        weights.take(program)
    with quiet():
        torch.export.save(program, str(file), extra_files={TOLD: json.dumps(told)})


def trace(part: Part, name: str) -> Any:
    """The program of a part, without checks, weights that it does not read, and values that the host would wait for."""
    with MissingExtraError.unless("torch", "transformers", extra="export"):
        import torch
        from transformers.exporters import DynamoConfig, DynamoExporter
    dynamic = {key: dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for key, axes in part.dynamic.items()}
    config = DynamoConfig(dynamic_shapes={key: dynamic.get(key, {}) for key in part.inputs})
    try:
        with quiet(), torch.no_grad():
            program: Any = DynamoExporter().export(part.module, dict(part.inputs), config=config).program
    except Exception as exc:  # tracing raises errors of many kinds, and what they say is for us to read
        raise ModelError(f"{name}: cannot be exported for torch: {type(exc).__name__}: {exc}") from exc
    if any(spec.kind.name != "USER_OUTPUT" for spec in program.graph_signature.output_specs):
        raise ModelError(f"{name}: the model changes its own state when it runs")
    tidy(program)
    return program


def tidy(program: Any) -> None:
    """Take out of a program what only tracing needs (see ``trace``)."""
    for node in list(program.graph.nodes):
        if packet(node) in _CHECKS:
            program.graph.erase_node(node)
    _fold_items(program)
    _drop_unused(program)


def _fold_items(program: Any) -> None:
    """Put numbers in the place of ``item`` of what does not depend on an input: a graph on a card cannot wait for it.

    Models of transformers ask for sizes of feature maps that are constants of the program.
    """
    known: dict[Any, Any] = {}
    values = {**program.state_dict, **program.constants}
    targets = {
        spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.kind.name != "USER_INPUT"
    }

    def value_of(node: Any) -> Any:
        if node not in known:
            known[node] = _computed(node, lambda name: values[targets[name]], value_of)
        return known[node]

    for node in list(program.graph.nodes):
        if packet(node) == "item":
            with contextlib.suppress(_Depends):
                node.replace_all_uses_with(value_of(node))
                program.graph.erase_node(node)


class _Depends(Exception):  # noqa: N818 - it is no error
    """A node depends on an input of its program."""


def _computed(node: Any, lifted: Callable[[str], Any], value_of: Callable[[Any], Any]) -> Any:
    """The value of a node of a graph. Raises ``_Depends`` where it is not the same for all inputs."""
    import torch
    from torch.fx.node import map_arg

    if node.op == "placeholder":
        try:
            return lifted(node.name)
        except KeyError:
            raise _Depends from None
    if node.op != "call_function" or mutates(node) or any(mutates(user) for user in node.users):
        raise _Depends
    arguments, options = map_arg((node.args, node.kwargs), value_of)
    with torch.no_grad():
        return node.target(*arguments, **options)


def _drop_unused(program: Any) -> None:
    """Erase nodes that nothing reads, and the weights that only they read."""
    graph, signature = program.graph, program.graph_signature
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and not mutates(node):
            graph.erase_node(node)
    unread = {node.name: node for node in graph.nodes if node.op == "placeholder" and not node.users}
    kept: list[Any] = []
    gone: list[Any] = []
    for spec in signature.input_specs:
        (gone if spec.kind.name != "USER_INPUT" and spec.arg.name in unread else kept).append(spec)
    signature.input_specs[:] = kept
    for spec in gone:
        graph.erase_node(unread[spec.arg.name])
    read = {spec.target for spec in kept}
    for values in (program.state_dict, program.constants):
        for name in [name for name in values if name not in read]:
            del values[name]
    program.graph_module.recompile()


def _outputs(program: Any) -> list[str]:
    """Names of the outputs in their order."""
    from torch.utils import _pytree

    spec = program.call_spec.out_spec
    named: Mapping[str, int] = _pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    return sorted(named, key=lambda name: named[name])


def _anonymise(program: Any) -> None:
    """Drop what tracing keeps of the code and the machine it saw, and the inputs that it was made with."""
    for module in program.graph_module.modules():
        if hasattr(module, "graph"):
            for node in module.graph.nodes:
                node.meta = {key: value for key, value in node.meta.items() if key == "val"}
    program._example_inputs = None  # no public way leads there
