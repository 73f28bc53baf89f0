"""The networks that are trained, as PyTorch modules."""

from __future__ import annotations

import itertools

import torch


def mlp() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(784, 500), torch.nn.ReLU(), torch.nn.Linear(500, 10))


def cnn() -> torch.nn.Module:
    n = torch.nn
    return n.Sequential(
        n.Conv2d(1, 8, 3), n.ReLU(), n.MaxPool2d(2), n.Conv2d(8, 16, 3), n.ReLU(), n.MaxPool2d(2), n.Flatten(),
        n.Linear(16 * 5 * 5, 10),
    )  # fmt: skip


def small() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 10))


class Layer(torch.nn.Module):
    """Attention by PyTorch's fused kernel, and two dense layers."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        n = torch.nn
        self.heads = heads
        self.norm1, self.norm2 = n.LayerNorm(width), n.LayerNorm(width)
        self.qkv, self.proj = n.Linear(width, 3 * width), n.Linear(width, width)
        self.fc1, self.fc2 = n.Linear(width, inner), n.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(n, t, d))
        return x + self.fc2(torch.nn.functional.gelu(self.fc1(self.norm2(x))))


class Encoder(torch.nn.Module):
    """4 layers, width 256, 4 heads, 1024 inner; 128 of 1000 words in, a word for each place out."""

    def __init__(self) -> None:
        super().__init__()
        n = torch.nn
        self.words, self.places = n.Embedding(1000, 256), n.Parameter(torch.randn(1, 128, 256) * 0.02)
        self.layers = n.Sequential(*(Layer(256, 4, 1024) for _ in range(4)))
        self.norm, self.head = n.LayerNorm(256), n.Linear(256, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layers(self.words(x) + self.places)))


class Lstm(torch.nn.Module):
    """Two layers of 256 over a sequence of 128 features, and a dense layer on the mean of the states."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = torch.nn.LSTM(128, 256, 2, batch_first=True)
        self.head = torch.nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0].mean(1))


class Block(torch.nn.Module):
    """A bottleneck of ResNet-50."""

    def __init__(self, inside: int, middle: int, stride: int) -> None:
        super().__init__()
        n = torch.nn
        outside = 4 * middle
        self.main = n.Sequential(
            n.Conv2d(inside, middle, 1, bias=False), n.BatchNorm2d(middle), n.ReLU(),
            n.Conv2d(middle, middle, 3, stride, 1, bias=False), n.BatchNorm2d(middle), n.ReLU(),
            n.Conv2d(middle, outside, 1, bias=False), n.BatchNorm2d(outside),
        )  # fmt: skip
        plain = inside == outside and stride == 1
        self.side = n.Identity() if plain else n.Sequential(
            n.Conv2d(inside, outside, 1, stride, bias=False), n.BatchNorm2d(outside)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.main(x) + self.side(x))


def resnet50() -> torch.nn.Module:
    """He et al., 2015."""
    n = torch.nn
    layers: list[torch.nn.Module] = [n.Conv2d(3, 64, 7, 2, 3, bias=False), n.BatchNorm2d(64), n.ReLU(),
                                     n.MaxPool2d(3, 2, 1)]  # fmt: skip
    width = 64
    for middle, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(count):
            layers.append(Block(width, middle, stride if index == 0 else 1))
            width = 4 * middle
    return n.Sequential(*layers, n.AdaptiveAvgPool2d(1), n.Flatten(), n.Linear(2048, 1000))


