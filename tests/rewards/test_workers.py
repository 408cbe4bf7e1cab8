"""Rewards in workers: whatever a user's function does, the run goes on or stops as documented."""

import os
import subprocess
import sys
import time

import pytest

from llmclick.data.rows import Row
from llmclick.errors import InputError, RewardError
from llmclick.rewards.scoring import Scorer, ToScore
from tests.rewards.specs import Spec, write
from tests.waiting import LIMIT, busy, until

REWARDS_FILE = """
import ctypes, os, random, signal, subprocess, sys, threading, time
from llmclick import REWARDS

calls = 0

@REWARDS.register("odd")
def odd(completion, row, params):
    "Does what the completion says."
    global calls
    calls += 1
    word = completion.split(":")[0]
    if word == "sleep":
        time.sleep(1000)
    if word == "exit":
        os._exit(0)
    if word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "segfault":
        ctypes.string_at(0)
    if word == "allocate":
        held = []
        while True:
            held.append(bytearray(b"x") * 10**8)
    if word == "nan":
        return float("nan")
    if word == "raise":
        return row["question"]
    if word == "sys.exit":
        sys.exit(3)
    if word == "text":
        return "1.0"
    if word == "list":
        return [1.0, 0.0]
    if word == "complex":
        return 1j
    if word == "huge":
        return 10**400
    if word == "true":
        return True
    if word == "numpy":
        import numpy
        return numpy.float32(0.5)
    if word == "fork":
        if os.fork() == 0:
            return 0.0
        return 1.0
    if word == "child":
        subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
    if word == "print":
        print("printed by a reward", flush=True)
        sys.stderr.write("and on stderr")
        os.write(1, b"straight to 1")
    if word == "read":
        return float(sys.stdin.read() == "")
    if word == "alarm":
        signal.alarm(1)
    if word == "wait":
        time.sleep(1.3)
    if word == "thread":
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        return float(threading.current_thread() is threading.main_thread())
    if word == "random":
        return random.random()
    if word == "reseed":
        random.seed(0)
    if word == "row":
        row["answer"] = "changed"
        row["list"].append(1)
        return float(len(row["list"]))
    if word == "length":
        return len(completion)
    if word == "pid":
        return os.getpid()
    if word == "loop":
        if marker := completion.partition(":")[2]:
            open(marker, "w").close()
        while True:
            pass
    return 0.25
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write(tmp_path_factory.mktemp("odd") / "odd_reward.py", REWARDS_FILE)


@pytest.fixture
def said():
    return []


@pytest.fixture
def scorer(file, said, tmp_path):
    with Scorer([Spec("odd", timeout=1.5)], [file], log=tmp_path / "run.log", notify=said.append) as scorer:
        scorer.score([to_score("warm up")])
        yield scorer


@pytest.fixture
def patient(file, said, tmp_path):
    """For calls that all return: how long one takes is the machine's affair."""
    with Scorer([Spec("odd", timeout=LIMIT)], [file], log=tmp_path / "run.log", notify=said.append) as scorer:
        yield scorer


def to_score(text, line=1, **data):
    return ToScore(text, {"answer": "11", "list": [], **data}, f"rows.jsonl:{line}", False)


def batch(text, size=40, at=36):
    """`size` harmless completions, one of them `text`."""
    return [to_score(text if number == at else f"fine:{number}", number) for number in range(size)]


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("sleep", "timeout"),
        ("loop", "timeout"),
        ("exit", "died"),
        ("kill", "died"),
        ("segfault", "died"),
        ("allocate", "memory"),
    ],
)
def test_a_call_that_hangs_or_crashes_scores_0_for_that_completion_alone(scorer, said, word, kind):
    """One completion of 40 scores 0 and is counted by kind, one line is told, all others keep their score, within the timeout
    plus 2 s: in one of three tries, since a moment without a core only adds to what is measured."""
    for _ in range(3):
        said.clear()
        start = time.monotonic()
        scores = scorer.score(batch(word, at=4))  # others wait behind it in the same worker
        seconds = time.monotonic() - start
        if word == "allocate" or seconds < 1.5 + 2 + 2 * busy():  # how fast memory fills is the machine's
            break
    else:
        pytest.fail(f"{seconds:.1f} s")
    kinds = {kind} if word != "allocate" else {"memory", "timeout", "died"}
    assert set(scores[4].failures) <= kinds
    assert sum(scores[4].failures.values()) == 1
    assert scores[4].total == 0.0
    assert [score.total for number, score in enumerate(scores) if number != 4] == [0.25] * 39
    assert len(said) == 1
    assert "odd" in said[0]
    assert "rows.jsonl:4:" in said[0]


def dying(count, size):
    """`size` completions, the first `count` of which end their worker."""
    return [to_score("exit" if number < count else "fine") for number in range(size)]


