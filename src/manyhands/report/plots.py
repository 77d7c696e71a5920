"""The pictures of a run, drawn from its result and from nothing else.

Every function takes the mapping that `result.json` holds and returns a matplotlib figure, or ``None`` where
the result has nothing to show. None of them touches pyplot, so they may run in any thread of any program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from manyhands.report.atomic import write_atomically
from manyhands.report.graph import topology_figure
from manyhands.report.look import (
    COLOURS,
    INK,
    MUTED,
    SERIES,
    SMALL,
    line_style,
    make_figure,
    png_bytes,
    style_axes,
    style_legend,
)
from manyhands.report.reading import (
    Curve,
    Measure,
    Result,
    Row,
    device_rows,
    devices_of,
    measure_of,
    median_curve,
    names_text,
    number,
    plain,
    points_of,
    same_curves,
    split_heading,
)
from manyhands.report.units import (
    bytes_scale,
    bytes_text,
    energy_scale,
    energy_text,
    seconds_scale,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "compare_figure",
    "curves_figure",
    "devices_figure",
    "figures",
    "save_compare_png",
    "save_pngs",
    "together_figure",
    "topology_figure",
]

MOST_CURVES = 12
MOST_ROWS = 25
WIDTH = 9.0


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


def curves_figure(result: Result) -> Figure | None:
    """How good networks are over time: the global one bold, each device thin (or their range, if many)."""
    measure = measure_of(result)
    overall = points_of(result, measure)
    named = [(str(d.get("name", "?")), points_of(d, measure)) for d in devices_of(result)]
    curves = [(name, curve) for name, curve in named if curve is not None]
    baseline = points_of(result.get("baseline") or {}, measure)
    everything = [c for c in (overall, baseline, *(c for _, c in curves)) if c is not None]
    if not everything:
        return None
    figure = make_figure(WIDTH, 4.4)
    axes = figure.add_subplot()
    factor, unit = seconds_scale(max(c.x[-1] for c in everything))
    groups = same_curves(curves)
    if len(groups) <= MOST_CURVES:
        for i, (names, curve) in enumerate(groups):
            label = f"{plain(names_text(names))}  {measure.text(curve.values[-1])}"
            _draw_curve(axes, curve, factor, label=label, linewidth=1.2, alpha=0.9, **line_style(i))
    elif (middle := median_curve([c for _, c in curves])) is not None:
        _draw_curve(
            axes, middle, factor, label=f"median of {len(curves)} devices", color=SERIES[0], linewidth=1.4
        )
    if baseline is not None:
        split = plain((result.get("baseline") or {}).get("split") or "baseline")
        label = f"{split}  {measure.text(baseline.values[-1])}"
        _draw_curve(axes, baseline, factor, label=label, color=MUTED, linewidth=1.6, linestyle=(0, (1, 1.5)))
    if overall is not None:
        label = f"merged network  {measure.text(overall.values[-1])}"
        _draw_curve(axes, overall, factor, label=label, color=INK, linewidth=2.8, zorder=5)
    _finish_curves(figure, axes, unit, measure)
    return figure


def _draw_curve(axes: Axes, curve: Curve, factor: float, *, label: str, **style: Any) -> None:
    # A single point would be an invisible line; as a dot it may reach over the edge.
    single = len(curve.x) == 1
    style = {"marker": "o" if single else "", "clip_on": not single, **style}
    axes.plot(curve.x / factor, curve.values, label=label, markersize=5, **style)
    if curve.low is not None and curve.high is not None:
        axes.fill_between(
            curve.x / factor,
            curve.low,
            curve.high,
            color=style.get("color"),
            alpha=0.18,
            linewidth=0,
            label="lowest to highest device" if "median" in label else None,
        )


def _finish_curves(figure: Figure, axes: Axes, unit: str, measure: Measure) -> None:
    _label_curves(axes, unit, measure)
    axes.set_xlim(0, max(float(np.max(line.get_xdata())) for line in axes.get_lines()) or 1.0)
    bottom, top = axes.get_ylim()
    if measure.bounded:
        axes.set_ylim(max(bottom, 0), 1.005 if top > 0.7 else top)
    # The best comes first, as the lines end at the right; what stands for everyone before single devices.
    lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    lines.sort(key=lambda line: (line.get_zorder(), np.asarray(line.get_ydata())[-1]), reverse=True)
    handles = [*lines, *axes.collections]
    style_legend(figure.legend(handles, [str(h.get_label()) for h in handles], loc="outside right upper"))


def _label_curves(axes: Axes, unit: str, measure: Measure) -> None:
    style_axes(axes, title=f"{measure.key.capitalize()} over time")
    axes.set_xlabel(f"time ({unit})")
    axes.set_ylabel(measure.label)
    axes.yaxis.set_major_formatter(measure.tick)


def devices_figure(result: Result) -> Figure | None:
    """Time, traffic and energy of each device, or of each kind where there are many."""
    keys = ("busy_seconds", "waiting_seconds", "bytes_sent", "bytes_received", "energy_joules")
    devices = devices_of(result)
    rows = device_rows(devices, keys, most=MOST_ROWS)
    if not rows:
        return None
    figure = make_figure(WIDTH, 1.5 + 0.42 * len(rows))
    left, middle, right = figure.subplots(1, 3, sharey=True, gridspec_kw={"width_ratios": (1.15, 1.15, 1)})
    from matplotlib.layout_engine import ConstrainedLayoutEngine  # noqa: PLC0415  (drawing is for those who look)

    if isinstance(engine := figure.get_layout_engine(), ConstrainedLayoutEngine):
        engine.set(wspace=0.06)
    _draw_time(left, rows)
    _draw_traffic(middle, rows)
    _draw_energy(right, rows)
    _label_rows(left, [row.label for row in rows])
    if len(devices) > MOST_ROWS:
        note = f"{len(devices)} devices: each bar is the mean of its kind"
        figure.suptitle(note, x=0.01, ha="left", color=MUTED, fontsize=SMALL)
    return figure


def _draw_time(axes: Axes, rows: Sequence[Row]) -> None:
    busy, waiting = _column(rows, "busy_seconds"), _column(rows, "waiting_seconds")
    totals = [b + w for b, w in zip(busy, waiting, strict=True)]
    factor, unit = seconds_scale(max(totals))
    places = range(len(rows))
    axes.barh(places, [b / factor for b in busy], 0.62, color=SERIES[0], label="busy")
    axes.barh(
        places,
        [w / factor for w in waiting],
        0.62,
        left=[b / factor for b in busy],
        color=COLOURS["grid"],
        label="waiting",
    )
    _finish_bars(axes, totals, factor, title="Time", xlabel=f"time ({unit})")
    _write_values(axes, [(i, totals[i] / factor, _busy_text(busy[i], totals[i])) for i in places])


def _busy_text(busy: float, total: float) -> str:
    return f"{100 * busy / total:.0f} % busy" if total else ""


def _draw_traffic(axes: Axes, rows: Sequence[Row]) -> None:
    sent, received = _column(rows, "bytes_sent"), _column(rows, "bytes_received")
    factor, unit = bytes_scale(max([*sent, *received]))
    places = range(len(rows))
    axes.barh([i - 0.17 for i in places], [s / factor for s in sent], 0.31, color=SERIES[1], label="sent")
    axes.barh(
        [i + 0.17 for i in places], [r / factor for r in received], 0.31, color=SERIES[3], label="received"
    )
    _finish_bars(axes, [*sent, *received], factor, title="Traffic", xlabel=f"data ({unit})")
    _write_values(axes, [(i - 0.17, value / factor, bytes_text(value)) for i, value in enumerate(sent)], 7.5)
    _write_values(
        axes, [(i + 0.17, value / factor, bytes_text(value)) for i, value in enumerate(received)], 7.5
    )


def _draw_energy(axes: Axes, rows: Sequence[Row]) -> None:
    energy = _column(rows, "energy_joules")
    factor, unit = energy_scale(max(energy))
    axes.barh(range(len(rows)), [e / factor for e in energy], 0.62, color=SERIES[2])
    _finish_bars(axes, energy, factor, title="Energy", xlabel=f"energy ({unit})")
    _write_values(axes, [(i, e / factor, energy_text(e)) for i, e in enumerate(energy)])


def _column(rows: Sequence[Row], key: str) -> list[float]:
    return [row.values[key] or 0.0 for row in rows]


def _write_values(axes: Axes, values: Sequence[tuple[float, float, str]], size: float = SMALL) -> None:
    """At each place, a text just beyond the end of the bar there."""
    for place, end, text in values:
        gap, side = (4, "left") if end >= 0 else (-4, "right")
        beyond: dict[str, Any] = {"xytext": (gap, 0), "textcoords": "offset points", "ha": side}
        axes.annotate(text, (end, place), color=MUTED, fontsize=size, va="center_baseline", **beyond)


def _finish_bars(axes: Axes, values: Sequence[float], factor: float, *, title: str, xlabel: str) -> None:
    style_axes(axes, title=title, grid="x")
    axes.set_xlabel(xlabel)
    axes.set_xlim(0, 1.32 * max(values) / factor or 1.0)  # room for the figure at a bar's end
    axes.locator_params(axis="x", nbins=4)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        place: dict[str, Any] = {
            "loc": "lower right",
            "bbox_to_anchor": (1.0, 1.0),
            "ncols": 2,
            "borderpad": 0.2,
        }
        style_legend(axes.legend(handles, labels, handlelength=1.0, columnspacing=1.0, **place))


def _label_rows(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    for label in axes.get_yticklabels():
        label.set_color(INK)


def together_figure(result: Result) -> Figure | None:
    """What each device got out of taking part: how good it is alone, and together with the others."""
    measure = measure_of(result)
    keys = (measure.key_alone, measure.key)
    compared = [d for d in devices_of(result) if all(number(d, key) is not None for key in keys)]
    rows = device_rows(compared, keys, most=MOST_ROWS)
    if not rows:
        return None
    figure = make_figure(WIDTH, 1.4 + 0.36 * len(rows))
    axes = figure.add_subplot()
    alone, together = (_column(rows, key) for key in keys)
    for i, (before, after) in enumerate(zip(alone, together, strict=True)):
        points = measure.gain(before, after)
        colour = SERIES[0] if points > 0 else SERIES[1] if points < 0 else COLOURS["grey"]
        axes.plot([before, after], [i, i], color=colour, linewidth=3, alpha=0.35, solid_capstyle="round")
        axes.plot(after, i, "o", color=colour, markersize=8)
        gain = f"{measure.text(after)}  ({measure.gain_text(before, after)})"
        place, side = ((9, 0), "left") if points >= 0 else ((-9, 0), "right")
        axes.annotate(
            gain,
            (after, i),
            place,
            textcoords="offset points",
            ha=side,
            va="center",
            color=INK,
            fontsize=SMALL,
        )
    axes.plot(alone, range(len(rows)), "o", color=COLOURS["grey"], markersize=6, linestyle="", label="alone")
    axes.plot([], [], "o", color=SERIES[0], markersize=8, linestyle="", label="together")
    many = len(compared) > MOST_ROWS
    style_axes(
        axes, title="What each kind gained, on average" if many else "What each device gained", grid="x"
    )
    axes.set_xlabel(measure.label)
    axes.xaxis.set_major_formatter(measure.tick)
    axes.locator_params(axis="x", nbins=6, steps=[1, 2, 5, 10])
    _label_rows(axes, [row.label for row in rows])
    low, high = min([*alone, *together]), max([*alone, *together])
    room = max(high - low, 2 / measure.factor)
    axes.set_xlim(low - 0.25 * room, high + 0.3 * room)
    style_legend(axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, handletextpad=0.2))
    return figure


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
            _draw_curve(left, curves[label], factor, label=label, linewidth=2.2, **line_style(i))
        values = {row.label: row.values[measure.key] for row in rows[label]}
        bars = [(names.index(name), value) for name, value in values.items() if value is not None]
        offset = (i - (len(results) - 1) / 2) * height
        _write_values(right, [(place + offset, value, measure.text(value)) for place, value in bars], 7.0)
        right.barh(
            [place + offset for place, _ in bars],
            [value for _, value in bars],
            0.86 * height,
            color=line_style(i)["color"],
            label=label,
        )
    _label_curves(left, unit, measure)
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
    _label_rows(right, names)
    handles, labels = right.get_legend_handles_labels()
    style_legend(figure.legend(handles, labels, loc="outside upper left", ncols=max(len(labels), 1)))
