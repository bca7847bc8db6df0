"""The DEFault++ network: group encoders, message passing over the propagation graph, projection, three heads.

Source: DEFault++ manuscript, §4.3. With G groups, hidden size h and embedding size e, a batch x of shape (B, D)
becomes H of shape (B, G, h), then z of shape (B, e), then the logits of three levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear, relu


@dataclass(frozen=True)
class Layout:
    """The sizes a network is built for.

    widths : columns of each group; the input holds the groups side by side, in this order.
    n_categories : Level-2 classes.
    category_of_class : category code of each of the K Level-3 classes.
    flat : one encoder over all columns instead of one per group; H is then its output cut into G pieces.
    """

    widths: tuple[int, ...]
    n_categories: int
    category_of_class: tuple[int, ...]
    hidden: int = 32
    embedding: int = 64
    rounds: int = 3
    dropout: float = 0.1
    flat: bool = False


class Output(NamedTuple):
    """H (B, G, h), z (B, e), and logits: detection (B, 2), category (B, C), classes (B, K)."""

    H: Tensor
    z: Tensor
    detection: Tensor
    category: Tensor
    classes: Tensor


class GroupEncoder(nn.Module):
    """Linear, ReLU, dropout, linear: one such network per group, without weights in common.

    The first layers of all groups lie in one (D, h) matrix and are applied to slices of it. That costs G small
    products; padding the groups to one width and multiplying them as a batch was measured at five times their time
    on a CPU (the widest group has fifty times the columns of the narrowest).
    """

    def __init__(self, widths: tuple[int, ...], hidden: int, dropout: float):
        super().__init__()
        self.widths, self.dropout = list(widths), dropout
        groups = len(widths)
        self.first_weight = nn.Parameter(torch.cat([_kept((w, hidden), w, before_relu=True) for w in widths]))
        self.first_bias = nn.Parameter(torch.zeros(groups, hidden))
        self.second_weight = nn.Parameter(_kept((groups, hidden, hidden), hidden))
        self.second_bias = nn.Parameter(torch.zeros(groups, hidden))

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) to (G, B, h)."""
        slices = zip(x.split(self.widths, dim=1), self.first_weight.split(self.widths), strict=True)
        hidden = torch.stack([part @ weight for part, weight in slices])
        hidden = dropout(relu(hidden + self.first_bias.unsqueeze(1)), self.dropout, self.training)
        return torch.baddbmm(self.second_bias.unsqueeze(1), hidden, self.second_weight)


class FlatEncoder(nn.Module):
    """The same depth over all columns at once, G·h wide, its output cut into G pieces of h.

    This is what the authors' released checkpoints hold ("mode flat"); here it shows what the groups are worth.
    """

    def __init__(self, widths: tuple[int, ...], hidden: int, dropout: float):
        super().__init__()
        width = len(widths) * hidden
        self.shape = (len(widths), hidden)
        self.layers = nn.Sequential(
            nn.Linear(sum(widths), width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) to (G, B, h)."""
        return self.layers(x).unflatten(1, self.shape).transpose(0, 1).contiguous()


class MessagePassing(nn.Module):
    """H ← ReLU(Â H W_r), once per round; Â is the row-normalised adjacency with self-loops, shape (G, G)."""

    def __init__(self, adjacency: Tensor, hidden: int, rounds: int):
        super().__init__()
        self.register_buffer("adjacency", adjacency.to(torch.float32))
        self.weights = nn.Parameter(_kept((rounds, hidden, hidden), hidden, before_relu=True))

    def forward(self, H: Tensor) -> Tensor:
        """(G, B, h) to (G, B, h)."""
        for weight in self.weights:
            H = relu(self.adjacency @ (H @ weight).flatten(1)).view_as(H)
        return H


class RootCauseHeads(nn.Module):
    """One two-layer head per category; their outputs, side by side, are the logits of the K classes."""

    def __init__(self, embedding: int, n_categories: int, category_of_class: tuple[int, ...], dropout: float):
        super().__init__()
        hidden, self.dropout = embedding // 2, dropout
        self.first = nn.Linear(embedding, n_categories * hidden)
        self.second_weight = nn.Parameter(_kept((len(category_of_class), hidden), hidden))
        self.second_bias = nn.Parameter(torch.zeros(len(category_of_class)))
        owner = torch.zeros(len(category_of_class), n_categories, 1)
        owner[torch.arange(len(category_of_class)), list(category_of_class)] = 1.0
        self.register_buffer("owner", owner)

    def forward(self, z: Tensor) -> Tensor:
        """(B, e) to (B, K): each class reads the hidden layer of its own category's head, and no other."""
        hidden = dropout(relu(self.first(z)), self.dropout, self.training)
        block_diagonal = (self.owner * self.second_weight.unsqueeze(1)).flatten(1)
        return linear(hidden, block_diagonal, self.second_bias)


class Network(nn.Module):
    """The whole model. `adjacency` (G, G) turns message passing on; None leaves it out (the −FPG ablation)."""

    def __init__(self, layout: Layout, adjacency: Tensor | None):
        super().__init__()
        self.layout = layout
        encoder = FlatEncoder if layout.flat else GroupEncoder
        self.encoder = encoder(layout.widths, layout.hidden, layout.dropout)
        self.messages = None
        if adjacency is not None:
            self.messages = MessagePassing(adjacency, layout.hidden, layout.rounds)
        self.projection = nn.Linear(len(layout.widths) * layout.hidden, layout.embedding)
        categories = max(layout.n_categories, 1)  # a bench without Level 2 still needs a head to build
        self.detection_head = _head(layout.embedding, 2, layout.dropout)
        self.category_head = _head(layout.embedding, categories, layout.dropout)
        self.root_cause_heads = RootCauseHeads(layout.embedding, categories, layout.category_of_class, layout.dropout)

    def embed(self, x: Tensor) -> Tensor:
        """Group embeddings H, shape (B, G, h), of standardised inputs x, shape (B, D)."""
        H = self.encoder(x)  # groups first, as batched products over groups want it
        return (H if self.messages is None else self.messages(H)).transpose(0, 1)

    def forward(self, x: Tensor) -> Output:
        """Embeddings and the logits of the three levels."""
        H = self.embed(x)
        z = self.projection(H.flatten(1))
        return Output(H, z, self.detection_head(z), self.category_head(z), self.root_cause_heads(z))


def _head(embedding: int, classes: int, dropout: float) -> nn.Sequential:
    half = embedding // 2
    return nn.Sequential(nn.Linear(embedding, half), nn.ReLU(), nn.Dropout(dropout), nn.Linear(half, classes))


def _kept(shape: tuple[int, ...], fan_in: int, before_relu: bool = False) -> Tensor:
    """Uniform weights that keep the size of what passes through (He et al. 2015), twice the variance before a ReLU.

    PyTorch's default for linear layers lets it shrink: three rounds of messages would start with an H of a
    twentieth of the encoder's size, and every distance between prototypes at a four-hundredth.
    """
    bound = ((6.0 if before_relu else 3.0) / max(fan_in, 1)) ** 0.5
    return torch.empty(shape).uniform_(-bound, bound)
