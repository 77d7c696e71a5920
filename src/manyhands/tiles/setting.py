"""What is planned for, and the words in which its price is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod

from manyhands.tiles.geometry import Box
from manyhands.tiles.graph import TileGraph
from manyhands.tiles.plan import TilePlan
from manyhands.tiles.profile import LayerWork, LinkProfile, Profile
from manyhands.tiles.works import operation_works

__all__ = ["GroupPrice", "Prediction", "Setting", "TailPrice", "TilePart", "node_seconds"]


@dataclass(frozen=True)
class Setting:
    """What is planned for.

    Attributes:
        graph: The network.
        profiles: Of each rank.
        link: Between any two of them.
        batch_size: Images a step.
        memory_bytes: What each rank may use; empty means any amount.
        value_bytes: Size of a number in memory.
        wire_bytes: Size of a number of a weight's gradient on the wire; maps travel as they are.
        optimizer_slots: Numbers that the optimizer keeps for each weight.
        steps_per_sum: Over how many steps gradients are accumulated before they are summed over the ranks.
    """

    graph: TileGraph
    profiles: tuple[Profile, ...]
    link: LinkProfile
    batch_size: int
    memory_bytes: tuple[float, ...] = ()
    value_bytes: int = 4
    wire_bytes: int = 4
    optimizer_slots: int = 0
    steps_per_sum: int = 1

    @property
    def num_devices(self) -> int:
        """How many ranks."""
        return len(self.profiles)

    def limit(self, rank: int) -> float:
        """The memory of a rank."""
        return self.memory_bytes[rank] if self.memory_bytes else inf

    @cached_property
    def works(self) -> tuple[LayerWork | None, ...]:
        """By number of the operation; the input does nothing."""
        return (None, *operation_works(self.graph, self.batch_size, self.value_bytes))

    def weights(self, number: int) -> float:
        """How many numbers an operation trains."""
        work = self.works[number]
        return work.weight_bytes / self.value_bytes if work else 0.0

    def map_bytes(self, number: int) -> float:
        """The size of an operation's output for the whole batch."""
        return float(prod(self.graph.shapes[number]) * self.batch_size * self.value_bytes)

    @cached_property
    def round_s(self) -> float:
        """A few numbers summed over all ranks, as a batch normalisation needs it."""
        # Everybody tells everybody, all at once.
        return self.link.latency_s + self.skew_s if self.num_devices > 1 else 0.0

    @cached_property
    def skew_s(self) -> float:
        """Waiting for others who are late by chance; a slow device, which others wait for, tells it alone."""
        return min(profile.skew_s for profile in self.profiles)

    def wait_s(self, num_bytes: float, meanwhile_s: float) -> float:
        """How long a message is waited for by one who has something else to do after sending it."""
        if self.link.through_memory:  # what carries it is what would compute
            passing_s = num_bytes / self.link.bytes_per_s
            return self.skew_s + passing_s + max(0.0, self.link.latency_s - meanwhile_s)
        return self.skew_s + max(0.0, self.link.seconds(num_bytes) - meanwhile_s)

    def sum_s(self, numbers: float) -> float:
        """Many numbers summed over all ranks, in a ring; in shared memory each writes and reads all."""
        n = self.num_devices
        if n == 1:
            return 0.0
        if self.link.through_memory:
            return self.link.seconds(n * numbers * self.wire_bytes)
        return 2 * (n - 1) * self.link.seconds(numbers * self.wire_bytes / n)


@dataclass(frozen=True)
class GroupPrice:
    """What a group costs: seconds, and bytes of each tile.

    Attributes:
        forward_s: Computing forward.
        backward_s: Computing both gradients.
        halo_s: Borders given forward, and their gradients given back.
        norm_s: Sums of batch normalisations, both ways.
        kept: Bytes that each tile keeps from forward to backward.
        held: Bytes that each tile keeps if the group is recomputed instead.
        inner: Bytes that each tile keeps while it recomputes the group, beside what it held.
    """

    forward_s: float
    backward_s: float
    halo_s: float
    norm_s: float
    kept: tuple[float, ...]
    held: tuple[float, ...]
    inner: tuple[float, ...]

    @property
    def exchange_s(self) -> float:
        """What it says to its neighbours."""
        return self.halo_s + self.norm_s

    def seconds(self, checkpoint: bool) -> float:
        """All of it; recomputing is a second forward pass, without messages."""
        again = self.forward_s if checkpoint else 0.0
        return self.forward_s + self.backward_s + self.halo_s + self.norm_s + again


@dataclass(frozen=True)
class TailPrice:
    """What comes after the tiles, and the weights' gradients of all.

    Attributes:
        handoff_s: Maps on their way to the devices that compute the tail, and their gradients back.
        tail_s: Computing the tail.
        gradients_s: Summing the weights' gradients, as far as it outlasts the backward pass.
        update_s: The optimizer, and what else a step takes beside its layers.
        memory_bytes: Of each tile: weights, their gradients and slots, and the tail's maps.
    """

    handoff_s: float
    tail_s: float
    gradients_s: float
    update_s: float
    memory_bytes: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.handoff_s + self.tail_s + self.gradients_s + self.update_s


@dataclass(frozen=True)
class Prediction:
    """A plan and what is to be expected of it.

    Attributes:
        plan: The plan.
        checkpoint: Whether groups are recomputed in the backward pass.
        parts: Seconds of a step by what they are spent on.
        memory_bytes: Of each rank: weights, gradients, optimizer and what is kept for the backward pass.
        predicted_profile: Whether a device's times were predicted and not measured.
    """

    plan: TilePlan
    checkpoint: bool
    parts: Mapping[str, float]
    memory_bytes: tuple[float, ...]
    predicted_profile: bool

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class TilePart:
    """One tile's part in a group: the boxes it computes, and its bytes as in `GroupPrice`."""

    computed: Mapping[int, Box]
    kept: float
    held: float
    inner: float

    def seconds(self, setting: Setting, profile: Profile) -> float:
        """Both passes, on a device of this profile."""
        return sum(sum(node_seconds(setting.graph, profile, *each)) for each in self.computed.items())


def node_seconds(graph: TileGraph, profile: Profile, number: int, box: Box) -> tuple[float, float, float]:
    """Forward, input and weight gradient of a box, its area counted as rows of full width."""
    node = graph.nodes[number]
    times = profile.layers[node.name]
    rows = box.area / node.sides[1]
    return times.forward.at(rows), times.input_gradient.at(rows), times.weight_gradient.at(rows)
