"""Sessions of torch: programs of small modules on the CPU's memory, and on a card where there is one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tallymill.engine.sessions import cuda_graphs
from tallymill.engine.sessions.cuda_graphs import CudaGraphs
from tallymill.engine.sessions.pytorch import TorchSession, exact
from tallymill.errors import ModelError
from tallymill.exporters.to_torch import CommonTensors, tidy, write
from tallymill.exporters.torch_precision import halve, packet

needs_card = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card")]
CARD = pytest.param("cuda:0", marks=needs_card)


class Tower(torch.nn.Module):
    """Patches of an image, two layers of attention with a mask, and two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = torch.nn.Conv2d(3, 32, 8, 8)
        self.norm, self.last = torch.nn.LayerNorm(32), torch.nn.LayerNorm(32)
        self.query, self.key, self.value, self.out = (torch.nn.Linear(32, 32) for _ in range(4))
        self.wide, self.narrow, self.box = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32), torch.nn.Linear(32, 4)

    def forward(self, image: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        seen = self.patches(image).flatten(2).transpose(1, 2)
        for _ in range(2):
            read = self.norm(seen)
            q, k, v = (head(read).unflatten(2, (2, 16)).transpose(1, 2) for head in (self.query, self.key, self.value))
            hidden = torch.where(mask, 0.0, torch.finfo(torch.float32).min)[:, None, None]
            found = torch.nn.functional.scaled_dot_product_attention(q, k, v, hidden)
            seen = seen + self.out(found.transpose(1, 2).flatten(2))
            seen = seen + self.narrow(torch.nn.functional.gelu(self.wide(self.last(seen))))
        return {"features": self.last(seen), "boxes": self.box(self.last(seen)).sigmoid()}


def traced(module: torch.nn.Module, *inputs: torch.Tensor) -> Any:
    """A program whose first axes vary together."""
    rows = torch.export.Dim("rows", min=1)
    program = torch.export.export(module.eval(), inputs, dynamic_shapes=tuple({0: rows} for _ in inputs))
    tidy(program)
    return program


def tower() -> tuple[Tower, Any]:
    torch.manual_seed(0)
    module = Tower()
    return module, traced(module, torch.zeros(2, 3, 32, 32), torch.ones(2, 16, dtype=torch.bool))


def some(rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(rows)
    mask = rng.random((rows, 16)) < 0.7
    mask[:, 0] = True
    return {"image": rng.standard_normal((rows, 3, 32, 32), np.float32), "mask": mask}


def reference(module: torch.nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    with torch.no_grad():
        found = module(**{name: torch.from_numpy(value) for name, value in inputs.items()})
    return {name: value.numpy() for name, value in found.items()}


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def made(request, tmp_path_factory) -> tuple[Tower, Path, float]:
    """The module, its program in a file, and how much that may differ."""
    module, program = tower()
    if request.param == "bf16":
        assert halve(program, "") > 10
    file = tmp_path_factory.mktemp(request.param) / "tower.pt2"
    write(program, file)
    return module, file, {"fp32": 1e-5, "bf16": 0.02}[request.param]


@pytest.mark.parametrize("device", ["cpu", CARD])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_program_answers_as_its_module(made, device, rows):
    module, file, tolerance = made
    session = TorchSession(file, device=device)
    found = session.run(some(rows))
    for name, wanted in reference(module, some(rows)).items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], wanted, atol=tolerance * max(1, np.abs(wanted).max()))


def test_what_is_exact_stays_float32_and_products_do_not():
    _, program = tower()
    halve(program, "")
    types: dict[str, set[torch.dtype]] = {}
    for node in program.graph.nodes:
        if node.op == "call_function" and packet(node) != "to":
            types.setdefault(packet(node), set()).add(node.meta["val"].dtype)
    assert types["conv2d"] == types["scaled_dot_product_attention"] == types["gelu"] == {torch.bfloat16}
    assert types["layer_norm"] == types["add"] == types["sigmoid"] == {torch.float32}
    assert types["linear"] == {torch.bfloat16, torch.float32}, "the last of the boxes is exact"
    assert program.state_dict["box.weight"].dtype == torch.float32
    assert program.state_dict["wide.weight"].dtype == torch.bfloat16
    casts = sum(packet(node) == "to" for node in program.graph.nodes)
    assert casts < 40, "what only moves values does not go back and forth"


def test_what_is_written_to_in_place_stays_float32():
    class Shifted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            seen = self.first(x)
            seen[:, :2].add_(1)
            return {"y": torch.nn.functional.layer_norm(self.second(seen), (8,))}

    torch.manual_seed(0)
    module = Shifted()
    program = traced(module, torch.zeros(2, 8))
    halve(program, "")
    x = torch.randn(3, 8)
    with torch.no_grad():
        (found,) = program.graph_module(*program.state_dict.values(), x)
        assert (found - module(x)["y"]).abs().max() < 0.05


def test_a_program_leaves_nothing_on_the_cpu_when_it_is_placed_elsewhere(made):
    _, file, _ = made
    session = TorchSession(file, device="meta")
    inputs = {name: torch.from_numpy(value).to("meta") for name, value in some(3).items()}
    assert {name: value.shape[0] for name, value in session.run(inputs).items()} == {"features": 3, "boxes": 3}


def test_common_weights_are_there_once_and_shared(tmp_path):
    weights = CommonTensors(tmp_path / "tower.weights")
    module, first = tower()
    _, second = tower()
    for name, program in (("a", first), ("b", second)):
        write(program, tmp_path / f"{name}.pt2", weights)
    weights.write()
    alone = tmp_path / "alone.pt2"
    write(tower()[1], alone)
    total = sum(value.nbytes for value in module.state_dict().values())
    assert total < weights.file.stat().st_size < total + 8192
    assert (tmp_path / "a.pt2").stat().st_size < alone.stat().st_size - total // 2
    sessions = [TorchSession(tmp_path / f"{name}.pt2") for name in "ab"]
    assert sessions[0]._program._weights is sessions[1]._program._weights
    wanted = TorchSession(alone).run(some(2))
    for session in sessions:
        assert all(np.array_equal(value, wanted[name]) for name, value in session.run(some(2)).items())


def test_weights_that_are_written_anew_are_read_anew(tmp_path):
    """Also where the older ones are still in use, by a session that goes on as it was."""

    def export(level: float) -> TorchSession:
        (tmp_path / "tower.weights").unlink(missing_ok=True)
        weights, (_, program) = CommonTensors(tmp_path / "tower.weights"), tower()
        for value in program.state_dict.values():
            value.data.mul_(level)
        write(program, tmp_path / "a.pt2", weights)
        weights.write()
        return TorchSession(tmp_path / "a.pt2")

    first = export(1)
    before = first.run(some(2))["boxes"]
    second = export(2)
    assert np.array_equal(first.run(some(2))["boxes"], before)
    del first
    after = second.run(some(2))["boxes"]
    assert not np.array_equal(after, before)
    assert np.array_equal(export(2).run(some(2))["boxes"], after)


def test_programs_that_disagree_about_a_weight_are_refused(tmp_path):
    weights = CommonTensors(tmp_path / "tower.weights")
    _, first = tower()
    _, second = tower()
    second.state_dict["box.bias"] = torch.nn.Parameter(torch.ones(4))
    write(first, tmp_path / "a.pt2", weights)
    with pytest.raises(ModelError, match=r"disagree about the weight box\.bias"):
        write(second, tmp_path / "b.pt2", weights)


class Asking(torch.nn.Module):
    """Lets the host know how many values there are."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": torch.arange(torch.tensor([3, 4])[0].item()) + x[:, :1], "z": x[x[:, 0] > 0]}


def test_a_program_that_no_graph_can_have_says_so(tmp_path):
    write(traced(Asking(), torch.ones(2, 3)), tmp_path / "m.pt2")
    session = TorchSession(tmp_path / "m.pt2")
    assert "(index)" in str(session.eager), "and the number 3 became one of the program"
    found = session.run({"x": np.array([[1, 1, 1], [-1, 0, 0], [2, 0, 0]], np.float32)})
    assert found["y"].shape == (3, 3)
    assert found["z"].shape == (2, 3)


def test_float32_is_float32_meanwhile():
    torch.set_float32_matmul_precision("medium")
    try:
        with exact(torch):
            assert torch.get_float32_matmul_precision() == "highest"
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
            assert torch.backends.cudnn.conv.fp32_precision == "ieee"
            assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
        assert torch.backends.cudnn.conv.fp32_precision == "tf32"
    finally:
        torch.set_float32_matmul_precision("highest")


def switches() -> list[Any]:
    backends = torch.backends
    places = (backends.cuda.matmul, backends.mkldnn.matmul, backends.cudnn.conv, backends.mkldnn.conv)
    return [
        torch.get_float32_matmul_precision(),
        backends.cudnn.benchmark,
        backends.cudnn.deterministic,
        *(place.fp32_precision for place in places),
    ]


def test_of_two_threads_the_last_sets_the_switches_back():
    """The first to come is the first to go, while the other still computes."""
    torch.set_float32_matmul_precision("medium")
    before, (came, gone) = switches(), (threading.Event(), threading.Event())
    found: list[Any] = []

    def second() -> None:
        with exact(torch):
            came.set()
            assert gone.wait(10)
            found.append(switches())

    try:
        thread = threading.Thread(target=second)
        with exact(torch):
            meanwhile = switches()
            thread.start()
            assert came.wait(10)
        gone.set()
        thread.join(10)
        assert found == [meanwhile], "the second computed with float32 to its end"
        assert meanwhile[0] == "highest"
        assert switches() == before
    finally:
        torch.set_float32_matmul_precision("highest")


class Stream:
    def __init__(self, *_: Any) -> None:
        self.waited: list[Any] = []

    def wait_stream(self, other: Any) -> None:
        self.waited.append(other)

    def synchronize(self) -> None:
        pass


@contextmanager
def nothing(*_: Any, **__: Any) -> Any:
    yield


def no_card(fails: bool = False) -> Any:
    """What ``CudaGraphs`` needs of torch: a replay does nothing, so that outputs are those of the capture."""

    @contextmanager
    def graph(*_: Any, **__: Any) -> Any:
        if fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        yield

    current = Stream()
    cuda = SimpleNamespace(
        graph_pool_handle=lambda: 1,
        current_stream=lambda _device: current,
        Stream=Stream,
        stream=nothing,
        CUDAGraph=lambda: SimpleNamespace(replay=lambda: None),
        graph=graph,
    )
    return SimpleNamespace(cuda=cuda, OutOfMemoryError=torch.OutOfMemoryError)


def test_shapes_are_captured_when_they_come_again_and_the_oldest_goes(monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MOST", 2)
    graphs = CudaGraphs(no_card(), "cuda:0", lambda inputs: [inputs[0] * 2])

    def run(rows: int) -> None:
        graphs.run([torch.ones(rows)])

    run(1)
    assert graphs.shapes == []
    run(1)
    assert graphs.shapes == [((1,),)]
    for rows in (2, 2, 1, 3, 3):
        run(rows)
    assert graphs.shapes == [((1,),), ((3,),)], "2 was not used for longest"
    run(2)
    run(2)
    assert len(graphs.shapes) == 2
    assert ((2,),) not in graphs.shapes, "from now on shapes come twice before they are captured"
    run(2)
    assert graphs.shapes == [((3,),), ((2,),)]


def test_a_graph_reads_what_it_is_given_and_gives_copies():
    graphs = CudaGraphs(no_card(), "cuda:0", lambda inputs: [inputs[0]])
    for value in (1.0, 2.0, 3.0):
        (first,) = graphs.run([torch.full((2,), value)])
        assert first.tolist() == [value, value]
    (second,) = graphs.run([torch.zeros(2)])
    assert first.tolist() == [3, 3]
    assert second.tolist() == [0, 0]


def test_a_capture_that_fails_is_told():
    graphs = CudaGraphs(no_card(fails=True), "cuda:0", lambda inputs: [inputs[0]])
    graphs.run([torch.ones(2)])
    with pytest.raises(CudaGraphs.NotCapturedError, match="stream is capturing"):
        graphs.run([torch.ones(2)])


def test_a_capture_that_fails_leaves_the_stream_of_the_caller() -> None:
    """``torch.cuda.graph`` does not, where it cannot end the capture."""
    card, callers, torchs = no_card(), Stream(), Stream()
    current = [callers]

    @contextmanager
    def on(stream: Any) -> Iterator[None]:
        before = current[0]
        current[0] = stream
        try:
            yield
        finally:
            current[0] = before

    @contextmanager
    def graph(*_: Any, **__: Any) -> Iterator[None]:
        current[0] = torchs
        yield
        raise RuntimeError("operation failed due to a previous error during capture")

    card.cuda.current_stream, card.cuda.stream, card.cuda.graph = lambda _device: current[0], on, graph
    graphs = CudaGraphs(card, "cuda:0", lambda inputs: [inputs[0]])
    graphs.run([torch.ones(2)])
    with pytest.raises(CudaGraphs.NotCapturedError, match="previous error"):
        graphs.run([torch.ones(2)])
    assert current[0] is callers


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card")
class TestOnACard:
    """What only a card can show; it has not been run."""

    @pytest.fixture
    def opened(self, made) -> Callable[..., TorchSession]:
        return lambda **options: TorchSession(made[1], device="cuda:0", **options)

    def test_graphs_answer_as_without(self, opened):
        with_graphs, without = opened(), opened(graphs=False)
        assert without.eager == "they were not asked for"
        for _ in range(3):
            for rows in (2, 5):
                found, wanted = with_graphs.run(some(rows)), without.run(some(rows))
                for name, value in wanted.items():
                    np.testing.assert_allclose(found[name], value, atol=1e-6)
        assert with_graphs.eager is None
        assert len(with_graphs._graphs.shapes) == 2

    def test_no_later_run_writes_to_what_was_given(self, opened):
        session = opened()
        inputs = {name: torch.from_numpy(value).cuda() for name, value in some(4).items()}
        kept = [session.run(inputs) for _ in range(3)]
        before = [{name: value.clone() for name, value in each.items()} for each in kept]
        for _ in range(3):
            session.run({**inputs, "image": inputs["image"] * 3})
        for each, same in zip(kept, before, strict=True):
            assert all(torch.equal(value, same[name]) for name, value in each.items())
            assert all(value.device == torch.device("cuda:0") for value in each.values())

    def test_work_is_in_the_order_of_the_streams_of_the_caller(self, opened):
        session = opened()
        inputs = {name: torch.from_numpy(value).cuda() for name, value in some(4).items()}
        wanted = [session.run({**inputs, "image": inputs["image"] * k}) for k in range(3)]
        streams = [torch.cuda.Stream() for _ in range(3)]
        found = []
        for k, stream in enumerate(streams):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                found.append(session.run({**inputs, "image": inputs["image"] * k}))
        torch.cuda.synchronize()
        for one, other in zip(found, wanted, strict=True):
            assert all(torch.allclose(value, other[name], atol=1e-6) for name, value in one.items())
