"""A reward with a parameter of its own and a right answer that every row is tried with before training.

pipeline: {imports: [samples/rewards/short_answer.py]}
method:
  reward:
    - {name: last_number}
    - {name: short_answer, limit: 40, weight: 0.1}
"""

from dataclasses import dataclass

from llmclick import REWARDS


@dataclass
class Params:
    """A misspelt or mistyped parameter is refused before the run."""

    limit: int = 80


@REWARDS.register("short_answer", params=Params, right=lambda row, params: str(row["answer"]))
def short_answer(completion: str, row: dict, params: dict) -> float | None:
    """1 for a completion of at most `limit` characters, falling to 0 at twice that; rows marked `long` are left out."""
    if row.get("long"):
        return None
    over = len(completion.strip()) - params["limit"]
    return 1.0 - min(max(over / params["limit"], 0.0), 1.0)
