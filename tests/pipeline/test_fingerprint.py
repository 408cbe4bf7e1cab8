import hashlib

from llmclick.pipeline.fingerprint import code_hash, differences, fingerprint, tree_text


def test_fingerprint_is_canonical() -> None:
    """SHA-256 of the canonical JSON: the order of keys does not count."""
    assert fingerprint({"b": 1, "a": [None]}) == hashlib.sha256(b'{"a":[null],"b":1}').hexdigest()


def test_comments_and_docstrings_do_not_retrain() -> None:
    """Comments, layout, docstrings and quotes are not code; a number is."""
    one = 'def f(x):\n    """Doc."""\n    return x + 1\n'
    same = "# Note.\ndef f( x ):\n\n    return (x + 1)  # why\n"
    assert tree_text(one) == tree_text(same)
    assert tree_text(one) != tree_text(one.replace("1", "2"))
    assert tree_text('x = """text"""\n') != tree_text("x = ''\n")


def test_the_method_code_is_covered(monkeypatch: object) -> None:
    """The hash covers files in folders below modeling/llm, and a single file alone differs from the whole."""
    whole = code_hash("modeling/llm")
    assert len(whole) == 64
    assert whole != code_hash("modeling/llm/methods")
    assert code_hash("no/such.py") == hashlib.sha256(b"").hexdigest()


def test_differences_are_named() -> None:
    """Values are shown, hashes are only said to have changed, rows are counted."""
    rows = {"count": 20, "sha256": "a" * 64}
    before = {"rows": rows, "tokenizer": "a" * 64, "lr": 1e-6, "gain": {"reward": 0.1}, "gone": 1}
    after = {"rows": {"count": 21, "sha256": "b" * 64}, "tokenizer": "b" * 64, "lr": 2e-6, "gain": {"reward": 0.2}, "new": None}
    assert differences(before, after) == [
        "rows 20 -> 21",
        "tokenizer changed",
        "lr 1e-06 -> 2e-06",
        "gain: reward 0.1 -> 0.2",
        "gone 1 -> none",
    ]
    assert differences(before, before) == []
    assert differences({"rows": rows}, {"rows": {"count": 20, "sha256": "c" * 64}}) == ["contents of the 20 rows"]
