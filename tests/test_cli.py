"""The command line: what it prints, and the code it ends with."""

import json
import signal
import subprocess
import sys
from importlib.metadata import entry_points

import numpy as np
import pytest
from PIL import Image

import tallymill
from tallymill import __main__ as program
from tallymill import cli


@pytest.fixture
def manifest(tmp_path):
    """Twenty items, one of which cannot be scored."""
    path = tmp_path / "m.jsonl"
    rows = [
        {"item_id": f"i{k}", "image": "x.jpg", "targets": {"cat": 0 if k == 7 else k + 1, "dog": 2}} for k in range(20)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def good(manifest):
    """The same without that item."""
    lines = manifest.read_text().splitlines()
    path = manifest.with_name("good.jsonl")
    path.write_text("\n".join(lines[:7] + lines[8:]))
    return path


@pytest.fixture
def call(capsys):
    """Run a command in this process: exit code, standard output, standard error."""

    def run(*arguments):
        capsys.readouterr()
        code = cli.run([str(argument) for argument in arguments])
        return (code, *capsys.readouterr())

    return run


SYNTHETIC = ("--ensemble", "synthetic")
ONE = (*SYNTHETIC, "--workers", 0)


def test_a_sweep_without_failures_ends_with_0(call, good, tmp_path):
    code, out, err = call("sweep", good, "--out", tmp_path / "RUN", *ONE)
    assert code == 0
    summary = tallymill.load(tmp_path / "RUN").summary()
    for text in ("items", "19", f"{summary.cw_nps:.4f}", f"{summary.b_nps:.4f}", f"written to {tmp_path / 'RUN'}"):
        assert text in out
    assert "Traceback" not in err


def test_a_sweep_with_failures_ends_with_3_and_says_why(call, manifest, tmp_path):
    code, out, _ = call("sweep", manifest, "--out", tmp_path / "RUN", *ONE)
    assert code == 3
    assert "1 x targets: requested count 0 outside 1..100 (first: i7)" in out


def test_json_is_all_that_is_printed(call, manifest, tmp_path):
    code, out, err = call("sweep", manifest, "--out", tmp_path / "RUN", *ONE, "--json")
    assert code == 3
    found = json.loads(out)
    assert err == ""
    assert (found["items"], found["scored"], found["error"], found["complete"]) == (20, 19, 1, True)
    assert found == json.loads((tmp_path / "RUN" / "summary.json").read_text())


def test_a_second_call_continues(call, good, tmp_path):
    first = call("sweep", good, "--out", tmp_path / "RUN", *ONE, "--part", "1/2", "--json")
    assert json.loads(first[1])["complete"] is False
    code, _, err = call("sweep", good, "--out", tmp_path / "RUN", *ONE)
    assert code == 0
    assert "continuing: 16 of 19 items were done before" in err


def test_every_option_of_a_sweep_arrives(call, good, tmp_path):
    options = ["--set", "floor=0.1", "--set", "nms_iou=0.4", "--shard-items", 5, "--keep-suppressed", "--system", "me"]
    code, _, err = call("sweep", good, "--out", tmp_path / "RUN", *ONE, *options, "--device", "cpu")
    assert code == 0, err
    record = json.loads((tmp_path / "RUN" / "run.json").read_text())
    assert (record["settings"]["floor"], record["settings"]["nms_iou"]) == (0.1, 0.4)
    assert (record["shard_items"], record["keep_suppressed"]) == (5, True)
    assert set(tallymill.load(tmp_path / "RUN").scores["system"].to_pylist()) == {"me"}


def test_errors_are_tried_again_when_asked(call, tmp_path):
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "m.jsonl").write_text('{"image": "a.png", "targets": {"cat": 0}}\n')
    run = tmp_path / "RUN"
    sweep = ("sweep", tmp_path / "m.jsonl", "--out", run, *ONE)
    assert call(*sweep)[0] == 3
    assert "continuing: 1 of 1 items were done before" in call(*sweep)[2]
    code, _, err = call(*sweep, "--retry-errors")
    assert code == 3
    assert "continuing" not in err


