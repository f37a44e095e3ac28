"""Compiles every shipped Triton kernel for cards that need not be there, and refuses those that spill registers.

``python -m tallymill.kernels.triton_aot`` prints a table and, as its last line, JSON. torch is not needed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tallymill.errors import MissingExtraError, TallymillError, UsageError
from tallymill.kernels.configurations import Configuration

CAPABILITIES = (80, 90, 100)
WARP_SIZE = 32


@dataclass(frozen=True)
class Resources:
    """What one program takes: ``registers`` a thread; bytes a thread of ``stack`` and of spills stored and loaded;
    ``shared_bytes`` a program, static and dynamic.
    """

    registers: int
    spill_stores: int
    spill_loads: int
    shared_bytes: int
    stack: int
    num_warps: int


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    operation: str
    configuration: str
    capability: int
    resources: Resources


def compile(configuration: Configuration, capability: int) -> Resources:
    """Compile for ``sm_<capability>`` and say what the result takes. The kernel is never run."""
    triton = _triton()
    _check(configuration)
    names = list(configuration.kernel.arg_names)
    source = triton.compiler.ASTSource(
        fn=configuration.kernel,
        signature={name: configuration.signature.get(name, "constexpr") for name in names},
        constexprs=dict(configuration.constexprs),
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in configuration.divisible},
    )
    target = triton.backends.compiler.GPUTarget("cuda", capability, WARP_SIZE)
    compiled = triton.compile(source, target=target, options=configuration.compiler_options())
    registers, stack, static = _usage(compiled.asm["cubin"])
    spill_stores, spill_loads = _spills(compiled.asm["ptx"], capability)
    return Resources(
        registers, spill_stores, spill_loads, compiled.metadata.shared + static, stack, compiled.metadata.num_warps
    )


def operations() -> list[str]:
    """The operations that have a Triton kernel."""
    return sorted(path.parent.name for path in Path(__file__).parent.glob("*/gpu.py"))


def configurations(operation: str) -> tuple[Configuration, ...]:
    """What ``kernels/<operation>/gpu.py`` ships."""
    module = importlib.import_module(f"tallymill.kernels.{operation}.gpu")
    shipped: tuple[Configuration, ...] = tuple(module.CONFIGURATIONS)
    return shipped


def survey(capabilities: Sequence[int], workers: int = 2) -> list[Row]:
    """Compile everything for each of ``capabilities``, ``workers`` at a time."""
    _triton()
    jobs = [
        (operation, place, capability)
        for operation in operations()
        for place in range(len(configurations(operation)))
        for capability in capabilities
    ]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(_row, *zip(*jobs, strict=True))) if jobs else []


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text."""
    head = ("kernel", "sm", "warps", "registers", "stack", "spill stores", "spill loads", "shared bytes")
    lines: list[tuple[str, ...]] = [head]
    for row in rows:
        r = row.resources
        figures = (r.num_warps, r.registers, r.stack, r.spill_stores, r.spill_loads, r.shared_bytes)
        lines.append((f"{row.operation}: {row.configuration}", str(row.capability), *map(str, figures)))
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, then JSON; 1 when anything spills."""
    parser = argparse.ArgumentParser(prog="python -m tallymill.kernels.triton_aot", description=__doc__)
    parser.add_argument("--capability", type=int, choices=CAPABILITIES, action="append", help="one card only")
    parser.add_argument("--workers", type=int, default=2, help="compilers at a time")
    options = parser.parse_args(arguments)
    try:
        rows = survey(options.capability or CAPABILITIES, options.workers)
    except TallymillError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    spilled = [row for row in rows if row.resources.spill_stores or row.resources.spill_loads]
    print(table(rows))  # noqa: T201
    for row in spilled:
        print(f"spills: {row.operation}: {row.configuration} on sm_{row.capability}")  # noqa: T201
    print(json.dumps({"triton": _triton().__version__, "spilled": len(spilled), "kernels": [asdict(r) for r in rows]}))  # noqa: T201
    return 1 if spilled else 0


def _row(operation: str, place: int, capability: int) -> Row:
    configuration = configurations(operation)[place]
    return Row(operation, configuration.name, capability, compile(configuration, capability))


def _triton() -> Any:
    try:
        import triton
        import triton.backends.compiler
        import triton.compiler
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise MissingExtraError.of("triton", "gpu") from None
    if triton.knobs.runtime.interpret:
        raise UsageError("nothing is compiled while Triton interprets", hint="unset TRITON_INTERPRET")
    return triton


def _check(configuration: Configuration) -> None:
    """Hold the configuration to what a launch would compile: same arguments, no variant chosen by a number's value."""
    kernel, signature = configuration.kernel, configuration.signature
    where = f"{configuration.name}: {kernel.__name__}"
    if list(kernel.arg_names) != [*signature, *configuration.constexprs]:
        raise ValueError(f"{where} takes {kernel.arg_names}, got {[*signature, *configuration.constexprs]}")
    for parameter in kernel.params:
        kind = signature.get(parameter.name)
        if kind is None or kind.startswith("*"):
            continue
        if not parameter.do_not_specialize or parameter.annotation_type != kind:
            raise ValueError(f"{where}: declare {parameter.name} as {kind} and do_not_specialize")
    unknown = [name for name in configuration.divisible if not signature.get(name, "").startswith("*")]
    if unknown:
        raise ValueError(f"{where}: divisible names {unknown}, which are no pointers")


def _usage(cubin: bytes) -> tuple[int, int, int]:
    """Registers a thread, stack bytes a thread and static shared bytes of the one kernel in ``cubin``."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = _run(_triton().knobs.nvidia.cuobjdump.path, "-res-usage", file.name)
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", text)
    if found is None:
        raise RuntimeError(f"cuobjdump tells no registers: {text}")
    registers, stack, shared = map(int, found.groups())
    return registers, stack, shared


def _spills(ptx: str, capability: int) -> tuple[int, int]:
    """Bytes a thread stored and loaded by spills: told by the assembler, with the flags that Triton gives it."""
    from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

    flags = ("-lineinfo", "--fmad=false", "-v", "--regAllocOptLevel=2")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        assembler, target = get_ptxas(capability).path, f"--gpu-name={sm_arch_from_capability(capability)}"
        text = _run(assembler, *flags, target, str(source), "-o", str(Path(folder, "kernel.cubin")))
    found = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", text)
    if found is None:
        raise RuntimeError(f"ptxas tells no spills: {text}")
    return int(found[1]), int(found[2])


def _run(*command: str) -> str:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
