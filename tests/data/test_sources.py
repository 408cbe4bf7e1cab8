import datetime
import decimal
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from llmclick.config.sources import HuggingFace, LocalJsonl, ReasoningGym
from llmclick.data.rows import identify
from llmclick.data.sources import read_source, read_sources
from llmclick.data.tables import json_value

COMMIT = "740312add88f781978c0658806c59bc2815b9866"


def write(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def local(path: Path, **keys: object) -> LocalJsonl:
    return LocalJsonl(name="local_jsonl", path=path, **keys)


def test_limit_comes_before_everything(tmp_path: Path) -> None:
    """`limit: 2` is the first two rows; a third that could not be used is not looked at."""
    path = write(tmp_path / "r.jsonl", [{"question": "a"}, {"question": "b"}, {"nothing": 1}])
    read = read_source(local(path, limit=2, fields={"prompt": "question"}), "c.yaml:3")
    assert read.problems == []
    assert [data for data, _ in read.pairs] == [{"prompt": "a"}, {"prompt": "b"}]


def test_sources_follow_one_another_and_count_equal_rows_together(tmp_path: Path) -> None:
    """Two sources are concatenated in the config's order; a row that is in both has ordinals 0 and 1."""
    one = write(tmp_path / "1.jsonl", [{"prompt": "a"}, {"prompt": "b"}])
    two = write(tmp_path / "2.jsonl", [{"prompt": "c"}, {"prompt": "a"}])
    rows, problems = read_sources([local(one), local(two)], lambda n: f"c.yaml:{n}")
    assert problems == []
    assert [row.data["prompt"] for row in rows] == ["a", "b", "c", "a"]
    assert rows[3].id == rows[0].id[:-1] + "1"
    assert rows[3].where == f"{two}:2"


def test_all_problems_of_all_sources_are_collected(tmp_path: Path) -> None:
    """A missing file and two bad rows of another are one report."""
    path = write(tmp_path / "r.jsonl", [{"prompt": ""}, {"prompt": "ok"}, {"answer": 1}])
    rows, problems = read_sources([local(tmp_path / "gone.jsonl"), local(path)], lambda n: f"c.yaml:{n + 10}")
    assert [problem.where for problem in problems] == ["c.yaml:10", f"{path}:1", f"{path}:3"]
    assert len(rows) == 1


def test_a_missing_file_shows_where_it_looked_and_what_is_near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the absolute path and the name that was probably meant."""
    write(tmp_path / "samples" / "llm_grpo.jsonl", [{"prompt": "a"}])
    monkeypatch.chdir(tmp_path)
    problem = read_source(local(Path("samples/llm_grp.jsonl")), "c.yaml:9").problems[0]
    assert problem.where == "c.yaml:9"
    assert problem.given == str(tmp_path / "samples" / "llm_grp.jsonl")
    assert "llm_grpo.jsonl" in problem.why
    assert "folder" in read_source(local(Path("samples")), "c.yaml:9").problems[0].why
    assert read_source(local(Path("nowhere/x.jsonl")), "c.yaml:9").problems[0].given == str(tmp_path / "nowhere" / "x.jsonl")


@pytest.mark.parametrize("raw", [b"", b"\n\n \r\n", b"\xef\xbb\xbf"])
def test_an_empty_file_says_so(tmp_path: Path, raw: bytes) -> None:
    """A file without a row is an error that says exactly that."""
    (tmp_path / "e.jsonl").write_bytes(raw)
    assert read_source(local(tmp_path / "e.jsonl"), "c:1").problems[0].why == "the file has no rows"


ROWS = [{"question": "1+1?", "answer": "2", "n": 1}, {"question": "2+2?", "answer": "4", "n": 2}]


def folder_with(tmp_path: Path, kind: str) -> Path:
    folder = tmp_path / kind
    folder.mkdir()
    if kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(ROWS), folder / "train.parquet")
    elif kind == "csv":
        (folder / "train.csv").write_text('question,answer,n\n1+1?,"2",1\n2+2?,"4",2\n')
    elif kind == "json":
        (folder / "train.json").write_text(json.dumps(ROWS))
    else:
        write(folder / "train.jsonl", ROWS)
    return folder


@pytest.mark.parametrize("kind", ["parquet", "json", "jsonl", "csv"])
def test_a_local_folder_gives_the_same_rows_in_every_format(tmp_path: Path, kind: str) -> None:
    """Parquet, JSON and JSONL give the rows as written; a CSV's digits are numbers, because it has no types. A row's place is
    its line, and in Parquet and a JSON list its number."""
    folder = folder_with(tmp_path, kind)
    spec = HuggingFace(name="huggingface", dataset=str(folder), fields={"prompt": "question"})
    read = read_source(spec, "c:1")
    assert read.problems == []
    answers = [2, 4] if kind == "csv" else ["2", "4"]
    expected = [{"answer": a, "n": n, "prompt": p} for a, n, p in zip(answers, [1, 2], ["1+1?", "2+2?"], strict=True)]
    assert [data for data, _ in read.pairs] == expected
    assert [where for _, where in read.pairs] == [f"{folder}/train.{kind}:{n}" for n in ((2, 3) if kind == "csv" else (1, 2))]


def test_a_changed_folder_is_read_again(tmp_path: Path) -> None:
    """No copy of the library's own stands between the files and the rows."""
    folder = folder_with(tmp_path, "jsonl")
    spec = HuggingFace(name="huggingface", dataset=str(folder), fields={"prompt": "question"})
    assert len(read_source(spec, "c:1").pairs) == 2
    write(folder / "train.jsonl", ROWS[:1])
    assert len(read_source(spec, "c:1").pairs) == 1


def test_a_missing_split_or_subset_lists_what_there_is(tmp_path: Path) -> None:
    """A wrong split names the splits, a wrong subset the subsets, each with the nearest to write."""
    folder = folder_with(tmp_path, "jsonl")
    write(folder / "test.jsonl", ROWS)
    problem = read_source(HuggingFace(name="huggingface", dataset=str(folder), split="tests"), "c:1").problems[0]
    assert problem.key == "split"
    assert "test, train" in problem.why
    assert problem.write == "split: test"
    problem = read_source(HuggingFace(name="huggingface", dataset=str(folder), subset="main"), "c:1").problems[0]
    assert problem.key == "subset"
    assert "default" in problem.why


def test_folders_without_data_are_named(tmp_path: Path) -> None:
    """A folder that is not there and one without data files are two different sentences."""
    gone = read_source(HuggingFace(name="huggingface", dataset=str(tmp_path / "gone")), "c:1").problems[0]
    assert "no such folder" in gone.why
    empty = read_source(HuggingFace(name="huggingface", dataset=str(tmp_path)), "c:1").problems[0]
    assert "no file that ends in" in empty.why


def test_an_unreachable_hub_is_one_sentence() -> None:
    """Offline and not in the cache: what was asked for and what to write, without a traceback."""
    spec = HuggingFace(name="huggingface", dataset="openai/gsm8k", subset="main", revision=COMMIT)
    problems = read_source(spec, "c:4").problems
    assert len(problems) == 1
    assert problems[0].where == "c:4"
    assert problems[0].given == f"openai/gsm8k at {COMMIT}"
    assert "HF_HUB_OFFLINE" in problems[0].why
    assert "local folder" in problems[0].write


def test_a_hub_dataset_is_read_from_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the Hub gives for the pinned commit is read as a local folder, subset from its card included."""
    folder = folder_with(tmp_path, "jsonl")
    (folder / "main").mkdir()
    (folder / "train.jsonl").rename(folder / "main" / "train.jsonl")
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/*\n---\n"
    )
    asked = []

    def snapshot_download(name: str, **keys: object) -> str:
        asked.append((name, keys["repo_type"], keys["revision"]))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    spec = HuggingFace(
        name="huggingface", dataset="openai/gsm8k", subset="main", revision=COMMIT, fields={"prompt": "question"}
    )
    read = read_source(spec, "c:1")
    assert read.problems == []
    assert asked == [("openai/gsm8k", "dataset", COMMIT)]
    assert [where for _, where in read.pairs] == ["openai/gsm8k/main/train.jsonl:1", "openai/gsm8k/main/train.jsonl:2"]


def test_values_become_json_values() -> None:
    """numpy, dates, decimals, bytes of text and NaN have a JSON form; other bytes, infinities and objects name the column."""
    assert json_value(np.int64(3), "c") == 3
    assert json_value(np.array([[1.5, 2.0]]), "c") == [[1.5, 2.0]]
    assert json_value(np.datetime64("2026-01-02"), "c") == "2026-01-02"
    assert json_value(datetime.datetime(2026, 1, 2, 3, 4), "c") == "2026-01-02T03:04:00"
    assert json_value(decimal.Decimal("12.50"), "c") == "12.50"
    assert json_value(b"text", "c") == "text"
    assert json_value(float("nan"), "c") is None
    assert json_value({"a": (1, {"b": np.float32(0.5)})}, "c") == {"a": [1, {"b": 0.5}]}
    for value in (b"\xff\xfe\x00", float("inf"), object()):
        with pytest.raises(ValueError, match="'pixels'"):
            json_value(value, "pixels")


def test_reasoning_gym_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """question becomes prompt, metadata becomes JSON values without the task's number, `limit` is respected, an unknown task
    names the nearest."""

    class Tasks:
        def __init__(self, **options: object) -> None:
            self.options = options

        def __getitem__(self, n: int) -> dict:
            return {"question": f"{n}+1?", "answer": n + 1, "metadata": {"pair": (n, 1), "source_index": n, **self.options}}

    gym = types.ModuleType("reasoning_gym")
    gym.create_dataset = lambda task, **options: Tasks(**options)  # type: ignore[attr-defined]
    factory = types.ModuleType("reasoning_gym.factory")
    factory.DATASETS = {"chain_sum": None, "gcd": None}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "reasoning_gym", gym)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", factory)
    spec = ReasoningGym(name="reasoning_gym", task="chain_sum", size=5, seed=3, limit=2, config={"max_terms": 2})
    read = read_source(spec, "c:1")
    assert read.problems == []
    metadata = {"pair": [1, 1], "size": 5, "seed": 3, "max_terms": 2}
    expected = {"prompt": "1+1?", "answer": 2, "metadata": metadata, "task": "chain_sum"}
    assert len(read.pairs) == 2
    assert read.pairs[1] == (expected, "reasoning_gym/chain_sum:2")
    problem = read_source(ReasoningGym(name="reasoning_gym", task="chain_sun"), "c:1").problems[0]
    assert problem.write == "task: chain_sum"


def test_equal_tasks_are_equal_rows() -> None:
    """Of 400 sums of two digits many repeat; each of them is the same row again, not a prompt with two answers."""
    pytest.importorskip("reasoning_gym")
    small = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    spec = ReasoningGym(name="reasoning_gym", task="chain_sum", size=400, seed=1, config=small)
    pairs = read_source(spec, "c:1").pairs
    rows = identify(pairs)
    assert len({row.id.partition("-")[0] for row in rows}) == len({data["prompt"] for data, _ in pairs}) < 250


def test_reasoning_gym_absent_says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package the message is how to get it."""
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    problem = read_source(ReasoningGym(name="reasoning_gym", task="chain_sum"), "c:1").problems[0]
    assert "--extra reasoning-gym" in problem.write