def test_more_than_a_twentieth_of_the_last_hundred_failing_stops_the_run(file):
    """2 of the first 40 are 5 % and go on, and 2 more of the next 40 make 4 of 80, again 5 %; of the next 40 the second one is
    the 6th of a hundred in a row, which stops."""
    with Scorer([Spec("odd", timeout=5)], [file]) as scorer:
        assert [bool(score.failures) for score in scorer.score(dying(2, 40))] == [True] * 2 + [False] * 38
        scorer.score(dying(2, 40))
        with pytest.raises(RewardError, match="6 of the last 100 completions") as caught:
            scorer.score(dying(2, 40))
    assert "odd" in str(caught.value)


def test_failures_far_apart_are_not_added_up(file):
    """Five in every hundred completions are 5 %, however many hundreds there are: the window slides."""
    with Scorer([Spec("odd", timeout=5)], [file]) as scorer:
        scores = [score for _ in range(3) for score in scorer.score([*dying(5, 5 + 15), *dying(0, 80)])]
    assert sum(bool(score.failures) for score in scores) == 15


def test_one_failure_in_a_small_batch_is_tolerated(file):
    """One of the first 16, the page's own batch, goes on: 5 % of so few is less than one. A second one stops, and a scorer made
    anew, as a resumed run makes it, goes past the completion that stopped the last one."""
    with Scorer([Spec("odd", timeout=5)], [file]) as scorer:
        assert sum(bool(score.failures) for score in scorer.score(dying(1, 16))) == 1
        with pytest.raises(RewardError, match="2 of the last 32 completions"):
            scorer.score(dying(1, 16))
    with Scorer([Spec("odd", timeout=5)], [file]) as resumed:
        assert sum(bool(score.failures) for score in resumed.score(dying(1, 16))) == 1
        with pytest.raises(RewardError, match="2 of the last 17 completions"):
            resumed.score(dying(1, 1))


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("nan", "nan"),
        ("raise", "KeyError"),
        ("sys.exit", "SystemExit"),
        ("text", "returned str"),
        ("list", "returned list with 2 items"),
        ("complex", "returned complex"),
        ("huge", "returned inf"),
    ],
)
def test_a_wrong_value_or_an_exception_stops_with_reward_row_and_completion(patient, word, words):
    """The error has exit code 2 and names reward, row and completion, for an exception with the user's own traceback alone."""
    with pytest.raises(RewardError) as caught:
        patient.score(batch(f"{word}:at the 37th call"))
    text = str(caught.value)
    assert caught.value.exit_code == 2
    assert all(part in text for part in (words, "odd", "rows.jsonl:36", "at the 37th call"))
    if word == "raise":
        assert 'return row["question"]' in text
        assert "odd_reward.py" in text
        assert "calls.py" not in text
        assert "worker.py" not in text


def test_on_error_zero_scores_0_and_counts(file):
    """With `on_error: zero` an exception scores 0 and is counted as an error; it does not count towards the 5 %."""
    with Scorer([Spec("odd", on_error="zero")], [file]) as scorer:
        scores = scorer.score([to_score("raise"), to_score("nan"), to_score("fine")])
    assert [score.total for score in scores] == [0.0, 0.0, 0.25]
    assert [score.failures for score in scores] == [{"error": 1}, {"error": 1}, {}]


def test_true_and_numbers_of_numpy_are_numbers(patient):
    """bool is 0 or 1, a numpy scalar its value."""
    assert [score.total for score in patient.score([to_score("true"), to_score("numpy")])] == [1.0, 0.5]


def test_prints_and_children_go_to_the_run_log(patient, tmp_path, capfd):
    """What a reward prints, on any descriptor and from a child process, is in run.log and nowhere else; stdin is empty."""
    scores = patient.score([to_score("print"), to_score("child"), to_score("read")])
    assert [score.total for score in scores] == [0.25, 0.25, 1.0]
    log = (tmp_path / "run.log").read_text()
    assert all(text in log for text in ("printed by a reward", "and on stderr", "straight to 1", "from a child"))
    assert capfd.readouterr() == ("", "")


def test_forks_threads_and_alarms_disturb_no_later_call(patient):
    """A reward that forks and returns twice, leaves a thread or an alarm behind: each call still has one answer, its own."""
    words = ["fork", "length:1", "thread", "alarm", "wait", "length:22", "fine"]
    scores = patient.score([to_score(word) for word in words])
    assert [score.total for score in scores] == [1.0, 8.0, 1.0, 0.25, 0.25, 9.0, 0.25]


def test_random_numbers_belong_to_the_completion(patient):
    """A reward that draws random numbers gives the same for the same completion, whatever was drawn or seeded in between, and
    leaves the run's own random state alone."""
    import random

    before = random.getstate()
    texts = ["random:a", "random:b", "reseed", "random:a", "random:b"]
    a, b, _, again_a, again_b = (score.total for score in patient.score([to_score(text) for text in texts]))
    assert (a, b) == (again_a, again_b)
    assert a != b
    assert random.getstate() == before