def test_prompts_from_a_file(call, tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"prompt_id": "p1", "targets": {"cat": 4}, "layout": "grid"}\n')
    (tmp_path / "m.jsonl").write_text('{"image": "a.jpg", "prompt_id": "p1"}\n')
    code, _, err = call(
        "sweep", tmp_path / "m.jsonl", "--out", tmp_path / "RUN", *ONE, "--prompts", tmp_path / "prompts.jsonl"
    )
    assert code == 0, err
    [row] = tallymill.load(tmp_path / "RUN").scores.to_pylist()
    assert (row["prompt_id"], row["layout"], row["targets"][0]["requested"]) == ("p1", "grid", 4)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nothing"], "nothing"),
        (["sweep"], "--manifest"),
        (["sweep", "m.jsonl"], "--out"),
        (["sweep", "m.jsonl", "--out", "RUN", "--nothing"], "--nothing"),
        (["sweep", "m.jsonl", "--out", "RUN", "--workers", "many"], "many"),
        (["sweep", "m.jsonl", "--out", "RUN", "--workers=-1"], "workers = -1"),
        (["sweep", "m.jsonl", "--out", "RUN", "--workers"], "--workers"),
        (["sweep", "m.jsonl", "--out", "RUN", "--set", "floor"], "--set floor: not a setting"),
        (["sweep", "m.jsonl", "--out", "RUN", "--set", "floor=2"], "floor=2"),
        (["sweep", "m.jsonl", "--out", "RUN", "--set", "max_pixels=Infinity"], "max_pixels=inf"),
        (["sweep", "m.jsonl", "--out", "RUN", "--part", "1"], "--part 1: must be i/n"),
        (["sweep", "m.jsonl", "--out", "RUN", "--part", "0/3"], "part 0/3"),
        (["sweep", "m.jsonl", "--out", "RUN", "--part", "4/3"], "part 4/3"),
        (["sweep", "m.jsonl", "--out", "RUN", "--part", "²/3"], "--part ²/3"),
        (["sweep", "m.jsonl", "--out", "RUN", "--part", "1/3/5"], "--part 1/3/5"),
        (["sweep", "m.jsonl", "--out", "RUN", "--part=-1/3"], "--part -1/3"),
        (["sweep", "m.jsonl", "--out", "RUN", "--shard-items", "0"], "shard_items = 0"),
        (["sweep", "m.jsonl", "--out", "RUN", "--device", "cuda:0"], "cuda:0"),
        (["sweep", "m.jsonl", "--out", "RUN", "--prompt", "some cats"], "'some cats'"),
        (["sweep", "m.jsonl", "--out", "RUN", "--ensemble", "no-such"], "no-such"),
        (["score", "--prompt", "3 cats"], "no image given"),
        (["score", "x.jpg"], "prompt"),
        (["score", "x.jpg", "--prompt", "3 cats", "--ensemble", "no-such"], "no-such"),
        (["rescore", "RUN", "--score", "nothing.py:f"], "nothing.py:f"),
        (["rescore", "RUN", "--workers", "-1"], "workers = -1"),
        (["rescore", "RUN", "--out", "RUN2", "--tau", "a"], "--tau a: must be DETECTOR=NUMBER"),
        (["rescore", "RUN", "--out", "RUN2", "--tau", "a=b"], "--tau a=b"),
        (["rescore", "RUN", "--out", "RUN2", "--tau", "=1"], "--tau"),
        (["rescore", "RUN", "--out", "RUN2", "--tau", "synthetic-a=-1"], "tau = -1"),
        (["rescore", "RUN", "--out", "RUN2", "--tau", "synthetic-a=4"], "tau = 4"),
        (["rescore", "RUN", "--out", "RUN2", "--schedule", "nothing.py:f"], "nothing.py:f"),
        (["rescore", "RUN", "--out", "RUN2", "--set", "floor=0.2"], "floor = 0.2"),
        (["rescore", "RUN", "--out", "RUN"], "is the RUN itself"),
        (["dump", "RUN", "--out", "x", "--format", "csv"], "--format csv"),
        (["dump", "RUN", "--out", "x.json", "--detector", "nobody"], "nobody"),
        (["dump", "RUN", "--out", "RUN"], "--out RUN is a folder"),
        (["dump", "RUN", "--out", "x"], "--out x: neither .parquet nor .json"),
        (["bench", "nothing"], "no benchmark 'nothing'"),
        (["models", "nothing"], "nothing"),
    ],
)
def test_wrong_use_ends_with_2_and_a_line_or_two(arguments, named, call, good, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good.rename("m.jsonl")
    if arguments[0] in ("rescore", "dump"):
        tallymill.sweep("m.jsonl", "RUN", ensemble="synthetic", workers=0)
    if arguments[0] == "sweep" and "--ensemble" not in arguments:
        arguments = (
            [*arguments, *SYNTHETIC] if arguments[-1] != "--workers" else [*arguments[:4], *SYNTHETIC, "--workers"]
        )
    code, out, err = call(*arguments)
    assert code == 2, err
    assert out == ""
    assert named in err
    assert err.startswith("tallymill: ")
    assert 1 <= len(err.splitlines()) <= 2
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["sweep", "nothing.jsonl", "--out", "RUN", *SYNTHETIC], "nothing.jsonl"),
        (["rescore", "nothing", "--out", "RUN2"], "nothing is not a RUN"),
        (["dump", "nothing", "--out", "x"], "nothing is not a RUN"),
        (["models", "get", "nothing"], "nothing"),
        (["rescore", "RUN", "--out", "good.jsonl"], "good.jsonl is a file"),
        (["dump", "RUN", "--out", "good.jsonl/x.json"], "good.jsonl"),
        (["sweep", "good.jsonl", "--out", "good.jsonl", *SYNTHETIC], "good.jsonl is a file"),
        (["sweep", "good.jsonl", "--out", "/proc/nowhere", *SYNTHETIC], "/proc/nowhere"),
    ],
)
def test_what_cannot_be_done_ends_with_1_and_a_line_or_two(arguments, named, call, good, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tallymill.sweep(good, "RUN", ensemble="synthetic", workers=0)
    code, out, err = call(*arguments)
    assert (code, out) == (1, "")
    assert named in err
    assert 1 <= len(err.splitlines()) <= 2


def test_other_settings_end_with_1_and_name_the_differences(call, good, tmp_path):
    call("sweep", good, "--out", tmp_path / "RUN", *ONE)
    code, _, err = call("sweep", good, "--out", tmp_path / "RUN", *ONE, "--set", "floor=0.1")
    assert code == 1
    assert "settings.floor: 0.05 in the RUN, 0.1 now" in err
    assert "rescore" in err


def test_a_long_line_stays_one_line(call, tmp_path):
    far = tmp_path / "/".join(["a-folder-with-a-long-name"] * 12)
    code, _, err = call("dump", far, "--out", tmp_path / "x")
    assert code == 1
    assert len(err.splitlines()) == 1
    assert str(far) in err


def test_score_prints_a_table(call, tmp_path):
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "a.png")
    code, out, err = call("score", tmp_path / "a.png", "--prompt", "3 cats and 2 dogs", *SYNTHETIC)
    assert code == 0, err
    result = tallymill.score(tmp_path / "a.png", "3 cats and 2 dogs", ensemble="synthetic")
    assert f"cw-NPS {result.cw_nps:.4f}, b-NPS {result.b_nps:.4f}" in out
    for text in ("3 cat", "2 dog", "synthetic-a", "synthetic-b", "synthetic-c", "ensemble"):
        assert text in out


