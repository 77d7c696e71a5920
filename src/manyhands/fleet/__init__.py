"""What the devices are: their figures, their links, and the graph that joins them."""

from manyhands.fleet.catalog import CATALOG, Kind
from manyhands.fleet.device import Device, DeviceSection, Fleet, Link
from manyhands.fleet.topology import FleetSection, make_fleet

__all__ = ["CATALOG", "Device", "DeviceSection", "Fleet", "FleetSection", "Kind", "Link", "make_fleet"]
