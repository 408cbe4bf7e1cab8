"""Pages to look things up in: configuration, metrics, commands, errors, changelog."""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from typing import Any

from pages import ROOT, page
from pages.text import code, join, plain, slug, table

MISTAKES = """\
pipeline: {recipe: llm_grpo, name: arithmetic}
model: {name: Qwen/Qwen3.5-0.8B, revision: main}
data:
  sources: [{name: local_jsonl, path: samples/llm_grpo.jsonl}]
method: {group_sise: 8, beta: 0.05, reward: {name: exact_mach}}
"""


@page("configuration", "src/llmclick/config/schema.py", "src/llmclick/config/methods.py", "src/llmclick/config/sources.py",
      "src/llmclick/config/explain.py")  # fmt: skip
def configuration() -> str:
    """Every key."""
    from llmclick.config import names
    from llmclick.config.schema import SECTIONS

    parts = ["---\noutline: 2\n---", "# Configuration"]
    parts.append("Every key of a config. `llmclick explain KEY` prints the same text.")
    entries = list(names.all_keys())
    seen: set[str] = set()
    for section, cls in SECTIONS.items():
        parts.append(f"## {code(section)}\n\n{plain(inspect.cleandoc(cls.__doc__ or ''))}")
        for dotted, info, owner in entries:
            if dotted.partition(".")[0] == section:
                parts.append(one_key(dotted, info, owner, seen))
    return join(*parts)


def one_key(dotted: str, info: Any, cls: Any, seen: set[str]) -> str:
    """A heading, the facts in one line, and the text."""
    from llmclick.config.explain import bound_text, default_text, type_text
    from llmclick.config.methods import CispoMethod
    from llmclick.config.sources import SOURCE_CONFIGS

    source = next((name for name, config in SOURCE_CONFIGS.items() if config is cls), "")
    default = default_text(dotted, info, cls)
    facts = ["**required**" if default == "required" else f"default {code(default)}"]
    if dotted == "method.clip":
        facts.append(f"llm_cispo {code(str(CispoMethod.model_fields['clip'].default))}")
    facts += [text for text in (type_text(info), bound_text(info)) if text]
    if source:
        facts.insert(0, f"source {code(source)}")
    # A key that two sources have is one anchor each.
    anchor = slug(dotted) if dotted not in seen else slug(f"{dotted} {source}")
    seen.add(dotted)
    return f"### {code(dotted)} {{#{anchor}}}\n\n{' · '.join(facts)}\n\n{plain(info.description or '')}"


@page("reading-a-run", "README.md", "src/llmclick/tracking/metrics.py")
def reading() -> str:
    """What every number means."""
    from llmclick.tracking.metrics import METRICS, VALIDATION_METRICS

    parts = ["---\noutline: [2, 3]\n---", "# Reading a run"]
    parts.append(
        "`metrics.jsonl` has one line for each optimizer step; the report draws them. For every number: what it is, the "
        "range in which nothing needs doing, and what to do outside it."
    )
    parts.append("## Training")
    parts += [one_metric(metric) for metric in METRICS]
    parts.append("## Validation")
    parts.append("On held-out rows, for the base model, the trained one and their difference.")
    parts += [one_metric(metric, "validation ") for metric in VALIDATION_METRICS]
    return join(*parts)


def one_metric(metric: Any, prefix: str = "") -> str:
    """A number, its unit, and what to do about it."""
    return join(
        f"### {code(metric.name)} {{#{slug(prefix + metric.name)}}}",
        f"{plain(metric.meaning)} Unit: {metric.unit}.",
        f"- Healthy: {plain(metric.healthy)}\n- Otherwise: {plain(metric.remedy)}",
    ).rstrip()


@page("commands", "src/llmclick/cli.py")
def commands() -> str:
    """The command line."""
    import typer

    from llmclick.cli import app

    group: Any = typer.main.get_command(app)
    parts = ["# Commands", plain(group.help or "")]
    for name, command in group.commands.items():
        arguments = [param for param in command.params if param.opts[0][0] != "-"]
        options = [param for param in command.params if param not in arguments]
        usage = " ".join(["llmclick", name, *(param.metavar or "" for param in arguments), "[OPTIONS]"])
        parts += [f"## {code(name)}", plain(command.help or ""), f"```text\n{usage}\n```"]
        parts.append(table(("given as", "meaning"), [option(param) for param in (*arguments, *options)]))
    return join(*parts)


def option(param: Any) -> tuple[str, str]:
    """An argument or option, and its text."""
    written = param.metavar if param.opts[0][0] != "-" else " ".join([*param.opts, param.metavar or ""]).strip()
    default = f" Default: {code(str(param.default))}." if type(param.default) is int else ""
    return code(written or param.opts[0], True), plain((param.help or "") + default).replace("|", "\\|")


def exit_codes() -> str:
    """A table from errors.py, and the codes that no error stands for."""
    from llmclick import errors

    rows = {0: "Done, and every bound was met. Also a run that was not judged, and a check whose forecast is bad."}
    rows[3] = "The trained model missed a bound of `validation`."
    for kind in (errors.InputError, errors.TrainingStopped, errors.Interrupted):
        said = " ".join((inspect.getdoc(kind) or "").split())
        rows[kind.exit_code] = plain(said.partition(". ")[0].rstrip(".") + ".")
    rows[errors.LlmclickError.exit_code] = "Anything else: a bug in llmclick."
    return table(("code", "means"), [(str(number), text) for number, text in sorted(rows.items())])


@page("errors", "README.md", "src/llmclick/errors.py", "src/llmclick/config/")
def errors() -> str:
    """Exit codes, and what an error looks like."""
    from llmclick.config.load import load_config
    from llmclick.errors import InputError

    said, count = "", 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(MISTAKES, encoding="utf-8")
        try:
            load_config(path)
        except InputError as error:
            count = len(error.problems)
            said = str(error).replace(str(path), "config.yaml")
    return join(
        "# Errors and exit codes",
        exit_codes(),
        "## What an error says",
        "Where, which key, what was given, why it cannot work, and what to write. All of a file's errors come together and "
        "before anything is loaded. This config has several:",
        f"```yaml\n{MISTAKES.rstrip()}\n```",
        f"```text\nerror: {count} problems\n\n{said}\n```",
        "`--debug` adds the traceback. `--json` ends stdout with one JSON object that holds the exit code and the error.",
    )


@page("changelog", "CHANGELOG.md")
def changelog() -> str:
    """CHANGELOG.md."""
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@page("contributing", "CONTRIBUTING.md")
def contributing() -> str:
    """CONTRIBUTING.md."""
    return (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
