"""The command that makes the certificates of a private cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from manyhands.cli_common import JsonOption, make_console
from manyhands.wire.keyring import DEVICE_DAYS, add_device, facts_of, new_cluster, show_cluster

__all__ = ["keys"]

keys = typer.Typer(
    name="keys",
    no_args_is_help=True,
    help="Make the certificates of a private cluster.",
    pretty_exceptions_enable=False,
)

FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The cluster's folder.")]
DeviceOption = Annotated[
    list[str], typer.Option("--device", metavar="NAME", help="A device, by its name in the job; repeatable.")
]
DaysOption = Annotated[int, typer.Option("--days", min=1, help="How long device certificates are good for.")]
AddressOption = Annotated[
    list[str] | None,
    typer.Option("--address", metavar="HOST", help="Where others reach the device; repeatable."),
]


@keys.command("new-cluster")
def new(folder: FolderArgument, device: DeviceOption, days: DaysOption = DEVICE_DAYS) -> None:
    """Make a cluster's own certificate authority, and a folder of keys for each device."""
    made = new_cluster(folder, device, days)
    _say_made([one.path for one in made])
    make_console(False).print(
        f"\nKeep {escape(str(folder / 'ca.key'))} to yourself: who has it can let anybody in.", soft_wrap=True
    )


@keys.command("add")
def add(
    folder: FolderArgument,
    device: DeviceOption,
    address: AddressOption = None,
    days: DaysOption = DEVICE_DAYS,
) -> None:
    """Make keys for more devices of a cluster."""
    _say_made([add_device(folder, name, address or (), days).path for name in device])


@keys.command("show")
def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A cluster's folder, or a device's.")],
    as_json: JsonOption = False,
) -> None:
    """Show whose certificates there are, and until when they are good."""
    found = show_cluster(folder)
    if as_json:
        rows = [{"name": f.name, "expires": f.expires.isoformat(), "days_left": f.days_left} for f in found]
        typer.echo(json.dumps(rows))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in ("name", "expires", "days left"):
        table.add_column(column)
    for fact in found:
        left = str(fact.days_left) if fact.days_left >= 0 else "[red]expired[/red]"
        table.add_row(escape(fact.name), f"{fact.expires:%Y-%m-%d}", left)
    make_console(False).print(table)


def _say_made(folders: list[Path]) -> None:
    console = make_console(False)
    for path in folders:
        expires = facts_of(path / "device.pem").expires
        console.print(
            f"{escape(str(path))}  good until {expires:%Y-%m-%d}; copy it to the device", soft_wrap=True
        )
