"""The generated pages of docs/, by name: their sources and the function that writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Page = Callable[[], str]

ROOT = Path(__file__).resolve().parents[2]
PAGES: dict[str, tuple[tuple[str, ...], Page]] = {}


def page(name: str, *sources: str) -> Callable[[Page], Page]:
    """Registers the decorated function as the text of docs/<name>.md, made from `sources`."""

    def enter(write: Page) -> Page:
        PAGES[name] = (sources, write)
        return write

    return enter


from pages import guides, reference  # noqa: E402, F401  # each registers its pages