def test_every_call_has_a_fresh_row(patient):
    """A reward that changes its row changes nobody else's."""
    item = to_score("row")
    assert [score.total for score in patient.score([item] * 3)] == [1.0, 1.0, 1.0]
    assert item.row == {"answer": "11", "list": []}


def test_any_text_passes_the_pipe_whole(patient):
    """Lone surrogates, NULs, line separators and 10^6 characters arrive as they were sent."""
    texts = ["length:\ud800\udfff\x00\n\r\u2028\u0085", "length:" + "é" * 10**6, "length:" + "[" * 10**5]
    assert [score.total for score in patient.score([to_score(text) for text in texts])] == [float(len(text)) for text in texts]


def test_order_is_kept_over_many_calls_and_workers(patient):
    """2000 completions of different lengths come back in their order."""
    texts = ["length:" + "x" * number for number in range(2000)]
    assert [score.total for score in patient.score([to_score(text) for text in texts])] == [len(text) for text in texts]


def test_workers_end_with_the_scorer(patient):
    """After close no worker lives and none is a zombie; the next batch starts a new one."""
    first = int(patient.score([to_score("pid")])[0].total)
    patient.close()
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert int(patient.score([to_score("pid")])[0].total) != first


def test_workers_end_with_a_killed_run(file, tmp_path):
    """SIGKILL on the run ends its workers too, even one in an endless loop."""
    script = f"""
import sys
from llmclick.rewards.scoring import Scorer, ToScore
from tests.rewards.specs import Spec
scorer = Scorer([Spec("odd", timeout=1000.0)], [{str(file)!r}])
print(int(scorer.score([ToScore("pid", {{}}, "r:1", False)])[0].total), flush=True)
scorer.score([ToScore("loop:{tmp_path / "looping"}", {{}}, "r:1", False)])
"""
    run = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    worker = int(run.stdout.readline())
    until((tmp_path / "looping").exists, "the loop is entered")
    assert alive(worker)
    run.kill()
    run.wait()
    run.stdout.close()
    until(lambda: not alive(worker), "the worker ends")


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_catastrophic_pattern_is_cut_off(said):
    """A pattern with nested repetition on a long completion ends at the timeout; other completions keep their score."""
    items = [ToScore("word " * 40 if number == 5 else "a:", {}, f"r:{number}", False) for number in range(30)]
    with Scorer([Spec("regex", {"pattern": r"(\w+\s?)+:", "match": "full"}, timeout=1.0)], notify=said.append) as scorer:
        scores = scorer.score(items)
    assert scores[5].failures == {"timeout": 1}
    assert [score.total for score in scores] == [0.0 if number == 5 else 1.0 for number in range(30)]


def test_the_trial_refuses_rows_on_which_a_reward_raises_or_hangs(file):
    """Before training each row is tried: a reward that reads a missing key or hangs refuses the row with its line."""
    own = write(
        file.parent / "trial_reward.py",
        """
        import time
        from llmclick import REWARDS

        @REWARDS.register("tried", right=lambda row, params: row["gold"])
        def tried(completion, row, params):
            if row["gold"] == "hang":
                time.sleep(100)
            return float(completion == row["gold"] and completion != "never")
        """,
    )
    data = [{"gold": "a"}, {"answer": "a"}, {"gold": "hang"}, {"gold": "never"}]
    rows = [Row(item, f"r:{number}", str(number)) for number, item in enumerate(data)]
    with Scorer([Spec("tried", timeout=2.0)], [own]) as scorer:
        problems = scorer.try_rows(rows)
    assert [problem.where for problem in problems] == ["r:1", "r:1", "r:2", "r:2", "r:3"]
    assert "KeyError: 'gold'" in problems[0].why
    assert "over 2 s" in problems[2].why
    assert "scores 0.0" in problems[4].why


def test_a_reward_defined_outside_of_any_file_is_refused():
    """A reward typed into an interactive session cannot run in a worker, and is told so."""
    from llmclick import REWARDS

    scope = {"REWARDS": REWARDS}
    exec("@REWARDS.register('typed_in')\ndef typed_in(completion, row, params): return 1.0", scope)
    with pytest.raises(InputError, match="outside of any file"):
        Scorer([Spec("typed_in")])


def test_cheap_rewards_cost_little(patient):
    """A call of a cheap user reward costs well under a millisecond of this process and its workers together."""
    items = [to_score("fine and short") for _ in range(2000)]
    patient.score(items)
    start = time.process_time()
    patient.score(items)
    assert (time.process_time() - start) / len(items) < 0.2e-3
