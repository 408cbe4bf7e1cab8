"""A registry: a name for each reward, data source, recipe, sampler or tracker, filled by a decorator."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from llmclick.errors import InputError, Problem

T = TypeVar("T")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered object: `file` and `line` where it is defined, `shipped` whether it comes with llmclick, `options` what
    else was given to the decorator."""

    name: str
    value: T
    file: str
    line: int
    shipped: bool
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (inspect.getdoc(self.value) or "").partition("\n")[0]


class Registry(Generic[T]):
    """Names to objects, in two places: shipped with llmclick, and the user's own.

    The user's replaces a shipped one of the same name (a notice is kept in `replaced`); a second one of the same name in the
    same place is refused and shows both.
    """

    def __init__(self, kind: str, shipped_modules: str) -> None:
        self.kind = kind
        self._shipped_modules = shipped_modules
        self._shipped: dict[str, Entry[T]] = {}
        self._own: dict[str, Entry[T]] = {}

    def register(self, name: str, **options: Any) -> Callable[[T], T]:
        """Decorator that enters the decorated object under `name`."""
        if not isinstance(name, str):
            file, line = _definition(name)
            raise InputError(
                Problem(
                    where=f"{file}:{line}",
                    key=getattr(name, "__name__", ""),
                    why=f"a {self.kind} is registered under a name, and the decorator was used without one",
                    write=f'@REGISTRY.register("{getattr(name, "__name__", "name")}") above it, with the registry you use',
                )
            )

        def enter(value: T) -> T:
            file, line = _definition(value)
            module = getattr(value, "__module__", "") or ""
            shipped = module == self._shipped_modules or module.startswith(self._shipped_modules + ".")
            place = self._shipped if shipped else self._own
            before = place.get(name)
            if before is not None and (before.file, before.line) != (file, line):
                raise InputError(
                    Problem(
                        where=f"{file}:{line}",
                        key=name,
                        given=f"{self.kind} {name!r}, also registered at {before.file}:{before.line}",
                        why=f"two {self.kind}s of one name: nobody could say which one a config means",
                        write="give one of the two another name",
                    )
                )
            place[name] = Entry(name, value, file, line, shipped, options)
            return value

        return enter

    def __contains__(self, name: str) -> bool:
        return name in self._own or name in self._shipped

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(self.get(name) for name in self.names())

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted({*self._shipped, *self._own})

    def get(self, name: str) -> Entry[T]:
        """The entry of that name, the user's own before a shipped one. Raises KeyError."""
        return self._own.get(name) or self._shipped[name]

    @property
    def replaced(self) -> list[tuple[Entry[T], Entry[T]]]:
        """Pairs (the user's own, the shipped one it replaces)."""
        return [(self._own[name], self._shipped[name]) for name in sorted(self._own) if name in self._shipped]

    def nearest(self, name: str) -> list[str]:
        """All names, the closest to `name` first."""
        return sorted(self.names(), key=lambda known: -difflib.SequenceMatcher(None, name, known).ratio())


def _definition(value: object) -> tuple[str, int]:
    """File and line where a function or class is written; a decorated function is followed to the one inside."""
    inner = inspect.unwrap(value) if callable(value) else value
    code = getattr(inner, "__code__", None)
    if code is not None:
        return code.co_filename, code.co_firstlineno
    try:
        return inspect.getsourcefile(inner) or "?", inspect.getsourcelines(inner)[1]  # type: ignore[arg-type]
    except (OSError, TypeError):
        return "?", 0
