"""How all plots look: colours, axes, and how a figure becomes a file.

The colours are those of Okabe and Ito, which stay apart for colour-blind eyes. Each has a name, so that the
HTML page can hand them over to its style sheet and follow the reader's light or dark setting.
"""

from __future__ import annotations

import io
import re
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

__all__ = [
    "COLOURS",
    "INK",
    "MUTED",
    "SERIES",
    "SMALL",
    "SURFACE",
    "WIDTH",
    "inline_svg",
    "line_style",
    "make_figure",
    "png_bytes",
    "style_axes",
    "style_legend",
]

COLOURS = {
    "ink": "#1c2430",
    "muted": "#5d6878",
    "grid": "#dde2e9",
    "surface": "#fefefe",
    "blue": "#0072b2",
    "vermilion": "#d55e00",
    "green": "#009e73",
    "orange": "#e69f00",
    "purple": "#cc79a7",
    "sky": "#56b4e9",
    "grey": "#8a94a3",
}
INK, MUTED, GRID, SURFACE = (COLOURS[name] for name in ("ink", "muted", "grid", "surface"))
SERIES = tuple(COLOURS[name] for name in ("blue", "vermilion", "green", "orange", "purple", "sky"))
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
SMALL, NORMAL, LARGE = 8.5, 9.5, 11.0
WIDTH = 9.0
"""Of a picture, in inches."""


def make_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (a device that trains draws nothing)

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def line_style(position: int) -> dict[str, object]:
    """Colour and dashes of the so-manieth line: 18 that can be told apart."""
    dashes = DASHES[position // len(SERIES) % len(DASHES)]
    return {"color": SERIES[position % len(SERIES)], "linestyle": dashes}


def style_axes(axes: Axes, *, title: str = "", grid: str = "both") -> Axes:
    """Quiet frame, pale grid behind the data, a title at the left."""
    axes.set_facecolor("none")
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED, labelsize=SMALL, length=0, pad=6)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(GRID)
    if grid:
        axes.grid(True, axis=grid, color=GRID, linewidth=0.8)  # type: ignore[arg-type]
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(MUTED)
        label.set_fontsize(NORMAL)
    if title:
        axes.set_title(title, loc="left", color=INK, fontsize=LARGE, pad=10)
    return axes


def style_legend(legend: Legend) -> None:
    """No frame; the colours and sizes of the axes."""
    legend.set_frame_on(False)
    legend.get_title().set_color(MUTED)
    legend.get_title().set_fontsize(SMALL)
    for text in legend.get_texts():
        text.set_color(INK)
        text.set_fontsize(SMALL)


def png_bytes(figure: Figure) -> bytes:
    """The figure at 200 dots per inch, on white."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=200)
    return buffer.getvalue()


def inline_svg(figure: Figure, name: str, alt: str) -> str:
    """The figure as an ``<svg>`` element for a page that declares each of COLOURS as ``--NAME``.

    Args:
        figure: What to draw; equal figures give equal text.
        name: Unique on the page: what a drawing refers to within itself is named after it.
        alt: What it shows, for those who cannot see it.
    """
    import matplotlib as mpl  # noqa: PLC0415

    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "manyhands"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", buffer.getvalue(), flags=re.DOTALL)
    opening = re.search(r'<svg[^>]*(viewBox="[^"]*")[^>]*>', svg)
    assert opening, "matplotlib always writes a view box"
    svg = f'<svg {opening[1]} role="img" aria-label="{escape(alt)}">{svg[opening.end() :]}'
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = svg.replace("url(#", f"url(#{name}-").replace('xlink:href="#', f'href="#{name}-')
    for colour, value in COLOURS.items():
        svg = svg.replace(value, f"var(--{colour})")
    return svg
