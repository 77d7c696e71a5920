from __future__ import annotations

import re
from pathlib import Path

from manyhands.data import DataSection

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_page_says(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "docs/data.md", "exec"), {})
    expected = "\n".join(line[2:] for line in code.splitlines() if line.startswith("# "))
    assert capsys.readouterr().out.strip() == expected


def test_every_key_is_on_the_page():
    section = PAGE.partition("## Every key")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(DataSection.model_fields)
