"""Debian's chromium, driven by playwright. Without either these tests fail: who runs them by name wants to know."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def chromium():
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    assert path is not None, "no chromium on the PATH (apt-get install chromium)"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """A file in a tab of its own, with everything that went wrong and everything that was asked of a network."""

    def __init__(self, browser, path: Path, **options):
        self.context = browser.new_context(**options)
        self.tab = self.context.new_page()
        self.faults: list[str] = []
        self.requests: list[str] = []
        self.tab.on("console", lambda message: self.faults.append(f"console: {message.text}"))
        self.tab.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.tab.on("requestfailed", lambda request: self.faults.append(f"failed: {request.url}"))
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.goto(path.as_uri())


@pytest.fixture
def opened(chromium):
    """Opens a file; after the test nothing may have gone wrong, and nothing but the file been read."""
    tabs = []

    def open_file(path: Path, **options) -> Opened:
        tabs.append(Opened(chromium, path, **options))
        return tabs[-1]

    yield open_file
    for each in tabs:
        each.context.close()
        assert each.faults == []
        assert [url for url in each.requests if not url.startswith(("file:", "data:"))] == []
        assert sum(url.startswith("file:") for url in each.requests) == 1
