"""The command line. Nothing heavy is imported here: every command loads what it needs when it is called."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from llmclick import __version__
from llmclick.errors import InputError, Interrupted, LlmclickError, Problem
from llmclick.tracking.escape import visible, visible_lines

_asked = {"debug": False, "json": False}


class _Commands(typer.core.TyperGroup):
    """Runs a command and turns every way it can end into an exit code and at most one block on stderr."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except LlmclickError as error:
            _fail(error.exit_code, _said(error), error)
        except KeyboardInterrupt as error:
            _fail(Interrupted.exit_code, "interrupted; what was finished is kept", error)
        except Exception as error:
            if isinstance(error, typer.Exit) or callable(getattr(error, "show", None)):
                raise  # typer's own: a usage error, or the end
            line = visible(f"{type(error).__name__}: {error}", 500)
            _fail(1, f"this is a bug in llmclick, not in your input\n  {line}\n  --debug shows where it happened", error)


def _said(error: LlmclickError) -> str:
    if isinstance(error, InputError) and len(error.problems) > 1:
        return f"{len(error.problems)} problems\n\n{error}"
    return str(error)


def _fail(code: int, text: str, error: BaseException) -> NoReturn:
    if _asked["debug"]:
        import traceback

        lines = traceback.format_exception(error)
        print(visible_lines("".join(lines)), file=sys.stderr)
    print(f"error: {visible_lines(text)}", file=sys.stderr)
    if _asked["json"]:
        _print_json({"exit": code, "error": text})
    sys.exit(code)


def _print(text: str = "") -> None:
    print(text, flush=True)


def _print_json(value: Any) -> None:
    _print(json.dumps(value, allow_nan=False))


app = typer.Typer(
    name="llmclick",
    cls=_Commands,
    help="Improves a language model on tasks whose answers can be checked. One YAML file says what, `run` does it.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)


def _version(wanted: bool) -> None:
    if wanted:
        _print(f"llmclick {__version__}")
        raise typer.Exit


def _debug(wanted: bool) -> None:
    _asked["debug"] = _asked["debug"] or wanted


def _json(wanted: bool) -> bool:
    _asked["json"] = wanted
    return wanted


Config = Annotated[str, typer.Argument(metavar="CONFIG", help="The YAML file.", show_default=False)]
Set = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Overrides a key, such as training.lr=2e-6; null is its default."),
]
Debug = Annotated[bool, typer.Option("--debug", help="Shows the traceback of an error.", callback=_debug)]
Json = Annotated[bool, typer.Option("--json", help="Ends stdout with one JSON object.", callback=_json)]


@app.callback()
def _root(
    debug: Debug = False,
    version: Annotated[bool, typer.Option("--version", help="Prints the version.", callback=_version, is_eager=True)] = False,
) -> None:
    pass


