"""The built site: every link leads somewhere, search finds a key, and no page is wider than a phone."""

from __future__ import annotations

import http.server
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from tests.waiting import LIMIT, until

ROOT = Path(__file__).parents[2]
DIST = ROOT / "docs" / ".vitepress" / "dist"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync"
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site() -> Path:
    """The site, built from the pages as they are."""
    if not (ROOT / "node_modules" / "vitepress").is_dir() or shutil.which("npm") is None:
        pytest.skip("no site without Node: npm install")
    newest = max(
        path.stat().st_mtime
        for path in (ROOT / "docs").rglob("*")
        if not {"dist", "cache"} & set(path.parts) and path.is_file()
    )
    if (DIST / "index.html").exists() and (DIST / "index.html").stat().st_mtime > newest:
        return DIST
    done = subprocess.run(["npm", "run", "docs:build"], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return DIST


class Links(HTMLParser):
    """The links and the anchors of a page, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.anchors.add(str(given["id"]))
        if tag == "a" and given.get("href"):
            self.links.add(str(given["href"]))
        for name in ("src", "href"):
            if tag != "a" and given.get(name):
                self.loaded.add(str(given[name]))


def read(site: Path) -> dict[str, Links]:
    found = {}
    for path in sorted(site.rglob("*.html")):
        found["/" + path.relative_to(site).as_posix()] = links = Links()
        links.feed(path.read_text(encoding="utf-8"))
    return found


def test_every_internal_link_and_anchor_resolves(site: Path) -> None:
    """Also those into the middle of a page, which the generator does not check."""
    pages = read(site)
    broken, count = [], 0
    for name, page in pages.items():
        for link in page.links:
            target = urlsplit(urljoin(name, link))
            if target.scheme or target.netloc:
                continue
            count += 1
            path = target.path if target.path.endswith(".html") else target.path.rstrip("/") + "/index.html"
            if path not in pages or (target.fragment and unquote(target.fragment) not in pages[path].anchors):
                broken.append((name, link))
    assert broken == []
    assert count > 500


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    """No page names a file of another host, and no style sheet does."""
    for name, page in read(site).items():
        assert [link for link in page.loaded if urlsplit(link).netloc] == [], name
    for path in site.rglob("*.css"):
        assert re.findall(r"url\(\s*['\"]?https?:", path.read_text(encoding="utf-8")) == []


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(site))

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: uv sync --group browser")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: install the package chromium")
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield browser
        browser.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_and_ask_no_other_host(browser: Any, served: str, width: int) -> None:
    """No page scrolls sideways, nothing is said on the console, every request goes to the server itself."""
    context = browser.new_context(viewport={"width": width, "height": 900})
    context.set_default_timeout(1000 * LIMIT)
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda asked: said.append(asked.url) if not asked.url.startswith((served, "data:")) else None)
    for path in sorted(DIST.glob("*.html")):
        page.goto(served + path.name)
        page.wait_for_load_state("networkidle")
        until(lambda: page.evaluate("document.documentElement.scrollWidth") <= width, f"{path.name} as wide as the screen")
    context.close()
    assert said == []


def test_search_finds_beta(browser: Any, served: str) -> None:
    """Typing the key's name brings up its entry in the configuration."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(1000 * LIMIT)
    page.goto(served + "index.html")
    box = page.locator(".VPLocalSearchBox input")

    def opened() -> bool:
        """The key does nothing until the page's script runs."""
        if not box.is_visible():
            page.keyboard.press("Control+k")
            page.wait_for_timeout(200)
        return bool(box.is_visible())

    until(opened, "an open search box")
    box.fill("beta")
    results = page.locator(".VPLocalSearchBox .result")

    def found() -> bool:
        links = results.evaluate_all("nodes => nodes.map(node => node.getAttribute('href') || '')")
        return any("configuration" in link and "method-beta" in link for link in links)

    until(found, "method-beta among the results")
    if folder := os.environ.get("SHOTS"):
        page.screenshot(path=f"{folder}/search.png")
    page.close()
