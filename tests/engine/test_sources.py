import gzip
import hashlib
import io
import os
import random
import sys
import tarfile
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tallymill.engine.images import decode
from tallymill.engine.sources import containers
from tallymill.engine.sources.members import TarMembers
from tallymill.engine.sources.reader import ImageReader, image_hash
from tallymill.errors import ImageError, MissingExtraError

PICTURES = {f"{n:02}.png": bytes([n]) * (1000 + n) for n in range(30)}


@pytest.fixture
def reader(tmp_path):
    with ImageReader(str(tmp_path), sleep=lambda _: None) as made:
        yield made


# Local files


@pytest.mark.parametrize(
    "name",
    [
        "img-12:30.jpg",
        "[d]/x.jpg",
        "a#b%20 é.jpg",
        "*.jpg",
        "a?b.jpg",
        "http:/host/x.jpg",
        "archive.tar#member.jpg",
        "part.parquet#row=0",
        "'quoted'; x.jpg",
        "22.05.png",
        "-rf",
        "~x.jpg",
        "line\nfeed.jpg",
    ],
)
def test_a_local_file_is_found_whatever_its_name(reader, tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"here")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x.jpg").write_bytes(b"what a pattern would find")
    assert reader.read(name) == b"here"
    assert reader.read(str(path)) == b"here"
    assert reader.read(f"./{name}") == b"here"


def test_what_looks_like_a_url_is_a_file_where_there_is_one(reader, tmp_path):
    (tmp_path / "s3:").mkdir()
    (tmp_path / "s3:" / "x.jpg").write_bytes(b"here")
    assert reader.read("s3://x.jpg") == b"here"


def test_file_urls_are_local_files_percent_encoded_or_not(reader, tmp_path):
    (tmp_path / "a b%20.jpg").write_bytes(b"here")
    assert reader.read((tmp_path / "a b%20.jpg").as_uri()) == b"here"
    assert reader.read(f"file://{tmp_path}/a b%20.jpg") == b"here"


def test_without_a_root_references_start_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "x.jpg").write_bytes(b"here")
    monkeypatch.chdir(tmp_path)
    with ImageReader(None) as reader:
        assert reader.read("x.jpg") == b"here"


def test_the_files_of_a_relative_root(tmp_path, monkeypatch):
    (tmp_path / "root").mkdir()
    table = pa.table({"image": [{"bytes": None, "path": "x.jpg"}]})
    pq.write_table(table, tmp_path / "root" / "p.parquet")
    (tmp_path / "root" / "x.jpg").write_bytes(b"here")
    monkeypatch.chdir(tmp_path)
    with ImageReader("root") as reader:
        assert reader.read("p.parquet#row=0") == b"here"


@pytest.mark.parametrize(
    ("ref", "reason"),
    [
        ("none.jpg", "not found"),
        ("x.jpg/y.jpg", "not found"),
        ("folder", "is a folder"),
        ("", "is a folder"),
        ("pipe", "not a regular file"),
        ("a\0b", "null"),
        ("n" * 300, "too long"),
        ("none.tar#m.jpg", "not found: no file"),
        ("large.jpg", "above the limit of 100"),
        ("xyz://host/x.jpg", "xyz:// is no kind of URL"),
    ],
)
def test_what_cannot_be_read_is_an_image_error_with_reference_and_reason(tmp_path, ref, reason):
    (tmp_path / "x.jpg").write_bytes(b"here")
    (tmp_path / "large.jpg").write_bytes(bytes(101))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with ImageReader(str(tmp_path), max_bytes=100) as reader, pytest.raises(ImageError) as caught:
        reader.read(ref)
    assert str(caught.value).startswith(f"{ref}: ")
    assert reason in str(caught.value)


def test_a_file_without_permission(reader, tmp_path, monkeypatch):
    (tmp_path / "x.jpg").write_bytes(b"here")

    def denied(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)  # chmod does not stop root
    with pytest.raises(ImageError, match="not allowed to read it"):
        reader.read("x.jpg")


