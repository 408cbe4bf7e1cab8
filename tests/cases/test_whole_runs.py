"""Kinds of faults that only a whole run shows."""

from __future__ import annotations

import json
from pathlib import Path

from tests.runs import Tiny, read_metrics

SEEING = """
import json, zlib
from pathlib import Path
from llmclick import REWARDS

@REWARDS.register("seeing")
def seeing(completion, row, params):
    with open(params["seen"], "a") as file:
        file.write(json.dumps([sorted(row), sorted(params), row["topic"]]) + "\\n")
    row["topic"] = "changed"
    return zlib.crc32(completion.encode("utf-8", "surrogatepass")) % 7 / 6
"""


def test_every_stage_makes_the_same_call_and_the_last_weights_are_judged(tmp_path: Path, dense_folder: Path) -> None:
    """Trial, training, held-out reward while training and gate give a reward the same keys and a fresh row; with 4 steps and
    `eval_every: 3` the weights after step 4 are the ones that the gate judges."""
    file, seen = tmp_path / "seeing_reward.py", tmp_path / "seen.jsonl"
    file.write_text(SEEING)
    tiny = Tiny(tmp_path, dense_folder)
    rows = [json.loads(line) | {"topic": "sums"} for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = tiny.run(
        f"pipeline.imports=[{file}]",
        f"method.reward={{name: seeing, seen: {seen}}}",
        "training.max_steps=4",
        "training.eval_every=3",
    )
    calls = [json.loads(line) for line in seen.read_text().splitlines()]
    # 24 rows tried, 4 steps of 8, two held-out looks at 6 rows, the gate's 6 + 6.
    assert len(calls) == 24 + 32 + 12 + 12
    assert all(call == [["answer", "prompt", "topic"], ["seen"], "sums"] for call in calls)
    assert [record["step"] for record in read_metrics(tiny.experiment / "eval.jsonl")] == [0, 3]
    assert result.metrics["reward"]["n"] == 6


def test_five_rows_give_one_that_is_held_out(tmp_path: Path, dense_folder: Path) -> None:
    """A tenth of five rows is still one row, and it is not trained on."""
    tiny = Tiny(tmp_path, dense_folder)
    lines = (tmp_path / "rows.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "rows.jsonl").write_text("".join(lines[:5]))
    tiny.run("data.validation=0.1", "pipeline.stages=[data]")
    sides = {
        side: {json.loads(line)["text"] for line in (tiny.experiment / "data" / f"{side}.jsonl").read_text().splitlines()}
        for side in ("train", "validation")
    }
    assert (len(sides["train"]), len(sides["validation"])) == (4, 1)
    assert not sides["train"] & sides["validation"]
