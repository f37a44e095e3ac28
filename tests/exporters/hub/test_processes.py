"""Processes that are killed while they fetch, or fetch at the same time."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys

import onnx
import pytest

from tallymill.errors import ModelError
from tallymill.exporters import hub

CHILD = """
import os, pickle, signal, sys
from pathlib import Path
from tallymill.exporters import hub
recipes, source = pickle.loads(bytes.fromhex(sys.argv[1])), Path(sys.argv[2])
if sys.argv[3] == "die":
    hub.sync = lambda folder: os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[3] == "wait":
    write, gate = hub._write, Path(sys.argv[4])
    def slow(file, data):
        write(file, data)
        (gate / str(os.getpid())).touch()
        while len(list(gate.iterdir())) < 2:
            pass
    hub._write = slow
print(hub.get("tiny", source=source, recipes=recipes)[0])
"""


def child(recipes, source, *arguments) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, pickle.dumps(recipes).hex(), str(source), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_process_killed_in_the_middle_leaves_no_half_model(leftovers, package, recipes, cache):
    killed = child(recipes, package, "die")
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert leftovers(cache)  # it was in the middle of building the entry
    with pytest.raises(ModelError, match="has not been fetched"):
        hub.path("tiny", recipes=recipes)
    (model,) = hub.get("tiny", source=package, recipes=recipes)
    onnx.checker.check_model(onnx.load(model))
    assert not leftovers(cache)


def test_only_what_processes_of_this_machine_that_are_gone_left_is_removed(package, recipes, cache):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(timeout=60)
    host = socket.gethostname()
    kept = [
        f".tiny-{host}-{os.getpid()}-abcdefgh",
        f".tiny-{host}-1-abcdefgh",
        f".tiny-other-{host}x-{gone.pid}-abcdefgh",
        ".tiny-abcdefgh",
    ]
    kept += [f"tiny-{host}-{gone.pid}-abcdefgh", f".tiny-{host}-x-abcdefgh"]
    for name in [*kept, f".tiny-{host}-{gone.pid}-abcdefgh", f".tiny-nano-{host}-{gone.pid}-ab_defgh"]:
        (cache / "models" / name / "entry").mkdir(parents=True)
    for _ in range(2):  # also where nothing has to be fetched
        (model,) = hub.get("tiny", source=package, recipes=recipes)
        assert {path.name for path in (cache / "models").iterdir()} == {*kept, model.parent.name}
        (cache / "models" / f".tiny-{host}-{gone.pid}-abcdefgh").mkdir()
    hub.get("tiny", recipes=recipes)
    assert {path.name for path in (cache / "models").iterdir()} == {*kept, model.parent.name}


def test_two_processes_at_once_make_one_entry(package, recipes, cache, tmp_path):
    gate = tmp_path / "gate"
    gate.mkdir()
    both = [child(recipes, package, "wait", gate) for _ in range(2)]  # each waits until the other has built too
    printed = {process.communicate(timeout=60) for process in both}
    assert [process.returncode for process in both] == [0, 0], printed
    model = hub.path("tiny", recipes=recipes)
    assert {out.strip() for out, _ in printed} == {str(model)}
    assert [path.name for path in (cache / "models").iterdir()] == [model.parent.name]
