"""The building blocks of every HTML report: cards, tiles, tables, plots, and the frame around them.

A page needs no other file and runs nothing. Texts are escaped here, but for what is said to be HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from manyhands.report.atomic import write_atomically
from manyhands.report.look import inline_svg
from manyhands.report.sheet import STYLE
from manyhands.report.units import MISSING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Cell", "card", "filled_table", "plot", "table", "tiles", "write_html"]


class Cell(NamedTuple):
    """A figure in a table, with a class of the style sheet and a small remark below it."""

    text: str
    style: str = ""
    below: str = ""


def write_html(path: Path, title: str, facts: Sequence[str], body: Sequence[str], mark: str) -> Path:
    """Writes a page: a title, facts below it, parts that are HTML already, and a mark at the foot."""
    newline = "\n"
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(title)} – manyhands</title>
<style>{STYLE}</style>
</head>
<body>
<header><h1>{escape(title)}</h1><p class="quiet">{escape(" · ".join(facts))}</p></header>
<main>
{newline.join(body)}
</main>
<footer>manyhands · {escape(mark)}</footer>
</body>
</html>
"""
    return write_atomically(Path(path), page)


def tiles(entries: Iterable[tuple[str, str, str]]) -> str:
    """A row of large figures: name, figure and remark of each."""
    cells = (
        f'<div class="card"><dt>{escape(name)}</dt><dd class="figure">{escape(figure)}</dd>'
        f'<dd class="note">{escape(note)}</dd></div>'
        for name, figure, note in entries
    )
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def card(title: str, content: str) -> str:
    """A framed part of the page; the content is HTML."""
    heading = f"<h2>{escape(title)}</h2>" if title else ""
    return f'<section class="card">{heading}{content}</section>'


def _scroll(label: str, content: str, style: str = "") -> str:
    """Content that may be wider than the screen; the keyboard can reach and move it."""
    return f'<div class="scroll {style}" tabindex="0" role="group" aria-label="{label}">{content}</div>'


def plot(name: str, figure: Figure, alt: str, caption: str = "") -> str:
    """A drawing; `name` is unique on the page, `alt` says what it shows to those who cannot see it."""
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return card("", f"<figure>{_scroll('plot', inline_svg(figure, name, alt))}{below}</figure>")


def table(heads: Sequence[str], rows: Iterable[str], *, tall: bool = False, style: str = "figures") -> str:
    """A table of rows that are HTML already; a tall one scrolls."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(f"<tr>{cells}</tr>" for cells in rows)
    whole = f'<table class="{style}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return _scroll("table", whole, "tall" if tall else "")


def filled_table(
    heads: Sequence[str], rows: Iterable[tuple[str, Sequence[str | Cell]]], *, tall: bool = False
) -> str:
    """A table without the columns in which nothing stands.

    Args:
        heads: The first is above the names of the rows, each other above a column of cells.
        rows: The name of each, which is HTML already, and its cells.
        tall: Whether it scrolls.
    """
    full = [
        (name, [cell if isinstance(cell, Cell) else Cell(cell) for cell in cells]) for name, cells in rows
    ]
    columns = range(len(heads) - 1)
    kept = [i for i in columns if not full or any(cells[i].text not in ("", MISSING) for _, cells in full)]
    lines = (f'<th scope="row">{name}</th>' + "".join(_cell(cells[i]) for i in kept) for name, cells in full)
    return table((heads[0], *(heads[1 + i] for i in kept)), lines, tall=tall)


def _cell(cell: Cell) -> str:
    style = f' class="{cell.style}"' if cell.style else ""
    below = f"<small>{escape(cell.below)}</small>" if cell.below else ""
    return f"<td{style}>{escape(cell.text)}{below}</td>"
