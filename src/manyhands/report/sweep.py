"""The plot and the page of a sweep: how good each device is against the varied value, a line a split.

As in figure 4 of paper 001, a line is the median over the seeds and the shade around it reaches from the
lowest to the highest. Everything is drawn from the mapping that `compare.json` holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.report.atomic import write_atomically
from manyhands.report.look import (
    INK,
    MUTED,
    SMALL,
    line_style,
    make_figure,
    png_bytes,
    style_axes,
    style_legend,
)
from manyhands.report.markup import Cell, card, filled_table, plot, table, write_html
from manyhands.report.reading import Measure, measure_of, number, plain
from manyhands.report.spread import (
    Comparison,
    Panel,
    Spread,
    headings,
    key_label,
    note,
    panels,
    tick_text,
    value_text,
)
from manyhands.report.units import MISSING, bytes_text, seconds_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["save_sweep_png", "sweep_figure", "write_sweep_page"]

MARKERS = ("o", "s", "^", "D", "v", "P")
PER_ROW = 3


def save_sweep_png(comparison: Comparison, folder: Path) -> Path:
    """Writes the plot of a sweep as ``compare.png`` and returns its path."""
    return write_atomically(Path(folder) / "compare.png", png_bytes(sweep_figure(comparison)))


def sweep_figure(comparison: Comparison) -> Figure:
    """A panel for each device (or kind); where only the seed differs, one panel with a row for each."""
    shown = panels(comparison)
    splits = headings(comparison)
    if comparison.get("key") is None:
        figure = _draw_rows(shown, splits, measure_of(comparison))
    else:
        figure = _draw_lines(shown, splits, comparison)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if handles:
        style_legend(figure.legend(handles, labels, loc="outside upper left", ncols=min(len(labels), 6)))
    figure.supxlabel(note(comparison), x=0.01, ha="left", color=MUTED, fontsize=SMALL)
    return figure


def _style(position: int) -> dict[str, Any]:
    return {"marker": MARKERS[position % len(MARKERS)], "markersize": 5.5, **line_style(position)}


def _draw_lines(shown: Sequence[Panel], splits: Mapping[str, str], comparison: Comparison) -> Figure:
    columns = min(len(shown), PER_ROW) or 1
    rows = math.ceil(len(shown) / columns) or 1
    figure = make_figure(4.2 * columns if columns < PER_ROW else 10.2, 1.0 + 3.0 * rows)
    every = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel().tolist()
    from matplotlib.layout_engine import ConstrainedLayoutEngine  # noqa: PLC0415  (drawing is for those who look)

    if isinstance(engine := figure.get_layout_engine(), ConstrainedLayoutEngine):
        engine.set(wspace=0.06, hspace=0.06)
    values = list(comparison.get("values") or [])
    places = _places(values)
    for axes, panel in zip(every, shown, strict=False):
        for i, (split, heading) in enumerate(splits.items()):
            points = [(places[v], panel.spreads.get((split, v))) for v in range(len(values))]
            _draw_line(axes, points, heading, i)
        style_axes(axes, title=plain(panel.label))
        _finish_values(axes, values, places)
        axes.set_xlabel(plain(key_label(str(comparison["key"]))), color=MUTED)
    for axes in every[len(shown) :]:
        axes.set_axis_off()
    _finish_measure(figure, measure_of(comparison))
    return figure


def _places(values: Sequence[Any]) -> list[float]:
    """Where on the axis each value stands: at itself if all are numbers, else one after the other."""
    return [float(value) if _are_numbers(values) else float(i) for i, value in enumerate(values)]


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _draw_line(axes: Axes, points: Sequence[tuple[float, Spread | None]], label: str, position: int) -> None:
    found = sorted((place, spread) for place, spread in points if spread is not None)
    x = [place for place, _ in found]
    style = _style(position)
    axes.plot(x, [s.median for _, s in found], label=plain(label), linewidth=1.8, zorder=3, **style)
    if any(s.num_seeds > 1 for _, s in found):
        low, high = [s.low for _, s in found], [s.high for _, s in found]
        axes.fill_between(x, low, high, color=style["color"], alpha=0.16, linewidth=0, zorder=2)


def _finish_values(axes: Axes, values: Sequence[Any], places: Sequence[float]) -> None:
    """Ticks at the values, unless there are too many for that; far apart, they are on a logarithmic axis."""
    low, high = min(places, default=0.0), max(places, default=1.0)
    ordered = sorted(places)
    if low > 0 and high / low >= 100:
        axes.set_xscale("log")
        ordered = [math.log(place) for place in ordered]
    gaps = [after - before for before, after in pairwise(ordered)]
    if not gaps or min(gaps) >= 0.08 * (ordered[-1] - ordered[0]):
        axes.set_xticks(places, [tick_text(value) for value in values])
        axes.minorticks_off()
    if not _are_numbers(values) or len(values) == 1:
        axes.set_xlim(low - 0.5, high + 0.5)
    if not _are_numbers(values) and sum(len(tick_text(value)) for value in values) > 28:
        axes.tick_params(axis="x", labelrotation=20)


def _finish_measure(figure: Figure, measure: Measure) -> None:
    first = figure.axes[0]
    first.set_ylabel(measure.label, color=MUTED)
    first.yaxis.set_major_formatter(measure.tick)
    if measure.bounded:
        bottom, top = first.get_ylim()
        first.set_ylim(max(bottom, 0.0), min(top, 1.005))


def _draw_rows(shown: Sequence[Panel], splits: Mapping[str, str], measure: Measure) -> Figure:
    """A row for each device, with a point and its range for each split."""
    figure = make_figure(8.0, 1.4 + 0.24 * len(shown) * (len(splits) + 1))
    axes = style_axes(figure.add_subplot(), title=f"{measure.key.capitalize()} of each device", grid="x")
    step = 0.7 / max(len(splits), 1)
    for i, (split, heading) in enumerate(splits.items()):
        found = [(n, p.spreads[split, 0]) for n, p in enumerate(shown) if (split, 0) in p.spreads]
        heights = [n + (i - (len(splits) - 1) / 2) * step for n, _ in found]
        style = _style(i) | {"linestyle": ""}
        axes.hlines(
            heights,
            [s.low for _, s in found],
            [s.high for _, s in found],
            color=style["color"],
            linewidth=3,
            alpha=0.35,
        )
        axes.plot([s.median for _, s in found], heights, label=plain(heading), **style)
        for height, (_, spread) in zip(heights, found, strict=True):
            beyond: dict[str, Any] = {
                "xytext": (7, 0),
                "textcoords": "offset points",
                "va": "center_baseline",
            }
            axes.annotate(
                measure.text(spread.median), (spread.high, height), color=MUTED, fontsize=7.5, **beyond
            )
    axes.set_yticks(range(len(shown)), [plain(panel.label) for panel in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.margins(x=0.12)
    axes.set_xlabel(measure.label, color=MUTED)
    axes.xaxis.set_major_formatter(measure.tick)
    return figure


def write_sweep_page(comparison: Comparison, path: Path, curves: Figure | None = None) -> Path:
    """Writes the report of a sweep: the plot, the learning curves, a table for each device, and every run."""
    splits, runs = headings(comparison), list(comparison.get("runs") or [])
    measure = measure_of(comparison)
    seeds = ", ".join(str(seed) for seed in comparison.get("seeds") or [])
    facts = [f"compared: {', '.join(splits.values())}"]
    facts += [f"varied: {comparison['key']}"] if comparison.get("key") else []
    facts += [f"seeds {seeds}" if "," in seeds else f"seed {seeds}"]
    name = measure.key.capitalize()
    alt = f"{name} of each device under each split; the tables below have the figures."
    run_heads = ("Run", "Value", "Seed", name, "Time", "Data sent", "Rounds")
    run_rows = (_run_row(run, splits, measure) for run in runs)
    body = [
        plot("compare", sweep_figure(comparison), alt),
        *([] if curves is None else [plot("curves", curves, f"{name} of each device while it learns.")]),
        *_failures(comparison),
        *_measure_cards(comparison, splits, measure),
        card(f"Runs ({len(runs)})", filled_table(run_heads, run_rows, tall=True)),
    ]
    return write_html(path, str(comparison.get("job", "run")), facts, body, "comparison")


def _measure_cards(comparison: Comparison, splits: Mapping[str, str], measure: Measure) -> list[str]:
    """A table for each device with a row a value; where only seeds differ, one with a row a device."""
    shown = panels(comparison)
    key, name = comparison.get("key"), measure.key.capitalize()
    if key is None:
        rows = ((escape(panel.label), _spread_cells(panel, splits, 0, measure)) for panel in shown)
        return [card(f"{name} of each device", filled_table(("Device", *splits.values()), rows))]
    values = list(comparison.get("values") or [])
    heads = (key_label(str(key)), *splits.values())
    cards = []
    for panel in shown:
        rows = (
            (escape(value_text(v)), _spread_cells(panel, splits, i, measure)) for i, v in enumerate(values)
        )
        cards.append(card(f"{name} of {panel.label}", filled_table(heads, rows)))
    return cards


def _spread_cells(panel: Panel, splits: Iterable[str], place: int, measure: Measure) -> list[Cell]:
    """The figures of a row; below them the size of the network, where sizes differ."""
    return [
        Cell(
            _spread_text(panel.spreads.get((split, place)), measure),
            below=panel.sizes.get((split, place), ""),
        )
        for split in splits
    ]


def _spread_text(spread: Spread | None, measure: Measure) -> str:
    if spread is None:
        return MISSING
    if spread.num_seeds == 1:
        return measure.text(spread.median)
    return f"{measure.text(spread.median)} ({measure.range(spread.low, spread.high, dash='–')})"


def _failures(comparison: Comparison) -> list[str]:
    failed = comparison.get("failed") or []
    if not failed:
        return []
    rows = (
        f'<th scope="row">{escape(str(run.get("folder")))}</th>'
        f'<td class="long">{escape(str(run.get("error")))}</td>'
        for run in failed
    )
    return [card("Runs that failed", table(("Run", "Why"), rows, style="texts"))]


def _run_row(
    run: Mapping[str, Any], splits: Mapping[str, str], measure: Measure
) -> tuple[str, tuple[str, ...]]:
    rounds = number(run, "rounds")
    cells = (
        MISSING if run.get("value") is None else value_text(run["value"]),
        str(run.get("seed", "?")),
        measure.text(number(run, measure.key)),
        seconds_text(number(run, "seconds")),
        bytes_text(number(run, "bytes_sent")),
        MISSING if rounds is None else f"{rounds:.0f}",
    )
    split = str(run.get("split", "?"))
    return escape(splits.get(split, split)), cells
