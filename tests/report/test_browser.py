"""The page in headless Chromium: what a person does with mouse and keyboard, on a desk and on a phone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmclick.report.page import write_report
from llmclick.tracking.completions import CompletionsFolder
from llmclick.tracking.metrics import read_metrics
from tests.report.synthetic import HOSTILE, write_run
from tests.runs import Tiny
from tests.waiting import LIMIT, becomes, until

pytestmark = pytest.mark.slow
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: uv sync --group browser")
expect = playwright.expect  # reads a page until it says so
expect.set_options(timeout=1000 * LIMIT)
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
    context.set_default_timeout(1000 * LIMIT)
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


def has_width(page: Any, width: int) -> None:
    """The page is so wide, once its boxes have their sizes."""
    becomes(lambda: page.evaluate("document.documentElement.scrollWidth"), width)


def test_every_chart_has_its_data_and_nothing_is_wider_than_the_screen(page: Any) -> None:
    points = page.eval_on_selector_all(
        "[data-chart]", "nodes => Object.fromEntries(nodes.map(n => [n.dataset.chart, +n.dataset.points]))"
    )
    assert points == {"reward": 44, "pass": 40, "groups": 40, "length": 40, "kl": 40, "seconds": 40} | {
        "reward": points["reward"]
    }
    assert points["reward"] >= 40
    expect(page.locator("canvas")).to_have_count(6)
    # Something is drawn: a canvas of one colour would have one.
    colours = """nodes => nodes.map(node => {
      const data = new Uint32Array(node.getContext('2d').getImageData(0, 0, node.width, node.height).data.buffer);
      return new Set(data).size;
    })"""
    until(lambda: min(page.eval_on_selector_all("canvas", colours)) > 10, "a canvas of more than 10 colours")
    has_width(page, page.viewport_size["width"])


def test_the_answers_are_on_the_first_screen(page: Any) -> None:
    """Did it learn, by how much and how sure, which rows still fail, how long and where the time went."""
    for part in (
        "It learned: the held-out reward went from",
        "95 % interval",
        "held-out rows still fail",
        "Training took",
        "sampling",
        "✓ passed",
    ):
        expect(page.locator("#result")).to_contain_text(part)


def test_a_chart_tells_its_values_under_mouse_and_arrow_keys(desk: Any) -> None:
    legend = desk.locator("[data-chart=reward] .u-legend .u-value").first
    expect(legend).to_have_text("40, the last")
    desk.locator("[data-chart=reward] .uplot").focus()
    desk.keyboard.press("Home")
    expect(legend).to_have_text("1")
    desk.keyboard.press("ArrowRight")
    expect(legend).to_have_text("2")
    over = desk.locator("[data-chart=pass] .u-over")
    over.hover(position={"x": over.bounding_box()["width"] - 1, "y": 30})
    for name in ("pass", "groups"):  # cursors move together
        expect(desk.locator(f"[data-chart={name}] .u-legend .u-value").first).to_have_text("40")


def test_filters_narrow_the_list(desk: Any) -> None:
    found = desk.locator("#found")
    expect(found).to_have_text("5,120 of 5,120 completions")
    desk.fill("#f-from", "40")
    expect(found).to_have_text("128 of 5,120 completions")
    desk.fill("#f-low", "1")
    expect(found).not_to_have_text("128 of 5,120 completions")
    assert set(texts(desk, "#list .row .mark")) == {"1.00"}
    desk.click("text=Clear")
    expect(found).to_have_text("5,120 of 5,120 completions")
    desk.fill("#f-text", "WINDOW.PWNED")
    expect(found).to_have_text("2 of 5,120 completions")
    desk.fill("#f-text", "nowhere to be found")
    expect(found).to_have_text("0 of 5,120 completions")
    expect(desk.locator("#detail")).to_contain_text("Nothing matches")
    desk.click("text=Clear")
    expect(found).to_have_text("5,120 of 5,120 completions")
    desk.select_option("#f-stop", "length")
    expect(found).not_to_have_text("5,120 of 5,120 completions")
    expect(desk.locator("#detail")).to_contain_text("cut off by the budget")


def test_sorting_orders_the_list(desk: Any) -> None:
    tokens = desk.locator("#list .row > span:nth-child(4)").first
    desk.select_option("#f-sort", "-reward")
    expect(desk.locator("#list .row .mark").first).to_have_text("1.00")
    desk.select_option("#f-sort", "-tokens")
    expect(tokens).to_have_text("2500")
    desk.select_option("#f-sort", "advantage")
    expect(tokens).not_to_have_text("2500")
    shown = [float(text) for text in texts(desk, "#list .row > span:nth-child(3)")]
    assert shown == sorted(shown)


def texts(page: Any, selector: str) -> list[str]:
    """What all of them say at one moment. The page draws a list at once, and a status says before that it did."""
    return page.locator(selector).all_inner_texts()  # type: ignore[no-any-return]


def test_the_group_view_shows_all_completions_of_the_prompt_with_their_advantages(desk: Any) -> None:
    desk.fill("#f-from", "20")
    expect(desk.locator("#found")).not_to_have_text("5,120 of 5,120 completions")
    members = desk.locator("#detail .member")
    expect(members).to_have_count(8)
    rewards = [float(text) for text in texts(desk, "#detail .member .mark")]
    assert rewards == sorted(rewards, reverse=True)
    advantages = [float(text) for text in texts(desk, "#detail .member > span:nth-child(2)")]
    assert sum(advantages) == pytest.approx(0, abs=0.05)
    text = members.nth(7).locator(".snippet").inner_text()
    members.nth(7).click()
    expect(members.nth(7)).to_have_attribute("aria-current", "true")
    expect(desk.locator("#detail .member[aria-current=true]")).to_have_count(1)
    becomes(lambda: desk.locator("#detail pre.text").first.inner_text()[:4], text[:4])


def test_the_keyboard_alone_is_enough(page: Any) -> None:
    page.keyboard.press("/")
    expect(page.locator("#f-text")).to_be_focused()
    chosen = page.locator("#list")
    chosen.focus()
    for key, place in (("ArrowDown", 1), ("ArrowDown", 2), ("ArrowUp", 1), ("End", 5119), ("Home", 0)):
        page.keyboard.press(key)
        expect(chosen).to_have_attribute("aria-activedescendant", f"row-{place}")
        expect(page.locator(f"#row-{place}[aria-selected=true]")).to_be_visible()
    page.keyboard.press("PageDown")
    until(lambda: int(chosen.get_attribute("aria-activedescendant")[4:]) > 3, "a page further down")


def test_only_what_is_seen_is_in_the_document_and_scrolling_stays_fluid(desk: Any) -> None:
    """Virtualised: a few dozen of 5,120 rows exist; a jump through the list draws within a frame or two. The median of many,
    because one can wait for another process."""
    until(lambda: 0 < desk.locator("#list .row").count() < 60, "a few dozen rows")
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
    until(lambda: 0 < desk.locator("#list .row").count() < 60, "a few dozen rows")


@pytest.mark.parametrize("kind", sorted(HOSTILE))
def test_a_hostile_completion_is_text_and_nothing_else(desk: Any, kind: str) -> None:
    """HTML, scripts, ANSI codes, right-to-left marks, 10,000 characters: shown, invisible characters by name."""
    desk.locator("#list").focus()
    desk.keyboard.press("Home")
    for _ in range(list(HOSTILE).index(kind)):
        desk.keyboard.press("ArrowDown")
    block = desk.locator("#detail pre.text").first
    expected = {
        "html": HOSTILE["html"],
        "ansi": "ESC[31mredESC[2JESC]0;titleU+0007 U+009B31m",
        "bidi": "abcU+202EU+2066txet nedolbU+2069U+202C U+200BU+200DU+FEFF",
        "long": HOSTILE["long"],
        "lone": "half U+D83D a pair",
        "zalgo": HOSTILE["zalgo"],
        "template": HOSTILE["template"],
    }
    becomes(lambda: block.evaluate("node => node.textContent"), expected[kind])
    assert block.evaluate("node => [...node.querySelectorAll('*')].every(child => child.className === 'unseen')")
    box, outer = block.bounding_box(), desk.locator("#detail").bounding_box()
    assert box["height"] <= 301
    assert box["x"] + box["width"] <= outer["x"] + outer["width"]


def test_held_out_rows_stand_side_by_side_and_can_be_narrowed(page: Any) -> None:
    first = page.locator(".pair").first
    expect(first.locator("h4").first).to_contain_text("Base")
    beside = page.viewport_size["width"] == 1280

    def level() -> bool:
        """Both boxes of one moment."""
        tops = first.locator(".side").evaluate_all("nodes => nodes.map(node => node.getBoundingClientRect().top)")
        return bool(tops[0] == tops[1])

    becomes(level, beside)
    page.click("[data-kind=fails]")
    expect(page.locator("[data-kind=fails]")).to_have_attribute("aria-pressed", "true")
    failing = int(page.inner_text("[data-kind=fails]").split()[-1])
    expect(page.locator(".pair")).to_have_count(failing)


def test_the_theme_can_be_switched_and_the_charts_follow(page: Any) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(background)
    page.click("#theme")
    until(lambda: page.evaluate(background) != before, "another background")
    expect(page.locator("canvas")).to_have_count(6)
    page.click("#theme")
    becomes(lambda: page.evaluate(background), before)


def test_only_what_differs_from_the_defaults(desk: Any) -> None:
    expect(desk.locator("#config-table tr.changed")).to_have_count(3)
    desk.check("#only-changed")
    expect(desk.locator("#config-table tr:visible")).to_have_count(3)


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
        legend = page.locator("[data-chart=reward] .u-legend")
        expect(legend).to_contain_text(f"{curve[-1]['reward']:.3f}")
        page.locator("[data-chart=reward] .uplot").focus()
        page.keyboard.press("Home")  # step 0 is before training: only the held-out curve is there
        expect(legend).to_contain_text(f"{curve[0]['reward']:.3f}")
        rows = [json.loads(line) for line in (experiment / "validate" / "rows.jsonl").read_text().splitlines()]
        assert len(rows) == 6
        expect(page.locator(".pair")).to_have_count(6)
        expect(page.locator("#found")).to_have_text("72 of 72 completions")
        page.select_option("#f-sort", "-reward")
        best = max(
            record["reward"] for step in range(1, 7) for record in CompletionsFolder(experiment / "completions").read(step)
        )
        expect(page.locator("#list .row .mark").first).to_have_text(f"{best:.2f}")
        expect(page.locator("#detail .member")).to_have_count(6)
        expect(page.locator("#config-table tr.changed th", has_text="method.group_size")).to_have_count(1)
        has_width(page, width)


@pytest.mark.parametrize("absent", ["validate", "metrics.jsonl", "completions", "everything but config.yaml"])
def test_the_page_of_an_unfinished_run_opens_without_an_error(browser: Any, tmp_path: Path, absent: str) -> None:
    run = write_run(tmp_path / "run", steps=2, prompts=2, held_out=4)
    for path in list(run.iterdir()):
        if path.name == absent or (absent.startswith("everything") and path.name != "config.yaml"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for page in opened(browser, write_report(run), 1280, "light"):
        expect(page.locator(".absent").first).to_be_attached()
