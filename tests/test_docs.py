"""The reference pages are held to the code.

In docs/job.md a key is documented by a row ``| `key` | takes | default | meaning |`` below the heading that
names its table: ``[data]``, ``[[fleet.device]]``, ``kind = "crash"``, or "Top level". A default in backticks
is TOML and must be the code's; where the code has none, the cell says in words what happens. In
docs/result.md every key and every event has such a row as well.
"""

from __future__ import annotations

import ast
import functools
import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import annotated_types
import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from manyhands.data import SOURCES
from manyhands.engine.faults import Fault
from manyhands.errors import RunError
from manyhands.job import Job, load_job
from manyhands.run import train
from manyhands.sweeps import Vary, comparison, sweep

ROOT = Path(__file__).resolve().parents[1]
DOCS, EXAMPLES = ROOT / "docs", ROOT / "examples"
DATA = Path(os.environ.get("MANYHANDS_DATA", ROOT.parent / "shared" / "data"))
QUIET = ["run.report=false", "run.save_models=false"]

Rows = dict[str, list[str]]


# Reading the pages.


@functools.cache
def rows_by_heading(page: str) -> dict[str, Rows]:
    """Heading -> first cell of each row below it (without backticks) -> the other cells."""
    tables: dict[str, Rows] = {}
    rows: Rows = {}
    fenced = False
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced:
            continue
        elif heading := re.fullmatch(r"#+ (.+)", line):
            rows = tables.setdefault(heading[1].replace("`", ""), {})
        elif row := re.fullmatch(r"\| `(\w+)` \|(.*)\|", line):
            assert row[1] not in rows, f"{page}: {row[1]} is documented twice in one table"
            rows[row[1]] = [cell.strip() for cell in row[2].split("|")]
    return tables


