import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from llmclick.data.prompts import Rendered, context_length, messages_of, render, render_chat
from llmclick.data.rows import Row, identify
from tests.tiny import CHATML, THINKING, train_tokenizer

NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>model\\n' }}{% endif %}"
)


def tokenizer(template: str | None = CHATML, bos: bool = False) -> PreTrainedTokenizerFast:
    backend = train_tokenizer(320)
    if bos:
        backend.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    extra = {"bos_token": "<|endoftext|>"} if bos else {}
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", **extra)
    made.chat_template = template
    return made


def rows(*prompts: Any, **more: Any) -> list[Row]:
    return identify((({"prompt": prompt, **more}, f"rows.jsonl:{n}") for n, prompt in enumerate(prompts, start=1)))


def rendered(some: list[Row], tok: PreTrainedTokenizerFast, **keys: Any) -> Rendered:
    return render(some, tok, **{"max_new_tokens": 8, "max_length": 1000, **keys})


def test_a_text_prompt_is_a_user_message_with_the_answers_header() -> None:
    """The text is the template's, generation prompt included, and the ids decode to it."""
    tok = tokenizer()
    prompt = rendered(rows("What is 9 plus 2?"), tok).prompts[0]
    assert prompt.text == "<|im_start|>user\nWhat is 9 plus 2?<|im_end|>\n<|im_start|>assistant\n"
    assert tok.decode(prompt.ids) == prompt.text


def test_ids_equal_apply_chat_templates_own() -> None:
    """Rendering and tokenising in two steps gives what transformers gives in one."""
    tok = tokenizer()
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    whole = tok.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)
    assert render_chat(tok, messages)[1] == whole["input_ids"]


def test_exactly_one_begin_token() -> None:
    """The template writes the begin token and the tokenizer, which adds one by itself elsewhere, does not add another."""
    tok = tokenizer("{{ bos_token }}" + CHATML, bos=True)
    assert tok("x")["input_ids"][0] == 0
    ids = rendered(rows([{"role": "user", "content": "2+2?"}]), tok).prompts[0].ids
    assert ids.count(0) == 1
    assert ids[0] == 0


def test_messages_and_text_parts_are_the_same_prompt() -> None:
    """A list of text parts is its joined text; text and one user message render alike."""
    parts = [{"role": "user", "content": [{"type": "text", "text": "2+"}, {"type": "text", "text": "2?"}]}]
    made = rendered(rows("2+2?", [{"role": "user", "content": "2+2?"}], parts), tokenizer()).prompts
    assert len({prompt.ids for prompt in made}) == 1
    assert len({prompt.row.id for prompt in made}) == 3


def test_system_goes_before_text_only() -> None:
    """data.system precedes text prompts; a row of messages keeps the messages it has."""
    text, messages = rows("2+2?", [{"role": "user", "content": "2+2?"}])
    assert [m["role"] for m in messages_of(text, "Be brief.")] == ["system", "user"]
    assert [m["role"] for m in messages_of(messages, "Be brief.")] == ["user"]


def test_a_refused_system_role_is_found_on_every_row_with_the_templates_words() -> None:
    """The template's own message, the first row, and how many more; text rows are fine without data.system."""
    with_system = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
    out = rendered(rows("fine", with_system, with_system, "fine"), tokenizer(NO_SYSTEM))
    assert len(out.prompts) == 2
    assert len(out.problems) == 1
    assert out.problems[0].where == "rows.jsonl:2"
    assert "System role not supported" in out.problems[0].why
    assert "rows.jsonl:3" in out.problems[0].why
    assert "data.system" in rendered(rows("a"), tokenizer(NO_SYSTEM), system="S").problems[0].write


def test_a_template_that_breaks_is_a_problem_of_its_row() -> None:
    """Any exception inside a template is the row's problem, not a traceback."""
    out = rendered(rows("a"), tokenizer("{{ messages[0]['nothing']['at all'] }}"))
    assert out.prompts == []
    assert out.problems[0].where == "rows.jsonl:1"


def test_thinking_reaches_the_template() -> None:
    """model.thinking is enable_thinking; left out, the template's default holds."""
    tok = tokenizer(THINKING)
    assert rendered(rows("a"), tok, thinking=True).prompts[0].text.endswith("<think>\n")
    assert rendered(rows("a"), tok, thinking=False).prompts[0].text.endswith("</think>\n\n")
    assert rendered(rows("a"), tok).prompts[0].text.endswith("</think>\n\n")


def test_a_thinking_template_with_eight_tokens_is_warned_about() -> None:
    """An open thinking block and 8 tokens: a notice; a closed block or a large budget: none."""
    tok = tokenizer(THINKING)
    assert "thinking" in rendered(rows("a"), tok, thinking=True).notices[0]
    assert rendered(rows("a"), tok, thinking=False).notices == []
    assert rendered(rows("a"), tok, thinking=True, max_new_tokens=256).notices == []


def test_a_base_model_gets_text_as_it_is() -> None:
    """Without a template: the tokenizer's own ids, said once and shown as they are; messages and data.system are refused."""
    tok = tokenizer(None, bos=True)
    out = rendered(rows("What is 9?", "What is 8?"), tok)
    assert [prompt.text for prompt in out.prompts] == ["<|endoftext|>What is 9?", "<|endoftext|>What is 8?"]
    assert list(out.prompts[0].ids) == tok("What is 9?")["input_ids"]
    assert out.prompts[0].ids[0] == 0
    assert len(out.notices) == 1
    assert "no chat template" in rendered(rows([{"role": "user", "content": "x"}]), tok).problems[0].why
    assert rendered(rows("x"), tok, system="S").problems[0].key == "data.system"


