"""What ends a completion: the model's files, the chat template's end of turn, and method.stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmclick.errors import InputError
from llmclick.modeling.llm.models.base import load_tokenizer
from llmclick.modeling.llm.models.stops import Stops, find_stops, turn_end
from tests.tiny import CHATML, load_tiny, source_of, tiny_dense, write_json


def says_endoftext(folder: Path, template: str = CHATML) -> Path:
    """A checkpoint whose every file calls <|endoftext|> (0) the end, while its template closes a turn in its own way."""
    tiny_dense(folder)
    for name in ("config.json", "generation_config.json"):
        content = json.loads((folder / name).read_text())
        write_json(folder / name, {**content, "eos_token_id": 0})
    content = json.loads((folder / "tokenizer_config.json").read_text())
    write_json(folder / "tokenizer_config.json", {**content, "eos_token": "<|endoftext|>"})
    (folder / "chat_template.jinja").write_text(template)
    return folder


def stops_of(folder: Path, stop: tuple[int | str, ...] = (), **keys: Any) -> Stops:
    source = source_of(folder)
    return find_stops(source, load_tokenizer(source), stop=stop, **keys)


def test_the_templates_end_of_turn_is_a_stop_id(tmp_path: Path) -> None:
    """Everything says <|endoftext|>, the template closes with <|im_end|>: both end a completion, and one sentence says so."""
    folder = says_endoftext(tmp_path)
    found = stops_of(folder)
    assert found.ids == (0, 2)
    assert len(found.notices) == 1
    assert "<|im_end|> (id 2)" in found.notices[0]
    assert load_tiny(folder).stop_ids == (0, 2)


def test_an_end_of_turn_that_is_named_already_is_not_mentioned(tmp_path: Path) -> None:
    """The union is what it was, and there is nothing to say."""
    assert stops_of(tiny_dense(tmp_path)) == Stops((0, 2), ())


@pytest.mark.parametrize(
    ("template", "text", "token"),
    [
        (CHATML, "<|im_end|>", 2),
        ("{% for m in messages %}{{ m['role'] + ': ' + m['content'] + ' <|endoftext|>' }}{% endfor %}", "<|endoftext|>", 0),
        (
            "{% for m in messages %}{{ m['content'] }}{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}",
            "<|im_end|>",
            2,
        ),
        ("{% for m in messages %}{{ '### ' + m['role'] + m['content'] + '\\n### End' }}{% endfor %}", "### End", None),
    ],
)
def test_what_closes_a_turn(tmp_path: Path, template: str, text: str, token: int | None) -> None:
    """The token right behind the assistant's words, past white space; a text that is no token is told apart."""
    tokenizer = load_tokenizer(source_of(tiny_dense(tmp_path)))
    tokenizer.chat_template = template
    end = turn_end(tokenizer)
    assert end is not None
    assert (end.text, end.id) == (text, token)


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m['content'] }}{% endfor %}",
        "{{ raise_exception('no assistant') }}",
        "{{ messages[0]['content'] }}",
        None,
    ],
)
def test_an_end_that_cannot_be_seen_adds_nothing(tmp_path: Path, template: str | None) -> None:
    """A template that writes nothing behind a turn, refuses or leaves out the assistant's, and a base model's tokenizer."""
    tokenizer = load_tokenizer(source_of(tiny_dense(tmp_path)))
    tokenizer.chat_template = template
    assert turn_end(tokenizer) is None


def test_a_turn_closed_by_plain_text_is_said(tmp_path: Path) -> None:
    """No token ends it, so the sentence names the key that helps; with the key there is nothing to say."""
    template = "{% for m in messages %}{{ m['content'] + '\\n### End' }}{% endfor %}"
    folder = says_endoftext(tmp_path, template)
    (notice,) = stops_of(folder).notices
    assert '"### End"' in notice
    assert "method.stop" in notice
    assert stops_of(folder, ("<|im_start|>",)) == Stops((0, 1), ())


def test_method_stop_adds_tokens_by_text_and_by_id(tmp_path: Path) -> None:
    """A special token, one of the plain vocabulary whose form there is another than its text, and an id."""
    folder = tiny_dense(tmp_path)
    tokenizer = load_tokenizer(source_of(folder))
    (line_feed,) = tokenizer("\n", add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(line_feed) != "\n"
    assert stops_of(folder, ("<|im_start|>", "\n", 17)).ids == tuple(sorted({0, 1, 2, 17, line_feed}))
    from llmclick.modeling.llm.models.base import load_language_model

    assert load_language_model(source_of(folder), stop=("<|im_start|>", 17)).stop_ids == (0, 1, 2, 17)


def test_a_text_of_several_tokens_is_refused_with_its_line(tmp_path: Path) -> None:
    """Every bad item at once: what it falls into, and the ids that there are."""
    with pytest.raises(InputError) as caught:
        stops_of(tiny_dense(tmp_path), ("zq", "<|im_end|>", 999), where=lambda key: f"c.yaml:{key[-1]}")
    assert [(problem.where, problem.key) for problem in caught.value.problems] == [
        ("c.yaml:0", "method.stop.0"),
        ("c.yaml:2", "method.stop.2"),
    ]
    assert '"z", "q"' in caught.value.problems[0].why
    assert "0 to 319" in caught.value.problems[1].why
