"""Strategies for configs that are nearly right: real keys with arbitrary values."""

from hypothesis import strategies as st

from llmclick.config.names import all_keys
from llmclick.config.schema import SECTIONS

KEYS = sorted({key.rpartition(".")[2] for key, _, _ in all_keys()})
WORDS = [
    "llm_grpo",
    "llm_cispo",
    "run",
    "./model",
    "rows.jsonl",
    "local_jsonl",
    "huggingface",
    "exact_match",
    "lora",
    "auto",
    "none",
    "all",
    "sequence",
    "~",
    "",
    "x",
]

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 10),
    st.integers(),
    st.floats(),
    st.sampled_from(WORDS),
    st.text(alphabet=st.characters(codec="utf-8"), max_size=5),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from([*KEYS, "reward", "rewrd", "0"]), inner, max_size=3)
    ),
    max_leaves=6,
)
GOOD = {
    "pipeline": {"recipe": "llm_grpo", "name": "run"},
    "model": {"name": "./model"},
    "data": {"sources": [{"name": "local_jsonl", "path": "rows.jsonl"}]},
    "method": {"reward": {"name": "exact_match"}},
}


@st.composite
def configs(draw):
    """A good config with some sections and keys replaced."""
    tree = {name: dict(section) for name, section in GOOD.items()}
    for name, info in draw(
        st.lists(st.sampled_from([(n, k) for n, c in SECTIONS.items() for k in c.model_fields]), max_size=3)
    ):
        section = tree.setdefault(name, {})
        if isinstance(section, dict):
            section[info] = draw(values)
    if draw(st.integers(0, 9)) == 0:
        tree[draw(st.sampled_from([*SECTIONS, "lr", "<<"]))] = draw(values)
    return tree


def overrides():
    """`--set` texts, most of them with a real key."""
    keys = st.one_of(st.sampled_from([key for key, _, _ in all_keys()]), st.text(alphabet="ab.0=", max_size=6))
    return st.tuples(keys, st.sampled_from(["null", "3", "0.5", "[a]", "{a: 1}", "x", "[", "", "true"])).map("=".join)
