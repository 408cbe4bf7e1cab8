"""Pages that a person reads: landing page, quickstart, methods, rewards, data."""

from __future__ import annotations

import inspect
import re
from typing import Any

from pages import ROOT, page
from pages.sources import has_page, introduction, key_text, keys_of, printed, readme, recipe
from pages.text import code, front_matter, join, plain, table, yaml_file


@page("index", "README.md", "CHANGELOG.md")
def index() -> str:
    """The landing page."""
    what, how = introduction()
    version = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[0]
    front = {
        "layout": "home",
        "title": "llmclick",
        "titleTemplate": ":title",
        "hero": {
            "name": "llmclick",
            "text": "Train a language model on what can be checked",
            "tagline": f"One YAML file, one command, a checkpoint measured on rows it never saw. Version {version}.",
            "actions": [
                {"theme": "brand", "text": "Quickstart", "link": "./quickstart"},
                {"theme": "alt", "text": "Your own reward and rows", "link": "./rewards"},
                {"theme": "alt", "text": "Every key", "link": "./configuration"},
            ],
        },
        "printed": "\n".join(printed()),
    }
    lines = ["---", *front_matter(front), "---"]
    ways = table(
        ("you want to", "page"),
        [
            ("see it work", "[Quickstart](./quickstart)"),
            ("train on your own task", "[Rewards](./rewards), [Data](./data)"),
            ("know what a method computes", "[GRPO](./grpo), [CISPO](./cispo), [Methods as settings](./methods)"),
            ("understand what a run printed", "[Reading a run](./reading-a-run), [Troubleshooting](./troubleshooting)"),
            ("stop and go on", "[Resume and caches](./resume)"),
            ("look up a key, a command, an exit code", "[Configuration](./configuration), [Commands](./commands), "
             "[Errors](./errors)"),
        ],
    )  # fmt: skip
    proof = [(title, name) for title, name in (("Speed", "speed"), ("Reliability", "reliability")) if has_page(name)]
    if proof:
        ways += (
            "\n| see how fast it is and how it was tried | " + ", ".join(f"[{title}](./{name})" for title, name in proof) + " |"
        )
    command = "```sh\nuv run llmclick run configs/llm/quickstart.yaml\n```"
    return join("\n".join(lines), "## What it does", what, how, command, "## Where to go", ways)


@page("quickstart", "README.md", "configs/llm/quickstart.yaml")
def quickstart() -> str:
    """From nothing to a checkpoint."""
    return join(
        "# Quickstart",
        readme("Run it", head=False),
        readme("The config", "What comes out", "Before you pay for a run"),
        readme("Installing torch for the CPU alone", "Limits"),
        "Next: [a reward and rows of your own](./rewards).",
    )


@page("grpo", "README.md", "configs/llm/grpo.yaml", "configs/llm/grpo_gsm8k.yaml", "configs/llm/reasoning_gym.yaml",
      "src/llmclick/pipeline/recipes.py", "src/llmclick/config/methods.py", "src/llmclick/config/schema.py",
      "src/llmclick/config/sources.py")  # fmt: skip
def grpo() -> str:
    """The page of llm_grpo."""
    return join(
        "# GRPO",
        f"`recipe: llm_grpo`. {plain(recipe('llm_grpo'))}",
        "```sh\nuv run llmclick run configs/llm/grpo.yaml\n```",
        yaml_file("configs/llm/grpo.yaml"),
        "## What this file sets",
        keys_of("configs/llm/grpo.yaml"),
        "All other keys and their defaults: [Configuration](./configuration).",
        readme("Several steps on what was sampled"),
        "## Word problems from the Hub",
        yaml_file("configs/llm/grpo_gsm8k.yaml"),
        "## Generated tasks on a CPU",
        "```sh\nuv run --extra reasoning-gym llmclick run configs/llm/reasoning_gym.yaml\n```",
        yaml_file("configs/llm/reasoning_gym.yaml"),
    )