class Decoder(torch.nn.Module):
    """The size of GPT-2 small: 12 layers, width 768, 12 heads, 512 places, 50,257 words; the embedding is the head."""

    def __init__(self) -> None:
        super().__init__()
        n = torch.nn
        self.words, self.places = n.Embedding(50257, 768), n.Parameter(torch.randn(1, 512, 768) * 0.02)
        self.layers = n.ModuleList(n.ModuleDict({
            "norm1": n.LayerNorm(768), "norm2": n.LayerNorm(768), "qkv": n.Linear(768, 2304),
            "proj": n.Linear(768, 768), "fc1": n.Linear(768, 3072), "fc2": n.Linear(3072, 768),
        }) for _ in range(12))  # fmt: skip
        self.norm = n.LayerNorm(768)
        torch.nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.words(x) + self.places
        for layer in self.layers:
            n, t, d = h.shape
            q, k, v = layer["qkv"](layer["norm1"](h)).reshape(n, t, 3, 12, d // 12).permute(2, 0, 3, 1, 4)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + layer["proj"](y.transpose(1, 2).reshape(n, t, d))
            h = h + layer["fc2"](torch.nn.functional.gelu(layer["fc1"](layer["norm2"](h))))
        return torch.nn.functional.linear(self.norm(h), self.words.weight)


class Gpt(torch.nn.Module):
    """A small decoder: 4 layers, width 256, 4 heads; 128 of 2000 words; causal, GELU by tanh, tied embedding."""

    def __init__(self) -> None:
        super().__init__()
        n = torch.nn
        self.words, self.places = n.Embedding(2000, 256), n.Parameter(torch.randn(1, 128, 256) * 0.02)
        self.layers = n.Sequential(*(CausalLayer(256, 4, 1024) for _ in range(4)))
        self.norm = n.LayerNorm(256)
        torch.nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(self.norm(self.layers(self.words(x) + self.places)), self.words.weight)


class CausalLayer(Layer):
    """A layer of a decoder."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(n, t, d))
        return x + self.fc2(torch.nn.functional.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class Vit(torch.nn.Module):
    """Dosovitskiy et al., 2020, as small as DeiT-Ti but for 6 layers: width 192, 3 heads, tiles of 16 pixels."""

    def __init__(self) -> None:
        super().__init__()
        n = torch.nn
        self.tiles = n.Conv2d(3, 192, 16, 16)
        self.first, self.places = n.Parameter(torch.zeros(1, 1, 192)), n.Parameter(torch.randn(1, 197, 192) * 0.02)
        self.layers = n.Sequential(*(Layer(192, 3, 768) for _ in range(6)))
        self.norm, self.head = n.LayerNorm(192), n.Linear(192, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tiles = self.tiles(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), tiles], 1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])


class Twice(torch.nn.Sequential):
    """Two convolutions with batch norm and ReLU."""

    def __init__(self, inside: int, outside: int) -> None:
        n = torch.nn
        super().__init__(
            n.Conv2d(inside, outside, 3, padding=1, bias=False), n.BatchNorm2d(outside), n.ReLU(),
            n.Conv2d(outside, outside, 3, padding=1, bias=False), n.BatchNorm2d(outside), n.ReLU(),
        )  # fmt: skip


class Unet(torch.nn.Module):
    """Ronneberger et al., 2015, with 16 to 128 channels and batch norms; its map is averaged to classes."""

    def __init__(self) -> None:
        super().__init__()
        n, widths = torch.nn, (16, 32, 64, 128)
        self.down = n.ModuleList(Twice(a, b) for a, b in zip((3, *widths), widths, strict=False))
        self.up = n.ModuleList(n.ConvTranspose2d(b, a, 2, 2) for a, b in itertools.pairwise(widths))
        self.mix = n.ModuleList(Twice(2 * a, a) for a in widths[:-1])
        self.pool, self.head = n.MaxPool2d(2), n.Conv2d(16, 10, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for index, down in enumerate(self.down):
            x = down(x if index == 0 else self.pool(x))
            kept.append(x)
        for index in (2, 1, 0):
            x = self.mix[index](torch.cat([kept[index], self.up[index](x)], 1))
        return self.head(x).mean((2, 3))


BLOCKS = (Layer, Block, Twice)  # what checkpoints of PyTorch are set around
NETWORKS = {
    "small": small, "mlp": mlp, "cnn": cnn, "encoder": Encoder, "lstm": Lstm, "resnet50": resnet50, "decoder": Decoder,
    "gpt": Gpt, "vit": Vit, "unet": Unet,
}  # fmt: skip