@app.command()
def run(
    config: Config,
    set_: Set = [],  # noqa: B006 - typer copies it
    stages: Annotated[str | None, typer.Option(metavar="data,train", help="Only these of data, train, validate.")] = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Data, train, validate: hands over a checkpoint that meets its bounds."""
    chosen = _stages(stages)
    from llmclick.config.load import load_config
    from llmclick.pipeline.run import run
    from llmclick.tracking.console import Console

    result = run(load_config(config, set_), chosen, Console(json_mode=json_))
    if json_:
        _print_json(result.as_json())
    raise typer.Exit(result.exit)


def _stages(text: str | None) -> tuple[str, ...] | None:
    """`data,train` as stages in their order, None for what the config says."""
    if text is None or text.strip() == "all":
        return None if text is None else STAGES
    given = [part.strip() for part in text.split(",")]
    wrong = [part for part in given if part not in STAGES]
    if wrong:
        raise InputError(
            Problem("--stages", "", f"there is no stage {wrong[0]!r}", f"write some of {','.join(STAGES)}", given=text)
        )
    return tuple(stage for stage in STAGES if stage in given)


STAGES = ("data", "train", "validate")


@app.command()
def check(
    config: Config,
    set_: Set = [],  # noqa: B006 - typer copies it
    sample: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Also samples N prompts and says whether the run can learn."),
    ] = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Everything that a run does before its first step."""
    from llmclick.config.load import load_config
    from llmclick.pipeline.check import check
    from llmclick.tracking.console import Console

    result = check(load_config(config, set_), sample, Console(json_mode=json_))
    if json_:
        _print_json(result.as_json())
    raise typer.Exit(result.exit)


@app.command()
def sample(
    config: Config,
    set_: Set = [],  # noqa: B006 - typer copies it
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="How many held-out rows.")] = 8,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A checkpoint; left out, the untrained model.", show_default=False)
    ] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="The likeliest completion, as in validation.")] = False,
    debug: Debug = False,
) -> None:
    """Prints completions of held-out rows and their rewards."""
    if checkpoint is not None and not checkpoint.is_dir():
        why = f"there is no folder {checkpoint.absolute()}"
        raise InputError(Problem("--checkpoint", "", why, "name a folder such as output/<name>-<hash>/train/checkpoint"))
    from llmclick.config.load import load_config
    from llmclick.pipeline.sample import sample
    from llmclick.tracking.console import Console

    sample(load_config(config, set_), rows, checkpoint, greedy, Console())


@app.command()
def reward(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The reward (`llmclick rewards`).", show_default=False)],
    completion: Annotated[str | None, typer.Option(metavar="TEXT", help="A completion to score.")] = None,
    row: Annotated[str | None, typer.Option(metavar="JSON", help='Its row, such as {"answer": "11"}.')] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="F.jsonl", help='Lines {"completion": ..., "row": {...}}, answered in order.')
    ] = None,
    params: Annotated[str | None, typer.Option(metavar="JSON", help="The reward's params.")] = None,
    imports: Annotated[
        list[Path],
        typer.Option(metavar="FILE", help="A Python file of yours that registers rewards; may be repeated."),
    ] = [],  # noqa: B006 - typer copies it
    debug: Debug = False,
) -> None:
    """Tries a reward on a completion, or on every line of a file."""
    from llmclick.rewards.trial import try_file, try_one

    if (file is None) == (completion is None):
        why = "a trial is one completion with its row, or a file"
        raise InputError(Problem("llmclick reward", "", why, "write --completion TEXT --row JSON, or --file F.jsonl"))
    if file is not None and row is not None:
        raise InputError(Problem("--row", "", "every line of --file has its own row", "leave --row out"))
    if file is not None:
        for answered in try_file(name, params, imports, file):
            _print_json(answered)
        return
    assert completion is not None
    answered = try_one(name, params, imports, completion, row)
    _print(f"reward: {_number(answered['reward'])}")
    if "refused" in answered:
        _print(f"refused: {visible_lines(answered['refused'])}")


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


@app.command()
def rewards(debug: Debug = False) -> None:
    """Lists the rewards."""
    from llmclick.rewards import REWARDS
    from llmclick.rewards.imports import load_imports

    load_imports([], "")
    entries = [
        (entry.name, entry.summary if entry.shipped else f"{entry.summary} ({entry.file}:{entry.line})") for entry in REWARDS
    ]
    _list(entries)


@app.command()
def recipes(debug: Debug = False) -> None:
    """Lists the recipes."""
    from llmclick.pipeline.recipes import RECIPES

    _list([(recipe.name, recipe.summary) for recipe in RECIPES.values()])


def _list(entries: list[tuple[str, str]]) -> None:
    """Names and one line each, wrapped to the terminal."""
    import textwrap

    column = max(len(name) for name, _ in entries) + 2
    for name, summary in entries:
        lines = textwrap.wrap(visible(summary), max(20, _width() - column)) or [""]
        _print(visible(name).ljust(column) + ("\n" + " " * column).join(lines))


def _width() -> int:
    import shutil

    return max(40, min(100, shutil.get_terminal_size((80, 24)).columns))


