"""Points and fitted lines on logarithmic axes as an SVG, without a charting library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 260, 260, 44, 14, 44, 46
INK, SOFT, GRID, LINE = "#24292f", "#57606a", "#e4e7eb", "#2563eb"


@dataclass(frozen=True)
class Panel:
    """One chart: (value, seconds) points, and the line factor x value^exponent."""

    label: str
    points: list[tuple[float, float]]
    exponent: float
    factor: float


def panels_svg(title: str, panels: list[Panel]) -> str:
    """The panels beside each other, with one scale for all seconds."""
    seconds = [y for panel in panels for _, y in panel.points]
    low, high = min(seconds) / 1.3, max(seconds) * 1.3
    width = WIDTH * len(panels)
    body = "".join(
        f'<g transform="translate({WIDTH * number},28)">{_panel(panel, low, high, number == 0)}</g>'
        for number, panel in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT + 28}" width="{width}" height="{HEIGHT + 28}" '
        f'font-family="system-ui, sans-serif" font-size="11" fill="{SOFT}" role="img" aria-label="{escape(title)}">'
        f'<rect width="100%" height="100%" fill="#ffffff"/>'
        f'<text x="{LEFT}" y="22" font-size="13" font-weight="600" fill="{INK}">{escape(title)}</text>{body}</svg>\n'
    )


def _panel(panel: Panel, low: float, high: float, first: bool) -> str:
    values = [x for x, _ in panel.points]
    left, right = min(values) / 1.15, max(values) * 1.15

    def at(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / left) / math.log(right / left)
        up = math.log(y / low) / math.log(high / low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = [f'<text x="{LEFT}" y="32" fill="{INK}">exponent {panel.exponent:.2f}</text>']
    for tick in _ticks(low, high):
        _, y = at(values[0], tick)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for value in values:
        x, _ = at(value, low)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:.0f}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle" fill="{INK}">{escape(panel.label)}</text>')
    if first:
        parts.append(f'<text x="{LEFT - 6}" y="{TOP - 28}" text-anchor="end">s</text>')
    name = "clip-" + panel.label.partition(" (")[0].replace(" ", "-")
    parts.append(
        f'<clipPath id="{name}"><rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - TOP - BOTTOM}"/>'
        f'</clipPath><g clip-path="url(#{name})" fill="none">'
    )
    ends = (min(values), max(values))
    for slope, factor, style in (
        (1.0, panel.points[-1][1] / panel.points[-1][0], f'stroke="{SOFT}" stroke-dasharray="3 4"'),
        (panel.exponent, panel.factor, f'stroke="{LINE}" stroke-width="1.5"'),
    ):
        (x1, y1), (x2, y2) = (at(value, factor * value**slope) for value in ends)
        parts.append(f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" {style}/>')
    parts.append("</g>")
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{LINE}"/>' for x, y in (at(*point) for point in panel.points)]
    return "".join(parts)


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10 ... between the two."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [tick for decade in decades for digit in (1, 2, 5) if low <= (tick := digit * 10.0**decade) <= high]
