"""Every shipped kernel compiles for every card that we name, and none spills."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tallymill.kernels import triton_aot


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: where Triton interprets, it does not compile."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tallymill.kernels.triton_aot", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_no_kernel_spills() -> None:
    done = run()
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["spilled"] == 0
    compiled = {(row["operation"], row["configuration"], row["capability"]) for row in result["kernels"]}
    assert compiled == {
        (operation, configuration.name, capability)
        for operation in triton_aot.operations()
        for configuration in triton_aot.configurations(operation)
        for capability in triton_aot.CAPABILITIES
    }
    assert len(compiled) == len(result["kernels"]), "two configurations of an operation share a name"


def test_an_unknown_card_is_refused() -> None:
    assert run("--capability", "75").returncode == 2


@pytest.mark.skipif("TRITON_INTERPRET" not in os.environ, reason="Triton compiles in this process")
def test_nothing_is_compiled_while_interpreting(capsys: pytest.CaptureFixture[str]) -> None:
    assert triton_aot.main([]) == 2
    assert "TRITON_INTERPRET" in capsys.readouterr().err
