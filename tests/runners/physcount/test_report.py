"""The report of PhysCount as a command and as text; tests/browser opens it."""

from __future__ import annotations

import hashlib
import json
import re

import pytest

from tallymill import physcount
from tallymill.cli import run
from tallymill.errors import ManifestError, UsageError


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return physcount.example(tmp_path_factory.mktemp("report") / "set", scenes_wanted=3)


@pytest.fixture(scope="module")
def runs(dataset, physcount_example, tmp_path_factory):
    """RUNs of one model: two resolutions, and joint; the best knows every answer."""
    root, exact = tmp_path_factory.mktemp("runs"), physcount_example.true_answers
    make = physcount_example.write_run
    first = dataset.questions[0].question_id
    return [
        make(root / "low", dataset, exact(dataset, plus=1), model="m/x", long_edge=512, errors={first: "503: busy"}),
        make(root / "high", dataset, exact(dataset, plus=1), model="m/x"),
        make(root / "joint", dataset, exact(dataset, joint=True), model="m/x", mode="joint"),
    ]


def report_of(dataset, runs, tmp_path, **options):
    written = physcount.report(dataset.root, runs, tmp_path / "r.html", **{"resamples": 20, **options})
    return written, (tmp_path / "r.html").read_text("utf-8")


def test_a_report_of_one_run(dataset, runs, tmp_path):
    written, html = report_of(dataset, runs[1], tmp_path)
    assert written.models == ["m/x"]
    assert written.as_dict()["bytes"] == len(html.encode())
    assert written.questions == len(dataset.questions)
    assert "<title>m/x: PhysCount report</title>" in html
    assert html.count('class="published"') == 40
    assert 'id="joint"' not in html
    assert 'id="resolution"' not in html
    assert 'data-nouns="group groups"' in html
    assert html.count('<figure class="card"') == len(dataset.groups) == written.groups


def test_runs_of_one_model_are_told_apart_paired_and_swept(dataset, runs, tmp_path):
    written, html = report_of(dataset, runs, tmp_path)
    assert written.models == ["m/x, joint", "m/x, 4,096 px", "m/x, 512 px"]
    assert "<title>m/x: PhysCount report</title>" in html
    assert "m/x, joint minus m/x, 4,096 px" in html
    resolution = html[html.index('id="resolution"') : html.index('id="answers"')]
    assert (
        re.findall(r"<td>(512|4,096|1,024|2,048)</td>", resolution)
        == ["512", "4,096", "512", "1,024", "2,048"] + ["4,096"] * 2
    )
    assert "503: busy" in html
    assert written.failed == 1


def test_runs_that_were_made_alike_are_all_shown_and_named(dataset, runs, physcount_example, tmp_path):
    again = physcount_example.write_run(tmp_path / "again", dataset, {}, model="m/x", long_edge=512)
    written, html = report_of(dataset, [*runs, again], tmp_path)
    names = [f"m/x, 512 px ({path})" for path in (runs[0], again)]
    note = f"{', '.join(names)} were made alike: all of them stand at 512 px."
    assert note in written.notes
    assert note in html
    resolution = html[html.index('id="resolution"') : html.index('id="answers"')]
    assert re.findall(r"<td>(512|4,096)</td>", resolution)[:3] == ["512", "512", "4,096"]
    assert resolution.count("m/x, 512 px (") == 2


def test_a_run_that_was_continued_otherwise_says_so(dataset, runs, physcount_example, tmp_path):
    run = physcount_example.write_run(tmp_path / "moved", dataset, {}, model="m/y")
    record = json.loads((run / "run.json").read_text())
    record |= {"endpoint": "http://a/v1", "served": None, "versions": {"numpy": "2.1", "pillow": "11"}}
    later = {"at": "2026-05-04", "endpoint": "http://b/v1", "served": None, "versions": record["versions"]}
    last = {**later, "at": "2026-05-05", "versions": {"numpy": "2.1", "pillow": "12"}}
    (run / "run.json").write_text(json.dumps(record | {"continued": [later, last]}))
    written, html = report_of(dataset, [runs[1], run], tmp_path)
    [note] = [note for note in written.notes if "continued" in note]
    assert note == (
        "m/y was continued otherwise than it was begun: endpoint http://a/v1, then http://b/v1; pillow 11, then 12."
    )
    assert note in html
    assert html.count("continued (") == 2
    assert "2026-05-04: endpoint http://b/v1, numpy 2.1, pillow 11" in html
    assert "2026-05-05: endpoint http://b/v1, numpy 2.1, pillow 12" in html