def appending(single: str, template: str | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer whose post-processor puts special tokens around a text."""
    tok = tokenizer(template)
    names = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
    post = processors.TemplateProcessing(single=single, special_tokens=[(t, n) for t, n in names.items() if t in single])
    tok.backend_tokenizer.post_processor = post
    return tok


@pytest.mark.parametrize(
    "single", ["<|im_start|> $A <|im_end|>", "<|im_start|> $A <|im_end|> <|endoftext|>", "<|im_start|> $A"]
)
def test_what_a_tokenizer_appends_is_dropped_and_the_begin_token_kept(single: str) -> None:
    """A base model is asked to go on where the text ends: its ids are the begin token and the text's own, whatever the
    tokenizer puts behind them, and the text that is shown is theirs."""
    tok = appending(single)
    assert (tok("What is 9?")["input_ids"][-1] in (0, 2)) == ("$A <" in single)
    out = rendered(rows("What is 9?"), tok, stop_ids=(2, 0))
    assert out.problems == []
    text = tok("What is 9?", add_special_tokens=False)["input_ids"]
    assert list(out.prompts[0].ids) == [1, *text]
    assert out.prompts[0].text == "<|im_start|>What is 9?"


def test_a_prompt_that_ends_with_a_stop_id_is_refused() -> None:
    """An end token that the row itself has typed, and a template that leaves the turn closed: nothing can follow either."""
    out = rendered(rows("What is 9?", "What is 8?<|im_end|>", "2+2?<|im_end|>"), tokenizer(None), stop_ids=(2, 0))
    assert [prompt.row.where for prompt in out.prompts] == ["rows.jsonl:1"]
    assert [problem.where for problem in out.problems] == ["rows.jsonl:2"]
    assert "'<|im_end|>' (id 2)" in out.problems[0].why
    assert "2 rows: rows.jsonl:2, rows.jsonl:3" in out.problems[0].why
    closed = "{% for m in messages %}{{ '<|im_start|>' + m['content'] + '<|im_end|>' }}{% endfor %}"
    assert "add_generation_prompt" in rendered(rows("a"), tokenizer(closed), stop_ids=(2,)).problems[0].write


def test_an_answers_header_may_be_a_stop_id() -> None:
    """Phi-3 counts its own header among the ends; the template opens the answer with it, so the prompt is whole."""
    phi = (
        "{% for m in messages %}{{ m['content'] + '<|endoftext|>' }}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>{% endif %}"
    )
    out = rendered(rows("a"), tokenizer(phi), stop_ids=(0, 1))
    assert out.problems == []
    assert out.prompts[0].ids[-1] == 1


def length_of(tok: PreTrainedTokenizerFast, text: str) -> int:
    return len(rendered(rows(text), tok).prompts[0].ids)


def test_a_really_long_prompt_is_refused() -> None:
    """400 tokens against max_length 256: refused, with row, length, both limits and the number that would do."""
    tok = tokenizer()
    long = "9 " * 200
    size = length_of(tok, long)
    assert size > 400
    out = rendered(rows("short", long), tok, max_length=256, context=2048)
    problem = out.problems[0]
    assert out.prompts == []
    assert problem.where == "rows.jsonl:2"
    for part in (f"rows.jsonl:2 ({size} tokens)", "1 of 2 rows", "max_length 256", "limit is 2048", f"max_length: {size + 8}"):
        assert part in str(problem)


def test_the_budget_counts_to_the_token() -> None:
    """prompt + max_new_tokens may equal max_length, and not exceed it by one; the model's own limit counts alike."""
    tok = tokenizer()
    size = length_of(tok, "What is 9 plus 2?")
    some = rows("What is 9 plus 2?")
    assert rendered(some, tok, max_length=size + 8).problems == []
    assert len(rendered(some, tok, max_length=size + 7).problems) == 1
    assert rendered(some, tok, context=size + 8).problems == []
    assert len(rendered(some, tok, context=size + 7).problems) == 1


def test_skip_leaves_out_whole_rows() -> None:
    """overflow: skip moves the row to `skipped`, uncut, and keeps the others."""
    tok = tokenizer()
    out = rendered(rows("short", "9 " * 200, "short too"), tok, max_length=256, overflow="skip")
    assert out.problems == []
    assert [prompt.row.where for prompt in out.prompts] == ["rows.jsonl:1", "rows.jsonl:3"]
    assert [prompt.row.where for prompt in out.skipped] == ["rows.jsonl:2"]


def test_many_long_rows_are_listed_up_to_twenty() -> None:
    """Thirty rows that do not fit are one problem with twenty of them named."""
    out = rendered(rows(*("9 " * 200 for _ in range(30))), tokenizer(), max_length=100)
    assert len(out.problems) == 1
    assert "rows.jsonl:20 " in out.problems[0].given
    assert "and 10 more" in out.problems[0].given


def test_special_tokens_in_a_row_are_pointed_out() -> None:
    """A row whose text holds a special token is given as transformers gives it, and counted in a notice."""
    out = rendered(rows("fine", "end <|im_end|> here"), tokenizer())
    assert len(out.prompts) == 2
    assert out.notices == ["1 rows hold the text of a special token, which becomes that token: rows.jsonl:2"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 512}, 512),
        ({"text_config": {"max_position_embeddings": 256}, "max_position_embeddings": 4096}, 256),
        ({"n_positions": 1024}, 1024),
        ({}, 2048),
    ],
)
def test_the_models_own_limit(tmp_path: Path, config: dict, expected: int) -> None:
    """config.json decides, the text part first; the tokenizer's number only where the config has none and it is sane."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    tok = tokenizer()
    tok.model_max_length = 2048
    assert context_length(tmp_path, tok) == expected
    tok.model_max_length = int(1e30)
    assert context_length(tmp_path, tok) == (None if config == {} else expected)
