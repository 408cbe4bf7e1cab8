"""The page in headless Chromium: what a person does with mouse and keyboard, on a desk and on a phone."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmclick.report.page import write_report
from llmclick.tracking.completions import CompletionsFolder
from llmclick.tracking.metrics import read_metrics
from tests.report.synthetic import HOSTILE, write_run
from tests.runs import Tiny

pytestmark = pytest.mark.slow
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: uv sync --group browser")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync"
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 steps, 5,120 completions, hostile ones among them."""
    return write_report(write_run(tmp_path_factory.mktemp("run") / "cities-1a2b3c4d"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: install the package chromium")
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield browser
        browser.close()


@pytest.fixture(
    params=[(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")], ids=lambda param: f"{param[0]}-{param[1]}"
)
def page(request: pytest.FixtureRequest, browser: Any, report: Path) -> Iterator[Any]:
    yield from opened(browser, report, *request.param)


@pytest.fixture
def desk(browser: Any, report: Path) -> Iterator[Any]:
    yield from opened(browser, report, 1280, "light")


def opened(browser: Any, path: Path, width: int, scheme: str) -> Iterator[Any]:
    """The page, ready; afterwards: no message on the console, no error, and no request but for the file itself."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda asked: said.append(asked.url) if asked.url != path.as_uri() else None)
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]")
    yield page
    assert said == []
    assert page.evaluate("window.pwned") is None
    context.close()


def until(page: Any, expression: str) -> None:
    """Wait until it holds. (wait_for_function evaluates inside the page, which the page's own policy forbids.)"""
    end = time.monotonic() + 10
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(30)


def test_every_chart_has_its_data_and_nothing_is_wider_than_the_screen(page: Any) -> None:
    points = page.eval_on_selector_all(
        "[data-chart]", "nodes => Object.fromEntries(nodes.map(n => [n.dataset.chart, +n.dataset.points]))"
    )
    assert points == {"reward": 44, "pass": 40, "groups": 40, "length": 40, "kl": 40, "seconds": 40} | {
        "reward": points["reward"]
    }
    assert points["reward"] >= 40
    assert page.locator("canvas").count() == 6
    # Something is drawn: a canvas of one colour would have one.
    colours = page.eval_on_selector_all(
        "canvas",
        """nodes => nodes.map(node => {
          const data = new Uint32Array(node.getContext('2d').getImageData(0, 0, node.width, node.height).data.buffer);
          return new Set(data).size;
        })""",
    )
    assert min(colours) > 10
    assert page.evaluate("document.documentElement.scrollWidth") == page.viewport_size["width"]


def test_the_answers_are_on_the_first_screen(page: Any) -> None:
    """Did it learn, by how much and how sure, which rows still fail, how long and where the time went."""
    result = page.inner_text("#result")
    assert "It learned: the held-out reward went from" in result
    assert "95 % interval" in result
    assert "held-out rows still fail" in result
    assert "Training took" in result
    assert "sampling" in result
    assert "✓ passed" in result


def test_a_chart_tells_its_values_under_mouse_and_arrow_keys(desk: Any) -> None:
    legend = desk.locator("[data-chart=reward] .u-legend .u-value")
    assert legend.first.inner_text() == "40, the last"
    chart = desk.locator("[data-chart=reward] .uplot")
    chart.focus()
    desk.keyboard.press("Home")
    assert legend.first.inner_text() == "1"
    desk.keyboard.press("ArrowRight")
    assert legend.first.inner_text() == "2"
    box = desk.locator("[data-chart=pass] .u-over").bounding_box()
    desk.mouse.move(box["x"] + box["width"] - 1, box["y"] + 30)
    assert desk.locator("[data-chart=pass] .u-legend .u-value").first.inner_text() == "40"
    assert desk.locator("[data-chart=groups] .u-legend .u-value").first.inner_text() == "40"  # cursors move together


def test_filters_narrow_the_list(desk: Any) -> None:
    found = desk.locator("#found")
    assert found.inner_text() == "5,120 of 5,120 completions"
    desk.fill("#f-from", "40")
    until(desk, "document.getElementById('found').textContent.startsWith('128 of')")
    desk.fill("#f-low", "1")
    until(desk, "!document.getElementById('found').textContent.startsWith('128 of')")
    marks = desk.locator("#list .row .mark").all_inner_texts()
    assert set(marks) == {"1.00"}
    desk.click("text=Clear")
    until(desk, "document.getElementById('found').textContent.startsWith('5,120 of')")
    desk.fill("#f-text", "WINDOW.PWNED")
    until(desk, "document.getElementById('found').textContent.startsWith('2 of')")
    desk.fill("#f-text", "nowhere to be found")
    desk.wait_for_selector("text=Nothing matches")
    desk.click("text=Clear")
    desk.select_option("#f-stop", "length")
    until(desk, "!document.getElementById('found').textContent.startsWith('5,120 of')")
    assert "cut off by the budget" in desk.inner_text("#detail")


def test_sorting_orders_the_list(desk: Any) -> None:
    desk.select_option("#f-sort", "-reward")
    until(desk, "document.querySelector('#list .row .mark').textContent === '1.00'")
    desk.select_option("#f-sort", "-tokens")
    until(desk, "document.querySelector('#list .row > span:nth-child(4)').textContent === '2500'")
    desk.select_option("#f-sort", "advantage")
    until(desk, "document.querySelector('#list .row > span:nth-child(4)').textContent !== '2500'")
    shown = [float(text) for text in desk.locator("#list .row > span:nth-child(3)").all_inner_texts()]
    assert shown == sorted(shown)


def test_the_group_view_shows_all_completions_of_the_prompt_with_their_advantages(desk: Any) -> None:
    desk.fill("#f-from", "20")
    until(desk, "!document.getElementById('found').textContent.startsWith('5,120 of')")
    members = desk.locator("#detail .member")
    assert members.count() == 8
    rewards = [float(text) for text in desk.locator("#detail .member .mark").all_inner_texts()]
    assert rewards == sorted(rewards, reverse=True)
    advantages = [float(text) for text in desk.locator("#detail .member > span:nth-child(2)").all_inner_texts()]
    assert sum(advantages) == pytest.approx(0, abs=0.05)
    last = members.nth(7)
    text = last.locator(".snippet").inner_text()
    last.click()
    assert desk.locator("#detail pre.text").first.inner_text()[:4] == text[:4]
    assert desk.locator("#detail .member[aria-current=true]").count() == 1


def test_the_keyboard_alone_is_enough(page: Any) -> None:
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "f-text"
    page.locator("#list").focus()
    for key, place in (("ArrowDown", 1), ("ArrowDown", 2), ("ArrowUp", 1), ("End", 5119), ("Home", 0)):
        page.keyboard.press(key)
        assert page.get_attribute("#list", "aria-activedescendant") == f"row-{place}"
        assert page.locator(f"#row-{place}[aria-selected=true]").is_visible()
    page.keyboard.press("PageDown")
    assert int(page.get_attribute("#list", "aria-activedescendant")[4:]) > 3


def test_only_what_is_seen_is_in_the_document_and_scrolling_stays_fluid(desk: Any) -> None:
    """Virtualised: a few dozen of 5,120 rows exist; a jump through the list draws within a frame or two. The median of many,
    because one can wait for another process."""
    assert desk.locator("#list .row").count() < 60
    usual = desk.evaluate(
        """async () => {
          const list = document.getElementById('list');
          const took = [];
          for (let k = 0; k < 40; k += 1) {
            list.scrollTop = (list.scrollHeight * ((k * 17) % 40)) / 40;
            const before = performance.now();
            list.dispatchEvent(new Event('scroll'));
            took.push(performance.now() - before);
            await new Promise(requestAnimationFrame);
          }
          return took.sort((a, b) => a - b)[20];
        }"""
    )
    assert usual < 50
    assert desk.locator("#list .row").count() < 60


@pytest.mark.parametrize("kind", sorted(HOSTILE))
def test_a_hostile_completion_is_text_and_nothing_else(desk: Any, kind: str) -> None:
    """HTML, scripts, ANSI codes, right-to-left marks, 10,000 characters: shown, invisible characters by name."""
    desk.locator("#list").focus()
    desk.keyboard.press("Home")
    for _ in range(list(HOSTILE).index(kind)):
        desk.keyboard.press("ArrowDown")
    block = desk.locator("#detail pre.text").first
    text = block.evaluate("node => node.textContent")
    expected = {
        "html": HOSTILE["html"],
        "ansi": "ESC[31mredESC[2JESC]0;titleU+0007 U+009B31m",
        "bidi": "abcU+202EU+2066txet nedolbU+2069U+202C U+200BU+200DU+FEFF",
        "long": HOSTILE["long"],
        "lone": "half U+D83D a pair",
        "zalgo": HOSTILE["zalgo"],
        "template": HOSTILE["template"],
    }
    assert text == expected[kind]
    assert block.evaluate("node => [...node.querySelectorAll('*')].every(child => child.className === 'unseen')")
    box, outer = block.bounding_box(), desk.locator("#detail").bounding_box()
    assert box["height"] <= 301
    assert box["x"] + box["width"] <= outer["x"] + outer["width"]


def test_held_out_rows_stand_side_by_side_and_can_be_narrowed(page: Any) -> None:
    first = page.locator(".pair").first
    assert first.locator("h4").all_inner_texts()[0].startswith("Base")
    sides = [first.locator(".side").nth(k).bounding_box() for k in (0, 1)]
    assert (sides[0]["y"] == sides[1]["y"]) == (page.viewport_size["width"] == 1280)
    page.click("[data-kind=fails]")
    failing = int(page.inner_text("[data-kind=fails]").split()[-1])
    assert page.locator(".pair").count() == failing
    assert page.get_attribute("[data-kind=fails]", "aria-pressed") == "true"


def test_the_theme_can_be_switched_and_the_charts_follow(page: Any) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(background)
    page.click("#theme")
    assert page.evaluate(background) != before
    assert page.locator("canvas").count() == 6
    page.click("#theme")
    assert page.evaluate(background) == before


def test_only_what_differs_from_the_defaults(desk: Any) -> None:
    assert desk.locator("#config-table tr.changed").count() == 3
    desk.check("#only-changed")
    assert desk.locator("#config-table tr:visible").count() == 3


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, dense_folder: Path) -> Tiny:
    """A run on a tiny model with a learning curve, and the page that it wrote."""
    tiny = Tiny(tmp_path_factory.mktemp("real") / "run", dense_folder)
    tiny.run("training.eval_every=2", "method.group_size=6")
    tiny.assert_it_trained(6)
    return tiny


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_of_a_real_run_shows_what_its_files_hold(browser: Any, real: Tiny, width: int, scheme: str) -> None:
    """Charts with a point for each step and each held-out measurement, every held-out row, every completion with its reward."""
    experiment = real.experiment
    for page in opened(browser, experiment / "report.html", width, scheme):
        points = page.eval_on_selector_all(
            "[data-chart]", "nodes => Object.fromEntries(nodes.map(n => [n.dataset.chart, +n.dataset.points]))"
        )
        assert points == dict.fromkeys(("reward", "pass", "groups", "length", "kl", "seconds"), 6)
        curve = read_metrics(experiment / "eval.jsonl")
        assert [record["step"] for record in curve] == [0, 2, 4, 6]
        legend = page.inner_text("[data-chart=reward] .u-legend")
        assert f"{curve[-1]['reward']:.3f}" in legend
        page.locator("[data-chart=reward] .uplot").focus()
        page.keyboard.press("Home")  # step 0 is before training: only the held-out curve is there
        assert f"{curve[0]['reward']:.3f}" in page.inner_text("[data-chart=reward] .u-legend")
        rows = [json.loads(line) for line in (experiment / "validate" / "rows.jsonl").read_text().splitlines()]
        assert page.locator(".pair").count() == len(rows) == 6
        assert page.inner_text("#found") == "72 of 72 completions"
        page.select_option("#f-sort", "-reward")
        best = max(
            record["reward"] for step in range(1, 7) for record in CompletionsFolder(experiment / "completions").read(step)
        )
        until(page, f"document.querySelector('#list .row .mark').textContent === '{best:.2f}'")
        assert page.locator("#detail .member").count() == 6
        assert page.locator("#config-table tr.changed th", has_text="method.group_size").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("absent", ["validate", "metrics.jsonl", "completions", "everything but config.yaml"])
def test_the_page_of_an_unfinished_run_opens_without_an_error(browser: Any, tmp_path: Path, absent: str) -> None:
    run = write_run(tmp_path / "run", steps=2, prompts=2, held_out=4)
    for path in list(run.iterdir()):
        if path.name == absent or (absent.startswith("everything") and path.name != "config.yaml"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for page in opened(browser, write_report(run), 1280, "light"):
        assert page.locator(".absent").count() >= 1