@app.command()
def explain(
    what: Annotated[
        str | None,
        typer.Argument(metavar="[KEY | DIR]", help="A config key, or an experiment's folder.", show_default=False),
    ] = None,
    debug: Debug = False,
) -> None:
    """What a config key means, or why a stage of an experiment would run again."""
    if what is not None and _is_experiment(what):
        from llmclick.pipeline.fingerprint import explain_folder

        _print(visible_lines(explain_folder(Path(what))))
        return
    from llmclick.config.explain import explain

    _print(visible_lines(explain(what, _width())))


def _is_experiment(what: str) -> bool:
    """A folder, unless it only has the name of a section (`report`, `data`)."""
    folder = Path(what)
    if not folder.is_dir():
        return False
    return os.sep in what or (folder / "manifest.json").exists() or (folder / "config.yaml").exists() or what in (".", "..")


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="An experiment's folder.", show_default=False)],
    send: Annotated[
        str | None,
        typer.Option(metavar="TRACKER", help="Also sends the run to trackio, wandb, tensorboard or mlflow."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Writes an experiment's report.html and prints its path."""
    from llmclick.report.page import write_report

    _print(visible(str(write_report(directory))))
    if send is not None:
        from llmclick.tracking.trackers import SENT
        from llmclick.tracking.trackers import send as send_to

        try:
            count = send_to(directory, send)
        except Exception as error:
            if isinstance(error, LlmclickError):
                raise
            why = f"{type(error).__name__}: {error}"
            write = f"the same command again once {send} can be reached; what it was sent already is not sent twice"
            raise InputError(Problem("--send", "", why, write, given=send)) from error
        more = "" if count else f" (it had them all; {visible(str(directory / SENT))} says so)"
        _print(f"{count} steps sent to {send}{more}")


@app.command()
def compare(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR DIR...", help="Two or more experiments' folders.", show_default=False)
    ],
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """The same held-out rows across experiments."""
    from llmclick.report.compare import compare
    from llmclick.tracking.console import Console

    if len(directories) < 2:
        write = "write two or more, the one to compare with first"
        raise InputError(Problem("llmclick compare", "", "one experiment has nothing to be compared with", write))
    comparison = compare(directories)
    console = Console(json_mode=json_)
    for notice in comparison.notices:
        console.notice(notice)
    console.table("Held-out reward; differences are to the first experiment", comparison.columns, comparison.rows())
    if json_:
        _print_json(comparison.as_json())


@app.command()
def new(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="The folder to make.", show_default=False)],
    debug: Debug = False,
) -> None:
    """Starts a project: a config, a few rows and a reward of your own in an empty folder."""
    from llmclick.pipeline.new import new, next_commands

    folder = new(name)
    shown = "this folder" if folder.resolve() == Path.cwd() else visible(str(folder))
    _print(f"{shown} holds config.yaml, rows.jsonl and rewards.py\n")
    for command in next_commands(folder):
        _print(f"  {visible(command)}")


def main() -> None:
    """Entry point of the `llmclick` command. The exit code is the outcome's, whatever becomes of stdout and stderr."""
    from llmclick.modeling.llm.process import prepare_environment
    from llmclick.tracking.stream import open_standard_streams, unblock_standard_streams

    prepare_environment()
    open_standard_streams()
    output = unblock_standard_streams()
    # Whoever wants the process to stop is not kept waiting for a reader that stands still.
    patience: float | None = 2.0
    try:
        app()
    except SystemExit as end:
        patience = None if end.code != Interrupted.exit_code else patience
        raise
    except KeyboardInterrupt:
        sys.exit(Interrupted.exit_code)
    finally:
        with contextlib.suppress(KeyboardInterrupt):
            output.drain(patience)
            if (failure := getattr(sys.stdout, "failure", None)) and not isinstance(failure, BrokenPipeError):
                print(f"note: stdout could not be written: {failure.strerror}", file=sys.stderr)
                output.drain(patience)


if __name__ == "__main__":
    main()
