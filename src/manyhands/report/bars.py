"""A row for each device, or for each kind where there are many: what it cost, and what it gained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from manyhands.report.look import (
    COLOURS,
    INK,
    MUTED,
    SERIES,
    SMALL,
    WIDTH,
    make_figure,
    style_axes,
    style_legend,
)
from manyhands.report.reading import Result, Row, device_rows, devices_of, measure_of, number
from manyhands.report.units import bytes_scale, bytes_text, energy_scale, energy_text, seconds_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["devices_figure", "label_rows", "together_figure", "write_values"]

MOST_ROWS = 25


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
    label_rows(left, [row.label for row in rows])
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
    write_values(axes, [(i, totals[i] / factor, _busy_text(busy[i], totals[i])) for i in places])


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
    write_values(axes, [(i - 0.17, value / factor, bytes_text(value)) for i, value in enumerate(sent)], 7.5)
    write_values(
        axes, [(i + 0.17, value / factor, bytes_text(value)) for i, value in enumerate(received)], 7.5
    )


def _draw_energy(axes: Axes, rows: Sequence[Row]) -> None:
    energy = _column(rows, "energy_joules")
    factor, unit = energy_scale(max(energy))
    axes.barh(range(len(rows)), [e / factor for e in energy], 0.62, color=SERIES[2])
    _finish_bars(axes, energy, factor, title="Energy", xlabel=f"energy ({unit})")
    write_values(axes, [(i, e / factor, energy_text(e)) for i, e in enumerate(energy)])


def _column(rows: Sequence[Row], key: str) -> list[float]:
    return [row.values[key] or 0.0 for row in rows]


def write_values(axes: Axes, values: Sequence[tuple[float, float, str]], size: float = SMALL) -> None:
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


def label_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Names the rows, the first at the top."""
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
    label_rows(axes, [row.label for row in rows])
    low, high = min([*alone, *together]), max([*alone, *together])
    room = max(high - low, 2 / measure.factor)
    axes.set_xlim(low - 0.25 * room, high + 0.3 * room)
    style_legend(axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, handletextpad=0.2))
    return figure