def test_an_empty_file_is_read_and_the_decoder_says_so(reader, tmp_path):
    (tmp_path / "x.jpg").write_bytes(b"")
    with pytest.raises(ImageError, match="empty"):
        decode(reader.read("x.jpg"))


def test_a_long_reference_is_shortened_in_the_message(reader):
    with pytest.raises(ImageError) as caught:
        reader.read("x" * 100_000)
    assert len(str(caught.value)) < 400


def test_many_keep_their_order_and_their_errors(reader, tmp_path):
    (tmp_path / "x.jpg").write_bytes(b"x")
    (tmp_path / "y.jpg").write_bytes(b"y")
    x, none, y = reader.read_many(["x.jpg", "none.jpg", "y.jpg"])
    assert (x, y) == (b"x", b"y")
    assert isinstance(none, ImageError)
    assert reader.read_many([]) == []


# Archives


def tar_bytes(members, mode="w"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def zip_bytes(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


ARCHIVES = {
    "a.tar": lambda members: tar_bytes(members),
    "a.tar.gz": lambda members: tar_bytes(members, "w:gz"),
    "a.TGZ": lambda members: tar_bytes(members, "w:gz"),
    "a.tar.xz": lambda members: tar_bytes(members, "w:xz"),
    "a#1.tar": lambda members: tar_bytes(members),
    "a.zip": zip_bytes,
}


@pytest.mark.parametrize("archive", ARCHIVES)
def test_members_in_any_order_with_or_without_a_dot_before_them(reader, tmp_path, archive):
    members = PICTURES | {"./22.05.png": b"dotted", "d/x#y.tar#z é.png": b"odd", "empty.png": b""}
    (tmp_path / archive).write_bytes(ARCHIVES[archive](members))
    for name in ["29.png", "00.png", "17.png", "./03.png"]:
        assert reader.read(f"{archive}#{name}") == PICTURES[name.removeprefix("./")]
    assert reader.read(f"{archive}#22.05.png") == reader.read(f"{archive}#./22.05.png") == b"dotted"
    assert reader.read(f"{archive}#d/x#y.tar#z é.png") == b"odd"
    assert reader.read(f"{archive}#empty.png") == b""
    with pytest.raises(ImageError, match=r"not found: no member '99\.png'"):
        reader.read(f"{archive}#99.png")


@pytest.mark.parametrize("archive", ["a.tar", "a.zip"])
def test_an_archive_is_opened_once_for_all_its_members(reader, tmp_path, archive, monkeypatch):
    (tmp_path / archive).write_bytes(ARCHIVES[archive](PICTURES))
    opened = []
    real = containers._open_container
    monkeypatch.setattr(containers, "_open_container", lambda *a: opened.append(a[0]) or real(*a))
    assert reader.read_many([f"{archive}#{name}" for name in PICTURES]) == list(PICTURES.values())
    assert opened == [str(tmp_path / archive)]


def test_few_archives_stay_open_and_all_are_read_from_many_threads(reader, tmp_path):
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


def test_a_tar_that_is_cut_short_gives_what_lies_before_the_cut(reader, tmp_path):
    whole = tar_bytes(PICTURES)
    (tmp_path / "a.tar").write_bytes(whole[: 1024 * 3 + 700])
    assert reader.read("a.tar#00.png") == PICTURES["00.png"]
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
def test_a_damaged_compressed_tar_is_indexed_once_and_gives_what_is_before_the_damage(reader, tmp_path, mode, damage):
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


def test_a_header_that_is_damaged_is_not_the_end_of_a_tar(reader, tmp_path):
    data = bytearray(tar_bytes(NOISE))
    at = data.index(b"050.png")
    data[at : at + 100] = b"x" * 100
    (tmp_path / "a.tar").write_bytes(data)
    good, reasons = read_all(reader, "a.tar", NOISE)
    assert good == list(NOISE)[:50]
    assert all(f"damaged or of an unsupported kind (no header at byte {at})" in reason for reason in reasons)
    (tmp_path / "b.tar").write_bytes(tar_bytes(NOISE).rstrip(b"\0"))  # some writers leave out the end
    assert len(read_all(reader, "b.tar", dict(list(NOISE.items())[:-1]))[0]) == len(NOISE) - 1


def test_a_file_system_that_fails_while_a_tar_is_indexed_is_no_damage(reader, tmp_path, monkeypatch):
    (tmp_path / "a.tar").write_bytes(tar_bytes(PICTURES))
    with monkeypatch.context() as patch:
        patch.setattr(tarfile.TarFile, "next", lambda _self: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(ImageError, match="Input/output error"):
            reader.read("a.tar#29.png")
    assert reader.read("a.tar#29.png") == PICTURES["29.png"]


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


def test_a_damaged_member_and_a_folder_of_a_zip(reader, tmp_path, monkeypatch):
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


def test_a_member_above_the_limit_is_refused_before_it_is_read(tmp_path):
    (tmp_path / "a.zip").write_bytes(zip_bytes({"bomb.png": bytes(5_000_000)}))
    (tmp_path / "a.tar").write_bytes(tar_bytes({"bomb.png": bytes(5_000_000)}))
    with ImageReader(str(tmp_path), max_bytes=100_000) as reader:
        for archive in ("a.zip", "a.tar"):
            with pytest.raises(ImageError, match="5000000 bytes, above the limit"):
                reader.read(f"{archive}#bomb.png")


# Parquet


def write_parquet(path, values, column="image", kind=None, **other):
    table = pa.table({"id": pa.array(range(len(values))), column: pa.array(values, kind), **other})
    pq.write_table(table, path, row_group_size=4)


@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.large_binary(), pa.struct([("bytes", pa.binary()), ("path", pa.string())])],
    ids=["binary", "large_binary", "struct"],
)
def test_rows_of_every_row_group(reader, tmp_path, kind):
    raw = [bytes([n]) * 50 for n in range(10)]
    values = [{"bytes": data, "path": "x"} for data in raw] if pa.types.is_struct(kind) else raw
    write_parquet(tmp_path / "p.parquet", values, kind=kind)
    for row in (0, 3, 4, 9, 2):
        assert reader.read(f"p.parquet#row={row}") == raw[row]


def test_rows_in_order_read_each_row_group_once(reader, tmp_path, monkeypatch):
    write_parquet(tmp_path / "p.parquet", [bytes([n]) for n in range(10)])
    groups = []
    real = pq.ParquetFile.read_row_group
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", lambda *a, **k: groups.append(a[1]) or real(*a, **k))
    assert reader.read_many([f"p.parquet#row={n}" for n in range(10)]) == [bytes([n]) for n in range(10)]
    assert groups == [0, 1, 2]


@pytest.mark.parametrize("kind", [pa.null(), pa.binary()], ids=["null", "binary"])
def test_the_only_column_of_images_whatever_its_name_and_paths_beside_the_file(reader, tmp_path, kind):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x.jpg").write_bytes(b"here")
    struct = pa.struct([("bytes", kind), ("path", pa.string())])
    write_parquet(tmp_path / "sub" / "p.parquet", [{"bytes": None, "path": "x.jpg"}], column="picture", kind=struct)
    assert reader.read("sub/p.parquet#row=0") == b"here"


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("row=3", "not found: the file has 3 rows"),
        ("row=-1", "#row=N"),
        ("row=1.5", "#row=N"),
        ("row=", "#row=N"),
        ("row=２", "#row=N"),
        ("x.png", "#row=N"),
        ("row=1", "empty in this row"),
    ],
)
def test_rows_that_are_not_there(reader, tmp_path, key, reason):
    write_parquet(tmp_path / "p.parquet", [b"a", None, b"c"])
    with pytest.raises(ImageError) as caught:
        reader.read(f"p.parquet#{key}")
    assert reason in str(caught.value)


