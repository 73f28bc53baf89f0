"""Small networks of the families that people fine-tune, in PyTorch; only record.py reads this."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

CLASSES = 6


class SqueezeExcite(nn.Module):
    """Channels weighted by a look at their means."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, inner, 1)
        self.expand = nn.Conv2d(inner, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = functional.adaptive_avg_pool2d(x, 1)
        return x * functional.hardsigmoid(self.expand(functional.relu(self.reduce(scale))))


class Inverted(nn.Module):
    """An inverted residual block: expand, depthwise, squeeze and excite, project."""

    def __init__(self, inputs: int, inner: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.expand = nn.Conv2d(inputs, inner, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(inner)
        self.depthwise = nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False)
        self.norm2 = nn.BatchNorm2d(inner)
        self.excite = SqueezeExcite(inner, 4)
        self.project = nn.Conv2d(inner, outputs, 1, groups=2, bias=False)
        self.norm3 = nn.BatchNorm2d(outputs)
        self.same = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.hardswish(self.norm1(self.expand(x)))
        y = self.excite(functional.relu6(self.norm2(self.depthwise(y))))
        y = self.norm3(self.project(y))
        return x + y if self.same else y


class Mobile(nn.Module):
    """A mobile net: (N, 3, 16, 16) to (N, 6)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.block1 = Inverted(8, 16, 8, 1)
        self.block2 = Inverted(8, 24, 12, 2)
        self.dropout = nn.Dropout(0.2)
        self.classifier = nn.Linear(12, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.hardswish(self.norm(self.stem(x)))
        x = self.block2(self.block1(x))
        return self.classifier(self.dropout(functional.adaptive_avg_pool2d(x, 1).flatten(1)))


class UNet(nn.Module):
    """(N, 1, 12, 12) to a class for every pixel, (N, 3, 12, 12)."""

    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Conv2d(1, 8, 3, padding=1)
        self.norm1 = nn.GroupNorm(2, 8)
        self.down2 = nn.Conv2d(8, 12, 3, padding=1)
        self.norm2 = nn.GroupNorm(3, 12)
        self.middle = nn.Conv2d(12, 16, 3, padding=1)
        self.norm3 = nn.InstanceNorm2d(16, affine=True)
        self.up2 = nn.ConvTranspose2d(16, 12, 2, stride=2, bias=True)
        self.merge2 = nn.Conv2d(24, 12, 3, padding=1)
        self.merge1 = nn.Conv2d(20, 8, 3, padding=1)
        self.out = nn.Conv2d(8, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = functional.silu(self.norm1(self.down1(x)))
        b = functional.silu(self.norm2(self.down2(functional.max_pool2d(a, 2))))
        c = functional.leaky_relu(self.norm3(self.middle(functional.avg_pool2d(b, 2))))
        b = functional.silu(self.merge2(torch.cat([self.up2(c), b], 1)))
        up = functional.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)
        a = functional.silu(self.merge1(torch.cat([up, a], 1)))
        return self.out(a)


class Attention(nn.Module):
    """Several heads of attention with one projection for queries, keys and values."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return self.proj(y.transpose(1, 2).reshape(n, t, d))


class Layer(nn.Module):
    """A transformer layer; the norms come first, or last as in BERT."""

    def __init__(self, width: int, heads: int, causal: bool = False, first: bool = True) -> None:
        super().__init__()
        self.first = first
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if self.first:
            x = x + self.attention(self.norm1(x), mask)
            return x + self.dropout(self.fc2(functional.gelu(self.fc1(self.norm2(x)))))
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.dropout(self.fc2(functional.gelu(self.fc1(x)))))


class ViT(nn.Module):
    """A vision transformer: (N, 3, 12, 12) to (N, 6)."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16) * 0.02)
        self.position = nn.Parameter(torch.randn(1, 10, 16) * 0.02)
        self.layers = nn.ModuleList(Layer(16, 2) for _ in range(2))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


class Bert(nn.Module):
    """An encoder: token ids (N, T) and which of them count, to (N, 6)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 16)
        self.positions = nn.Embedding(32, 16)
        self.kinds = nn.Embedding(2, 16)
        self.norm = nn.LayerNorm(16, eps=1e-12)
        self.layers = nn.ModuleList(Layer(16, 4, first=False) for _ in range(2))
        self.pooler = nn.Linear(16, 16)
        self.classifier = nn.Linear(16, CLASSES)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        indices = torch.arange(ids.shape[1], device=ids.device)[None]
        kinds = torch.zeros_like(ids)
        x = self.norm(self.words(ids) + self.positions(indices) + self.kinds(kinds))
        extended = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, extended)
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


class GPT(nn.Module):
    """A decoder whose output layer is its embedding: token ids (N, T) to (N, T, 40)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 16)
        self.positions = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(Layer(16, 4, causal=True) for _ in range(2))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        indices = torch.arange(ids.shape[1], device=ids.device)
        x = self.words(ids) + self.positions(indices)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Regression(nn.Module):
    """(N, 9) to one number each, (N, 1), by two gated layers."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(9, 32)
        self.mix = nn.PReLU(16)
        self.norm = nn.BatchNorm1d(16)
        self.out = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.mix(functional.glu(self.gate(x), dim=-1))))


class Branch(nn.Module):
    """One of two layers, by the sign of the batch's mean: (N, 5) to (N, 6)."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.out = nn.Linear(5, 48), nn.Linear(5, 48), nn.Linear(48, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.mean() > 0):  # noqa: SIM108
            y = torch.tanh(self.left(x))
        else:
            y = torch.relu(self.right(x))
        return self.out(y)


class TracedBranch(Branch):
    """The same as a tracing exporter takes it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x.mean() > 0, lambda v: torch.tanh(self.left(v)), lambda v: torch.relu(self.right(v)), (x,))
        return self.out(y)


class Recurrence(nn.Module):
    """A loop over time: (N, T, 5) to (N, 6)."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.read, self.out = nn.Linear(10, 10), nn.Linear(5, 10), nn.Linear(10, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.shape[0], 10, dtype=x.dtype)
        for t in range(x.shape[1]):
            h = torch.tanh(self.state(h) + self.read(x[:, t]))
        return self.out(h)


class TracedRecurrence(Recurrence):
    """The same with the loop as an operator, which a tracing exporter keeps."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops.scan import scan

        def step(h: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            new = torch.tanh(self.state(h) + row)
            return new, new.clone()

        start = torch.zeros(x.shape[0], 10, dtype=x.dtype)
        last, _ = scan(step, start, self.read(x), dim=1)
        return self.out(last)
