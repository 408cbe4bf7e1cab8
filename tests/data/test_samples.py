import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "samples"


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (SAMPLES / name).read_text(encoding="utf-8").splitlines()]


def test_arithmetic_rows_are_right() -> None:
    """At least 200 different rows of the page's kind, the page's own first, and every answer is the result."""
    made = rows("llm_grpo.jsonl")
    assert made[0] == {"prompt": "What is 9 plus 2? Reply with the number only.", "answer": "11"}
    assert len(made) >= 200
    assert len({row["prompt"] for row in made}) == len(made)
    for row in made:
        match = re.fullmatch(r"What is (\d+) (plus|minus|times) (\d+)\? Reply with the number only\.", row["prompt"])
        assert match is not None, row
        sign = {"plus": "+", "minus": "-", "times": "*"}[match[2]]
        assert row["answer"] == str(eval(f"{match[1]}{sign}{match[3]}"))


def test_quickstart_rows_are_different_cities() -> None:
    """At least 120 different cities, each with the task's exact sentence."""
    made = rows("quickstart.jsonl")
    assert len(made) >= 120
    assert len({row["city"] for row in made}) == len(made)
    for row in made:
        assert list(row) == ["prompt", "city", "country"]
        sentence = f'Write a JSON object with the keys "city" and "country" for {row["city"]}. Reply with JSON only.'
        assert row["prompt"] == sentence


def test_the_script_writes_these_files(tmp_path: Path) -> None:
    """samples/generate.py, run elsewhere, gives the files byte for byte."""
    script = tmp_path / "generate.py"
    script.write_bytes((SAMPLES / "generate.py").read_bytes())
    subprocess.run([sys.executable, str(script)], check=True, timeout=60)
    for name in ("llm_grpo.jsonl", "quickstart.jsonl"):
        assert (tmp_path / name).read_bytes() == (SAMPLES / name).read_bytes()


def test_the_shipped_sums_are_small_and_their_own_answers_score_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """configs/llm/reasoning_gym.yaml: sums of two digits, a gate that asks for 0.2, every right answer fits the budget.

    Its stop token need not: an answer that is cut right behind its last digit is scored like any other.
    """
    pytest.importorskip("reasoning_gym")
    from llmclick.config.load import load_config
    from llmclick.data.sources import read_rows
    from llmclick.rewards import REWARDS

    monkeypatch.chdir(ROOT)
    config = load_config("configs/llm/reasoning_gym.yaml")
    assert config.notices == ()
    assert config.validation.gain == {"reward": 0.2}
    rows = read_rows(config).rows
    assert len(rows) == 400
    score = REWARDS.get("reasoning_gym").value
    assert {score(row.data["answer"], row.data, {}) for row in rows} == {1.0}
    assert config.method.truncated == "score"
    assert max(len(row.data["answer"]) for row in rows) <= config.method.max_new_tokens  # a token a character
