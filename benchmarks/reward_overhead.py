"""What it costs to run a cheap reward in a worker process, per completion and as a share of a step.

    uv run python benchmarks/reward_overhead.py [output/NAME-1a2b3c4d] [--out FILE]

A reward of the user that does next to nothing is called on batches of 32 completions of 400 characters, in a worker as in a run
and directly in this process. With an experiment's folder its own steps are read too: the seconds that scoring took in each,
against the whole step. The promise is at most 5 % of a step.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from machine import finish

from llmclick.rewards.scoring import Scorer, ToScore
from llmclick.tracking.metrics import read_metrics

ROOT = Path(__file__).parents[1]
REWARD = ROOT / "tests" / "spread_reward.py"
BATCH, CHARACTERS, REPEATS = 32, 400, 50


class Spec:
    name, weight, timeout, on_error, pass_at = "spread", 1.0, 10.0, "fail", 1.0
    params: dict[str, Any] = {}  # noqa: RUF012


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = {"milliseconds per batch of 32": in_worker(), "directly": directly()}
    if options.experiment is not None:
        seconds = [
            record["seconds"] for record in read_metrics(options.experiment / "metrics.jsonl") if record["seconds"]["score"]
        ]
        result["share of a step"] = statistics.median(step["score"] / step["total"] for step in seconds[1:] or seconds)
    finish({"benchmark": "reward_overhead", **result}, options.out)
    sys.exit(result.get("share of a step", 0.0) > 0.05)


def texts() -> list[str]:
    return [f"{number} " + "word " * (CHARACTERS // 5) for number in range(BATCH)]


def in_worker() -> float:
    items = [ToScore(text, {"prompt": "a", "answer": "1"}, f"rows.jsonl:{n}", False) for n, text in enumerate(texts())]
    with Scorer([Spec()], [REWARD]) as scorer:
        scorer.score(items)  # starts the worker
        return median_milliseconds(lambda: scorer.score(items))


def directly() -> float:
    from llmclick.rewards import REWARDS

    reward = REWARDS.get("spread").value
    return median_milliseconds(lambda: [reward(text, {"prompt": "a", "answer": "1"}, {}) for text in texts()])


def median_milliseconds(call: Any) -> float:
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


if __name__ == "__main__":
    main()
