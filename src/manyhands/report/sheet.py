"""The style sheet of the HTML report: light and dark by the reader's setting, wide and narrow screens."""

from __future__ import annotations

from manyhands.report.look import COLOURS

__all__ = ["STYLE"]

# The same names as in COLOURS, for a dark ground: brighter, so that contrast is kept.
_DARK = {
    "ink": "#e8ecf2",
    "muted": "#9ca8b8",
    "grid": "#39424f",
    "surface": "#1a1f27",
    "blue": "#4fa8e2",
    "vermilion": "#f0803c",
    "green": "#35c495",
    "orange": "#f0b13a",
    "purple": "#e09cc4",
    "sky": "#8fd0f7",
    "grey": "#8a94a3",
}


def _variables(colours: dict[str, str], ground: str) -> str:
    return "".join(f"--{name}: {value}; " for name, value in {**colours, "ground": ground}.items())


STYLE = (
    f":root {{ color-scheme: light dark; {_variables(COLOURS, '#f3f5f8')} }}\n"
    f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(_DARK, '#11151b')} }} }}\n"
    """
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 72rem; padding: 2rem 1.25rem 3rem;
  background: var(--ground); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
header { margin-bottom: 1.5rem; }
h1 { margin: 0; font-size: 1.9rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 0 0 .75rem; font-size: 1.1rem; }
p { margin: .35rem 0 0; }
.quiet { color: var(--muted); }
.card {
  background: var(--surface); border: 1px solid var(--grid); border-radius: .75rem;
  padding: 1.1rem 1.25rem; margin: 0 0 1rem;
}
.tiles {
  display: grid; gap: .75rem; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); margin: 0 0 1rem;
}
.tiles .card { margin: 0; padding: .9rem 1rem; }
.tiles dt { color: var(--muted); font-size: .85rem; }
.tiles dd { margin: 0; }
.tiles dd.figure { font-size: 1.5rem; font-weight: 650; line-height: 1.3; white-space: nowrap; }
.tiles dd.note { color: var(--muted); font-size: .8rem; }
figure { margin: 0; }
.scroll { overflow-x: auto; }
.scroll:focus-visible { outline: 2px solid var(--blue); outline-offset: 2px; }
figure svg { display: block; width: 100%; min-width: 38rem; height: auto; }
figure svg * { stroke-linejoin: round; stroke-linecap: butt; }
figure svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif !important; }
figcaption { color: var(--muted); font-size: .85rem; margin-top: .5rem; }
.tall { max-height: 34rem; overflow-y: auto; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td {
  padding: .45rem .55rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--grid);
}
thead th {
  position: sticky; top: 0; z-index: 2; background: var(--surface); color: var(--muted); font-weight: 500;
  white-space: normal; vertical-align: bottom;
}
.figures :is(th, td):not(:first-child) { text-align: right; }
tbody th { font-weight: 600; position: sticky; left: 0; background: var(--surface); }
tbody small { display: block; color: var(--muted); font-weight: 400; }
tbody th small.reason { white-space: normal; }
td.long { white-space: normal; width: 99%; min-width: 14rem; }
tbody tr:last-child > * { border-bottom: 0; }
.up { color: var(--green); } .down, .lost { color: var(--vermilion); }
.tag { border: 1px solid var(--grid); border-radius: 1rem; padding: .05rem .55rem; font-size: .8rem; }
summary { cursor: pointer; font-weight: 600; }
pre {
  overflow-x: auto; margin: .9rem 0 0;
  font: .83rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
}
footer { color: var(--muted); font-size: .8rem; overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  body { padding: 1.25rem .75rem 2rem; }
  .card { padding: .9rem; }
  .tiles { grid-template-columns: repeat(2, 1fr); }
  .tiles dd.figure { font-size: 1.35rem; }
}
@media print {
  body { max-width: none; background: none; }
  .scroll, .tall { max-height: none; overflow: visible; }
  thead th, tbody th { position: static; }
  .figures :is(th, td) { white-space: normal; padding: .3rem; }
  table { font-size: .7rem; }
  .tiles .card, figure, tr { break-inside: avoid; }
}
"""
)
