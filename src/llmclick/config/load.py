"""Reading a config file: YAML, `--set`, types, bounds and cross checks, with every problem reported at once."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from llmclick.config import names
from llmclick.config.messages import said
from llmclick.config.methods import Section
from llmclick.config.overrides import override
from llmclick.config.reading import Node, read_file
from llmclick.config.rules import Facts, check_all
from llmclick.config.schema import (
    SECTIONS,
    Config,
    Origin,
    RewardSpec,
    TrackerConfig,
    ValidationSources,
)
from llmclick.config.sources import SOURCE_CONFIGS, SourceConfig
from llmclick.errors import InputError, Problem
from llmclick.pipeline.recipes import RECIPES
from llmclick.tracking.trackers import check_name

S = TypeVar("S", bound=Section)

MOST = 50
"""How many problems of one file are shown."""


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Reads and checks a config file; `overrides` are `a.b=c` texts as `--set` takes them, applied in order.

    Raises InputError with all problems: unknown keys, types, bounds, missing files, unknown rewards and combinations that
    cannot work. Files of `pipeline.imports` are loaded.
    """
    name = str(path)
    root, problems = _read(name)
    if root is None:
        raise InputError(problems)
    for text in overrides:
        problems += override(root, text)
    loader = _Loader(name, root, problems)
    config = loader.config()
    if loader.problems:
        found = sorted(loader.problems, key=lambda problem: _order(problem, name))
        if len(found) > MOST:
            more = Problem(name, "", f"{len(found) - MOST} more problems are not shown", "mend the ones above first")
            found = [*found[:MOST], more]
        raise InputError(found)
    return config


def _order(problem: Problem, name: str) -> tuple[int, int]:
    """File first, by line; then `--set`; then other files."""
    match = re.fullmatch(re.escape(name) + r"(?::(\d+))?", problem.where)
    if match:
        return 0, int(match[1] or 0)
    return (1 if problem.where.startswith("--set") else 2), 0


def _read(name: str) -> tuple[Node | None, list[Problem]]:
    shown = _absolute(Path(name))
    write = "name an existing config file, such as configs/llm/quickstart.yaml"
    try:
        mode = Path(name).stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # reading a pipe would wait for whoever writes into it
            return None, [Problem(name, "", f"{shown} is not a regular file (a pipe or a device)", write)]
        data = Path(name).read_bytes()
    except FileNotFoundError:
        return None, [Problem(name, "", f"there is no file {shown}", write)]
    except IsADirectoryError:
        return None, [Problem(name, "", f"{shown} is a folder, not a config file", write)]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return None, [Problem(name, "", f"{shown} cannot be read: {reason}", write)]
    return read_file(name, data)


def _absolute(path: Path) -> str:
    try:
        return str(path.expanduser().absolute())
    except (RuntimeError, OSError):
        return str(path)