def words_of(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def snippets(page: Path) -> list[str]:
    return re.findall(r"^```toml\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


# docs/job.md against the models.


def models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_in(part)]


def tables_of(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every table of a job: the heading it is documented under, and its model."""
    if path == "":
        yield "Top level", model
    for name, field in model.model_fields.items():
        inner = models_in(field.annotation)
        dotted = f"{path}.{name}" if path else name
        if len(inner) > 1:  # a union of kinds
            for kind in inner:
                (tag,) = get_args(kind.model_fields["kind"].annotation)
                yield f'kind = "{tag}"', kind
        elif inner:
            several = get_origin(field.annotation) is tuple
            yield f"[[{dotted}]]" if several else f"[{dotted}]", inner[0]
            yield from tables_of(inner[0], dotted)


TABLES = dict(tables_of(Job))
FIELDS = [
    pytest.param(heading, name, field, id=f"{heading} {name}")
    for heading, model in TABLES.items()
    for name, field in model.model_fields.items()
    if not models_in(field.annotation)
]


def test_the_walk_finds_every_table() -> None:
    faults = {
        f'kind = "{get_args(k.model_fields["kind"].annotation)[0]}"' for k in get_args(get_args(Fault)[0])
    }
    assert len(faults) == 8
    assert {"Top level", "[data]", "[exchange.merge]", "[fleet]", "[[fleet.device]]", "[run]"} < TABLES.keys()
    assert faults < TABLES.keys()


@pytest.mark.parametrize("heading", TABLES)
def test_a_table_documents_its_keys_and_no_others(heading: str) -> None:
    own = {n for n, field in TABLES[heading].model_fields.items() if not models_in(field.annotation)}
    assert rows_by_heading("job.md").get(heading, {}).keys() == own


def test_no_heading_names_a_table_that_is_not() -> None:
    named = {h for h in rows_by_heading("job.md") if h.startswith(("[", "kind ="))}
    assert named - {"[[fault]]", "[[contention]]"} <= TABLES.keys()


@pytest.mark.parametrize(("heading", "name", "field"), FIELDS)
def test_a_documented_default_is_the_codes(heading: str, name: str, field: FieldInfo) -> None:
    _, default, _ = rows_by_heading("job.md")[heading][name]
    if (heading, name) == ("Top level", "name"):
        assert default == "the file's name"  # what load_job gives; tests/test_job.py tries it
    elif field.is_required():
        assert default == "required"
    elif (value := field.get_default(call_default_factory=True)) is None:
        assert default
        assert default != "required"
        assert not default.startswith("`")
    else:
        documented = tomllib.loads(f"value = {default.strip('`')}")["value"]
        plain = list(value) if isinstance(value, tuple) else value
        assert (type(documented), documented) == (type(plain), plain)


@pytest.mark.parametrize(("heading", "name", "field"), FIELDS)
def test_what_a_key_takes_is_what_the_code_accepts(heading: str, name: str, field: FieldInfo) -> None:
    takes = rows_by_heading("job.md")[heading][name][0]
    assert takes
    choices, bounds = set(), set()
    for part in parts_of(field):
        if get_origin(part) is Literal:
            choices |= set(get_args(part))
        for sign, kind, attribute in SIGNS:
            if isinstance(part, kind):
                bounds.add(f"{sign} {getattr(part, attribute):g}")
    if choices:
        assert words_of(takes) == choices
    assert set(re.findall(r"[<>≤≥] [\d.]+", takes)) == bounds


SIGNS = [
    (">", annotated_types.Gt, "gt"),
    ("≥", annotated_types.Ge, "ge"),
    ("<", annotated_types.Lt, "lt"),
    ("≤", annotated_types.Le, "le"),
]


def parts_of(field: FieldInfo) -> Iterator[Any]:
    """The annotation, what it is made of, and the constraints on it, however deep they lie."""
    waiting = [field.annotation, *field.metadata]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += [*get_args(part), *getattr(part, "metadata", ())]


# Snippets and examples.

SNIPPETS = [
    pytest.param(text, id=f"{page.name}-{number}")
    for page in sorted(DOCS.rglob("*.md"))
    for number, text in enumerate(snippets(page), 1)
]
WHOLE = [p for p in SNIPPETS if "[model]" in p.values[0] and "[[fleet.device]]" in p.values[0]]


@pytest.mark.parametrize("text", SNIPPETS)
def test_every_snippet_is_a_job_or_a_part_of_one(text: str, tmp_path: Path) -> None:
    said = tomllib.loads(text)
    path = tmp_path / "snippet.toml"
    missing = "" if "model" in said else "\n[model]\nname = 'lenet5'\n"
    missing += "" if "device" in said.get("fleet", {}) else "\n[[fleet.device]]\nkind = 'laptop'\n"
    path.write_text(text + missing, encoding="utf-8")
    assert load_job(path).hash


@pytest.mark.parametrize("text", WHOLE)
def test_a_whole_job_in_the_docs_runs(text: str, tmp_path: Path) -> None:
    path = tmp_path / "snippet.toml"
    path.write_text(text, encoding="utf-8")
    result = train(load_job(path, [*QUIET, "exchange.rounds=1", "data.limit=60"]), tmp_path / "run")
    assert result["rounds"] == 1


def test_the_job_page_shows_a_whole_job_and_every_fault_and_co_running_work() -> None:
    shown = [tomllib.loads(text) for text in snippets(DOCS / "job.md")]
    assert any("model" in said and "device" in said.get("fleet", {}) for said in shown)
    kinds = {t["kind"] for said in shown for t in [*said.get("fault", []), *said.get("contention", [])]}
    assert {f'kind = "{kind}"' for kind in kinds} == {h for h in TABLES if h.startswith("kind =")}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_is_a_job(path: Path) -> None:
    assert load_job(path).name == path.stem


NEED_CIFAR10 = ("cifar10", "capacity-cifar10")
NEED_DATA = {"task-vgg16": "cifar10", "task-cifar100": "cifar100", "task-speech": "speech_commands"}
PLAY = ("atari-breakout", "minatar-breakout")


PACED = "data-cifar10"
READY = {path.stem for path in EXAMPLES.glob("*.toml")} - {*NEED_CIFAR10, *NEED_DATA, *PLAY, PACED}


@pytest.mark.parametrize("name", sorted(READY))
def test_every_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)  # own-model.toml imports from there
    changes = [*QUIET, "exchange.rounds=2", "run.evaluate_examples=100"]
    if name != "two-hundred":  # where every device needs two examples
        changes.append("data.limit=60")
    result = train(load_job(EXAMPLES / f"{name}.toml", changes), tmp_path)
    assert result["rounds"] == 2
    assert 0 <= result["accuracy"] <= 1
    if name == "capacity-cascade":
        assert [device["size"] for device in result["devices"]][:1] == ["small"]  # it lacks memory, not time


@pytest.mark.parametrize("name", PLAY)
def test_the_examples_with_a_game_run(name: str, tmp_path: Path) -> None:
    pytest.importorskip("ale_py" if name.startswith("atari") else "minatar", reason="needs the extra rl")
    changes = [
        "exchange.rounds=2",
        "play.steps=30",
        "play.warm_up=20",
        "play.replay=100",
        "game.episode_limit=40",
    ]
    result = train(load_job(EXAMPLES / f"{name}.toml", [*QUIET, *changes]), tmp_path)
    assert result["rounds"] == 2
    assert all(device["score"] >= 0 for device in result["devices"])


@pytest.mark.slow
@pytest.mark.skipif(SOURCES["cifar10"].found(DATA) is None, reason="needs a data folder with CIFAR-10")
@pytest.mark.parametrize("name", NEED_CIFAR10)
def test_the_cifar10_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANYHANDS_DATA", str(DATA))
    changes = [
        *QUIET,
        "data.limit=200",
        "exchange.rounds=1",
        "learn.examples=32",
        "run.evaluate_examples=50",
    ]
    result = train(load_job(EXAMPLES / f"{name}.toml", changes), tmp_path)
    assert [device["examples"] for device in result["devices"]] == [32, 32]


@pytest.mark.slow
@pytest.mark.skipif(SOURCES["cifar10"].found(DATA) is None, reason="needs a data folder with CIFAR-10")
def test_the_cifar10_example_of_the_split_by_data_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MANYHANDS_DATA", str(DATA))
    changes = [*QUIET, "data.limit=160", "exchange.rounds=1", "run.evaluate_examples=20"]
    result = train(load_job(EXAMPLES / f"{PACED}.toml", changes), tmp_path)
    ratios = {device["name"]: device["ratio"] for device in result["devices"]}
    assert ratios["cpu-small"] < ratios["cpu-large"] < ratios["gpu-2080"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("name", NEED_DATA)
def test_the_examples_of_the_split_by_task_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if SOURCES[NEED_DATA[name]].found(DATA) is None:
        pytest.skip(f"needs a data folder with {NEED_DATA[name]}")
    monkeypatch.setenv("MANYHANDS_DATA", str(DATA))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    changes = [
        *QUIET,
        "data.limit=200",
        "learn.examples=16",
        "exchange.rounds=1",
        "run.evaluate_examples=20",
        "split.task.pretrain_epochs=0",
        "split.task.settle_epochs=0",
    ]
    result = train(load_job(EXAMPLES / f"{name}.toml", changes), tmp_path)
    assert [device["examples"] for device in result["devices"]] == [16] * 4


# docs/result.md against real runs.

FAULTS = [
    {"kind": "crash", "device": "a", "at_s": 0.03, "restart_at_s": 0.2},
    {"kind": "crash", "device": "b", "at_s": 0.3},
    {"kind": "loss", "probability": 0.1},
    {"kind": "corrupt", "device": "b", "probability": 0.3},
    {"kind": "partition", "groups": [["a"], ["c"]], "from_s": 0.4, "until_s": 3.0},
]


def read_trace(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "trace.jsonl").read_text(encoding="utf-8").splitlines()]


def check_against(heading: str, entry: dict[str, Any]) -> None:
    rows = rows_by_heading("result.md")[heading]
    assert rows.keys() == entry.keys()
    for key, value in entry.items():
        kind = rows[key][0]
        assert value is not None or "null" in kind, f"{heading}: {key} can be null"
        assert type_name(value) in kind, f"{heading}: {key} is a {type_name(value)}, not a {kind}"


def type_name(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "true or false", str: "string", int: "integer", float: "number"}
    return (names | {list: "list", dict: "object"})[type(value)]


WAYS = ["synchronous", "asynchronous", "isolated", "neighbours", "task", "data", "push", "epidemic", "space"]


@pytest.mark.parametrize("way", WAYS)
def test_the_result_page_names_every_key_and_every_event(
    small_job: Callable[..., Job], tmp_path: Path, way: str
) -> None:
    changes: dict[str, Any] = {"fault": FAULTS, "run": {"alone": True}, "exchange": {"rounds": 9}}
    if way == "isolated":
        changes["split"] = {"by": "isolated"}
    elif way == "task":
        changes["split"] = {"by": "task", "task": {"part": 0.2}}
        changes["exchange"] |= {"mode": "neighbours", "consensus": "ring"}
    elif way in ("data", "push"):
        changes["split"] = {"by": "data", "data": {"replicas": 1}}
        changes["exchange"] |= {"mode": "neighbours" if way == "data" else way}
    elif way == "space":
        changes = {"split": {"by": "space"}}
    else:
        changes["exchange"]["mode"] = way
    check_result(train(small_job(**changes), tmp_path))
    trace = read_trace(tmp_path)
    for event in trace:
        check_event(event)
    if way == "synchronous":  # otherwise this would prove little
        seen = {event["event"] for event in trace}
        assert {"crashed", "restarted", "refused", "missed", "message_lost", "message_missed"} <= seen
        assert {"sent", "received", "computed", "evaluated", "round", "merged", "finished"} <= seen


def check_result(result: dict[str, Any]) -> None:
    check_against("result.json", result)
    check_against("Topology", result["topology"])
    if result["prepared"] is not None:
        check_against("Prepared", result["prepared"])
    if result["baseline"] is not None:
        check_against("Baseline", result["baseline"])
    for device in result["devices"]:
        check_against("A device", device)
    for point in [*result["curve"], *(point for device in result["devices"] for point in device["curve"])]:
        check_against("A point of a curve", point)
    for event in result["events"]:
        check_against("A notable event", event)
    for group in result["groups"]:
        check_against("A tile group", group)


def test_the_result_page_names_every_key_of_a_comparison(
    small_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(job: Job, folder: Path) -> object:
        if job.seed == 1:
            raise RunError("nobody came")
        return train(job, folder)

    monkeypatch.setattr("manyhands.parallel.train", failing)
    vary = Vary("learn.batch_size", (10,))
    cells = sweep(small_job(), ["isolated", "homogeneous"], tmp_path, vary, [1, 2])
    figures = comparison(small_job(), cells, tmp_path, vary)
    check_against("compare.json", figures)
    rows = rows_by_heading("result.md")
    for run in figures["runs"]:
        assert run.keys() == rows["A run of a comparison"].keys()
        assert run["devices"][0].keys() == words_of(rows["A run of a comparison"]["devices"][1])
    assert [run.keys() == rows["A run that failed"].keys() for run in figures["failed"]] == [True, True]


def check_event(event: dict[str, Any]) -> None:
    pages = rows_by_heading("result.md")
    assert pages["trace.jsonl"].keys() <= event.keys()
    fields, _ = pages["Events"][event["event"]]
    always = words_of(fields.partition("perhaps")[0])
    assert always <= event.keys() - pages["trace.jsonl"].keys() <= words_of(fields), event
    if event["event"] == "computed":
        (facts,) = pages["Works"][event["work"]]
        assert event["facts"].keys() <= words_of(facts)


def events_in_the_code() -> set[str]:
    """The names passed to ``report(event, ...)``, ``emit(device, event, ...)`` and ``_tell(event, ...)``."""
    names = set()
    for path in (ROOT / "src" / "manyhands").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                place = {"report": 0, "emit": 1, "_tell": 0}.get(node.func.attr, math.inf)
                if place < len(node.args) and isinstance(node.args[int(place)], ast.Constant):
                    names.add(node.args[int(place)].value)
    return names


def test_the_result_page_names_the_events_of_the_code_and_no_others() -> None:
    assert len(events_in_the_code()) > 10
    assert rows_by_heading("result.md")["Events"].keys() == events_in_the_code()


def test_links_between_the_pages_lead_somewhere() -> None:
    for name in sorted(path.stem for path in DOCS.glob("*.md")):
        page = f"{name}.md"
        text = (DOCS / page).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)]+)\)", text):
            file, _, anchor = target.partition("#")
            if file.startswith("https://"):
                continue
            other = DOCS / (file or page)
            assert other.exists(), f"{page}: {target}"
            if not anchor:
                continue
            headings = re.findall(r"^#+ (.+)$", other.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, f"{page}: {target}"