@page("cispo", "configs/llm/cispo.yaml", "src/llmclick/pipeline/recipes.py", "src/llmclick/config/methods.py",
      "src/llmclick/config/schema.py", "src/llmclick/config/sources.py")  # fmt: skip
def cispo() -> str:
    """The page of llm_cispo."""
    from llmclick.config.methods import CispoMethod

    return join(
        "# CISPO",
        f"`recipe: llm_cispo`. {plain(recipe('llm_cispo'))}",
        "```sh\nuv run llmclick run configs/llm/cispo.yaml\n```",
        yaml_file("configs/llm/cispo.yaml"),
        "## The cap",
        plain(CispoMethod.model_fields["clip"].description or ""),
        "The formula stands beside the other methods' in [Methods as settings](./methods#cispo).",
        "## What this file sets",
        keys_of("configs/llm/cispo.yaml"),
    )


@page("rewards", "README.md", "src/llmclick/rewards/*.py", "src/llmclick/config/methods.py")
def rewards() -> str:
    """How to write a reward, and the ones that ship."""
    from llmclick.config.methods import RewardSpec
    from llmclick.rewards import REWARDS

    parts = [
        "---\noutline: [2, 3]\n---",
        "# Rewards",
        readme("A reward", head=False),
        readme("A folder of your own"),
        "## What every reward takes",
    ]
    parts.append(
        "\n".join(
            key_text(f"method.reward.{name}", info, RewardSpec)
            for name, info in RewardSpec.model_fields.items()
            if name not in ("name", "params")
        )
    )
    parts.append("## The shipped rewards")
    parts.append("Each table is run by the tests: it is what the reward does.")
    parts += [one_reward(entry) for entry in REWARDS if entry.shipped]
    return join(*parts)


def one_reward(entry: Any) -> str:
    """A reward's docstring, its params and its table."""
    from llmclick.rewards.validate import described

    text = inspect.getdoc(entry.value) or ""
    prose, _, rows = text.partition("\n|")
    parts = [f"### {code(entry.name)}", *(plain(part.replace("\n", " ")) for part in prose.strip().split("\n\n"))]
    params = described(entry)
    if params:
        named = [(code(name, True), code(default, True), plain(meaning)) for name, default, meaning in params]
        parts.append(table(("param", "default", "meaning"), named))
    cells = re.findall(r'^\| (".*") \| (\{.*\}) \| (\{.*\}) \| (\S+) \|$', f"|{rows}", re.MULTILINE)
    shown = [(score, code(completion, True), code(row, True), code(given, True)) for completion, row, given, score in cells]
    parts.append(table(("reward", "completion", "row", "params"), shown))
    return join(*parts)


@page("data", "README.md", "src/llmclick/config/schema.py", "src/llmclick/config/sources.py", "src/llmclick/data/rows.py")
def data() -> str:
    """Rows: their shape, where they come from, which are held out."""
    from llmclick.config.schema import DataConfig
    from llmclick.config.sources import SOURCE_CONFIGS, SourceConfig

    parts = ["# Data", readme("Rows", head=False), "## Where rows come from"]
    shared = [key_text(f"data.sources.{name}", info, SourceConfig) for name, info in SourceConfig.model_fields.items()]
    parts.append("Every source takes these keys:")
    parts.append("\n".join(shared[1:]))
    for name, cls in SOURCE_CONFIGS.items():
        own = [
            key_text(f"data.sources.{key}", info, cls)
            for key, info in cls.model_fields.items()
            if key not in SourceConfig.model_fields
        ]
        parts += [f"### {code(name)}", plain(inspect.cleandoc(cls.__doc__ or "")), "\n".join(own)]
    fields = DataConfig.model_fields
    parts += ["## Held-out rows", plain(fields["validation"].description or "")]
    parts += ["## A system message", plain(fields["system"].description or "")]
    return join(*parts)
