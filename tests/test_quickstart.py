"""The first command of the README on the real model: it learns, its checkpoint is an ordinary one, and nothing is redone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent

PLAIN = """
import json, sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

experiment = Path(sys.argv[1])
folder = experiment / "validate" / "checkpoint"
model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
rows = [json.loads(line) for line in (experiment / "validate" / "rows.jsonl").read_text().splitlines()][:16]
asked = {json.loads(l)["id"]: json.loads(l)["row"]["prompt"] for l in (experiment / "data" / "validation.jsonl").open()}
texts = [
    tokenizer.apply_chat_template([{"role": "user", "content": asked[r["id"]]}], add_generation_prompt=True, tokenize=False)
    for r in rows
]
inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
out = model.generate(**inputs, do_sample=False, max_new_tokens=40)
answers = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1]:], skip_special_tokens=True)
assert "llmclick" not in sys.modules
print(json.dumps([answer == r["trained"]["text"] for answer, r in zip(answers, rows)]))
"""


def llmclick(*arguments: str) -> tuple[int, dict[str, Any], float]:
    """Exit code, the JSON of --json, and seconds."""
    began = time.monotonic()
    command = [sys.executable, "-m", "llmclick.cli", *arguments, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip(), done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), time.monotonic() - began


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, Any]]:
    output = tmp_path_factory.mktemp("quickstart")
    command = ["run", "configs/llm/quickstart.yaml", "--set", f"pipeline.output_dir={output}"]
    code, result, _ = llmclick(*command)
    assert code == 0, result
    return command, result


def test_it_learns_and_passes(quickstart: tuple[list[str], dict[str, Any]]) -> None:
    """Held-out greedy reward from at most 0.20 to at least 0.90 on at least 16 rows, under a gain bound."""
    reward = quickstart[1]["metrics"]["reward"]
    assert quickstart[1]["passed"] is True
    assert reward["base"] <= 0.20
    assert reward["trained"] >= 0.90
    assert reward["n"] >= 16
    assert reward["low"] > 0


def test_the_checkpoint_is_an_ordinary_one(quickstart: tuple[list[str], dict[str, Any]]) -> None:
    """Loaded with plain transformers in a process without llmclick, it gives the completions that validate recorded."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-c", PLAIN, quickstart[1]["experiment"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    same = json.loads(done.stdout.splitlines()[-1])
    assert same == [True] * 16


def test_nothing_is_redone_and_a_new_bound_judges_again(quickstart: tuple[list[str], dict[str, Any]]) -> None:
    """The same command finds every stage cached in the same folder; a bound that cannot be met costs no sampling."""
    command, before = quickstart
    code, again, seconds = llmclick(*command)
    assert code == 0
    assert again["experiment"] == before["experiment"]
    assert {stage["state"] for stage in again["stages"].values()} == {"cached"}
    assert seconds < 10
    code, failed, _ = llmclick(*command, "--set", "validation.gain.reward=1.5")
    assert code == 3
    assert failed["passed"] is False
    assert failed["experiment"] == before["experiment"]
    assert [failed["stages"][stage]["state"] for stage in ("data", "train", "validate")] == ["cached", "cached", "ran"]
    assert not (Path(before["experiment"]) / "validate" / "checkpoint").exists()
    assert failed["stages"]["validate"]["seconds"] < 5
    code, _, _ = llmclick(*command)
    assert code == 0
    assert (Path(before["experiment"]) / "validate" / "checkpoint").is_symlink()


def test_generated_sums_are_learned(tmp_path: Path) -> None:
    """configs/llm/reasoning_gym.yaml: the held-out reward rises by at least 0.2, with an interval above 0."""
    pytest.importorskip("reasoning_gym")
    code, result, _ = llmclick("run", "configs/llm/reasoning_gym.yaml", "--set", f"pipeline.output_dir={tmp_path}")
    assert code == 0, result
    reward = result["metrics"]["reward"]
    assert reward["difference"] >= 0.2
    assert reward["low"] > 0
    assert reward["n"] >= 40


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_its_page_opens_in_a_browser(quickstart: tuple[list[str], dict[str, Any]], width: int, scheme: str) -> None:
    """No message, no request; every chart has a point per step; filter, sort and search narrow the real completions."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: uv sync --group browser")
    from tests.report.test_browser import CHROMIUM, FLAGS, expect, has_width, opened

    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: install the package chromium")
    experiment = Path(quickstart[1]["experiment"])
    steps = len((experiment / "metrics.jsonl").read_text().splitlines())
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        for page in opened(browser, experiment / "report.html", width, scheme):
            points = page.eval_on_selector_all("[data-chart]", "nodes => nodes.map(node => +node.dataset.points)")
            assert points == [steps] * 6
            expect(page.locator("#found")).to_have_text(f"{32 * steps} of {32 * steps} completions")
            expect(page.locator(".pair")).to_have_count(12)  # of 24: the others come on demand
            page.select_option("#f-sort", "-reward")
            expect(page.locator("#list .row .mark").first).to_have_text("1.00")
            expect(page.locator("#detail .member")).to_have_count(8)
            has_width(page, width)
        browser.close()
