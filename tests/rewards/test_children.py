"""Rewards that start processes of their own: children find the user's file, and what they say is not lost."""

import sys
import time
from pathlib import Path

import pytest

from llmclick.errors import RewardError
from llmclick.rewards.calls import Outcome
from llmclick.rewards.scoring import Scorer, ToScore
from tests.rewards.specs import Spec, write

FILE = """
import multiprocessing, os, sys, time
from llmclick import REWARDS
from helper_of_children import twice

def grade(text):
    return float(len(text))

def put(queue, text):
    queue.put(grade(text))

def fail(text):
    raise KeyError(f"no grade for {text}")

class Point:
    def __init__(self, x):
        self.x = x

def point(x):
    return Point(x + 1)

def pipes(_):
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            pass
    return found

@REWARDS.register("children")
def children(completion, row, params):
    context = multiprocessing.get_context(row["method"])
    if completion.startswith("process"):
        queue = context.Queue()
        child = context.Process(target=put, args=(queue, completion))
        child.start()
        value = queue.get()
        child.join()
        return value
    if completion == "words":
        context.Process(target=fail, args=("x",)).start()
        time.sleep(60)
    if completion == "words and raise":
        child = context.Process(target=fail, args=("x",))
        child.start()
        child.join()
        raise ValueError("no value")
    if completion == "words and die":
        print("the last thing it said", file=sys.stderr, flush=True)
        os._exit(3)
    if completion == "noise":
        sys.stderr.write("x" * 1_000_000)
        return 1.0
    with context.Pool(1) as pool:
        if completion == "helper":
            return pool.map(twice, [0.25])[0]
        if completion == "object":
            return pool.map(point, [0.5])[0].x
        if completion == "pipes":
            mine = {os.readlink(f"/proc/self/fd/{fd}") for fd in sys.argv[1:3]}
            return float(bool(mine & pool.map(pipes, [0])[0]))
        return pool.map(grade, [completion])[0]
"""

METHODS = ["spawn", "forkserver"] if sys.platform != "win32" else ["spawn"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("children")
    write(folder / "helper_of_children.py", "def twice(x):\n    return 2 * x\n")
    return write(folder / "children_reward.py", FILE)


def item(text, method="spawn"):
    return ToScore(text, {"method": method}, "rows.jsonl:1", False)


@pytest.mark.parametrize("method", METHODS)
def test_children_that_start_empty_find_the_users_functions(file, method):
    """A pool and a process by `spawn` and `forkserver` (what macOS and Python 3.14 use) call functions and make objects of the
    user's file, and functions of a file beside it, as in the worker itself; the worker's pipe is not theirs."""
    texts = ["four", "process", "helper", "object"]
    with Scorer([Spec("children", timeout=60)], [file]) as scorer:
        scores = [score.total for score in scorer.score([item(text, method) for text in texts])]
        assert scores == [4.0, 7.0, 0.5, 1.5]
        if sys.platform == "linux":
            assert scorer.score([item("pipes", method)])[0].total == 0.0


@pytest.mark.parametrize("text", ["words", "words and raise", "words and die"])
def test_what_was_written_on_stderr_is_shown_with_a_failure(file, text):
    """A call that takes too long, raises or ends its worker is told with the end of what it or its child wrote there: here the
    child's own error, without which nobody would know why."""
    with Scorer([Spec("children", timeout=4)], [file]) as scorer, pytest.raises(RewardError) as caught:
        scorer.score([item(text), item(text)])  # one such failure is tolerated
    said = "the last thing it said" if text.endswith("die") else "KeyError: 'no grade for x'"
    assert said in str(caught.value)


def test_the_notice_of_a_contained_failure_is_one_line_with_the_last_words(file):
    """In a batch where one call fails so, the run goes on after one line that ends with what was written last."""
    said = []
    with Scorer([Spec("children", timeout=30)], [file], notify=said.append) as scorer:
        scorer.score([item("words and die"), *[item("noise") for _ in range(30)]])
    (notice,) = said
    assert notice.count("\n") == 0
    assert "ended with exit code 3; the end of its standard error: the last thing it said; this completion" in notice
    assert Outcome(detail="it took over 2 s").brief == "it took over 2 s"


def test_standard_error_goes_to_the_log_whole(file, tmp_path):
    """A megabyte on standard error neither blocks the worker nor loses a byte on its way to run.log."""
    log = tmp_path / "run.log"
    with Scorer([Spec("children", timeout=30)], [file], log=log) as scorer:
        assert scorer.score([item("noise"), item("noise")])[1].total == 1.0
    assert log.read_bytes().count(b"x") == 2_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_child_outlives_the_scorer(file):
    """What a reward started, and the fork server behind it, end with their worker."""
    with Scorer([Spec("children", timeout=60)], [file]) as scorer:
        scorer.score([item("four", "forkserver")])
        (worker,) = scorer._pool._workers
        group = worker.process.pid
        assert len(_members(group)) > 1
    ended = time.monotonic() + 5
    while _members(group) and time.monotonic() < ended:
        time.sleep(0.05)
    assert not _members(group), "a process of the worker's group is still there"


def _members(group):
    found = []
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(folder.name))
    return found
