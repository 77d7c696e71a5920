"""Networks and what ranks do with them; imported by the test and by the ranks."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from manyhands.models import ModelSection, build
from manyhands.tiles import TilePlan, tile

Spec = dict[str, Any]


def make_network(spec: Spec) -> nn.Module:
    """A network of ours, or one of the layers that the spec lists, with weights from its seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec["seed"])
        if "family" in spec:
            section = ModelSection(name=spec["family"], size=spec.get("size"), options=spec.get("options", {}))
            network = build(section, spec["shape"], spec.get("num_classes", 5), seed=spec["seed"])
        else:
            network = Drawn(spec["layers"], spec["shape"], spec.get("head", 0))
        for module in network.modules():
            if isinstance(module, nn.Dropout | nn.Dropout2d) and not spec.get("dropout"):
                module.p = 0.0  # plain torch draws its masks otherwise
            if isinstance(module, nn.BatchNorm2d) and module.affine:
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.uniform_(module.bias, -0.5, 0.5)
    return network.to(getattr(torch, spec.get("dtype", "float64")))


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
        self.layers = nn.ModuleList(getattr(nn, kind)(**given) if kind not in ("add", "cat") else nn.Identity() for kind, _, given in layers)
        self.head = None
        if head:
            self.head = nn.Sequential(nn.Flatten(), nn.LazyLinear(7), nn.ReLU(), nn.Linear(7, head))
        with torch.no_grad():
            self(torch.zeros(2, *shape))

    def forward(self, x: Tensor) -> Tensor:
        made = [x]
        for (kind, source), layer in zip(self.plan, self.layers, strict=True):
            if kind == "add":
                made.append(made[-1] + made[source])
            elif kind == "cat":
                made.append(torch.cat((made[-1], made[source]), 1))
            else:
                made.append(layer(made[-1]))
        return made[-1] if self.head is None else self.head(made[-1])


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
    images = make_images(spec).requires_grad_()
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
