"""Recommendation models with large embeddings and graph networks on index_add, scatter and gather."""

from __future__ import annotations

import itertools

import torch
from torch import nn


def _mlp(*widths):
    layers = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class _Dlrm(nn.Module):
    def __init__(self, tables, rows, dim, sparse):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum", sparse=sparse) for _ in range(tables))
        self.bottom = _mlp(13, 512, 256, dim)
        pairs = (tables + 1) * tables // 2
        self.top = _mlp(dim + pairs, 1024, 512, 1)
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, offset=-1))

    def forward(self, dense, bags):
        bottom = self.bottom(dense)
        vectors = torch.stack([bottom, *(table(bag) for table, bag in zip(self.tables, bags, strict=True))], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([bottom, products], dim=1)).squeeze(1)


def _dlrm_batch(device, batch_size, tables, rows, hot):
    dense = torch.rand(batch_size, 13, device=device)
    bags = [torch.randint(0, rows, (batch_size, hot), device=device) for _ in range(tables)]
    return dense, bags, torch.randint(0, 2, (batch_size,), device=device).float()


def dlrm_dense_adagrad_fp32(device, *, tables=26, rows=100_000, dim=64, hot=4):
    torch.manual_seed(0)
    model = _Dlrm(tables, rows, dim, sparse=False).to(device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)

    def step(batch_size):
        dense, bags, labels = _dlrm_batch(device, batch_size, tables, rows, hot)
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(dense, bags), labels).backward()
        optimizer.step()

    return step


def dlrm_sparse_adam_fp32(device, *, tables=26, rows=200_000, dim=64, hot=4):
    torch.manual_seed(0)
    model = _Dlrm(tables, rows, dim, sparse=True).to(device)
    sparse = torch.optim.SparseAdam(list(model.tables.parameters()), lr=1e-3)
    dense_optimizer = torch.optim.Adam([*model.bottom.parameters(), *model.top.parameters()], lr=1e-3)

    def step(batch_size):
        dense, bags, labels = _dlrm_batch(device, batch_size, tables, rows, hot)
        sparse.zero_grad()
        dense_optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(dense, bags), labels).backward()
        sparse.step()
        dense_optimizer.step()

    return step


