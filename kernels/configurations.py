"""Triton kernels as they are shipped: one :class:`Configuration` a kernel, block size and number of warps.

Every ``gpu.py`` lists its own in ``CONFIGURATIONS``; launchers take theirs from that list, and ``triton_aot`` compiles
the same list, so that what is checked for spills is what runs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Configuration:
    """One compiled form of a Triton kernel.

    ``signature`` gives the type of every argument that is not in ``constexprs``, in order ("*fp32", "*i64", "i32",
    "fp64"). Numbers are declared ``@triton.jit(do_not_specialize=[...])`` and annotated (``n: tl.int32``) in the
    kernel, because Triton would otherwise choose a type and a variant by value. A float64 number is read in the kernel
    as ``tl.full((), tau, tl.float64)``, which means the same in the interpreter. ``divisible`` names the pointers that
    are multiples of 16 bytes, as whole torch tensors are; another address makes Triton compile a variant of its own,
    equally right. Products and sums are never fused, so that results are those of the CPU to the bit.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 1
    divisible: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def launch(self, grid: tuple[int, ...], *arguments: Any) -> None:
        """Queue the kernel on the current stream of the first tensor's card: ``arguments`` as in the signature."""
        with _current(arguments[0]):
            self.kernel[grid](*arguments, **self.constexprs, **self.compiler_options())

    def compiler_options(self) -> dict[str, Any]:
        """What the compiler is told, ahead of time and at launch alike."""
        chosen = {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": False}
        return {**chosen, **self.options}


def _current(tensor: Any) -> AbstractContextManager[Any]:
    """Make the card of ``tensor`` the current one, where Triton launches."""
    if not tensor.is_cuda:
        return nullcontext()
    card: AbstractContextManager[Any] = sys.modules["torch"].cuda.device(tensor.device)
    return card
