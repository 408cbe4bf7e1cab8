"""Scorer: sums, truncation, what rewards see, and the trial of the rows; in process."""

import pytest

from llmclick.data.rows import Row
from llmclick.errors import InputError, RewardError
from llmclick.rewards.scoring import Score, Scorer, ToScore, shown
from llmclick.rewards.validate import check_specs
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
            Score(1.5, {"exact_match": 1.0, "contains": 1.0}, passed=True),
            Score(-0.5, {"exact_match": 0.0, "contains": 1.0}, passed=False),
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
        assert scores == [
            Score(1.0, {"maybe": None, "exact_match": 1.0}, passed=True),
            Score(7.0, {"maybe": 2.0, "exact_match": 1.0}, passed=True),
        ]
    with Scorer([Spec("maybe")], [file]) as scorer:
        with pytest.raises(RewardError, match="r:9"):
            scorer.score([ToScore("11", {"skip": True}, "r:9", False)])
        assert [p.where for p in scorer.try_rows([row({"skip": True}, 4), row({}, 5)])] == ["rows.jsonl:4"]


GIVES = """
from llmclick import REWARDS

def gives(name):
    @REWARDS.register(name)
    def reward(completion, row, params):
        if row[name] == "raise":
            raise ValueError("asked to")
        return row[name]

gives("one_gives")
gives("two_gives")
gives("three_gives")
"""


@pytest.fixture(scope="module")
def gives(tmp_path_factory):
    """Rewards that return what the row says under their name."""
    return write(tmp_path_factory.mktemp("gives") / "gives_reward.py", GIVES)


def scored(file, specs, *values, truncated="score", cut=False):
    """Scores of completions to which the rewards give these values, one tuple for each completion."""
    names = [spec.name for spec in specs]
    items = [ToScore("", dict(zip(names, row, strict=True)), "r:1", cut) for row in values]
    with Scorer(specs, [file], truncated=truncated) as scorer:
        return scorer.score(items)


def test_a_completion_passes_when_every_reward_that_counts_does(gives):
    """Two rewards of weight 1: a total of 1 from one of them passes nothing; both at 1 pass, whatever their weights sum to; a
    penalty and a reward that is only logged decide nothing, and neither does one that does not apply."""
    two = [Spec("one_gives"), Spec("two_gives")]
    assert [(s.total, s.passed) for s in scored(gives, two, (1, 0), (1, 1), (1, 1 - 2e-6), (1, 1 - 1e-7))] == [
        (1.0, False),
        (2.0, True),
        (1.999998, False),
        (1.9999999, True),
    ]
    small = [Spec("one_gives", weight=0.5), Spec("two_gives", weight=0.4)]
    assert [(s.total, s.passed) for s in scored(gives, small, (1, 1), (1, 0))] == [(0.9, True), (0.5, False)]
    large = [Spec("one_gives", weight=3.0)]
    assert [(s.total, s.passed) for s in scored(gives, large, (0.5,), (1,))] == [(1.5, False), (3.0, True)]
    aside = [Spec("one_gives"), Spec("two_gives", weight=-2.0), Spec("three_gives", weight=0.0)]
    assert [(s.total, s.passed) for s in scored(gives, aside, (1, 1, 0), (0, 0, 1), (1, None, None))] == [
        (-1.0, True),
        (0.0, False),
        (1.0, True),
    ]


def test_nothing_passes_without_a_reward_that_says_so(gives):
    """Where no reward with a positive weight applies, or one failed that has, the completion does not pass; nor does one that
    was cut under `truncated: zero`, while `score` and `mask` judge it by what it says."""
    penalised = [Spec("one_gives"), Spec("two_gives", weight=-1.0)]
    assert [s.passed for s in scored(gives, penalised, (None, 0), (None, 1))] == [False, False]
    assert [s.passed for s in scored(gives, [Spec("two_gives", weight=-1.0)], (0,), (1,))] == [False, False]
    low = [Spec("one_gives", pass_at=-1.0, on_error="zero")]
    assert [(s.total, s.passed) for s in scored(gives, low, ("raise",), (0,))] == [(0.0, False), (0.0, True)]
    for mode, passed in (("score", True), ("mask", True), ("zero", False)):
        assert [s.passed for s in scored(gives, [Spec("one_gives")], (1,), truncated=mode, cut=True)] == [passed]


def test_a_reward_passes_at_its_own_mark(gives):
    """`pass_at: 0.8` is met by 0.8 and by 0.7 + 0.1, which is 0.7999999999999999, not by 0.79; a mark of 5 is met by 5."""
    specs = [Spec("one_gives", pass_at=0.8), Spec("two_gives", pass_at=5.0)]
    values = [(0.8, 5), (0.7 + 0.1, 5), (0.79, 5), (0.8, 4.99)]
    assert [s.passed for s in scored(gives, specs, *values)] == [True, True, False, False]


def test_equal_totals_are_equal(gives):
    """Weights .1, .2 and .3: 1, 1, 0 and 0, 0, 1 both total 0.3, not 0.30000000000000004; 0.1 + 0.2 as a value is 0.3; a third
    three times is 1; large totals that differ in the 15th digit are one; what differs by 1e-6 stays apart."""
    specs = [Spec("one_gives", weight=0.1), Spec("two_gives", weight=0.2), Spec("three_gives", weight=0.3)]
    assert [s.total for s in scored(gives, specs, (1, 1, 0), (0, 0, 1))] == [0.3, 0.3]
    assert [s.total for s in scored(gives, [Spec("one_gives")], (0.1 + 0.2,), (0.3,), (0.300001,))] == [0.3, 0.3, 0.300001]
    thirds = [Spec("one_gives"), Spec("two_gives"), Spec("three_gives")]
    assert [s.total for s in scored(gives, thirds, (1 / 3, 1 / 3, 1 / 3), (1, 0, 0))] == [1.0, 1.0]
    large = [s.total for s in scored(gives, [Spec("one_gives")], (1e9 / 3,), (1e9 / 3 * (1 + 4e-16),))]
    assert large[0] == large[1]


def test_a_mark_that_a_shipped_reward_cannot_miss_or_reach_is_refused():
    """Shipped rewards give 0 to 1: `pass_at: 1.5` would never pass and `pass_at: 0` always."""
    assert check_specs([Spec("exact_match", pass_at=0.5)], str) == []
    for mark in (1.5, 0.0):
        (problem,) = check_specs([Spec("exact_match", pass_at=mark)], str)
        assert problem.key == "method.reward.pass_at"
        assert problem.given == f"{mark:g}"
