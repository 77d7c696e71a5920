"""The devices that manyhands knows by name, each figure with its source or with how it was estimated.

The figure that matters most, sustained training FLOP/s, is nowhere published. It is derived here from the
peak of the hardware (cores x clock x operations per cycle, or the maker's figure) times a fraction that
training of small convolutional networks in 32-bit floating point can be expected to reach. Trust it for
the order of the devices and the rough distance between them; measure your own for more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["CATALOG", "FIGURES", "Kind"]

FIGURES = ("flops", "cores", "memory_bytes", "bandwidth_bps", "latency_s", "active_watts", "idle_watts")

GIB = 1024**3
WIRED_LATENCY = (
    "estimate: a quarter of a 0.4 ms round trip between two hosts on one switch (two ends, two ways)"
)
WIRELESS_LATENCY = "estimate: half of a 5 ms round trip to the access point of a home network"
PAYLOAD = "94 % is left for TCP payload (1448 of 1538 bytes of a frame)"
PI_BOARDS = "Raspberry Pi documentation, 'Raspberry Pi hardware', flagship series"
PI_CHIPS = "Raspberry Pi documentation, 'Processors'"
PI_POWER = (
    "Raspberry Pi documentation, 'Power supply', typical power requirements (an edition before the "
    "Raspberry Pi 5; monitor, keyboard and mouse connected)"
)
SBC_REVIEWS = "J. Geerling, github.com/geerlingguy/sbc-reviews"
NANO_BOARD = "Yahboom, github.com/YahboomTechnology/Jetson-NANO-4GB (a seller of the board)"
NANO_POWER = "NVIDIA's guide to power management of the Jetson Nano, read in a copy at xiaopingtou.net"
ORIN_SHEET = (
    "NVIDIA, datasheet of the Jetson Orin Nano modules, read in a copy on Scribd ('Orin Nano Datasheet')"
)
TITAN_SHEET = "GameRevolution, 'The Nvidia TITAN Xp is now the world's most powerful graphics card'"
TESTBED = "Han et al., doi:10.1109/TPDS.2020.3046440, section 4.1"


@dataclass(frozen=True)
class Kind:
    """A device that can be bought, with the figures of `Device` and where each comes from.

    Attributes:
        name: What a job file calls it.
        title: What a person calls it.
        flops: Sustained training FLOP/s.
        cores: Processor cores.
        memory_bytes: What a training process can have: installed memory less what the system keeps, or the
            graphics card's where that does the training.
        bandwidth_bps: Bits per second, each direction.
        latency_s: One way, of the device's own link.
        active_watts: While training.
        idle_watts: While waiting.
        sources: For each figure, a source, or "estimate: " and the reasoning; a part of it that is commonly
            stated, but for which no source was found, says so.
        torch_device: Where the arithmetic runs; a simulator computes on the machine it runs on.
    """

    name: str
    title: str
    flops: float
    cores: int
    memory_bytes: int
    bandwidth_bps: float
    latency_s: float
    active_watts: float
    idle_watts: float
    sources: Mapping[str, str]
    torch_device: str = "cpu"


_KINDS = (
    Kind(
        name="raspberry-pi-3b",
        title="Raspberry Pi 3 Model B",
        flops=2.3e9,
        cores=4,
        memory_bytes=int(0.75 * GIB),
        bandwidth_bps=94e6,
        latency_s=0.0001,
        active_watts=4.3,
        idle_watts=1.5,
        sources={
            "flops": "estimate: 6 % of a peak of 38 GFLOP/s (4 Cortex-A53 x 1.2 GHz x 8 per cycle); "
            "in-order cores, slow memory, and heat lowers the clock",
            "cores": f"{PI_CHIPS}, BCM2837: four Cortex-A53 at 1.2 GHz",
            "memory_bytes": f"{PI_BOARDS}: 1 GB, less 0.25 for the system (estimate)",
            "bandwidth_bps": f"{PI_BOARDS}: Ethernet of 100 Mb/s; {PAYLOAD}",
            "latency_s": WIRED_LATENCY,
            "active_watts": f"{PI_POWER}: 0.85 A on average under stress, at 5.1 V",
            "idle_watts": f"{PI_POWER}: 0.30 A when idle, at 5.1 V",
        },
    ),
    Kind(
        name="raspberry-pi-4",
        title="Raspberry Pi 4 Model B, 4 GiB",
        flops=7.2e9,
        cores=4,
        memory_bytes=int(3.5 * GIB),
        bandwidth_bps=940e6,
        latency_s=0.0001,
        active_watts=6.1,
        idle_watts=3.1,
        sources={
            "flops": "estimate: 15 % of a peak of 48 GFLOP/s (4 Cortex-A72 x 1.5 GHz x 8 per cycle); below "
            "the 11.8 GFLOP/s of Linpack in double precision on a board at 1.8 GHz (7.2 W x "
            f"1.64 GFLOP/s per W, {SBC_REVIEWS}, issue 4)",
            "cores": f"{PI_CHIPS}, BCM2711: four Cortex-A72 at 1.5 GHz (later boards run at 1.8 GHz)",
            "memory_bytes": f"{PI_BOARDS}: 4 GB, less 0.5 for the system (estimate)",
            "bandwidth_bps": f"{PI_BOARDS}: Gigabit Ethernet; {PAYLOAD}",
            "latency_s": WIRED_LATENCY,
            "active_watts": f"{PI_POWER}: 1.2 A on average under stress, at 5.1 V",
            "idle_watts": f"{PI_POWER}: 0.6 A when idle, at 5.1 V",
        },
    ),
    Kind(
        name="raspberry-pi-5",
        title="Raspberry Pi 5, 8 GiB",
        flops=23e9,
        cores=4,
        memory_bytes=int(7.5 * GIB),
        bandwidth_bps=940e6,
        latency_s=0.0001,
        active_watts=9.0,
        idle_watts=3.0,
        sources={
            "flops": "estimate: 15 % of a peak of 154 GFLOP/s (4 Cortex-A76 x 2.4 GHz x 16 per cycle), "
            "the fraction of the Raspberry Pi 4",
            "cores": f"{PI_CHIPS}, BCM2712: four Cortex-A76 at 2.4 GHz",
            "memory_bytes": f"{PI_BOARDS}: 8 GB, less 0.5 for the system (estimate)",
            "bandwidth_bps": f"{PI_BOARDS}: Gigabit Ethernet; {PAYLOAD}",
            "latency_s": WIRED_LATENCY,
            "active_watts": "estimate: as the Raspberry Pi 500, of the same processor and memory, under "
            f"stress-ng ({SBC_REVIEWS}, issue 60)",
            "idle_watts": "U-Labs, 'So verbraucht der Raspberry Pi 5 ausgeschaltet bis zu 180x weniger "
            "Strom': about 3 W when idle",
        },
    ),
    Kind(
        name="jetson-nano",
        title="NVIDIA Jetson Nano, 4 GiB",
        flops=47e9,
        cores=4,
        memory_bytes=3 * GIB,
        bandwidth_bps=940e6,
        latency_s=0.0001,
        active_watts=10.0,
        idle_watts=2.0,
        sources={
            "flops": "estimate: 20 % of a peak of 236 GFLOP/s (128 CUDA cores x 0.92 GHz x 2; the printed "
            f"472 GFLOP/s is twice that, in half precision); cores from {NANO_BOARD}, "
            f"clock from {NANO_POWER}",
            "cores": f"{NANO_BOARD}: quad-core Cortex-A57",
            "memory_bytes": f"{NANO_BOARD}: 4 GB, shared by processor and GPU, less 1 (estimate)",
            "bandwidth_bps": f"{NANO_BOARD}: Gigabit Ethernet; {PAYLOAD}",
            "latency_s": WIRED_LATENCY,
            "active_watts": f"{NANO_POWER}: the default mode has a budget of 10 W",
            "idle_watts": "estimate: a fifth of the 10 W mode",
        },
    ),
    Kind(
        name="jetson-orin-nano",
        title="NVIDIA Jetson Orin Nano, 8 GiB",
        flops=256e9,
        cores=6,
        memory_bytes=int(6.5 * GIB),
        bandwidth_bps=940e6,
        latency_s=0.0001,
        active_watts=15.0,
        idle_watts=5.0,
        sources={
            "flops": "estimate: 20 % of a peak of 1.28 TFLOP/s (1024 CUDA cores x 625 MHz x 2, from "
            f"{ORIN_SHEET}); Tensor cores and the faster modes of later firmware not counted",
            "cores": f"{ORIN_SHEET}: six-core Cortex-A78AE",
            "memory_bytes": f"{ORIN_SHEET}: 8 GB, shared by processor and GPU, less 1.5 (estimate)",
            "bandwidth_bps": "Gigabit Ethernet on the developer kit: commonly stated, no source found; "
            f"{PAYLOAD}",
            "latency_s": WIRED_LATENCY,
            "active_watts": "AI Hardware Engineer Roadmap, 'Jetson Orin Nano 8GB -- Power Management, "
            "Thermal Design, and Energy Optimization': mode of 15 W, with six cores and the GPU at 625 MHz",
            "idle_watts": "estimate: twice the 2.6 W that a user measured on a board with most parts "
            "switched off (NVIDIA developer forums, 'Jetson Orin Nano 8GB - Lowest Theoretical Operating "
            "Power Consumption')",
        },
    ),
    Kind(
        name="phone-low",
        title="Low-end phone (8 small cores, 3 GiB)",
        flops=3.8e9,
        cores=8,
        memory_bytes=1 * GIB,
        bandwidth_bps=40e6,
        latency_s=0.0025,
        active_watts=2.0,
        idle_watts=0.3,
        sources={
            "flops": "estimate: 3 % of a peak of 128 GFLOP/s (8 Cortex-A53 x 2.0 GHz x 8 per cycle); heat "
            "and the system leave about half of the cores for long work",
            "cores": "estimate: typical of the class",
            "memory_bytes": "estimate: 3 GiB installed, of which the system grants an app about a third",
            "bandwidth_bps": "estimate: one-antenna 802.11n, 72 Mbit/s on the air, about half as payload",
            "latency_s": WIRELESS_LATENCY,
            "active_watts": "estimate: what a phone's case can lead away, at the lower end; screen off",
            "idle_watts": "estimate: awake with wireless on; screen off",
        },
    ),
    Kind(
        name="phone-mid",
        title="Mid-range phone (2 large and 6 small cores, 6 GiB)",
        flops=13e9,
        cores=8,
        memory_bytes=2 * GIB,
        bandwidth_bps=200e6,
        latency_s=0.0025,
        active_watts=3.5,
        idle_watts=0.3,
        sources={
            "flops": "estimate: 8 % of a peak of 163 GFLOP/s (2 Cortex-A78 x 2.4 GHz x 16 per cycle and "
            "6 Cortex-A55 x 1.8 GHz x 8); heat limits long work",
            "cores": "estimate: typical of the class",
            "memory_bytes": "estimate: 6 GiB installed, of which the system grants an app about a third",
            "bandwidth_bps": "estimate: one-antenna 802.11ac, 433 Mbit/s on the air, about half as payload",
            "latency_s": WIRELESS_LATENCY,
            "active_watts": "estimate: what a phone's case can lead away for long; screen off",
            "idle_watts": "estimate: awake with wireless on; screen off",
        },
    ),
    Kind(
        name="laptop",
        title="Office laptop (4 cores with AVX2, 16 GiB)",
        flops=90e9,
        cores=4,
        memory_bytes=12 * GIB,
        bandwidth_bps=400e6,
        latency_s=0.0025,
        active_watts=25.0,
        idle_watts=6.0,
        sources={
            "flops": "estimate: 25 % of a peak of 358 GFLOP/s (4 cores x 2.8 GHz x 32 per cycle); "
            "no graphics card used",
            "cores": "estimate: typical of the class",
            "memory_bytes": "estimate: 16 GiB installed, less 4 GiB for the system and open programs",
            "bandwidth_bps": "estimate: two-antenna 802.11ac, 867 Mbit/s on the air, about half as payload",
            "latency_s": WIRELESS_LATENCY,
            "active_watts": "estimate: processor of the 15 W class, and 10 W for the rest; screen off",
            "idle_watts": "estimate: typical of the class; screen off",
        },
    ),
    Kind(
        name="xeon-18-core",
        title="Server node, 18-core Intel Xeon E5-2695 v4",
        flops=302e9,
        cores=18,
        memory_bytes=240 * GIB,
        bandwidth_bps=940e6,
        latency_s=0.0001,
        active_watts=180.0,
        idle_watts=70.0,
        sources={
            "flops": "estimate: 25 % of a peak of 1.21 TFLOP/s (18 cores x 2.1 GHz x 32 per cycle), "
            "the fraction of the laptop; the clock is commonly stated, no source found",
            "cores": TESTBED,
            "memory_bytes": f"{TESTBED}: 256 GB, less 16 GB for the system (estimate)",
            "bandwidth_bps": "estimate: Gigabit Ethernet (the paper names none), 94 % of it as TCP payload",
            "latency_s": WIRED_LATENCY,
            "active_watts": "estimate: a thermal design power of 120 W (commonly stated, no source found), "
            "and 60 W for the rest",
            "idle_watts": "estimate: four tenths of the active power",
        },
    ),
    Kind(
        name="workstation-titan-xp",
        title="Workstation, NVIDIA TITAN Xp and Intel Core i7-8700K",
        flops=4.86e12,
        cores=12,
        memory_bytes=12 * GIB,
        bandwidth_bps=940e6,
        latency_s=0.0001,
        active_watts=350.0,
        idle_watts=70.0,
        sources={
            "flops": "estimate: 40 % of a peak of 12.15 TFLOP/s (3840 CUDA cores x 1.582 GHz x 2, from "
            f"{TITAN_SHEET}); large networks reach about half, small ones less",
            "cores": f"{TESTBED}: 12, which counts the threads of 6 cores",
            "memory_bytes": f"{TESTBED}: 12 GB on the graphics card, which trains; the host has 64 GB",
            "bandwidth_bps": "estimate: Gigabit Ethernet (the paper names none), 94 % of it as TCP payload",
            "latency_s": WIRED_LATENCY,
            "active_watts": f"estimate: 250 W for the card ({TITAN_SHEET}), and 100 W for the host",
            "idle_watts": "estimate: a fifth of the active power",
        },
    ),
    Kind(
        name="workstation-rtx-2080-ti",
        title="Workstation, NVIDIA GeForce RTX 2080 Ti and Intel Xeon Gold 6238",
        flops=5.93e12,
        cores=88,
        memory_bytes=11 * GIB,
        bandwidth_bps=940e6,
        latency_s=0.0001,
        active_watts=400.0,
        idle_watts=120.0,
        sources={
            "flops": "estimate: 1.22 x the TITAN Xp, the ratio Lambda measured over several networks in 32 "
            "bits ('RTX 2080 Ti Deep Learning Benchmarks with TensorFlow'); 44 % of the peak of 13.45 "
            "TFLOP/s (4352 CUDA cores x 1.545 GHz x 2, from bit-tech, 'Nvidia's Turing Architecture "
            "Explained')",
            "cores": f"{TESTBED}: 88, which counts the threads of two processors with 22 cores each",
            "memory_bytes": f"{TESTBED}: 11 GB on the graphics card, which trains; the host has 512 GB",
            "bandwidth_bps": "estimate: Gigabit Ethernet (the paper names none), 94 % of it as TCP payload",
            "latency_s": WIRED_LATENCY,
            "active_watts": "estimate: 250 W for the card (commonly stated, no source found), and 150 W for "
            "a host that mostly feeds it",
            "idle_watts": "estimate: two large processors, 512 GB of memory and the card at rest",
        },
    ),
)

CATALOG: Mapping[str, Kind] = MappingProxyType({kind.name: kind for kind in _KINDS})
