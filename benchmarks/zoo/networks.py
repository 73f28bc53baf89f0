"""Small networks of PyTorch's own layers."""

from __future__ import annotations

import torch
from architecture import Architecture, Input
from torch import nn

TEXT = {"batch": 2, "sequence": 12}
OTHER_TEXT = ({"batch": 1, "sequence": 5}, {"batch": 3, "sequence": 1})


class Tagger(nn.Module):
    """A recurrent net over words: LSTM or GRU, two layers, two directions."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 32)
        self.net = kind(32, 24, num_layers=2, bidirectional=True, batch_first=True)
        self.last = nn.Linear(48, 9)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.last(self.net(self.words(ids))[0])


class Block(nn.Sequential):
    def __init__(self, i: int, o: int) -> None:
        super().__init__(
            nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.Conv2d(o, o, 3, padding=1), nn.SiLU()
        )


class UNet(nn.Module):
    """Two levels; the upper one is padded to the size of the skip connection, as people do it."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.middle = Block(3, 16), Block(16, 32), Block(32, 64)
        self.up2, self.up1 = nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)
        self.join2, self.join1 = Block(64, 32), Block(32, 16)
        self.last = nn.Conv2d(16, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down1(x)
        b = self.down2(nn.functional.max_pool2d(a, 2))
        c = self.middle(nn.functional.max_pool2d(b, 2))
        b = self.join2(torch.cat([b, fitted(self.up2(c), b)], 1))
        return self.last(self.join1(torch.cat([a, fitted(self.up1(b), a)], 1)))


def fitted(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """``x`` padded by zeros to the plane of ``like``."""
    dy, dx = like.shape[2] - x.shape[2], like.shape[3] - x.shape[3]
    return nn.functional.pad(x, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])


class Upscaler(nn.Module):
    """Super-resolution: a bilinear and a learned part."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 32, 5, padding=2), nn.PReLU(32), nn.Conv2d(32, 12, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        plain = nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
        return plain + nn.functional.pixel_shuffle(self.net(x), 2)


class Pyramid(nn.Module):
    """Feature maps resized to each other's sizes, and pooled to a fixed one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(i, 16, 3, 2, 1) for i in (3, 16, 16))
        self.last = nn.Linear(16 * 9, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = torch.relu(self.a(x))
        b = torch.relu(self.b(a))
        c = nn.functional.interpolate(torch.relu(self.c(b)), size=b.shape[-2:], mode="nearest")
        found = a + nn.functional.interpolate(b + c, size=a.shape[-2:], mode="bilinear", align_corners=True)
        return self.last(nn.functional.adaptive_avg_pool2d(found, (3, 3)).flatten(1))


class Mixer(nn.Module):
    """An MLP mixer over patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 8, 8)
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(4))
        self.tokens = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(2))
        self.channels = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)) for _ in range(2)
        )
        self.last = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).mT
        for i in range(2):
            x = x + self.tokens[i](self.norms[2 * i](x).mT).mT
            x = x + self.channels[i](self.norms[2 * i + 1](x))
        return self.last(x.mean(1))


class Translator(nn.Module):
    """``nn.Transformer`` with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 64)
        self.net = nn.Transformer(64, 4, 2, 2, 128, batch_first=True)
        self.last = nn.Linear(64, 100)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(target.shape[1])
        mask = steps[None, :] > steps[:, None]
        return self.last(self.net(self.words(source), self.words(target), tgt_mask=mask))


class Waves(nn.Module):
    """Dilated causal convolutions with gates over a signal."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 32, 1)
        self.gates = nn.ModuleList(nn.Conv1d(32, 64, 2, dilation=2**i) for i in range(5))
        self.last = nn.Conv1d(32, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for i, gate in enumerate(self.gates):
            a, b = gate(nn.functional.pad(x, (2**i, 0))).chunk(2, 1)
            x = x + torch.tanh(a) * torch.sigmoid(b)
        return self.last(x)


def _generator() -> nn.Module:
    up = [nn.ConvTranspose2d(64, 64, 4, 1, 0), nn.BatchNorm2d(64), nn.ReLU()]
    up += [nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.InstanceNorm2d(32, affine=True), nn.LeakyReLU(0.2)]
    return nn.Sequential(*up, nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh())


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(20, 64), nn.ELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.Softplus(), nn.Linear(64, 3)
    )


def architectures() -> list[Architecture]:
    """Those of this file."""
    words = Input(("batch", "sequence"), "ids")
    image = {"image": Input(("batch", 3, "height", "width"))}
    plane, planes = {"batch": 2, "height": 32, "width": 40}, (
        {"batch": 1, "height": 46, "width": 27}, {"batch": 3, "height": 17, "width": 64},
    )  # fmt: skip
    batches = ({"batch": 1}, {"batch": 5})
    return [
        Architecture("lstm_tagger", lambda: Tagger(nn.LSTM), {"ids": words}, TEXT, OTHER_TEXT),
        Architecture("gru_tagger", lambda: Tagger(nn.GRU), {"ids": words}, TEXT, OTHER_TEXT),
        Architecture("unet", UNet, image, plane, planes),
        Architecture("upscaler", Upscaler, image, plane, planes),
        Architecture("pyramid", Pyramid, image, {"batch": 2, "height": 48, "width": 48},
                     ({"batch": 1, "height": 48, "width": 48}, {"batch": 3, "height": 48, "width": 48}),
                     variants=("trace-fixed", "dynamo-fixed", "dynamo-named")),
        Architecture("mixer", Mixer, {"image": Input(("batch", 3, 32, 32))}, {"batch": 2}, batches),
        Architecture("translator", Translator, {"source": words, "target": Input(("batch", "written"), "ids")},
                     {**TEXT, "written": 7}, ({**OTHER_TEXT[0], "written": 3}, {**OTHER_TEXT[1], "written": 9})),
        Architecture("waves", Waves, {"signal": Input(("batch", 1, "samples"))}, {"batch": 2, "samples": 200},
                     ({"batch": 1, "samples": 333}, {"batch": 3, "samples": 64})),
        Architecture("generator", _generator, {"noise": Input(("batch", 64, 1, 1))}, {"batch": 2}, batches),
        Architecture("mlp", _mlp, {"x": Input(("batch", 20))}, {"batch": 4}, batches),
    ]  # fmt: skip
