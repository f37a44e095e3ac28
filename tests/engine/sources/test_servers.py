"""Images of HTTP servers, good, slow and broken."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tallymill.engine.sources.reader import ImageReader
from tallymill.errors import ImageError


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
def test_members_of_a_remote_archive(archive_bytes, pictures, reader, server, tmp_path, archive):
    (tmp_path / archive).write_bytes(archive_bytes(archive, pictures))
    url = f"{server.url}/ranges/{archive}"
    assert reader.read_many([f"{url}#03.png", f"{url}#29.png"]) == [pictures["03.png"], pictures["29.png"]]
    with pytest.raises(ImageError, match="no member"):
        reader.read(f"{url}#99.png")
