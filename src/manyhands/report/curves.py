"""How good networks are over time: a line for the merged one, and one for each device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from manyhands.report.look import (
    INK,
    MUTED,
    SERIES,
    WIDTH,
    line_style,
    make_figure,
    style_axes,
    style_legend,
)
from manyhands.report.reading import (
    Curve,
    Measure,
    Result,
    devices_of,
    measure_of,
    median_curve,
    names_text,
    plain,
    points_of,
    same_curves,
)
from manyhands.report.units import seconds_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["MOST_CURVES", "curves_figure", "draw_curve", "label_curves"]

MOST_CURVES = 12


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
            draw_curve(axes, curve, factor, label=label, linewidth=1.2, alpha=0.9, **line_style(i))
    elif (middle := median_curve([c for _, c in curves])) is not None:
        draw_curve(
            axes, middle, factor, label=f"median of {len(curves)} devices", color=SERIES[0], linewidth=1.4
        )
    if baseline is not None:
        split = plain((result.get("baseline") or {}).get("split") or "baseline")
        label = f"{split}  {measure.text(baseline.values[-1])}"
        draw_curve(axes, baseline, factor, label=label, color=MUTED, linewidth=1.6, linestyle=(0, (1, 1.5)))
    if overall is not None:
        label = f"merged network  {measure.text(overall.values[-1])}"
        draw_curve(axes, overall, factor, label=label, color=INK, linewidth=2.8, zorder=5)
    _finish_curves(figure, axes, unit, measure)
    return figure


def draw_curve(axes: Axes, curve: Curve, factor: float, *, label: str, **style: Any) -> None:
    """A line, and the range around it where the curve has one; `factor` seconds are one unit."""
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
    label_curves(axes, unit, measure)
    axes.set_xlim(0, max(float(np.max(line.get_xdata())) for line in axes.get_lines()) or 1.0)
    bottom, top = axes.get_ylim()
    if measure.bounded:
        axes.set_ylim(max(bottom, 0), 1.005 if top > 0.7 else top)
    # The best comes first, as the lines end at the right; what stands for everyone before single devices.
    lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    lines.sort(key=lambda line: (line.get_zorder(), np.asarray(line.get_ydata())[-1]), reverse=True)
    handles = [*lines, *axes.collections]
    style_legend(figure.legend(handles, [str(h.get_label()) for h in handles], loc="outside right upper"))


def label_curves(axes: Axes, unit: str, measure: Measure) -> None:
    """What the axes of a measure over time show."""
    style_axes(axes, title=f"{measure.key.capitalize()} over time")
    axes.set_xlabel(f"time ({unit})")
    axes.set_ylabel(measure.label)
    axes.yaxis.set_major_formatter(measure.tick)
