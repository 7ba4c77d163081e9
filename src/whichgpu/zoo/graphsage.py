"""GraphSAGE on ogbn-products with sampled neighbours: 3 layers of 256, fp32, Adam.

Settings: https://github.com/snap-stanford/ogb, examples/nodeproppred/products with NeighborSampler (also
https://github.com/pyg-team/pytorch_geometric, examples/ogbn_products_sage.py): batches of 1024 nodes, 15, 10 and 5
neighbours a hop, hidden width 256, dropout 0.5, Adam with learning rate 0.003; the features of all nodes lie on the card.
The graph (https://ogb.stanford.edu/docs/nodeprop/#ogbn-products): 2,449,029 nodes, 100 features, 47 classes.
Neighbours of different nodes are taken as different nodes, where a real sample shares some: memory is at its upper end.
Read there (the second address, 2026-12): batch, neighbours, width, dropout, optimizer, features on the card. Ours: no node
is shared between neighbourhoods.
Model: Hamilton et al., "Inductive Representation Learning on Large Graphs", https://arxiv.org/abs/1706.02216, with means
over neighbours; written out here with gather and scatter (index_select, index_add), without kernels of other libraries.
Options: those of every adapter; `nodes`, `hidden`, `layers` (of which each has fewer neighbours a hop than the one before).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whichgpu.errors import WorkloadError
from whichgpu.workload import Workload
from whichgpu.zoo.options import Options, read_settings
from whichgpu.zoo.training import Recipe, make_workload

NAME = "graphsage"
SETTINGS = {"precision": "fp32", "optimizer": "adam", "layers": "3", "hidden": "256"}
NODES, FEATURES, CLASSES, NEIGHBOURS = 2_449_029, 100, 47, (15, 10, 5)


class Convolution(nn.Module):
    """A node's own features and the mean of its neighbours', each through a layer."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.neighbours, self.own = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)

    def forward(self, nodes: Tensor, targets: int, sources: Tensor, destinations: Tensor) -> Tensor:
        """New features of the first `targets` nodes, from edges between `sources` and `destinations`."""
        total = nodes.new_zeros(targets, nodes.shape[1]).index_add(0, destinations, nodes.index_select(0, sources))
        ones = nodes.new_ones(sources.shape[0])
        degree = nodes.new_zeros(targets).index_add(0, destinations, ones)
        return self.neighbours(total / degree.clamp(min=1)[:, None]) + self.own(nodes[:targets])


class GraphSage(nn.Module):
    """Convolutions from the outermost neighbours inwards."""

    def __init__(self, nodes: int, hidden: int, layers: int) -> None:
        super().__init__()
        widths = [FEATURES, *[hidden] * (layers - 1), CLASSES]
        self.convolutions = nn.ModuleList(Convolution(*widths[layer : layer + 2]) for layer in range(layers))
        self.register_buffer("features", torch.zeros(nodes, FEATURES), persistent=False)

    def forward(self, names: Tensor, hops: list[tuple[int, Tensor, Tensor]]) -> Tensor:
        """Logits of the nodes in the middle; `hops` from the outermost, each with its targets and edges."""
        nodes = self.features.index_select(0, names)
        for convolution, hop in zip(self.convolutions, hops, strict=True):
            nodes = convolution(nodes, *hop)
            if convolution is not self.convolutions[-1]:
                nodes = F.dropout(F.relu(nodes), 0.5, self.training)
        return nodes


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    reader = Options(NAME, {**SETTINGS, **options})
    settings = read_settings(reader)
    layers, hidden, nodes = reader.count("layers", 3), reader.count("hidden", 256), reader.count("nodes", NODES)
    reader.finish()
    if layers > len(NEIGHBOURS):
        raise WorkloadError(f"{NAME}: layers={layers} is more than the {len(NEIGHBOURS)} hops that are sampled")

    recipe = Recipe(
        where=NAME,
        settings=settings,
        make_model=lambda: GraphSage(nodes, hidden, layers),
        make_batch=lambda count, device, dtype: sample(count, NEIGHBOURS[:layers], nodes, device),
        compute_loss=lambda model, batch: F.cross_entropy(model(batch[0], batch[1]), batch[2]),
        optimizer_arguments={"lr": 0.003},
    )
    description = "GraphSAGE on a graph of ogbn-products' size, node classification"
    return make_workload(recipe, unit="nodes", description=description, default_batch_size=1024)


def sample(
    count: int, neighbours: tuple[int, ...], nodes: int, device: torch.device
) -> tuple[Tensor, list[tuple[int, Tensor, Tensor]], Tensor]:
    """Names of all sampled nodes, edges of each hop from the outermost, and labels of the nodes in the middle.

    The sampled nodes are numbered from the middle outwards: those of a hop come behind its targets.
    """
    hops: list[tuple[int, Tensor, Tensor]] = []
    reached = count
    for fan in neighbours:
        destinations = torch.arange(reached, device=device).repeat_interleave(fan)
        sources = torch.arange(reached, reached * (1 + fan), device=device)
        hops.insert(0, (reached, sources, destinations))
        reached *= 1 + fan
    names = torch.randint(0, nodes, (reached,), device=device)
    return names, hops, torch.randint(0, CLASSES, (count,), device=device)
