"""On a card only: that nothing waits for it, that other streams, cards and alignments are right, and real sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tallymill.bench import gpu as bench
from tallymill.bench import gpu_cases
from tallymill.kernels import match as matching
from tallymill.kernels.configurations import Configuration

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here that torch can use"),
]


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """Any wait for the card is an error, once the kernels are compiled."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("cases", gpu_cases.CASES, ids=lambda cases: cases.__name__)
def test_real_sizes_against_the_cpu(cases: Any) -> None:
    for case in cases("cuda", False):
        case.check(bench.arrays(case.run()), bench.arrays(case.cpu()))


@pytest.mark.parametrize("cases", gpu_cases.CASES, ids=lambda cases: cases.__name__)
def test_no_call_waits_for_the_card(cases: Any) -> None:
    for case in cases("cuda", True):
        case.run()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            case.run()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.usefixtures("no_waiting")
def test_ragged_problems_are_sent_without_waiting() -> None:
    costs = torch.zeros(10, device="cuda")
    matching.assign(costs, rows=np.array([2, 1]), columns=np.array([3, 4]), impl="gpu")


@pytest.mark.parametrize("cases", gpu_cases.CASES, ids=lambda cases: cases.__name__)
def test_the_stream_of_the_caller_is_used(cases: Any) -> None:
    for case in cases("cuda", True):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found = case.run()
        stream.synchronize()
        case.check(bench.arrays(found), bench.arrays(case.cpu()))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one card only")
@pytest.mark.parametrize("cases", gpu_cases.CASES, ids=lambda cases: cases.__name__)
def test_the_card_of_the_tensors_is_used(cases: Any) -> None:
    for case in cases("cuda:1", True):
        case.check(bench.arrays(case.run()), bench.arrays(case.cpu()))


def test_what_was_compiled_ahead_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch must not compile another variant than the configuration describes: the same registers, no spills."""
    from tallymill.kernels import triton_aot

    launched: list[Configuration] = []
    original = Configuration.launch

    def recorded(self: Configuration, *arguments: Any) -> None:
        launched.append(self)
        original(self, *arguments)

    monkeypatch.setattr(Configuration, "launch", recorded)
    for cases in gpu_cases.CASES:
        for case in cases("cuda", True):
            case.run()
    major, minor = torch.cuda.get_device_capability()
    for configuration in {one.name: one for one in launched}.values():
        caches = configuration.kernel.device_caches[torch.cuda.current_device()][0]
        compiled = [kernel for kernel in caches.values() if kernel.metadata.num_warps == configuration.num_warps]
        for kernel in compiled:
            kernel._init_handles()
        wanted = triton_aot.compile(configuration, 10 * major + minor)
        assert wanted.registers in {kernel.n_regs for kernel in compiled}, configuration.name
