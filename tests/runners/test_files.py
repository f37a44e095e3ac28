import json
import os

import pytest

from tallymill.errors import OutputError
from tallymill.runners.files import appearing, appearing_together, create_json, made_for, write_json


def test_a_file_appears_whole_when_the_block_ends(tmp_path):
    path = tmp_path / "new" / "a.txt"
    with appearing(path) as temporary:
        temporary.write_text("half")
        assert not path.exists()
        assert temporary.parent == path.parent
        assert temporary.name.startswith(".")
        assert str(os.getpid()) in temporary.name
    assert path.read_text() == "half"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("sync_folder", [True, False])
def test_what_was_there_stays_when_the_block_fails(sync_folder, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def interrupted():
        with appearing(path, sync_folder=sync_folder) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_fails_before_it_writes(tmp_path):
    with pytest.raises(ValueError, match="early"), appearing(tmp_path / "a.txt"):
        raise ValueError("early")
    assert not list(tmp_path.iterdir())


def test_folders_that_were_made_for_a_file_go_with_it(tmp_path):
    with pytest.raises(ValueError, match="early"), appearing(tmp_path / "new" / "deep" / "a.txt"):
        raise ValueError("early")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_one(there, tmp_path):
    (tmp_path / "far").mkdir()
    if there:
        (tmp_path / "far" / "a.txt").write_text("old")
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).symlink_to("far/a.txt")
    with appearing(tmp_path / "one.txt") as path:
        path.write_text("new")
    assert (tmp_path / "one.txt").is_symlink()
    assert (tmp_path / "far" / "a.txt").read_text() == "new"
    with appearing_together(tmp_path, ["two.txt"]) as paths:
        paths["two.txt"].write_text("newer")
    assert (tmp_path / "one.txt").read_text() == "newer"
    assert len(list(tmp_path.rglob("*"))) == 4


def test_links_in_a_circle(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OutputError, match="symbolic links lead in a circle"), appearing(tmp_path / "a"):
        pass


def test_a_file_is_replaced(tmp_path):
    for text in ("one", "two"):
        with appearing(tmp_path / "a.txt", sync_folder=False) as temporary:
            temporary.write_text(text)
    assert (tmp_path / "a.txt").read_text() == "two"


def test_json_is_written_whole(tmp_path):
    write_json(tmp_path / "a.json", {"näme": [1, None]})
    assert json.loads((tmp_path / "a.json").read_text("utf-8")) == {"näme": [1, None]}
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"set": {1}})
    assert json.loads((tmp_path / "a.json").read_text("utf-8")) == {"näme": [1, None]}
    assert len(list(tmp_path.iterdir())) == 1


def test_json_is_created_once(tmp_path):
    path = tmp_path / "new" / "a.json"
    assert create_json(path, {"mine": 1})
    assert not create_json(path, {"yours": 2})
    assert json.loads(path.read_text()) == {"mine": 1}
    with pytest.raises(TypeError):
        create_json(tmp_path / "new" / "b.json", {"set": {1}})
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


@pytest.mark.parametrize(("before", "inside", "after"), [(False, [], False), (True, [], True), (False, ["a"], True)])
def test_a_folder_that_was_made_for_nothing_goes_again(before, inside, after, tmp_path):
    folder = tmp_path / "folder"
    if before:
        folder.mkdir()

    def fail():
        with made_for(folder):
            folder.mkdir(exist_ok=True)
            for name in inside:
                (folder / name).write_text("")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert folder.exists() is after


def test_a_folder_that_something_came_of_stays(tmp_path):
    with made_for(tmp_path / "folder"):
        (tmp_path / "folder").mkdir()
    assert (tmp_path / "folder").is_dir()