def test_the_same_input_gives_the_same_bytes_and_the_command_says_what_it_wrote(dataset, runs, tmp_path, capsys):
    _, html = report_of(dataset, runs, tmp_path)
    out = tmp_path / "again.html"
    given = ["physcount", "report", "--data", str(dataset.root), "--runs", *map(str, runs), "--out", str(out)]
    assert run([*given, "--resamples", "20"]) == 3  # a request failed
    assert "1 model scored in 3 sets of answers; " in capsys.readouterr().out
    assert out.read_text("utf-8") == html
    assert run([*given, "--resamples", "0", "--groups", "0", "--title", "Mine", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["groups"] == 0
    assert "No groups were asked for." in out.read_text("utf-8")


def test_what_was_not_asked_is_told_apart_from_what_failed(dataset, physcount_example, tmp_path):
    answers = physcount_example.true_answers(dataset)
    ids = [question.question_id for question in dataset.questions]
    run = physcount_example.write_run(
        tmp_path / "run", dataset, {key: answers[key] for key in ids[:3]}, errors={ids[3]: "503: busy"}
    )
    _, html = report_of(dataset, run, tmp_path)
    left = len(ids) - 4
    assert f'<p class="lost">unfinished: {left} not asked yet</p>' in html
    assert '<p class="lost">1 failed</p>' in html
    assert f"Unfinished: {left} of {len(ids)} questions not asked yet" in html
    assert html.count("‡ Not every question was asked") == 1
    record = json.loads((run / "run.json").read_text())
    first = next(iter(dataset.groups))
    (run / "run.json").write_text(json.dumps({**record, "selection": {"group_ids": [first]}}))
    _, html = report_of(dataset, run, tmp_path)
    assert f"a part: 1 of {len(dataset.groups)} groups" in html


def test_phys_gnd_shows_its_groups_and_estimates_without_spread_say_so(dataset, runs, tmp_path):
    _, html = report_of(dataset, runs, tmp_path)
    board = html[html.index("Results in the paper") : html.index("The three metrics with intervals")]
    assert re.search(r'<td>100\.00 <span class="interval">\d+ groups</span></td>', board)
    assert '100.00</span> <span class="interval">no spread</span>' in html
    assert "no spread" not in report_of(dataset, runs, tmp_path, resamples=0)[1]
    joint = html[html.index('id="joint"') : html.index('id="resolution"')]
    assert "Not of like with like: Phys-Gnd." in joint


def test_what_was_left_to_the_server_is_told_as_not_sent(dataset, runs, physcount_example, tmp_path):
    file = physcount_example.write_predictions(tmp_path / "p.jsonl", physcount_example.true_answers(dataset))
    auto = physcount_example.write_run(tmp_path / "auto", dataset, {}, model="n", reasoning_effort="auto", seed=7)
    _, html = report_of(dataset, [runs[1], file, auto], tmp_path)
    told = re.sub(r"<[^>]+>", "|", html[html.index('id="run"') :])
    assert told.count("|setting temperature|||not sent|") == 2
    assert told.count("|setting top p|||not sent|") == 2
    assert "|setting reasoning effort|||high|" in told
    assert "|setting reasoning effort|||auto, of which the server has taken nothing yet|" in told
    assert "|setting seed|||7|" in told
    assert f"|SHA-256 of the file|||{hashlib.sha256(file.read_bytes()).hexdigest()}|" in told
    assert "answered by 3 models.</p>" in html
    assert "answered by 1 model in 3 sets of answers.</p>" in report_of(dataset, runs, tmp_path)[1]


def test_strange_responses_are_shown_and_inert(dataset, physcount_example, tmp_path):
    answers = dict(physcount_example.true_answers(dataset))
    first, second, third, fourth = [question.question_id for question in dataset.questions[:4]]
    answers[first] = "<script>alert(1)</script>\x00\x1b[31m"
    answers[second] = "word " * 20_000
    answers[third] = "\u202eخمسة"
    answers[fourth] = [{"type": "text", "text": "four & <b>more</b>"}]
    run = physcount_example.write_run(tmp_path / "run", dataset, answers, model='<img src=x onerror="alert(1)">')
    _, html = report_of(dataset, run, tmp_path)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;␀␛[31m" in html
    assert html.count("<script") == 1
    assert "<img src=x" not in html
    assert "(100,000 characters)" in html
    assert len(html) < 1_500_000
    assert "four &amp; &lt;b&gt;more&lt;/b&gt;" in html


def test_forty_models(dataset, physcount_example, tmp_path):
    runs = [
        physcount_example.write_run(
            tmp_path / f"m{k}", dataset, physcount_example.true_answers(dataset, plus=k % 3), model=f"model {k}"
        )
        for k in range(40)
    ]
    written, html = report_of(dataset, runs, tmp_path)
    assert len(written.models) == 40
    assert "The tables below have all 40 models." in html
    assert "14/40" in html


def test_a_set_without_correspondence_or_image_formation(physcount_example, tmp_path):
    rows = [physcount_example.question_row("q1"), physcount_example.question_row("q2", question_type="entity")]
    root = physcount_example.write_dataset(tmp_path / "set", rows, [physcount_example.group_row()])
    path = physcount_example.write_predictions(tmp_path / "p.jsonl", {"q1": "1", "q2": "3"})
    physcount.report(root, path, tmp_path / "r.html", resamples=20)
    html = (tmp_path / "r.html").read_text("utf-8")
    assert "No question is of the family correspondence." in html
    assert "No question is of the family image formation." in html
    assert "No question is of the family entity." not in html
    figure = html[html.index('id="families"') : html.index('id="counts"')]
    assert ">Entity<" in figure
    assert ">Correspondence<" not in figure


def test_an_image_that_cannot_be_read_is_told(physcount_example, tmp_path):
    dataset = physcount.example(tmp_path / "set", scenes_wanted=2)
    (dataset.root / dataset.questions[0].image).write_bytes(b"no image")
    run = physcount_example.write_run(tmp_path / "run", dataset, physcount_example.true_answers(dataset))
    written, html = report_of(dataset, run, tmp_path)
    gone = sum(group.image == dataset.questions[0].image for group in dataset.groups.values())
    assert written.images_gone == gone > 0
    assert html.count("The image cannot be shown: images/000001.jpg") == gone


def test_what_makes_no_sense_is_refused(dataset, runs, tmp_path):
    with pytest.raises(UsageError, match="groups -1"):
        report_of(dataset, runs, tmp_path, groups=-1)
    with pytest.raises(UsageError, match="lies in the RUN"):
        physcount.report(dataset.root, runs, runs[0] / "r.html")
    with pytest.raises(UsageError, match="is the file that is read"):
        physcount.report(dataset.root, runs, dataset.root / "data" / "questions.jsonl")
    image = dataset.root / dataset.questions[0].image
    for out, told in (
        (image, "which is the dataset's"),
        (dataset.root / "images" / "r.html", "which is the dataset's"),
        (dataset.root / "data" / "r.html", "which is the dataset's"),
        (runs[1] / "answers.jsonl", "lies in the RUN"),
        (runs[1] / "of" / "r.html", "lies in the RUN"),
    ):
        with pytest.raises(UsageError, match=told):
            physcount.report(dataset.root, runs[0], out)
    (tmp_path / "r.html").hardlink_to(image)
    with pytest.raises(UsageError, match="is an image of the dataset"):
        physcount.report(dataset.root, runs[0], tmp_path / "r.html")
    (tmp_path / "r.html").unlink()
    with pytest.raises(UsageError, match="no predictions"):
        physcount.report(dataset.root, [], tmp_path / "r.html")
    with pytest.raises(ManifestError):
        physcount.report(tmp_path, runs, tmp_path / "r.html")
