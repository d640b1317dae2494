"""The chart of docs/explanation/performance.md: rows per second, relative to Spark's own sink."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from bench.results import Spread

_LEFT, _WIDTH, _BAR, _GAP, _TOP = 230, 490, 18, 30, 78
_STYLE: Final = (
    'text { font-family: system-ui, "Liberation Sans", Helvetica, Arial, sans-serif; '
    "font-size: 14px; fill: #1f2328; } .small { font-size: 12px; fill: #57606a; } "
    ".title { font-weight: 600; font-size: 16px; } .right { text-anchor: end; } "
    ".middle { text-anchor: middle; } .page { fill: #ffffff; } .faster { fill: #54aeff; } "
    ".slower { fill: #d4a72c; } .range { stroke: #1f2328; stroke-width: 1.5; } "
    ".one { stroke: #57606a; stroke-width: 1.5; stroke-dasharray: 4 3; }"
)


def chart(groups: Mapping[str, Sequence[tuple[str, Spread]]]) -> str:
    """Return an SVG picture with a bar for each ratio, and a line for its range.

    groups: for each heading, the names and the ratios of its bars.
    """
    spreads = [spread for bars in groups.values() for _, spread in bars]
    scale = _WIDTH / max(1.0, *(spread.high for spread in spreads))
    height = _TOP + _GAP * len(spreads) + 14 * len(groups) + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 {height}" role="img" '
        'aria-labelledby="title">',
        '<title id="title">Rows per second of this sink, relative to Spark\'s own sink with tuned '
        "settings</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="820" height="{height}"/>',
        '<text class="title" x="20" y="28">Rows per second, relative to Spark\'s own sink with '
        "tuned settings</text>",
        '<text class="small" x="20" y="48">Bars are medians, lines are the ranges of the rounds. '
        "Spark and one broker share two cores.</text>",
        *_bars(groups, scale),
        f'<line class="one" x1="{_LEFT + scale:.1f}" x2="{_LEFT + scale:.1f}" y1="{_TOP - 14}" '
        f'y2="{height - 30}"/>',
        f'<text class="small middle" x="{_LEFT + scale:.1f}" y="{height - 12}">as fast as '
        "Spark's own sink</text>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _bars(groups: Mapping[str, Sequence[tuple[str, Spread]]], scale: float) -> Iterator[str]:
    y = _TOP
    for heading, bars in groups.items():
        yield f'<text x="20" y="{y + 14}">{escape(heading)}</text>'
        for name, spread in bars:
            kind = "faster" if spread.median >= 1 else "slower"
            middle = y + _BAR / 2
            low, high = (_LEFT + each * scale for each in (spread.low, spread.high))
            yield f'<text class="right" x="{_LEFT - 10}" y="{y + 14}">{escape(name)}</text>'
            yield (
                f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{spread.median * scale:.1f}" '
                f'height="{_BAR}"/>'
            )
            yield (
                f'<line class="range" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>'
            )
            yield f'<text x="{_LEFT + _WIDTH + 14}" y="{y + 14}">{spread.median:.2f}x</text>'
            y += _GAP
        y += 14
