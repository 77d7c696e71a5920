"""The learning curves of a sweep: how good each device is while it learns, a line a split.

As in figure 3 of paper 001, a line is the median over the seeds and the shade around it reaches from the
lowest to the highest; each seed's curve may be smoothed by a sliding window before that (the paper's is of
25 test episodes). The curves are those of the devices in each run's `result.json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from manyhands.report.look import INK, MUTED, SMALL, line_style, make_figure, style_axes, style_legend
from manyhands.report.reading import (
    Curve,
    Floats,
    Measure,
    Result,
    devices_of,
    measure_of,
    number,
    plain,
    points_of,
)
from manyhands.report.spread import Comparison, headings, key_label, note, panel_labels, tick_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["learning_figure"]

LONGEST_TITLE = 32

Place = tuple[str, str, int]
"""Where a line is drawn: its panel, its split, and the place of its value among `values`."""


def learning_figure(comparison: Comparison, results: Sequence[Result], smooth: int = 1) -> Figure | None:
    """A row for each device (or kind), a column for each varied value, a line and its range for each split.

    Args:
        comparison: What `compare.json` holds.
        results: The whole result of each of its runs, in the same order.
        smooth: So many points of a curve are averaged to one: each with those just before it.

    Returns:
        The figure; None where no network was measured twice, so that there is no line to draw.
    """
    runs = list(zip(comparison.get("runs") or [], results, strict=True))
    labels = panel_labels(results)
    lines = _lines(comparison, runs, labels, smooth)
    if all(len(line.x) < 2 for line in lines.values()):
        return None
    rows, values = list(dict.fromkeys(labels.values())), list(comparison.get("values") or [None])
    figure = make_figure(1.4 + max(2.8 * len(values), 5.2), 1.3 + 2.3 * len(rows))
    grid = figure.subplots(len(rows), len(values), sharex="row", sharey=True, squeeze=False)
    from matplotlib.layout_engine import ConstrainedLayoutEngine  # noqa: PLC0415  (drawing is for those who look)

    if isinstance(engine := figure.get_layout_engine(), ConstrainedLayoutEngine):
        engine.set(wspace=0.04, hspace=0.04)
    splits = headings(comparison)
    for row, label in enumerate(rows):
        for column in range(len(values)):
            axes: Axes = grid[row, column]
            for i, (split, heading) in enumerate(splits.items()):
                if (line := lines.get((label, split, column))) is not None:
                    _draw(axes, line, heading, i)
            style_axes(axes)
        grid[row, 0].set_ylabel(plain(label), color=INK)
    _finish(figure, grid, comparison, results, smooth)
    return figure


def _lines(
    comparison: Comparison,
    runs: Iterable[tuple[Mapping[str, Any], Result]],
    labels: Mapping[str, str],
    smooth: int,
) -> dict[Place, Curve]:
    """Over the seeds, the median and the range of what each panel shows."""
    measure, values = measure_of(comparison), list(comparison.get("values") or [None])
    found: dict[Place, list[Curve]] = {}
    for run, result in runs:
        of_panel: dict[str, list[Curve]] = {}
        for device in devices_of(result):
            if (curve := _device_curve(device, measure, smooth)) is not None:
                of_panel.setdefault(labels[str(device.get("name", "?"))], []).append(curve)
        for label, curves in of_panel.items():
            place = (label, str(run.get("split")), values.index(run.get("value")))
            x, heights = _aligned(curves)
            found.setdefault(place, []).append(Curve(x, np.asarray(heights.mean(axis=0))))
    return {place: _median(curves) for place, curves in found.items()}


def _device_curve(device: Mapping[str, Any], measure: Measure, smooth: int) -> Curve | None:
    """Against the steps that it had done in its game; where it plays none, against rounds."""
    plays = number(device, "steps_per_round") is not None
    curve = points_of(device, measure, along="examples" if plays else "round")
    return None if curve is None else Curve(curve.x, _smoothed(curve.values, smooth))


def _smoothed(values: Floats, window: int) -> Floats:
    """Each value as the mean of the last `window`, or of those there are."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))


def _aligned(curves: Sequence[Curve]) -> tuple[Floats, np.ma.MaskedArray[Any, Any]]:
    """All places at which a curve has a point, and the height of each curve there (none beyond its ends)."""
    x = np.unique(np.concatenate([curve.x for curve in curves]))
    heights = [np.interp(x, curve.x, curve.values, left=np.nan, right=np.nan) for curve in curves]
    return x, np.ma.masked_invalid(np.stack(heights))


def _median(curves: Sequence[Curve]) -> Curve:
    x, heights = _aligned(curves)
    middle = np.asarray(np.ma.median(heights, axis=0))  # type: ignore[no-untyped-call]
    if len(curves) == 1:
        return Curve(x, middle)
    return Curve(x, middle, np.asarray(heights.min(axis=0)), np.asarray(heights.max(axis=0)))


def _draw(axes: Axes, line: Curve, heading: str, position: int) -> None:
    style: dict[str, Any] = line_style(position)
    marker = "o" if len(line.x) == 1 else ""  # a single point would be an invisible line
    axes.plot(
        line.x,
        line.values,
        label=plain(heading),
        linewidth=1.6,
        marker=marker,
        markersize=4,
        zorder=3,
        **style,
    )
    if line.low is not None and line.high is not None:
        axes.fill_between(
            line.x, line.low, line.high, color=style["color"], alpha=0.16, linewidth=0, zorder=2
        )


def _finish(
    figure: Figure, grid: Any, comparison: Comparison, results: Iterable[Result], smooth: int
) -> None:
    measure = measure_of(comparison)
    stepped = any(number(device, "steps_per_round") for result in results for device in devices_of(result))
    for column, value in enumerate(comparison.get("values") or []):
        grid[0, column].set_title(_title(str(comparison.get("key")), value), color=INK, fontsize=SMALL + 1)
    for axes in grid.ravel():
        axes.margins(x=0.02)
        axes.set_xlim(left=0)
        axes.locator_params(axis="x", nbins=6)
        axes.yaxis.set_major_formatter(measure.tick)
        if stepped:
            from matplotlib.ticker import EngFormatter  # noqa: PLC0415  (drawing is for those who look)

            axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    for axes in grid[-1]:
        axes.set_xlabel("steps" if stepped else "rounds", color=MUTED)
    if measure.bounded:
        bottom, top = grid[0, 0].get_ylim()
        grid[0, 0].set_ylim(max(bottom, 0.0), min(top, 1.005))
    figure.supylabel(measure.label, color=MUTED, fontsize=SMALL + 1)
    handles = {
        label: handle
        for axes in grid.ravel()
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    style_legend(
        figure.legend(handles.values(), handles, loc="outside upper left", ncols=min(len(handles), 6))
    )
    parts = [note(comparison), f"each point is the mean of {smooth}" if smooth > 1 else ""]
    figure.supxlabel(
        "; ".join(part for part in parts if part), x=0.01, ha="left", color=MUTED, fontsize=SMALL
    )


def _title(key: str, value: Any) -> str:
    """Of a column: the varied key and its value, the key in one word where it is long."""
    label = key_label(key)
    if len(label) + len(tick_text(value)) > LONGEST_TITLE:
        label = key.rpartition(".")[2]
    return f"{plain(label)}: {tick_text(value)}"