def two_tower_in_batch_fp32(device, *, users=1_000_000, items=500_000, dim=64):
    torch.manual_seed(0)
    user = nn.Sequential(nn.Embedding(users, dim), nn.Linear(dim, 256), nn.ReLU(), nn.Linear(256, 128))
    item = nn.Sequential(nn.Embedding(items, dim), nn.Linear(dim, 256), nn.ReLU(), nn.Linear(256, 128))
    model = nn.ModuleList([user, item]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(batch_size):
        left = nn.functional.normalize(user(torch.randint(0, users, (batch_size,), device=device)), dim=-1)
        right = nn.functional.normalize(item(torch.randint(0, items, (batch_size,), device=device)), dim=-1)
        loss = nn.functional.cross_entropy(left @ right.T / 0.05, torch.arange(batch_size, device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def sequence_recommender_sparse_sgd_fp32(device, *, items=2_000_000, dim=128, seq=50):
    torch.manual_seed(0)
    table = nn.Embedding(items, dim, sparse=True).to(device)
    rnn = nn.GRU(dim, dim, batch_first=True).to(device)
    optimizer = torch.optim.SGD([*table.parameters(), *rnn.parameters()], lr=0.1)

    def step(batch_size):
        history = torch.randint(0, items, (batch_size, seq), device=device)
        negative = torch.randint(0, items, (batch_size, seq - 1, 20), device=device)
        optimizer.zero_grad()
        hidden, _ = rnn(table(history[:, :-1]))
        positive_score = (hidden * table(history[:, 1:])).sum(-1, keepdim=True)
        negative_score = torch.einsum("bsd,bsnd->bsn", hidden, table(negative))
        nn.functional.softplus(negative_score - positive_score).mean().backward()
        optimizer.step()

    return step


def _random_graph(device, nodes, degree):
    edges = nodes * degree
    return torch.randint(0, nodes, (2, edges), device=device)


class _GraphConv(nn.Module):
    """Mean over neighbours: gather by index, add back by index_add."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.own, self.neighbour = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)

    def forward(self, hidden, edges):
        source, target = edges
        total = torch.zeros_like(hidden).index_add_(0, target, hidden[source])
        degree = torch.zeros(hidden.shape[0], device=hidden.device).index_add_(
            0, target, torch.ones(target.shape[0], device=hidden.device)
        )
        return self.own(hidden) + self.neighbour(total / degree.clamp(min=1)[:, None])


def gcn_index_add_fp32(device, *, nodes=500, degree=12, dim=128):
    torch.manual_seed(0)
    layers = nn.ModuleList([_GraphConv(64, dim), _GraphConv(dim, dim), _GraphConv(dim, dim), nn.Linear(dim, 10)])
    layers = layers.to(device)
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.01, weight_decay=5e-4)

    def step(batch_size):
        hidden = torch.randn(batch_size * nodes, 64, device=device)
        edges = _random_graph(device, batch_size * nodes, degree)
        graph = torch.arange(batch_size, device=device).repeat_interleave(nodes)
        labels = torch.randint(0, 10, (batch_size,), device=device)
        optimizer.zero_grad()
        for layer in layers[:-1]:
            hidden = nn.functional.dropout(layer(hidden, edges).relu(), 0.5)
        pooled = torch.zeros(batch_size, dim, device=device).index_add(0, graph, hidden) / nodes
        nn.functional.cross_entropy(layers[-1](pooled), labels).backward()
        optimizer.step()

    return step


class _GraphAttention(nn.Module):
    """Softmax over incoming edges: scatter_reduce for the maximum, scatter_add for the sum."""

    def __init__(self, inputs, dim, heads):
        super().__init__()
        self.heads, self.dim = heads, dim
        self.project = nn.Linear(inputs, heads * dim, bias=False)
        self.left = nn.Parameter(torch.randn(heads, dim) * 0.1)
        self.right = nn.Parameter(torch.randn(heads, dim) * 0.1)

    def forward(self, hidden, edges):
        source, target = edges
        nodes = hidden.shape[0]
        values = self.project(hidden).view(nodes, self.heads, self.dim)
        score = (values * self.left).sum(-1)[source] + (values * self.right).sum(-1)[target]
        score = nn.functional.leaky_relu(score, 0.2)
        place = target[:, None].expand_as(score)
        top = torch.full((nodes, self.heads), -1e9, device=hidden.device)
        top = top.scatter_reduce(0, place, score.detach(), "amax")
        weight = (score - top[target]).exp()
        total = torch.zeros(nodes, self.heads, device=hidden.device).scatter_add(0, place, weight)
        message = values[source] * (weight / total[target])[..., None]
        return torch.zeros_like(values).index_add(0, target, message).flatten(1)


def gat_scatter_fp32(device, *, nodes=500, degree=8, dim=16, heads=8):
    torch.manual_seed(0)
    layers = nn.ModuleList(
        [
            _GraphAttention(64, dim, heads),
            _GraphAttention(dim * heads, dim, heads),
            nn.Linear(dim * heads, 40),
        ]
    ).to(device)
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.005)

    def step(batch_size):
        hidden = torch.randn(batch_size * nodes, 64, device=device)
        edges = _random_graph(device, batch_size * nodes, degree)
        labels = torch.randint(0, 40, (batch_size * nodes,), device=device)
        optimizer.zero_grad()
        hidden = nn.functional.elu(layers[0](hidden, edges))
        hidden = nn.functional.elu(layers[1](hidden, edges))
        nn.functional.cross_entropy(layers[2](hidden), labels).backward()
        optimizer.step()

    return step


def graphsage_unique_sampling_fp32(device, *, nodes=1_000_000, features=128, dim=256, fanout=(15, 10)):
    torch.manual_seed(0)
    table = torch.randn(nodes, features, device=device)
    layers = nn.ModuleList([_GraphConv(features, dim), _GraphConv(dim, dim), nn.Linear(dim, 47)]).to(device)
    optimizer = torch.optim.AdamW(layers.parameters(), lr=3e-3)

    def step(batch_size):
        seeds = torch.randperm(nodes, device=device)[:batch_size]
        sources, targets, frontier = [], [], seeds
        for width in fanout:
            sources.append(torch.randint(0, nodes, (frontier.shape[0] * width,), device=device))
            targets.append(frontier.repeat_interleave(width))
            frontier = torch.cat([frontier, sources[-1]]).unique()
        found, place = torch.unique(torch.cat([seeds, *sources, *targets]), return_inverse=True)
        own = place[:batch_size]
        edge_source, edge_target = place[batch_size:].chunk(2)
        edges = torch.stack([edge_source, edge_target])
        hidden = table[found]
        for layer in layers[:-1]:
            hidden = layer(hidden, edges).relu()
        labels = torch.randint(0, 47, (batch_size,), device=device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(layers[-1](hidden[own]), labels).backward()
        optimizer.step()

    return step


class _EdgeConv(nn.Module):
    """DGCNN's layer: nearest neighbours by topk, features by gather, maximum over the neighbours."""

    def __init__(self, inputs, outputs, neighbours):
        super().__init__()
        self.neighbours = neighbours
        self.mlp = nn.Sequential(
            nn.Conv2d(2 * inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2)
        )

    def forward(self, points):
        with torch.no_grad():
            place = torch.cdist(points.transpose(1, 2), points.transpose(1, 2)).topk(
                self.neighbours, dim=-1, largest=False
            )[1]
        batch, channels, count = points.shape
        index = place.reshape(batch, 1, -1).expand(-1, channels, -1)
        near = points.gather(2, index).view(batch, channels, count, self.neighbours)
        centre = points.unsqueeze(-1).expand_as(near)
        return self.mlp(torch.cat([near - centre, centre], dim=1)).max(dim=-1).values


def dgcnn_topk_gather_fp32(device, *, points=1024, neighbours=20):
    torch.manual_seed(0)
    layers = nn.ModuleList(
        [_EdgeConv(3, 64, neighbours), _EdgeConv(64, 64, neighbours), _EdgeConv(64, 128, neighbours)]
    ).to(device)
    head = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 40)).to(device)
    optimizer = torch.optim.SGD([*layers.parameters(), *head.parameters()], lr=0.1, momentum=0.9)

    def step(batch_size):
        hidden = torch.randn(batch_size, 3, points, device=device)
        labels = torch.randint(0, 40, (batch_size,), device=device)
        outputs = []
        for layer in layers:
            hidden = layer(hidden)
            outputs.append(hidden)
        pooled = torch.cat(outputs, dim=1).amax(dim=-1)
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(pooled), labels).backward()
        optimizer.step()

    return step
