"""The pictures of a run, drawn from its result and from nothing else.

Every function takes the mapping that `result.json` holds and returns a matplotlib figure, or ``None`` where
the result has nothing to show. None of them touches pyplot, so they may run in any thread of any program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.report.atomic import write_atomically
from manyhands.report.bars import devices_figure, label_rows, together_figure, write_values
from manyhands.report.curves import MOST_CURVES, curves_figure, draw_curve, label_curves
from manyhands.report.graph import topology_figure
from manyhands.report.look import WIDTH, line_style, make_figure, png_bytes, style_axes, style_legend
from manyhands.report.reading import (
    Curve,
    Measure,
    Result,
    device_rows,
    devices_of,
    measure_of,
    median_curve,
    plain,
    points_of,
    split_heading,
)
from manyhands.report.units import seconds_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["compare_figure", "figures", "save_compare_png", "save_pngs"]


def figures(result: Result) -> dict[str, Figure]:
    """All plots of a run by name, leaving out those it has no data for."""
    drawn = {
        measure_of(result).key: curves_figure(result),
        "together": together_figure(result),
        "devices": devices_figure(result),
        "topology": topology_figure(result),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def save_pngs(result: Result, folder: Path) -> list[Path]:
    """Writes every plot of a run as ``NAME.png`` and returns the paths."""
    return [
        write_atomically(Path(folder) / f"{name}.png", png_bytes(figure))
        for name, figure in figures(result).items()
    ]


def save_compare_png(results: Mapping[str, Result], folder: Path) -> Path:
    """Writes the plot of a comparison as ``compare.png`` and returns its path."""
    return write_atomically(Path(folder) / "compare.png", png_bytes(compare_figure(results)))


def compare_figure(results: Mapping[str, Result]) -> Figure:
    """The same job under several splits: the measure over time, and what each device ended with."""
    measure = measure_of(next(iter(results.values()), {}))
    results = {plain(split_heading(label, result)): result for label, result in results.items()}
    rows = {
        label: device_rows(devices_of(result), (measure.key,), most=MOST_CURVES)
        for label, result in results.items()
    }
    names = list(dict.fromkeys(row.label for entries in rows.values() for row in entries))
    bars_height = 0.8 + 0.17 * len(names) * (len(results) + 1)
    if bars_height < 6:
        figure = make_figure(WIDTH + 1, max(4.6, bars_height))
        left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": (1.25, 1)})
    else:
        figure = make_figure(WIDTH, 4.2 + bars_height)
        left, right = figure.subplots(2, 1, gridspec_kw={"height_ratios": (4.2, bars_height)})
    curves = {
        label: curve for label, result in results.items() if (curve := _overall_curve(result)) is not None
    }
    factor, unit = seconds_scale(max((c.x[-1] for c in curves.values()), default=1.0))
    height = 0.8 / max(len(results), 1)
    for i, label in enumerate(results):
        if label in curves:
            draw_curve(left, curves[label], factor, label=label, linewidth=2.2, **line_style(i))
        values = {row.label: row.values[measure.key] for row in rows[label]}
        bars = [(names.index(name), value) for name, value in values.items() if value is not None]
        offset = (i - (len(results) - 1) / 2) * height
        write_values(right, [(place + offset, value, measure.text(value)) for place, value in bars], 7.0)
        right.barh(
            [place + offset for place, _ in bars],
            [value for _, value in bars],
            0.86 * height,
            color=line_style(i)["color"],
            label=label,
        )
    label_curves(left, unit, measure)
    _finish_compare(figure, left, right, measure, names)
    return figure


def _overall_curve(result: Result) -> Curve | None:
    """The global network's curve; without one (as when nobody exchanges) the median of the devices."""
    measure = measure_of(result)
    curves = [curve for device in devices_of(result) if (curve := points_of(device, measure)) is not None]
    return points_of(result, measure) or median_curve(curves)


def _finish_compare(figure: Figure, left: Axes, right: Axes, measure: Measure, names: Sequence[str]) -> None:
    left.set_xlim(left=0)
    style_axes(right, title=f"Final {measure.key} of each device", grid="x")
    right.set_xlabel(measure.label)
    right.xaxis.set_major_formatter(measure.tick)
    if measure.bounded:
        left.set_ylim(0, 1.005)
        right.set_xlim(0, 1.18)
        right.set_xticks([0, 0.25, 0.5, 0.75, 1])
    else:
        right.margins(x=0.18)
    label_rows(right, names)
    handles, labels = right.get_legend_handles_labels()
    style_legend(figure.legend(handles, labels, loc="outside upper left", ncols=max(len(labels), 1)))
