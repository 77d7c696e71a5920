"""What the devices are: their figures, their links, and the graph that joins them."""

from manyhands.fleet.catalog import CATALOG, Kind
from manyhands.fleet.contention import Contention, CoRunning
from manyhands.fleet.device import Device, Fleet, Link
from manyhands.fleet.tables import DeviceSection
from manyhands.fleet.topology import FleetSection, make_fleet
from manyhands.fleet.use import Use

__all__ = [
    "CATALOG",
    "CoRunning",
    "Contention",
    "Device",
    "DeviceSection",
    "Fleet",
    "FleetSection",
    "Kind",
    "Link",
    "Use",
    "make_fleet",
]