def test_a_name_that_is_not_utf8(call):
    code, out, err = call("score", "\udcff.jpg", "--prompt", "3 cats", *SYNTHETIC)
    assert (code, out) == (2, "")
    assert "not UTF-8" in err


def test_score_takes_several_images_and_tells_which_failed(call, tmp_path):
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "a.png")
    images = [tmp_path / "a.png", tmp_path / "gone.png"]
    code, out, _ = call("score", *images, "--prompt", "3 cats", *SYNTHETIC, "--json")
    assert code == 3
    first, second = json.loads(out)
    assert (first["status"], second["status"]) == ("scored", "error")
    assert first["targets"][0]["requested"] == 3
    code, out, _ = call("score", *images, "--prompt", "3 cats", *SYNTHETIC)
    assert code == 3
    assert f"{images[1]}: error: image: {images[1]}: not found" in out


def test_a_prompt_that_cannot_be_read(call):
    code, _, err = call("score", "x.jpg", "--prompt", "some cats", *SYNTHETIC)
    assert code == 2
    assert "'some cats'" in err
    assert "Traceback" not in err


def test_rescore_and_dump(call, good, tmp_path):
    run, again = tmp_path / "RUN", tmp_path / "AGAIN"
    call("sweep", good, "--out", run, *ONE)
    (tmp_path / "half.py").write_text("def f(n):\n    return 0.5\n")
    code, out, err = call(
        "rescore", run, "--out", again, "--tau", "synthetic-a=1.2", "--tau", "synthetic-b=0.9",
        "--schedule", f"{tmp_path / 'half.py'}:f", "--set", "coverage=all", "--json",
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["scored"] == 19
    record = json.loads((again / "run.json").read_text())
    assert [d["tau"] for d in record["ensemble"]["detectors"]] == [1.2, 0.9, 1.0]
    assert (record["schedule"], record["settings"]["coverage"]) == ([0.5] * 100, "all")
    code, out, _ = call("dump", again, "--out", tmp_path / "d.json", "--format", "coco", "--json")
    assert code == 0
    assert json.loads(out)["proposals"] == len(json.loads((tmp_path / "d.json").read_text()))
    code, out, _ = call("dump", run, "--out", tmp_path / "d.parquet", "--detector", "synthetic-a")
    assert code == 0
    assert f"proposals written to {tmp_path / 'd.parquet'}" in out


def test_a_dump_of_a_part_says_so(call, good, tmp_path):
    run = tmp_path / "RUN"
    call("sweep", good, "--out", run, "--part", "2/2", *ONE)
    code, out, _ = call("dump", run, "--out", tmp_path / "d.parquet")
    assert code == 3
    assert "1 of 2 shards not done yet: the file lacks their images" in out
    code, out, _ = call("dump", run, "--out", tmp_path / "d.parquet", "--json")
    assert (code, json.loads(out)["shards"], json.loads(out)["shards_undone"]) == (3, 2, 1)


def test_models_list(call, tmp_path, monkeypatch):
    monkeypatch.setenv("TALLYMILL_CACHE", str(tmp_path))
    code, out, _ = call("models", "list", "--json")
    assert code == 0
    assert {(model["name"], model["path"]) for model in json.loads(out)} == {
        (name, None) for name in ("coco-ssd", "nanodet", "centernet", "upscaler-2x")
    }
    code, out, _ = call("models", "list")
    assert code == 0
    assert "not fetched" in out


def test_models_that_are_not_there_end_with_1_and_the_command_that_fetches_them(call, good, tmp_path, monkeypatch):
    monkeypatch.setenv("TALLYMILL_CACHE", str(tmp_path))
    code, _, err = call("sweep", good, "--out", tmp_path / "RUN")
    assert code == 1
    assert err.splitlines()[1].strip() == "tallymill models get coco-cpu"


def test_help_and_version(call):
    code, out, _ = call("--help")
    assert code == 0
    for command in ("demo", "models", "score", "sweep", "rescore", "dump", "bench"):
        assert command in out
    for command in ("sweep", "score", "rescore", "dump", "demo"):
        code, out, _ = call(command, "--help")
        assert code == 0
        assert "--json" in out
    assert "--set" in call("sweep", "--help")[1]
    assert "coverage=covered or coverage=all" in " ".join(call("rescore", "--help")[1].split())
    code, out, _ = call("--version")
    assert (code, out.strip()) == (0, tallymill.__version__)


@pytest.mark.parametrize(("told", "line"), [((), "stopped"), (("3 of 19 are done",), "stopped: 3 of 19 are done")])
def test_an_interrupt_ends_with_1_and_a_message(told, line, call, good, tmp_path, monkeypatch):
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt(*told)

    monkeypatch.setattr(tallymill, "sweep", interrupted, raising=False)
    code, out, err = call("sweep", good, "--out", tmp_path / "RUN", *ONE)
    assert (code, out) == (1, "")
    assert err.strip().splitlines()[-1] == line


@pytest.mark.parametrize(
    ("arguments", "code"), [(["--version"], 0), (["nothing"], 2), (["dump", "nothing", "--out", "x"], 1)]
)
def test_the_program_ends_with_the_code(arguments, code):
    done = subprocess.run([sys.executable, "-m", "tallymill", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_who_stops_it_while_it_is_loaded_gets_a_word(stop):
    code = (
        "import builtins, os, signal\nfrom tallymill.__main__ import main\nreal = builtins.__import__\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background is started without
        "def slow(name, *a, **k):\n"
        f"    if name == 'tallymill' and a[2:] and a[2] == ('cli',): os.kill(os.getpid(), {int(stop)})\n"
        "    return real(name, *a, **k)\n"
        "builtins.__import__ = slow\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "stopped\n")


def test_the_program_is_installed_under_its_name():
    [entry] = entry_points(group="console_scripts", name="tallymill")
    assert entry.load() is program.main


def test_the_package_gives_what_it_names():
    for name in tallymill.__all__:
        assert callable(getattr(tallymill, name))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tallymill.nothing
    program = (
        "import sys, tallymill.kernels.nms; assert not [m for m in sys.modules if m.startswith('tallymill.engine')]"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["physcount", "example", "--out="], "--out: is empty"),
        (["physcount", "example", "--out", ""], "--out: is empty"),
        (["sweep", "m.csv", "--out", ""], "--out: is empty"),
        (["analyse", ""], "is empty; it names a file or a folder"),
        (["analyse", "RUN", "--resamples", "2.5"], "--resamples 2.5: must be a whole number"),
        (["prompts", "build", "--out", "p", "--seed=1.0"], "--seed 1.0: must be a whole number"),
        (["demo", "--workers", "1.5"], "--workers 1.5: must be a whole number"),
        (["prompts", "build", "--out", "p", "--seed", "9" * 21], f"--seed {'9' * 20}…: has more than 20 digits"),
        (["prompts", "build", "--out", "p", "--seed", "-" + "9" * 5000], "has more than 20 digits"),
    ],
)
def test_values_that_would_be_taken_for_others_are_refused(command, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.run(command) == 2
    assert told in " ".join(capsys.readouterr().err.split())
    assert not any(tmp_path.iterdir())


def test_models_that_have_to_be_exported_are_told_all_at_once(call, good, tmp_path, monkeypatch):
    monkeypatch.setenv("TALLYMILL_CACHE", str(tmp_path))
    code, _, err = call("sweep", good, "--out", tmp_path / "RUN", "--ensemble", "numbench")
    assert code == 1
    for model in ("ow-detr", "owlvit-base-patch32", "grounding-dino-tiny"):
        assert f"the model '{model}' has not been exported" in err
        assert f"  tallymill export {model} --to onnx\n" in err
