"""Scorer: sums, truncation, what rewards see, and the trial of the rows; in process."""

import pytest

from llmclick.data.rows import Row
from llmclick.errors import InputError, RewardError
from llmclick.rewards.scoring import Score, Scorer, ToScore, shown
from tests.rewards.specs import Spec, write


def item(text, answer="11", where="rows.jsonl:1", truncated=False):
    return ToScore(text, {"answer": answer}, where, truncated)


def row(data, line=1):
    return Row(data, f"rows.jsonl:{line}", f"{line}-0")


def test_total_is_the_weighted_sum_and_each_reward_is_kept_raw():
    """2 * exact_match - 0.5 * contains of "11" is 1.5, of "It is 11" -0.5; by name they stay 1 and 1, 0 and 1."""
    with Scorer([Spec("exact_match", weight=2.0), Spec("contains", weight=-0.5)]) as scorer:
        assert scorer.names == ["exact_match", "contains"]
        assert scorer.score([item("11"), item("It is 11")]) == [
            Score(1.5, {"exact_match": 1.0, "contains": 1.0}),
            Score(-0.5, {"exact_match": 0.0, "contains": 1.0}),
        ]


def test_truncated_zero_sets_the_total_alone_to_zero():
    """With `truncated: zero` a cut completion totals 0, its named reward stays; with `score` it counts as it is."""
    for mode, total in (("zero", 0.0), ("score", 1.0), ("mask", 1.0)):
        with Scorer([Spec("exact_match")], truncated=mode) as scorer:
            (score,) = scorer.score([item("11", truncated=True)])
        assert (score.total, score.by_name["exact_match"]) == (total, 1.0)


def test_answer_after_shows_what_follows_its_last_occurrence_or_nothing():
    """Rewards see the text after the last marker; without the marker an empty text, not the whole."""
    with Scorer([Spec("exact_match")], answer_after="=>") as scorer:
        scores = scorer.score([item("5 => 11"), item("11"), item("11 => 12"), item("11 => 12 => 11")])
    assert [score.total for score in scores] == [1.0, 0.0, 0.0, 1.0]


def test_nothing_to_score_gives_nothing():
    """An empty batch starts no worker and gives no scores."""
    with Scorer([Spec("regex", {"pattern": "a"})]) as scorer:
        assert scorer.score([]) == []
        assert scorer.try_rows([]) == []


def test_every_unusable_row_is_refused_with_its_line():
    """The trial of the rows reports all rows whose answer the reward cannot use, in order, each with place and reason."""
    rows = [
        row({"answer": "5"}, 1),
        row({"answer": "none"}, 2),
        row({"gold": 5}, 3),
        row({"answer": None}, 4),
        row({"answer": 5}, 5),
    ]
    with Scorer([Spec("last_number")]) as scorer:
        problems = scorer.try_rows(rows)
    assert [problem.where for problem in problems] == ["rows.jsonl:2", "rows.jsonl:3", "rows.jsonl:4"]
    assert {problem.key for problem in problems} == {"last_number"}
    assert "no number" in problems[0].why
    assert "'answer'" in problems[1].why
    assert "null" in problems[2].why


def test_a_label_that_denies_another_is_refused_by_the_trial():
    """An answer that the reward itself would not score 1 refuses its row: no completion could be right."""
    with Scorer([Spec("choice", {"labels": ["A", "B"]})]) as scorer:
        assert scorer.try_rows([row({"answer": "B"})]) == []
        assert [p.where for p in scorer.try_rows([row({"answer": "C"}, 7)])] == ["rows.jsonl:7"]


def test_an_unknown_reward_or_param_is_refused_before_anything_runs():
    """The scorer itself checks names and params."""
    with pytest.raises(InputError, match="exact_match"):
        Scorer([Spec("exact_mach")])
    with pytest.raises(InputError, match="ignore_case"):
        Scorer([Spec("exact_match", {"ignorecase": True})])


def test_a_completion_in_a_message_is_one_short_plain_line():
    """Control characters, escapes, direction marks and lone surrogates are written out, the middle is left out."""
    text = shown("\x1b[2J\u202e\ud800\n" + "x" * 1000)
    assert text.isprintable()
    assert "\\x1b" in text
    assert "\\ud800" in text
    assert len(text) < 300


def test_none_leaves_a_reward_out_of_the_sum_and_all_none_names_the_row(tmp_path):
    """None is "does not apply": not 0, not in the sum; a row to which nothing applies stops with its line."""
    file = write(
        tmp_path / "maybe_reward.py",
        """
        from llmclick import REWARDS

        @REWARDS.register("maybe")
        def maybe(completion, row, params):
            return None if row.get("skip") else len(completion)
        """,
    )
    with Scorer([Spec("maybe", weight=3.0), Spec("exact_match")], [file]) as scorer:
        scores = scorer.score(
            [ToScore("11", {"answer": "11", "skip": True}, "r:1", False), ToScore("11", {"answer": "11"}, "r:2", False)]
        )
        assert scores == [Score(1.0, {"maybe": None, "exact_match": 1.0}), Score(7.0, {"maybe": 2.0, "exact_match": 1.0})]
    with Scorer([Spec("maybe")], [file]) as scorer:
        with pytest.raises(RewardError, match="r:9"):
            scorer.score([ToScore("11", {"skip": True}, "r:9", False)])
        assert [p.where for p in scorer.try_rows([row({"skip": True}, 4), row({}, 5)])] == ["rows.jsonl:4"]
