"""Members of tar and zip archives, whole and damaged."""

import gzip
import io
import os
import random
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tallymill.engine.sources import containers
from tallymill.engine.sources.members import TarMembers
from tallymill.engine.sources.reader import ImageReader
from tallymill.errors import ImageError


@pytest.mark.parametrize("archive", ["a.tar", "a.tar.gz", "a.TGZ", "a.tar.xz", "a#1.tar", "a.zip"])
def test_members_in_any_order_with_or_without_a_dot_before_them(archive_bytes, pictures, reader, tmp_path, archive):
    members = pictures | {"./22.05.png": b"dotted", "d/x#y.tar#z é.png": b"odd", "empty.png": b""}
    (tmp_path / archive).write_bytes(archive_bytes(archive, members))
    for name in ["29.png", "00.png", "17.png", "./03.png"]:
        assert reader.read(f"{archive}#{name}") == pictures[name.removeprefix("./")]
    assert reader.read(f"{archive}#22.05.png") == reader.read(f"{archive}#./22.05.png") == b"dotted"
    assert reader.read(f"{archive}#d/x#y.tar#z é.png") == b"odd"
    assert reader.read(f"{archive}#empty.png") == b""
    with pytest.raises(ImageError, match=r"not found: no member '99\.png'"):
        reader.read(f"{archive}#99.png")


@pytest.mark.parametrize("archive", ["a.tar", "a.zip"])
def test_an_archive_is_opened_once_for_all_its_members(archive_bytes, pictures, reader, tmp_path, archive, monkeypatch):
    (tmp_path / archive).write_bytes(archive_bytes(archive, pictures))
    opened = []
    real = containers._open_container
    monkeypatch.setattr(containers, "_open_container", lambda *a: opened.append(a[0]) or real(*a))
    assert reader.read_many([f"{archive}#{name}" for name in pictures]) == list(pictures.values())
    assert opened == [str(tmp_path / archive)]


def test_few_archives_stay_open_and_all_are_read_from_many_threads(tar_bytes, reader, tmp_path):
    refs = {}
    for number in range(12):
        members = {f"{n}.png": f"{number} {n}".encode() * 500 for n in range(5)}
        (tmp_path / f"{number}.tar").write_bytes(tar_bytes(members))
        refs |= {f"{number}.tar#{name}": data for name, data in members.items()}
    mixed = sorted(refs, key=lambda ref: ref.split("#")[1])
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(reader.read, mixed)) == [refs[ref] for ref in mixed]
    assert len(reader._containers._slots) == containers._OPEN
    targets = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]  # noqa: PTH208
    held = [target for target in targets if target.is_symlink() and str(target.readlink()).startswith(str(tmp_path))]
    assert len(held) == containers._OPEN