def test_whatever_is_wrong_with_a_parquet_file_the_only_error_is_an_image_error(reader, tmp_path):
    write_parquet(tmp_path / "p.parquet", [bytes([n]) * 50 for n in range(10)])
    whole, errors = (tmp_path / "p.parquet").read_bytes(), 0
    for seed in range(300):
        random_ = random.Random(seed)
        data = bytearray(whole)
        for _ in range(3):
            data[random_.randrange(len(data))] ^= random_.randrange(1, 256)
        (tmp_path / f"{seed}.parquet").write_bytes(data)
        found = reader.read_many([f"{seed}.parquet#row={row}" for row in (0, 5, 9)])
        errors += sum(isinstance(value, ImageError) for value in found)
    assert errors > 300


class Table:
    """What pyarrow makes of a damaged file: an error, or fewer rows than declared."""

    def __init__(self, outcome):
        self.outcome = outcome

    def column(self, _name):
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (IndexError("index out of bounds"), "damaged or of an unsupported kind (index out of bounds)"),
        (pa.chunked_array([[b"a", b"b"]]), "damaged (row group 1 has 2 rows, not 4)"),
        (pa.chunked_array([[b"a"] * 5]), "damaged (row group 1 has 5 rows, not 4)"),
    ],
)
def test_a_row_group_that_is_not_as_declared_is_read_once(reader, tmp_path, monkeypatch, outcome, reason):
    write_parquet(tmp_path / "p.parquet", [bytes([n]) for n in range(10)])
    groups, real = [], pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile,
        "read_row_group",
        lambda *a, **k: groups.append(a[1]) or (Table(outcome) if a[1] == 1 else real(*a, **k)),
    )
    found = reader.read_many([f"p.parquet#row={n}" for n in range(10)])
    assert [reason in str(value) for value in found[4:8]] == [True] * 4
    assert found[:4] + found[8:] == [bytes([n]) for n in (0, 1, 2, 3, 8, 9)]
    assert groups == [0, 1, 2]