@dataclass
class _Loader:
    file: str
    root: Node
    problems: list[Problem]
    bad: set[str] = field(default_factory=set)
    found_sources: dict[str, SourceConfig] = field(default_factory=dict)
    found_rewards: dict[str, RewardSpec] = field(default_factory=dict)

    # ---- where things are written

    def find(self, key: str) -> Node | None:
        """The node of a dotted key; item 0 of a single mapping is that mapping."""
        node = self.root
        for part in key.split(".") if key else []:
            if isinstance(node.value, dict) and part in node.value:
                node = node.value[part]
            elif isinstance(node.value, list) and part.isdigit() and int(part) < len(node.value):
                node = node.value[int(part)]
            elif not (part == "0" and isinstance(node.value, dict) and key.startswith(("method.reward", "tracker"))):
                return None
        return None if node.reset else node

    def where(self, key: str) -> str:
        """See Config.where."""
        parts = key.split(".")
        for size in range(len(parts), 0, -1):
            node = self.find(".".join(parts[:size]))
            if node is not None:
                # A section or a default below one is the file's; inside a list or a mapping of the user's, its own line helps.
                return node.where if size == len(parts) or size >= 2 else self.file
        return self.file

    def near(self, key: str) -> str:
        """The line of a key, or of the closest thing around it: for what is missing."""
        parts = key.split(".")
        for size in range(len(parts), 0, -1):
            node = self.find(".".join(parts[:size]))
            if node is not None:
                return node.where
        return self.file

    def near_reward(self, key: str, asked: str) -> str:
        """`near` for a check that knows one reward only, which stands at `key`."""
        return self.near(_at(key, asked))

    def add(self, key: str, why: str, write: str, *, given: Any = ..., where: str | None = None, bad: bool = True) -> None:
        """Notes a problem at a key; `bad` keeps rules that read the key quiet."""
        if isinstance(given, Node):
            given = ... if given.value is None else given
        shown = (
            "" if given is ... else (given.raw or names.show(given.plain())) if isinstance(given, Node) else names.show(given)
        )
        self.problems.append(Problem(where or self.near(key), key, why, write, shown))
        if bad:
            self.bad.add(key)

    # ---- the file

    def config(self) -> Config:
        """Reads all sections. The result is only meant when there are no problems."""
        top = self.root.value
        assert isinstance(top, dict)
        for name, node in top.items():
            if name not in SECTIONS:
                self.add(name, f"a config has no section or key {name}", names.suggest(name, "", SECTIONS), given=node)
        recipe = self.recipe(top)
        values: dict[str, Any] = {}
        for name, cls in SECTIONS.items():
            model: type[Section] = RECIPES[recipe].config_class() if name == "method" and recipe else cls
            values[name] = self.section(name, model, top.get(name))
        config = Config.model_construct(**values)
        facts = Facts(config, self.near, lambda key: self.find(key) is not None, frozenset(self.bad), self.found_sources)
        found, notices = check_all(facts)
        self.problems += found
        notices += self.rewards(config)
        if config.tracker is not None and "tracker.name" not in self.bad and hasattr(config.tracker, "name"):
            # After the rewards: a file in pipeline.imports may register a tracker too.
            self.problems += check_name(config.tracker.name, self.near("tracker"))
        config._origin = Origin(path=Path(self.file), where=self.where, notices=tuple(notices))
        return config

    def recipe(self, top: dict[str, Node]) -> str | None:
        """The recipe's name if it is one; decides the class of the method section."""
        pipeline = top.get("pipeline")
        node = pipeline.value.get("recipe") if pipeline and isinstance(pipeline.value, dict) else None
        if node is None or not isinstance(node.value, str):
            return None
        if node.value in RECIPES:
            return node.value
        known = names.closest(node.value, RECIPES)
        self.add("pipeline.recipe", "there is no such recipe", f"write {' or '.join(known)}", given=node.value)
        return None

    def section(self, name: str, cls: type[Section], node: Node | None) -> Any:
        """One section, from its mapping or a short form."""
        if name == "tracker":
            return self.tracker(node)
        if name == "sampler" and node is not None and isinstance(node.value, str):
            node = Node(node.where, {"name": node})
        if node is None or node.value is None:
            node = Node(node.where if node else self.file, {})
        return self.mapping(name, cls, node)

    def mapping(self, key: str, cls: type[S], node: Node, *, rest: bool = False) -> S | None:
        """A mapping as an instance of `cls`: all good values, defaults for the others. `rest` collects keys that the class
        does not know in its `params`."""
        if not isinstance(node.value, dict):
            shape = ", ".join(f"{name}: ..." for name in cls.model_fields if name != "params")
            self.add(key, "a mapping is expected here", f"write {key.rpartition('.')[2]}: {{{shape}}}", given=node)
            return None
        fields = {name: info for name, info in cls.model_fields.items() if not (rest and name == "params")}
        values: dict[str, Any] = {}
        params: dict[str, Any] = {}
        for name, child in node.value.items():
            dotted = f"{key}.{name}"
            if name not in fields:
                if rest:
                    if name == "params" and isinstance(child.value, dict):
                        self.nested_params(dotted, node.value, child.value)
                    elif not child.reset:
                        params[name] = child.plain()
                else:
                    self.unknown(key, name, child, cls, fields)
            elif child.value is not None:
                special = self.special(dotted)
                value = special(dotted, child) if special else self.value(child, name)
                if value is not None:
                    values[name] = value
                else:
                    self.bad.add(dotted)
        for name, info in fields.items():
            dotted = f"{key}.{name}"
            if info.is_required() and name not in values and dotted not in self.bad:
                extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
                given = node.value.get(name)
                why = "the key is there, but has no value" if given and not given.reset else "this key is required and missing"
                self.add(dotted, why, f"write {name}: {extra.get('hint', '...')}", where=self.near(dotted))
        if rest:
            values["params"] = params
        return self.build(key, cls, values, node)

    def nested_params(self, key: str, outer: dict[str, Node], inner: dict[str, Node]) -> None:
        """`params: {...}` in a mapping whose own keys are the params."""
        named = outer["name"].plain() if "name" in outer else "..."
        beside = ", ".join(f"{name}: {_short(node.plain())}" for name, node in inner.items())
        write = f"{{name: {named}, {beside}}}" if beside else "leave params out"
        self.add(key, "params are written beside name, not below a key of their own", write, given=outer["params"])

    def unknown(self, key: str, name: str, child: Node, cls: type[Section], fields: dict[str, Any]) -> None:
        """A key that the class does not have."""
        recipe = next((entry.name for entry in RECIPES.values() if entry.config_class() is cls), None)
        others = [entry.name for entry in RECIPES.values() if name in entry.config_class().model_fields]
        dotted = f"{key}.{name}"
        if key == "method" and recipe and others:
            why = f"{name} is a key of {others[0]} only; {recipe} has no use for it"
            self.add(dotted, why, f"remove it, or write pipeline.recipe: {others[0]}", given=child)
            return
        owner = next((known for known, config in SOURCE_CONFIGS.items() if name in config.model_fields), None)
        if owner and issubclass(cls, SourceConfig):
            mine = next(known for known, config in SOURCE_CONFIGS.items() if config is cls)
            why = f"{name} is a key of {owner}, not of {mine}"
            self.add(dotted, why, f"remove it; {mine} takes {', '.join(fields)}", given=child)
            return
        self.add(dotted, f"{key} has no key {name}", names.suggest(name, key, fields), given=child)

    def value(self, node: Node, name: str) -> Any:
        """A value for pydantic. A commit of digits (and one e) would read as a number, so a revision is taken as typed."""
        if name == "revision" and node.raw and not isinstance(node.value, (bool, str)):
            return node.raw
        return node.plain()

    def build(self, key: str, cls: type[S], values: dict[str, Any], node: Node) -> S:
        """Validates the values; on errors notes them and builds the instance from the good ones."""
        while True:
            try:
                if any(info.is_required() and name not in values for name, info in cls.model_fields.items()):
                    partial = cls.model_construct(**values)
                    self.note_all(key, cls, values)
                    return partial
                return cls.model_validate(values)
            except ValidationError as error:
                wrong = self.note(key, cls, error)
                values = {name: value for name, value in values.items() if name not in wrong}
                if not wrong:
                    return cls.model_construct(**values)

    def note_all(self, key: str, cls: type[Section], values: dict[str, Any]) -> None:
        """Notes what is wrong with values that are incomplete anyway."""
        try:
            cls.model_validate(values)
        except ValidationError as error:
            self.note(key, cls, error)

    def note(self, key: str, cls: type[Section], error: ValidationError) -> set[str]:
        """Turns pydantic's errors into problems; returns the names of the wrong fields."""
        wrong: set[str] = set()
        for item in error.errors(include_url=False):
            if item["type"] == "missing":
                continue
            loc = [str(part) for part in item["loc"]]
            name = loc[0]
            wrong.add(name)
            dotted = ".".join([key, *loc])
            given = self.find(dotted) or self.find(f"{key}.{name}")
            why, write = said(item, name, cls, given)
            self.add(dotted, why, write, given=given or item["input"])
            self.bad.add(f"{key}.{name}")
        return wrong

    # ---- values with a shape of their own

    def special(self, dotted: str) -> Callable[[str, Node], Any] | None:
        """The reader of a key whose value is more than pydantic's to check."""
        return {
            "data.sources": self.sources,
            "data.validation": self.validation,
            "data.validation.sources": self.sources,
            "method.reward": self.reward,
            "training.adapter": self.adapter,
        }.get(dotted)

    def sources(self, key: str, node: Node) -> tuple[SourceConfig, ...] | None:
        """A list of data sources."""
        example = "[{name: local_jsonl, path: rows.jsonl}]"
        if not isinstance(node.value, list):
            self.add(key, "sources are a list, each item starting with -", f"write {example}", given=node)
            return None
        if not node.value:
            self.add(key, "the list is empty, so there are no rows", f"write {example}")
            return None
        found = [self.source(f"{key}.{index}", item) for index, item in enumerate(node.value)]
        return tuple(source for source in found if source is not None) or None

    def source(self, key: str, node: Node) -> SourceConfig | None:
        """One data source, by the class of its name."""
        known = list(SOURCE_CONFIGS)
        if not isinstance(node.value, dict):
            self.add(key, "a source is a mapping", f"write {{name: {known[0]}, path: rows.jsonl}}", given=node)
            return None
        name = node.value.get("name")
        if name is None or name.value is None:
            self.add(f"{key}.name", "a source needs its name", f"write name: {' or '.join(known)}", where=node.where)
            return None
        if name.value not in SOURCE_CONFIGS:
            best = names.closest(str(name.value), known)
            why = "there is no such data source"
            self.add(f"{key}.name", why, f"write {best[0]}; known are {', '.join(best)}", given=name)
            return None
        source = self.mapping(key, SOURCE_CONFIGS[str(name.value)], node)
        if source is not None:
            self.found_sources[key] = source
        return source

    def validation(self, key: str, node: Node) -> Any:
        """A count, a share, or sources."""
        if isinstance(node.value, dict):
            return self.mapping(key, ValidationSources, node)
        return self.value(node, "validation")

    def reward(self, key: str, node: Node) -> tuple[RewardSpec, ...] | None:
        """One reward or a list of them."""
        if not isinstance(node.value, (dict, list)):
            write = f"write {{name: {node.value}}}" if isinstance(node.value, str) else "write {name: exact_match}"
            self.add(key, "a reward is a mapping with its name", write, given=node)
            return None
        if isinstance(node.value, dict):
            return self.one_reward(key, node)
        if not node.value:
            self.add(key, "the list is empty, so nothing would be rewarded", "write {name: exact_match}")
            return None
        found: list[RewardSpec] = []
        for index, item in enumerate(node.value):
            if isinstance(item.value, str):
                why = "a reward is a mapping with its name"
                self.add(f"{key}.{index}", why, f"write {{name: {item.value}}}", given=item.value)
                continue
            found += self.one_reward(f"{key}.{index}", item) or ()
        return tuple(found) or None

    def one_reward(self, key: str, node: Node) -> tuple[RewardSpec, ...] | None:
        """One reward's mapping; None if not even its name can be used."""
        spec = self.mapping(key, RewardSpec, node, rest=True)
        if spec is None or f"{key}.name" in self.bad:
            return None
        self.found_rewards[key] = spec
        return (spec,)

    def adapter(self, key: str, node: Node) -> Any:
        """The adapter; `none` as text means none."""
        from llmclick.config.schema import AdapterSpec

        if node.value == "none":
            return None
        if isinstance(node.value, str):
            self.add(key, "an adapter is a mapping", "write {name: lora, r: 16, alpha: 32}", given=node.value)
            return None
        return self.mapping(key, AdapterSpec, node)

    def tracker(self, node: Node | None) -> TrackerConfig | None:
        """The tracker, by name or with its settings."""
        if node is None or node.value is None or node.value == "none":
            return None
        if isinstance(node.value, str):
            node = Node(node.where, {"name": node})
        return self.mapping("tracker", TrackerConfig, node, rest=True)

    def rewards(self, config: Config) -> list[str]:
        """Loads the user's files and checks the rewards' names and params; returns what loading noticed."""
        from llmclick.rewards import REWARDS
        from llmclick.rewards.imports import load_imports
        from llmclick.rewards.validate import check_specs

        notices: list[str] = []
        known = not self.bad.intersection(("pipeline", "pipeline.imports"))
        imports = config.pipeline.imports if known else ()
        loaded = known and all(path.is_file() for path in imports)
        try:
            notices = load_imports([path for path in imports if path.is_file()], self.near("pipeline.imports"))
        except InputError as error:
            self.problems += error.problems
            loaded = False
        for key, spec in self.found_rewards.items():
            if not loaded and spec.name not in REWARDS:
                continue  # it may be in the file that could not be loaded

            found = check_specs([spec], partial(self.near_reward, key))
            self.problems += [replace(problem, key=_at(key, problem.key)) for problem in found]
        return notices


def _short(value: Any) -> str:
    """A value on one line, as YAML reads it; a long one is left to the reader."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 40 else "..."


def _at(key: str, asked: str) -> str:
    """The key that a check of one reward alone calls `method.reward...`, at its own place."""
    return key + asked.removeprefix("method.reward")
