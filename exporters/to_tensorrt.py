"""ONNX graphs to engines of TensorRT, or of TensorRT for RTX: one an architecture of cards and a batch size.

The two modules have one interface here. TensorRT builds on and for the card of this machine; TensorRT for RTX builds
for a named compute capability, without a card. Networks are strongly typed: precision is what the graph says.
"""

from __future__ import annotations

import importlib
import logging
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from tallymill.engine.bundles import load_bundle
from tallymill.errors import MissingExtraError, ModelError, UsageError
from tallymill.exporters import engine_layers as layers
from tallymill.exporters import gate
from tallymill.exporters.hub import cache_folder
from tallymill.exporters.pairing import Bounds
from tallymill.exporters.precision import WHOLE_PARTS, halve, histogram
from tallymill.exporters.recipes.parts import Loaded, Part

MODULES = ("tensorrt", "tensorrt_rtx")
PRECISIONS = ("fp16", "fp32")
TOLERANCE = 0.02  # of a graph with halves: the largest difference of an output, relative to its root mean square
HALF = Bounds(box=2.0, score=0.02, half=True)  # of the whole detector with such graphs
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """What engines are built for. ``capability`` is such as "89" (default: that of the card of this machine)."""

    precision: str = "fp16"
    capability: str | None = None
    batches: tuple[int, ...] = (8,)

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise UsageError(f"--precision {self.precision}: one of {', '.join(PRECISIONS)}")
        if self.capability is not None and not self.capability.isdigit():
            raise UsageError(f"--compute-capability {self.capability}: digits such as 89 (of 8.9)")
        if not self.batches or min(self.batches) < 1 or len(set(self.batches)) < len(self.batches):
            raise UsageError(f"--batch {','.join(map(str, self.batches))}: different whole numbers from 1")


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine: its file, what it took to build, and how large it is."""

    file: Path
    seconds: float
    bytes: int


def runtime() -> ModuleType:
    """TensorRT, or TensorRT for RTX where only that is installed. Raises ``MissingExtraError`` when neither is."""
    for name in MODULES:
        if find_spec(name) is not None:
            return importlib.import_module(name)
    raise MissingExtraError.of("tensorrt", "tensorrt")


def check_parts(loaded: Loaded) -> None:
    """Raises ``UsageError`` for a graph whose images may have any size: engines are built for fixed ones."""
    for name, part in loaded.parts.items():
        for key, axes in part.dynamic.items():
            if part.inputs[key].ndim == 4 and max(axes, default=0) > 0:
                raise UsageError(
                    f"the part {name!r} takes images of all sizes, and an engine of TensorRT those of one",
                    hint="--buckets names the heights and widths: --buckets 256x256,480x856",
                )


def check(target: Target) -> None:
    """Raise what would stop a build, before a model is exported for it."""
    trt = runtime()
    if trt.__name__ == "tensorrt_rtx":
        _architecture(trt, target.capability)


def into_engines(
    loaded: Loaded, folder: Path, target: Target, log: Callable[[str], None], device: str | None = None
) -> tuple[dict[str, Any], list[gate.Finding]]:
    """Turn the graphs of a bundle in ``folder``, ``PART.onnx``, into engines beside them. ``device`` is a card that can
    load them, where there is one: it tells what they compute in.

    Returns what ``bundle.json`` says of them, and what was found of graphs with halves; where one of them is refused,
    or the whole detector with them, no engine is built. Raises ``ModelError`` with the node that TensorRT cannot take.
    """
    trt = runtime()
    engines: dict[str, dict[str, str]] = {}
    built: dict[str, dict[str, Any]] = {}
    suffix = ".half.onnx" if target.precision == "fp16" else ".onnx"
    findings = halved(loaded, folder, suffix, log) if target.precision == "fp16" else []
    if not all(finding.passed for finding in findings):
        return {}, findings
    for name in loaded.parts:
        graph = folder / f"{name}{suffix}"
        engines[name] = {}
        built[name] = {"dtypes": histogram(graph), "dtypes_of": "graph"}
        for batch in target.batches:
            log(f"building an engine of {name} for batches of {batch}")
            engine = build(trt, graph, folder / f"{name}-b{batch}.engine", batch, target, _longest(loaded))
            engines[name][str(batch)] = engine.file.name
            built[name][f"batch {batch}"] = {"seconds": round(engine.seconds, 2), "bytes": engine.bytes}
        computed = None if device is None else layers.dtypes_of(trt, folder / _largest(engines[name]), device)
        if computed is not None:
            built[name].update(dtypes=computed, dtypes_of="engine")
            if target.precision == "fp16" and name not in WHOLE_PARTS:
                findings.append(_computes_in_halves(name, computed))
    return {
        "runtime": trt.__name__,
        "precision": target.precision,
        "parts": {name: _largest(files) for name, files in engines.items()},
        "engines": engines,
        "tensorrt": {"version": trt.__version__, "compute_capability": capability_of(target), "built": built},
    }, findings


def _computes_in_halves(name: str, layers_of: Mapping[str, Mapping[str, int]]) -> gate.Finding:
    """An engine that was to compute in halves and does not is as slow as one of float32: it is refused."""
    counts = [dtypes.get("float16", 0) for dtypes in layers_of.values()]
    total = sum(sum(dtypes.values()) for dtypes in layers_of.values())
    missing = 0.0 if any(counts) else float("inf")
    return gate.Finding(name, "layers of the engine", "halves (none of them)", missing, 0.0, total)


def _largest(files: Mapping[str, str]) -> str:
    """The file of the engine of the largest batches."""
    return files[max(files, key=int)]


def halved(loaded: Loaded, folder: Path, suffix: str, log: Callable[[str], None]) -> list[gate.Finding]:
    """Write the graphs of a bundle with halves beside them, as ``PART`` and ``suffix``; what the gate found of them."""
    findings: list[gate.Finding] = []
    for name, part in loaded.parts.items():
        log(f"halving {name}")
        halve(folder / f"{name}.onnx", folder / f"{name}{suffix}", loaded.family, name)
        findings += examine_half(name, part, folder / f"{name}{suffix}")
    if all(finding.passed for finding in findings):
        log("comparing the whole in fp16 with the original")
        halves = replace(load_bundle(folder, gated=False), parts={name: f"{name}{suffix}" for name in loaded.parts})
        findings += [_of_half(finding) for finding in gate.examine_bundle(loaded, halves, HALF)]
    return findings


def _of_half(finding: gate.Finding) -> gate.Finding:
    return replace(finding, check=f"fp16, {finding.check}")


def _longest(loaded: Loaded) -> int:
    """The greatest length of an axis that varies besides the batch: tokens of a text."""
    return int(loaded.numbers.get("tokens", 1))


def examine_half(name: str, part: Part, graph: Path) -> list[gate.Finding]:
    """A graph with halves against the module in float32, and slot by slot, on ONNX Runtime."""
    from tallymill.engine.sessions.ort import OnnxRuntimeSession

    return [_of_half(finding) for finding in gate.examine(name, lenient(part), OnnxRuntimeSession(graph))]


def lenient(part: Part) -> Part:
    """The part with the tolerances of halves: relative to what an output is like."""
    batches = tuple(sorted({1, max(part.batches)}))
    return replace(part, batches=batches, tolerance=gate.relative(part, TOLERANCE))


def build(trt: Any, graph: Path, file: Path, batch: int, target: Target, longest: int = 1) -> Engine:
    """Build one engine of an ONNX file, with batches of exactly ``batch`` and texts of up to ``longest`` tokens."""
    start = time.perf_counter()
    logger = _logger(trt)
    builder = trt.Builder(logger)
    if builder is None:
        raise logger.error(f"{trt.__name__} cannot start")
    # ``if network:`` is False while it is empty.
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(graph)):
        raise ModelError(f"{graph.name}: {trt.__name__} {trt.__version__} cannot take it:{_faults(parser)}")
    config = builder.create_builder_config()
    _aim(trt, config, target)
    config.add_optimization_profile(_profile(builder, network, batch, longest))
    # TF32 keeps ten bits of a factor, and what is float32 in a graph with halves is so because it needs all of them.
    config.clear_flag(trt.BuilderFlag.TF32)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    timings = _timings(trt, target)
    if timings is not None:
        read_timings(config, timings)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise logger.error(f"{graph.name}: {trt.__name__} {trt.__version__} cannot build an engine of it")
    if timings is not None:
        keep_timings(config, timings)
    file.write_bytes(engine)
    return Engine(file, time.perf_counter() - start, engine.nbytes)


def _logger(trt: Any) -> Any:
    class Logger(trt.ILogger):
        """Keeps what TensorRT says went wrong."""

        def __init__(self) -> None:
            super().__init__()
            self.faults: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR):
                self.faults.append(message)
            _LOG.debug("%s", message)

        def error(self, what: str) -> ModelError:
            return ModelError(what + "".join(f"\n  {fault}" for fault in self.faults[:8]))

    return Logger()


def _faults(parser: Any) -> str:
    """What the parser cannot take, with the names of nodes."""
    faults = [parser.get_error(place) for place in range(parser.num_errors)]
    return "".join(f"\n  {fault.node_name()} ({fault.node_operator()}): {fault.desc()}" for fault in faults[:8])


def _architecture(trt: Any, capability: str | None) -> Any:
    """The member of ``trt.ComputeCapability``. Raises ``UsageError`` with those that there are."""
    if capability is None:
        capability = _of_card()
    known = {name.removeprefix("SM"): kind for name, kind in trt.ComputeCapability.__members__.items() if "SM" in name}
    if capability not in known:
        said = "there is no card here, so" if capability is None else f"--compute-capability {capability}:"
        raise UsageError(
            f"{said} {trt.__name__} {trt.__version__} has to be told another compute capability",
            hint=f"--compute-capability with one of {', '.join(sorted(known, key=int))}",
        )
    return known[capability]


def _aim(trt: Any, config: Any, target: Target) -> None:
    """Say for which architecture of cards the engine is."""
    if hasattr(config, "set_compute_capability"):
        config.num_compute_capabilities = 1
        config.set_compute_capability(_architecture(trt, target.capability), 0)
    elif target.capability not in (None, _of_card()):
        raise UsageError(
            f"--compute-capability {target.capability}: {trt.__name__} builds for the card of this machine,"
            f" which is {_of_card() or 'absent'}",
            hint="build on a machine with such a card, or with tensorrt-rtx in an environment without tensorrt",
        )


def _of_card() -> str | None:
    """The compute capability of the first card, such as "90"; None without one."""
    if find_spec("torch") is None:
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    return "{}{}".format(*torch.cuda.get_device_capability(0))


def _profile(builder: Any, network: Any, batch: int, longest: int) -> Any:
    """Batches of one size; of other axes that vary, every length from 1: a token may be encoded by itself."""
    profile = builder.create_optimization_profile()
    for place in range(network.num_inputs):
        tensor = network.get_input(place)
        shapes = [
            [batch if axis == 0 else length for axis, length in enumerate(_sizes(tensor.shape, other))]
            for other in (1, max(1, longest // 8), longest)
        ]
        profile.set_shape(tensor.name, *shapes)
    return profile


def _sizes(shape: Sequence[int], other: int) -> list[int]:
    return [other if length < 0 else length for length in shape]


def _timings(trt: Any, target: Target) -> Path | None:
    """Where TensorRT's timings of kernels are kept; the one for RTX, which tunes where an engine runs, has none."""
    if trt.__name__ != "tensorrt":
        return None
    return cache_folder() / "timings" / f"{trt.__version__}-sm{capability_of(target)}.cache"


def read_timings(config: Any, file: Path) -> None:
    """Let a build use the timings of earlier ones; of a file that it does not take, none."""
    kept = config.create_timing_cache(file.read_bytes() if file.is_file() else b"")
    if kept is None or not config.set_timing_cache(kept, False):
        config.set_timing_cache(config.create_timing_cache(b""), False)


def keep_timings(config: Any, file: Path) -> None:
    """Keep the timings of a build, and of those before it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as scratch:
        scratch.write(config.get_timing_cache().serialize())
    Path(scratch.name).replace(file)


def capability_of(target: Target) -> str | None:
    """The compute capability of the cards that engines are for, such as "89"."""
    return target.capability or _of_card()


def name_of(model: str, target: Target) -> str:
    """The name of a bundle of engines, beside that of the graphs: rf-detr-nano-tensorrt_rtx-sm89-fp16."""
    return f"{model}-{runtime().__name__}-sm{capability_of(target)}-{target.precision}"