def test_two_columns_of_bytes_and_none_named_image(reader, tmp_path):
    write_parquet(tmp_path / "p.parquet", [b"a"], column="one", two=pa.array([b"b"]))
    with pytest.raises(ImageError, match=r"no column 'image'.*id, one, two"):
        reader.read("p.parquet#row=0")


# Servers


class Server(ThreadingHTTPServer):
    """Counts requests; a path is answered by the method of its first part."""

    daemon_threads = True

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.requests = []
        self.released = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        getattr(self, self.path.strip("/").split("/")[0].split(".")[0].split("?")[0])()

    def do_HEAD(self):
        data = (self.server.folder / self.path.strip("/").split("/")[-1]).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()

    def answer(self, status, body=b"", length=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def good(self):
        self.answer(200, b"picture " + self.path.encode())

    def short(self):
        self.answer(200, b"five!", length=20)

    def status(self):
        self.answer(int(self.path.split("/")[2]), b"picture")

    def flaky(self):
        turn = self.server.requests.count(self.path)
        self.answer(200, b"at last") if turn > 2 else self.answer(503) if turn == 1 else self.short()

    def slow(self):
        self.server.released.wait(10)

    def broken(self):
        self.connection.close()

    def endless(self):
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(bytes(100_000))
        except OSError:
            pass

    def moved(self):
        self.send_response(302)
        self.send_header("Location", "/good/x")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def ranges(self):
        data = (self.server.folder / self.path.split("/")[-1]).read_bytes()
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        part = data[int(first) : int(last) + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path):
    made = Server(tmp_path)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.released.set()
    made.shutdown()
    thread.join(10)
    made.server_close()


def test_a_url_is_one_request(reader, server):
    url = f"{server.url}/good/a%20b.jpg?x=1"
    assert reader.read(url) == b"picture /good/a%20b.jpg?x=1"
    assert reader.read(f"{server.url}/moved/x") == b"picture /good/x"
    assert server.requests == ["/good/a%20b.jpg?x=1", "/moved/x", "/good/x"]


def test_relative_references_of_a_remote_root(server):
    with ImageReader(f"{server.url}/good/") as reader:
        assert reader.read("d/x.jpg") == reader.read("./d/x.jpg") == b"picture /good/d/x.jpg"


def test_a_body_shorter_than_declared_is_tried_again_and_then_an_error(tmp_path, server):
    waits = []
    with ImageReader(str(tmp_path), retries=3, sleep=waits.append) as reader:
        with pytest.raises(ImageError, match=r"ClientPayloadError.*\(tried 4 times\)") as caught:
            reader.read(f"{server.url}/short")
        assert len(server.requests) == 4
        assert waits == [0.25, 0.5, 1.0]
        assert caught.value.retryable
        assert str(caught.value).startswith(f"{server.url}/short: ")
        assert reader.read(f"{server.url}/flaky") == b"at last"


@pytest.mark.parametrize(
    ("status", "tries", "reason"),
    [(404, 1, "not found"), (403, 1, "answered 403"), (410, 1, "answered 410")]
    + [(status, 3, f"answered {status} (tried 3 times)") for status in (429, 408, 500, 503)],
)
def test_which_answers_are_tried_again(tmp_path, server, status, tries, reason):
    with ImageReader(str(tmp_path), retries=2, sleep=lambda _: None) as reader, pytest.raises(ImageError) as caught:
        reader.read(f"{server.url}/status/{status}")
    assert len(server.requests) == tries
    assert reason in str(caught.value)
    assert caught.value.retryable == (tries > 1)


def test_a_broken_connection_and_a_server_that_is_not_there(tmp_path, server):
    with ImageReader(str(tmp_path), retries=1, sleep=lambda _: None) as reader:
        with pytest.raises(ImageError, match="tried 2 times"):
            reader.read(f"{server.url}/broken")
        assert len(server.requests) >= 2
        with pytest.raises(ImageError, match="tried 2 times"):
            reader.read("http://127.0.0.1:1/x.jpg")


def test_a_server_that_does_not_answer_ends_with_the_timeout(tmp_path, server):
    with ImageReader(str(tmp_path), retries=1, timeout=0.2, sleep=lambda _: None) as reader:
        start = time.monotonic()
        with pytest.raises(ImageError, match=r"took too long \(tried 2 times\)"):
            reader.read(f"{server.url}/slow")
        assert time.monotonic() - start < 5


def test_a_body_without_end_is_left(tmp_path, server):
    reason = "more than the limit of 1000000 bytes"
    with ImageReader(str(tmp_path), max_bytes=1_000_000) as reader, pytest.raises(ImageError, match=reason):
        reader.read(f"{server.url}/endless")
    assert server.requests == ["/endless"]


def test_many_remote_reads_run_side_by_side_in_order(reader, server, tmp_path):
    (tmp_path / "x.jpg").write_bytes(b"local")
    barrier = threading.Barrier(4, timeout=10)
    Handler.together = lambda self: (barrier.wait(), self.good())
    try:
        refs = [f"{server.url}/together/{n}" for n in range(4)]
        results = reader.read_many([*refs, "x.jpg", f"{server.url}/status/404"])
    finally:
        del Handler.together
    assert results[:5] == [*(f"picture /together/{n}".encode() for n in range(4)), b"local"]
    assert isinstance(results[5], ImageError)


def test_a_reader_works_again_after_it_was_closed(reader, server):
    for _ in range(2):
        assert reader.read_many([f"{server.url}/good/{n}" for n in "ab"]) == [b"picture /good/a", b"picture /good/b"]
        reader.close()


@pytest.mark.parametrize("archive", ["a.tar", "a.zip"])
def test_members_of_a_remote_archive(reader, server, tmp_path, archive):
    (tmp_path / archive).write_bytes(ARCHIVES[archive](PICTURES))
    url = f"{server.url}/ranges/{archive}"
    assert reader.read_many([f"{url}#03.png", f"{url}#29.png"]) == [PICTURES["03.png"], PICTURES["29.png"]]
    with pytest.raises(ImageError, match="no member"):
        reader.read(f"{url}#99.png")


# Other stores


def test_stores_of_fsspec(reader):
    store = fsspec.filesystem("memory")
    store.pipe({"/bucket/a b#[1].jpg": b"here", "/bucket/a.tar": tar_bytes(PICTURES)})
    try:
        assert reader.read("memory://bucket/a b#[1].jpg") == b"here"
        assert reader.read("memory://bucket/a.tar#07.png") == PICTURES["07.png"]
        with pytest.raises(ImageError, match=r"memory://bucket/none\.jpg: not found"):
            reader.read("memory://bucket/none.jpg")
        reason = "4 bytes, above the limit of 3"
        with ImageReader("memory://bucket", max_bytes=3) as small, pytest.raises(ImageError, match=reason):
            small.read("a b#[1].jpg")
    finally:
        store.rm("/bucket", recursive=True)


class Sized(fsspec.AbstractFileSystem):
    """A store of one file, that tells its size or does not; ``asked`` is what was read of it."""

    protocol = "sized"
    content, size = b"0123456789", 10
    asked: ClassVar[list[Any]] = []

    def info(self, path, **_):
        if self.size is NotImplementedError:
            raise NotImplementedError
        return {"name": path, "type": "file", "size": self.size}

    def cat_file(self, _path, start=None, end=None, **_):
        self.asked.append((start, end))
        return self.content[start:end]


@pytest.mark.parametrize(
    ("size", "limit", "asked", "reason"),
    [
        (10, 9, [], "10 bytes, above the limit of 9"),
        (10, 10, [(None, None)], None),
        (3, 9, [(None, None)], "10 bytes, above the limit of 9"),  # it grew meanwhile
        (None, 9, [(0, 10)], "more than the limit of 9 bytes"),
        (None, 10, [(0, 11)], None),
        (NotImplementedError, 9, [(0, 10)], "more than the limit of 9 bytes"),
    ],
)
def test_a_store_is_asked_for_the_size_before_the_file(monkeypatch, size, limit, asked, reason):
    fsspec.register_implementation("sized", Sized, clobber=True)
    monkeypatch.setattr(Sized, "size", size)
    monkeypatch.setattr(Sized, "asked", [])
    with ImageReader(None, max_bytes=limit, sleep=lambda _: None) as reader:
        if reason is None:
            assert reader.read("sized://bucket/x.jpg") == Sized.content
        else:
            with pytest.raises(ImageError, match=reason):
                reader.read("sized://bucket/x.jpg")
    assert Sized.asked == asked


class Refusing(fsspec.AbstractFileSystem):
    """A store whose library has errors of its own."""

    protocol = "refusing"

    class NoCredentialsError(Exception):
        pass

    def cat_file(self, path, **_):
        raise {"denied": PermissionError, "folder": IsADirectoryError}.get(
            path.split("/")[-1], self.NoCredentialsError
        )("no")


def test_the_errors_of_a_store_become_image_errors():
    fsspec.register_implementation("refusing", Refusing, clobber=True)
    with ImageReader(None, retries=1, sleep=lambda _: None) as reader:
        for name, reason in {"denied": "not allowed", "folder": "is a folder", "x": "NoCredentialsError: no"}.items():
            with pytest.raises(ImageError, match=reason):
                reader.read(f"refusing://{name}")


def test_a_store_whose_package_is_missing_names_it(reader, monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    for read in (reader.read, lambda ref: reader.read_many([ref, ref])):
        with pytest.raises(MissingExtraError, match="s3fs") as caught:
            read("s3://bucket/x.jpg")
        assert caught.value.hint == "pip install s3fs"


def test_the_hash_is_of_the_bytes():
    assert image_hash(b"abc") == hashlib.sha256(b"abc").hexdigest()[:32] == "ba7816bf8f01cfea414140de5dae2223"