def test_links_folders_and_repeated_members_of_a_tar(reader, tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:

        def add(name, kind=tarfile.REGTYPE, data=b"", target=""):
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(data), target
            tar.addfile(info, io.BytesIO(data))

        add("./d", tarfile.DIRTYPE)
        add("./d/x.png", data=b"first")
        add("./d/soft.png", tarfile.SYMTYPE, target="x.png")
        add("./hard.png", tarfile.LNKTYPE, target="./d/x.png")
        add("./circle.png", tarfile.SYMTYPE, target="circle.png")
        add("./d/x.png", data=b"second")  # as tar itself extracts it: the last one counts
    for name in ("d/x.png", "d/soft.png", "hard.png"):
        assert reader.read(f"a.tar#{name}") == b"second"
    for name, reason in (("d", "is a folder"), ("circle.png", "no member")):
        with pytest.raises(ImageError, match=reason):
            reader.read(f"a.tar#{name}")


def test_a_tar_that_is_cut_short_gives_what_lies_before_the_cut(pictures, tar_bytes, reader, tmp_path):
    whole = tar_bytes(pictures)
    (tmp_path / "a.tar").write_bytes(whole[: 1024 * 3 + 700])
    assert reader.read("a.tar#00.png") == pictures["00.png"]
    with pytest.raises(ImageError, match="cut short"):
        reader.read("a.tar#02.png")
    packed = gzip.compress(whole)
    (tmp_path / "a.tgz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ImageError, match="cut short"):
        reader.read("a.tgz#29.png")


NOISE = {f"{n:03}.png": random.Random(n).randbytes(20_000) for n in range(120)}


def read_all(reader, archive, members, opened=1):
    """Which members come back, and what is said of the others; the archive is opened and indexed once."""
    indexed = []
    with pytest.MonkeyPatch.context() as patch:
        real = TarMembers._index
        patch.setattr(TarMembers, "_index", lambda self: indexed.append(self) or real(self))
        found = reader.read_many([f"{archive}#{name}" for name in members])
    assert len(indexed) == opened
    good = [name for name, data in zip(members, found, strict=True) if isinstance(data, bytes)]
    assert all(data == members[name] for name, data in zip(members, found, strict=True) if isinstance(data, bytes))
    return good, [str(data) for data in found if not isinstance(data, bytes)]


@pytest.mark.parametrize("mode", ["w:bz2", "w:gz", "w:xz"])
@pytest.mark.parametrize("damage", ["cut", "zeros"])
def test_a_damaged_compressed_tar_is_indexed_once_and_gives_what_is_before_the_damage(
    tar_bytes, reader, tmp_path, mode, damage
):
    data = bytearray(tar_bytes(NOISE, mode))
    if damage == "cut":
        del data[len(data) // 2 :]
    else:
        data[len(data) // 2 : len(data) // 2 + 5000] = bytes(5000)
    name = f"a.tar.{mode[2:]}"
    (tmp_path / name).write_bytes(data)
    good, reasons = read_all(reader, name, NOISE)
    assert 10 < len(good) < 70
    assert good == list(NOISE)[: len(good)]
    assert all("damaged" in reason for reason in reasons)
    assert "not found: no member" in reasons[-1]
    # Out of order, after an error: the stream starts anew.
    assert reader.read(f"{name}#{good[-1]}") == NOISE[good[-1]]
    assert reader.read(f"{name}#{good[0]}") == NOISE[good[0]]


def test_a_header_that_is_damaged_is_not_the_end_of_a_tar(tar_bytes, reader, tmp_path):
    data = bytearray(tar_bytes(NOISE))
    at = data.index(b"050.png")
    data[at : at + 100] = b"x" * 100
    (tmp_path / "a.tar").write_bytes(data)
    good, reasons = read_all(reader, "a.tar", NOISE)
    assert good == list(NOISE)[:50]
    assert all(f"damaged or of an unsupported kind (no header at byte {at})" in reason for reason in reasons)
    (tmp_path / "b.tar").write_bytes(tar_bytes(NOISE).rstrip(b"\0"))  # some writers leave out the end
    assert len(read_all(reader, "b.tar", dict(list(NOISE.items())[:-1]))[0]) == len(NOISE) - 1


def test_a_file_system_that_fails_while_a_tar_is_indexed_is_no_damage(
    pictures, tar_bytes, reader, tmp_path, monkeypatch
):
    (tmp_path / "a.tar").write_bytes(tar_bytes(pictures))
    with monkeypatch.context() as patch:
        patch.setattr(tarfile.TarFile, "next", lambda _self: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(ImageError, match="Input/output error"):
            reader.read("a.tar#29.png")
    assert reader.read("a.tar#29.png") == pictures["29.png"]


@pytest.mark.parametrize("name", ["a.tar", "a.tgz", "a.zip", "a.parquet"])
@pytest.mark.parametrize("content", [b"", b"<html>not an archive</html>" * 50])
def test_no_archive_at_all(reader, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    key = "row=0" if name == "a.parquet" else "x.png"
    for _ in range(2):
        with pytest.raises(ImageError, match=name):
            reader.read(f"{name}#{key}")


def test_a_folder_named_like_an_archive(reader, tmp_path):
    (tmp_path / "a.tar").mkdir()
    with pytest.raises(ImageError, match="is a folder"):
        reader.read("a.tar#x.png")


def test_a_damaged_member_and_a_folder_of_a_zip(zip_bytes, reader, tmp_path, monkeypatch):
    data = bytearray(zip_bytes({"d/": b"", "x.png": os.urandom(5000), "y.png": b"y"}))
    data[2000] ^= 255
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(ImageError, match="damaged"):
        reader.read("a.zip#x.png")
    monkeypatch.setattr(zipfile, "ZipFile", None)  # it stays open
    assert reader.read("a.zip#y.png") == b"y"
    for name in ("d", "d/"):
        with pytest.raises(ImageError, match="is a folder"):
            reader.read(f"a.zip#{name}")


def test_a_member_above_the_limit_is_refused_before_it_is_read(tar_bytes, zip_bytes, tmp_path):
    (tmp_path / "a.zip").write_bytes(zip_bytes({"bomb.png": bytes(5_000_000)}))
    (tmp_path / "a.tar").write_bytes(tar_bytes({"bomb.png": bytes(5_000_000)}))
    with ImageReader(str(tmp_path), max_bytes=100_000) as reader:
        for archive in ("a.zip", "a.tar"):
            with pytest.raises(ImageError, match="5000000 bytes, above the limit"):
                reader.read(f"{archive}#bomb.png")
