"""Networks and what ranks do with them; imported by the test and by the ranks."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from manyhands.errors import RunError
from manyhands.models import ModelSection, build
from manyhands.models.yolov2 import VOC_ANCHORS
from manyhands.models.yolov2_loss import yolo_loss
from manyhands.tiles import TiledModule, TilePlan, tile

Spec = dict[str, Any]


def make_network(spec: Spec) -> nn.Module:
    """A network of ours, or one of the layers that the spec lists, with weights from its seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec["seed"])
        if "family" in spec:
            section = ModelSection(
                name=spec["family"], size=spec.get("size"), options=spec.get("options", {})
            )
            network = build(section, spec["shape"], spec.get("num_classes", 5), seed=spec["seed"])
            if "narrow" in spec:
                _narrow(network, spec["narrow"])
        else:
            network = Drawn(spec["layers"], spec["shape"], spec.get("head", 0))
        for module in network.modules():
            if isinstance(module, nn.Dropout | nn.Dropout2d) and not spec.get("dropout"):
                module.p = 0.0  # plain torch draws its masks otherwise
            if isinstance(module, nn.BatchNorm2d) and module.affine:
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.uniform_(module.bias, -0.5, 0.5)
    return network.to(getattr(torch, spec.get("dtype", "float64")))


def _narrow(network: nn.Module, factor: int) -> None:
    """Divides the channels of every layer, but not of images and predictions."""
    for parent in list(network.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Conv2d):
                before = layer.in_channels if layer.in_channels == 3 else layer.in_channels // factor
                after = layer.out_channels if layer.bias is not None else layer.out_channels // factor
                new = nn.Conv2d(
                    before, after, layer.kernel_size, padding=layer.padding, bias=layer.bias is not None
                )
                setattr(parent, name, new)
            elif isinstance(layer, nn.BatchNorm2d):
                setattr(parent, name, nn.BatchNorm2d(layer.num_features // factor))


def make_images(spec: Spec) -> Tensor:
    generator = torch.Generator().manual_seed(spec["seed"] + 1)
    images = torch.randn(spec["batch"], *spec["shape"], generator=generator, dtype=torch.float64)
    return images.to(getattr(torch, spec.get("dtype", "float64")))


def make_weights(output: Tensor, spec: Spec) -> Tensor:
    """Of the loss, a weighted sum of all outputs of all examples."""
    generator = torch.Generator().manual_seed(spec["seed"] + 2)
    return torch.randn(spec["batch"], *output.shape[1:], generator=generator, dtype=torch.float64).to(output)


class Drawn(nn.Module):
    """Layers as ``(kind, source, arguments)``; a source of -1 is the layer before."""

    def __init__(self, layers: list[tuple[str, int, dict[str, Any]]], shape: tuple[int, int, int], head: int):
        super().__init__()
        self.plan = [(kind, source) for kind, source, _ in layers]
        self.layers = nn.ModuleList(
            getattr(nn, kind)(**given) if kind not in ("add", "cat") else nn.Identity()
            for kind, _, given in layers
        )
        self.head = None
        if head:
            self.head = nn.Sequential(nn.Flatten(), nn.LazyLinear(7), nn.ReLU(), nn.Linear(7, head))
        with torch.no_grad():
            self(torch.zeros(2, *shape))

    def forward(self, x: Tensor) -> Tensor:
        made = [x]
        for (kind, source), layer in zip(self.plan, self.layers, strict=True):
            made.append(self.join(kind, made[-1], made[source], layer))
        return made[-1] if self.head is None else self.head(made[-1])

    @staticmethod
    def join(kind: str, x: Tensor, other: Tensor, layer: nn.Module) -> Tensor:
        if kind == "add":
            return x + other
        return torch.cat((x, other), 1) if kind == "cat" else layer(x)


def one_device(spec: Spec) -> dict[str, Tensor]:
    """What a step of plain torch gives."""
    network = make_network(spec).train(spec.get("training", True))
    images = make_images(spec).requires_grad_()
    output = network(images)
    (output * make_weights(output, spec)).sum().backward()
    return {"output": output.detach()} | _facts(network, images)


def tiled_step(rank: int, group: Any, spec: Spec, plan: TilePlan, options: dict[str, Any]) -> dict[str, Any]:
    """A step in tiles: what all ranks must have alike (as a digest), and how far it is from one device."""
    network = make_network(spec).train(spec.get("training", True))
    tiled = tile(network, plan, group, **options)
    tiled.train(spec.get("training", True))
    images = make_images(spec | {"shape": spec.get("given", spec["shape"])}).requires_grad_()
    output = tiled(images)
    share = tiled.share(spec["batch"])
    weights = make_weights(output, spec)[share]
    (output * weights).sum().backward()
    tiled.synchronise()
    facts = _facts(network, images)
    digest = hashlib.sha256()
    for tensor in facts.values():
        digest.update(tensor.contiguous().numpy().tobytes())
    found: dict[str, Any] = {"share": (share.start, share.stop), "digest": digest.hexdigest()}
    found["rounded"] = [f"{float(tensor.abs().sum()):.9g}" for tensor in facts.values()]
    if rank == 0 or share.stop > share.start:
        wanted = one_device(spec)
        found["off"] = {"output": off(output.detach(), wanted.pop("output")[share])}
        if rank == 0:
            assert wanted.keys() == facts.keys()
            largest = max(float(g.abs().max()) for name, g in wanted.items() if name.startswith("gradient"))
            for name, tensor in wanted.items():
                # A gradient that is zero but for rounding is measured against the largest.
                least = 1e-3 * largest if name.startswith("gradient") else 0.0
                found["off"][name] = off(facts[name], tensor, least)
    return found


def hold_and_halve(rank: int, group: Any, spec: Spec, plan: TilePlan, shared: bool) -> dict[str, Any]:
    """A batch in two passes against one, gradients in bfloat16 against whole ones, and a forgotten call."""
    images, targets = make_images(spec), torch.arange(spec["batch"]) % 5

    def go(tiled: TiledModule, part: slice) -> None:
        tiled.loss(nn.functional.cross_entropy, tiled(images[part]), targets[part]).backward()

    whole, halves, rounded = (make_network(spec) for _ in range(3))
    tiled = tile(whole, plan, group, share_memory=shared)
    go(tiled, slice(None))
    try:
        tiled(images)
    except RunError as error:
        refused = str(error)
    tiled.synchronise()
    tiled = tile(halves, plan, group, share_memory=shared)
    half = spec["batch"] // 2
    with tiled.no_sync():
        go(tiled, slice(half))
    go(tiled, slice(half, None))
    tiled.synchronise()
    tiled = tile(rounded, plan, group, wire_dtype=torch.bfloat16, share_memory=shared)
    go(tiled, slice(None))
    tiled.synchronise()
    triples = list(zip(whole.parameters(), halves.parameters(), rounded.parameters(), strict=True))
    return {
        "two halves": max(off(b.grad / 2, a.grad) for a, b, _ in triples),
        "rounded": max(off(c.grad, a.grad) for a, _, c in triples),
        "refused": refused,
    }


def follow(rank: int, group: Any, spec: Spec, plan: TilePlan, num_steps: int) -> dict[str, float]:
    """Trains a detector in tiles and, on the same rank, by itself; how far losses came apart."""
    network = make_network(spec)
    alone = copy.deepcopy(network)
    tiled = tile(network, plan, group)
    optimizers = [torch.optim.SGD(n.parameters(), 1e-7, momentum=0.9) for n in (network, alone)]
    images = make_images(spec)
    truths = [torch.tensor([[n % 3, 0.3 + 0.1 * n, 0.6, 0.3, 0.4]]) for n in range(spec["batch"])]

    def criterion(output: Tensor, wanted: list[Tensor]) -> Tensor:
        return yolo_loss(output, wanted, VOC_ANCHORS).total

    apart, losses = [], []
    for _ in range(num_steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = tiled.loss(criterion, tiled(images), truths)
        loss.backward()
        tiled.synchronise()
        single = criterion(alone(images), truths)
        single.backward()
        losses.append(single.item())
        apart.append(abs(tiled.total(loss).item() / losses[-1] - 1))
        for optimizer in optimizers:
            optimizer.step()
    return {"apart": max(apart), "learned": losses[0] - losses[-1]}


def lose_one(rank: int, group: Any, spec: Spec, plan: TilePlan, other: TilePlan) -> None:
    """Ranks that were given different plans."""
    tile(make_network(spec), other if rank else plan, group)


def off(found: Tensor, wanted: Tensor, least: float = 0.0) -> float:
    """How far two tensors are apart, relative to the largest number."""
    assert found.shape == wanted.shape
    if not wanted.numel():
        return 0.0
    return float((found - wanted).abs().max()) / max(float(wanted.abs().max()), least, 1e-30)


def _facts(network: nn.Module, images: Tensor) -> dict[str, Tensor]:
    assert images.grad is not None
    facts = {"images": images.grad}
    facts |= {f"gradient {n}": p.grad for n, p in network.named_parameters() if p.grad is not None}
    return facts | {f"buffer {n}": b for n, b in network.named_buffers()}
