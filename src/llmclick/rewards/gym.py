"""The reward for procedural tasks: reasoning_gym, which scores with the task's own scorer."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any

from llmclick.rewards import REWARDS
from llmclick.rewards.answers import answer_part
from llmclick.rewards.params import is_text, param

_ANSWER_TAG = re.compile(r"<answer>((?:(?!<answer>|</answer>).)*+)</answer>", re.DOTALL)


@dataclass(frozen=True)
class ReasoningGymParams:
    """Parameters of reasoning_gym."""

    task: str = param(
        None, "name of the task; without it the row's metadata names it", lambda v: v if v is None else is_text(v)
    )


def _task(row: dict[str, Any], params: dict[str, Any]) -> str | None:
    metadata = row.get("metadata")
    named = metadata.get("source_dataset") if isinstance(metadata, dict) else None
    task = params.get("task") or named or row.get("task")
    return task if isinstance(task, str) else None


def _refuse(row: dict[str, Any], params: dict[str, Any]) -> str | None:
    if _task(row, params) is None:
        return "nothing names the task: neither params.task nor the row's metadata.source_dataset"
    return None if "answer" in row else "the row has no 'answer'"


def _right(row: dict[str, Any], params: dict[str, Any]) -> str | None:
    return row["answer"] if isinstance(row.get("answer"), str) else None


@REWARDS.register(
    "reasoning_gym",
    params=ReasoningGymParams,
    refuses=_refuse,
    package="reasoning_gym",
    extra="reasoning-gym",
    libraries=("reasoning-gym", "sympy"),
)
def reasoning_gym(completion: str, row: dict[str, Any], params: dict[str, Any]) -> float:
    r"""The score, 0 to 1, that a reasoning_gym task's own scorer gives the completion.

    For rows of the `reasoning_gym` source. The answer is the last `<answer>...</answer>` if there is one, otherwise the whole
    completion past its `<think>` block. It needs the extra `reasoning-gym` and runs in a worker under the reward's timeout.

    | completion | row | params | result |
    |---|---|---|---|
    | "11" | {"answer": "11", "metadata": {"source_dataset": "chain_sum"}} | {} | 1 |
    | "<think>9 + 2</think> <answer>11</answer>" | {"answer": "11"} | {"task": "chain_sum"} | 1 |
    | "12" | {"answer": "11"} | {"task": "chain_sum"} | 0 |
    | "" | {"answer": "11"} | {"task": "chain_sum"} | 0 |
    | "11" | {"answer": "11"} | {"task": "no_such_task"} | 0 |
    """
    task = _task(row, params)
    if task is None:
        return 0.0
    from reasoning_gym import get_score_answer_fn

    text = answer_part(completion, inside=True)
    for match in _ANSWER_TAG.finditer(text):
        text = match[1]
    text = text.strip()
    try:
        score = float(get_score_answer_fn(task)(text, {"question": row.get("prompt", ""), **copy.deepcopy(row)}))
    except (MemoryError, KeyboardInterrupt):
        raise
    except BaseException:  # a task's scorer raises anything on odd input
        return 0.0
    # Many scorers pay a little for any text at all, also for none.
    return min(max(score, 0.0), 1.0) if text and score == score else 0.0
