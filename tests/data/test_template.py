"""A chat template is a function of messages and config: no day, no chance."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
import transformers.utils.chat_template_utils as theirs
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from llmclick.data.prompts import Rendered, render
from llmclick.data.rows import identify
from llmclick.data.template import DATE, RESERVED, apply_template, reads_the_clock
from tests.tiny import CHATML, train_tokenizer

DATED = (
    "{%- if not date_string is defined %}{%- if strftime_now is defined %}{%- set date_string = strftime_now('%d %b %Y') %}"
    "{%- else %}{%- set date_string = '26 Jul 2024' %}{%- endif %}{%- endif %}{{- 'Today Date: ' + date_string + '\\n' }}"
    + CHATML
)
"""As the templates of Llama 3.1 write it."""

ASKED = [{"role": "user", "content": "2+2?"}]


def tokenizer(template: str) -> PreTrainedTokenizerFast:
    made = PreTrainedTokenizerFast(tokenizer_object=train_tokenizer(320), eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.chat_template = template
    return made


def rendered(template: str, prompts: tuple[str, ...] = ("2+2?",), **keys: Any) -> Rendered:
    rows = identify(({"prompt": prompt}, f"r.jsonl:{n}") for n, prompt in enumerate(prompts, start=1))
    return render(rows, tokenizer(template), max_new_tokens=8, max_length=1000, **keys)


class _Later(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return datetime.datetime(2031, 12, 24, 18, 30)


def test_the_same_config_has_the_same_prompts_on_another_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that writes the date gives the ids of 1 January 2026, today and in 2031; transformers alone gives others."""
    today = rendered(DATED).prompts[0]
    assert today.text.startswith("Today Date: 01 Jan 2026\n")
    monkeypatch.setattr(theirs, "datetime", _Later)
    assert "24 Dec 2031" in tokenizer(DATED).apply_chat_template(ASKED, tokenize=False)
    assert rendered(DATED).prompts[0].ids == today.ids


def test_the_date_is_a_key_and_so_are_the_templates_variables() -> None:
    """`date` is what the clock tells; `date_string`, a variable of the template, is handed to it."""
    assert rendered(DATED, variables={"date": "2026-07-09"}).prompts[0].text.startswith("Today Date: 09 Jul 2026\n")
    assert rendered(DATED, variables={"date_string": "a Monday"}).prompts[0].text.startswith("Today Date: a Monday\n")
    listed = "{% for tool in tools %}{{ tool.name }};{% endfor %}" + CHATML
    assert rendered(listed, variables={"tools": [{"name": "add"}, {"name": "sub"}]}).prompts[0].text.startswith("add;sub;")


def test_a_template_that_reads_the_clock_is_told_so_once() -> None:
    """One notice with the date and the key, whichever row it is; none where it was given its date or asks for none."""
    notices = rendered(DATED, ("a", "b")).notices
    assert len(notices) == 1
    assert DATE in notices[0]
    assert "model.template: {date:" in notices[0]
    assert rendered(DATED, variables={"date_string": "x"}).notices == []
    assert rendered(CHATML).notices == []
    third = "{% if 'third' in messages[0]['content'] %}{{ strftime_now('%H') }}{% endif %}" + CHATML
    assert len(rendered(third, ("a", "b", "third")).notices) == 1
    assert not reads_the_clock(tokenizer(third), ASKED, {})


def test_a_template_that_draws_at_random_is_refused() -> None:
    """jinja's random filter: no run with it could be repeated."""
    problems = rendered("{{ range(10000) | random }}" + CHATML).problems
    assert [problem.key for problem in problems] == ["model.name"]
    assert "random" in problems[0].why


@settings(deadline=None)
@given(
    st.datetimes(min_value=datetime.datetime(1970, 1, 2), max_value=datetime.datetime(2100, 1, 1)).map(
        lambda moment: moment.replace(microsecond=0)
    ),
    st.lists(
        st.sampled_from(
            [f"%{letter}" for letter in "aAbBcdHIjmMpSUwWxXyYGuVDFTRe"] + ["%%", "%-d", "%-m", "%-H", "%-I", " at ", "'", "d"]
        ),
        max_size=6,
    ),
)
def test_the_macro_formats_as_strftime_does(moment: datetime.datetime, pieces: list[str]) -> None:
    """Every directive, alone and beside others, gives what Python's strftime gives at that moment."""
    form = "".join(pieces)
    template = "{{ strftime_now(" + repr(form) + ") }}|{% if true %}x{% endif %}"
    assert apply_template(_with(template), ASKED, {"date": moment.isoformat()}) == f"{moment.strftime(form)}|x"


_PLAIN = tokenizer(CHATML)


def _with(template: str) -> PreTrainedTokenizerFast:
    _PLAIN.chat_template = template
    return _PLAIN


@pytest.mark.parametrize("start", ["", "\n", "  {% if true %}a{% endif %}\n", "\n\n  {%- if true %}a{% endif %}", " x"])
def test_the_rest_of_the_template_is_untouched(start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """White space at a template's start, the part that jinja trims, comes out as transformers alone renders it."""
    template = start + "{{ strftime_now('%Y') }}" + CHATML
    monkeypatch.setattr(theirs, "datetime", _Later)
    plain = tokenizer(template).apply_chat_template(ASKED, tokenize=False)
    assert apply_template(tokenizer(template), ASKED, {"date": "2031-12-24"}) == plain


def test_no_variable_can_take_a_place_of_apply_chat_templates_own() -> None:
    """Every argument of the pinned transformers is reserved, but for the two that a template is given as variables."""
    import inspect

    names = set(inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters)
    assert names - RESERVED == {"tools", "documents", "kwargs"}
