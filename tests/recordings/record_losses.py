"""Records what PyTorch's losses give, with gradients, in float64; run by hand, the tests only read ``losses.npz``.

``CASE/0``, ``CASE/1``, ...: values of the model, ``CASE/labels`` and further entries in their order, then ``CASE/sum``,
``CASE/mean`` and ``CASE/gradient/0``, ... of the sum. What PyTorch has no loss for is its formula, written here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812

HERE = Path(__file__).parent
rng = np.random.default_rng(14)
kept: dict[str, np.ndarray] = {}


def logits(*shape: int, scale: float = 2.0, extreme: bool = True) -> np.ndarray:
    """Normal numbers, some of them large."""
    z = rng.normal(size=shape) * scale
    if extreme:
        z.ravel()[:4] = (100, -100, 30, -30)
    return z.astype(np.float32)


def record(
    case: str, loss: Callable[..., torch.Tensor], outputs: list[np.ndarray], mean: Any = None, **entries: np.ndarray
) -> None:
    """One case; ``loss`` gives the sum; ``mean``: by what it is divided, by default the number of labels."""
    made = [torch.tensor(np.asarray(o, np.float64), requires_grad=True) for o in outputs]
    given = [torch.tensor(e.astype(np.float64) if e.dtype.kind == "f" else e) for e in entries.values()]
    total = loss(*made, *given)
    total.backward()
    for index, output in enumerate(outputs):
        kept[f"{case}/{index}"] = output
        kept[f"{case}/gradient/{index}"] = made[index].grad.numpy()
    for name, entry in entries.items():
        kept[f"{case}/{name}"] = entry
    divisor = (given[0].numel() if given else len(outputs[0])) if mean is None else mean
    kept[f"{case}/sum"] = np.array(total.item())
    kept[f"{case}/mean"] = np.array(total.item() / float(divisor))
    assert np.isfinite(total.item()), case


def focal(z: torch.Tensor, t: torch.Tensor, gamma: float, alpha: float | None) -> torch.Tensor:
    """torchvision.ops.sigmoid_focal_loss, summed."""
    p = torch.sigmoid(z)
    loss = F.binary_cross_entropy_with_logits(z, t, reduction="none") * (1 - (p * t + (1 - p) * (1 - t))) ** gamma
    return (loss if alpha is None else loss * (alpha * t + (1 - alpha) * (1 - t))).sum()


def classes_focal(z: torch.Tensor, y: torch.Tensor, gamma: float, alpha: torch.Tensor) -> torch.Tensor:
    """The same over classes on axis 1."""
    each = F.cross_entropy(z, y, reduction="none")
    factor = torch.where(y == -100, 0.0, alpha[y.clamp(min=0)])
    return (each * (1 - torch.exp(-each)) ** gamma * factor).sum()


def dice(p: torch.Tensor, t: torch.Tensor, smooth: float) -> torch.Tensor:
    """Per sample and class, over all positions."""
    over = tuple(range(2, p.ndim))
    shared, both = (p * t).sum(over), (p + t).sum(over)
    return (1 - (2 * shared + smooth) / (both + smooth)).sum()


def info_nce(x: torch.Tensor, y: torch.Tensor, temperature: float, symmetric: bool) -> torch.Tensor:
    """Cross-entropy of the cosines with the diagonal."""
    s = F.normalize(x) @ F.normalize(y).T / temperature
    own = torch.arange(len(x))
    forth = F.cross_entropy(s, own, reduction="sum")
    return (forth + F.cross_entropy(s.T, own, reduction="sum")) / 2 if symmetric else forth


N, C = 6, 5
weights = np.array([0.5, 1.0, 2.0, 0.25, 1.5])
soft = rng.dirichlet(np.ones(C), N).astype(np.float32)
soft[1] = (0, 1, 0, 0, 0)
y = np.array([3, 1, -100, 2, 0, 4])
W = torch.tensor(weights)
masked = logits(N, C)
masked[3:, 0] = -np.inf  # no label of theirs
masked[4, 0] = 1.0

record("cross_entropy", lambda z, t: F.cross_entropy(z, t, reduction="sum"), [masked], 5, labels=y)
record("soft", lambda z, t: F.cross_entropy(z, t, reduction="sum"), [logits(N, C)], N, labels=soft)
record(
    "soft_weighted",
    lambda z, t: F.cross_entropy(z, t, weight=W, label_smoothing=0.1, reduction="sum"),
    [logits(N, C)],
    N,
    labels=soft,
)
spatial = np.moveaxis(rng.dirichlet(np.ones(3), (2, 4)).astype(np.float32), -1, 1)
record("soft_spatial", lambda z, t: F.cross_entropy(z, t, reduction="sum"), [logits(2, 3, 4)], 8, labels=spatial)
record(
    "nll",
    lambda z, t: F.nll_loss(z, t, weight=W, reduction="sum"),
    [-np.abs(logits(N, C))],
    weights[y[y >= 0]].sum(),
    labels=y,
)
record("kl", lambda z, t: F.kl_div(F.log_softmax(z, 1), t, reduction="sum"), [logits(N, C)], N, labels=soft)
logs = np.log(soft + np.float32(1e-3))
record(
    "kl_log",
    lambda z, t: F.kl_div(F.log_softmax(z, 1), t, reduction="sum", log_target=True),
    [logits(N, C)],
    N,
    labels=logs,
)
tokens = rng.integers(0, C, (2, 7))
tokens[1, 5:] = -100
record(
    "next_token",
    lambda z, t: F.cross_entropy(z[:, :-1].transpose(1, 2), t[:, 1:], reduction="sum"),
    [logits(2, 7, C)],
    (tokens[:, 1:] >= 0).sum(),
    labels=tokens,
)

yes = rng.integers(0, 2, (N, C)).astype(np.float32)
yes[0, :4] = (1, 0, 0, 1)
shares = rng.uniform(size=(N, C)).astype(np.float32)
bce = F.binary_cross_entropy_with_logits
record("binary", lambda z, t: bce(z, t, reduction="sum"), [logits(N, C)], labels=yes)
record("binary_shares", lambda z, t: bce(z, t, reduction="sum"), [logits(N, C)], labels=shares)
record("binary_pos", lambda z, t: bce(z, t, pos_weight=W, reduction="sum"), [logits(N, C)], labels=yes)
each = rng.uniform(size=(N, C)).astype(np.float32)
each[2] = 0
record(
    "binary_each",
    lambda z, t, w: bce(z, t, weight=w, reduction="sum"),
    [logits(N, C)],
    each.sum(dtype=np.float64),
    labels=yes,
    counts=each,
)
record("focal", lambda z, t: focal(z, t, 2.0, 0.25), [logits(N, C)], labels=yes)
record("focal_half", lambda z, t: focal(z, t, 1.5, None), [logits(N, C)], labels=shares)
record("focal_classes", lambda z, t: classes_focal(z, t, 2.0, W), [logits(N, C)], 5, labels=y)
sign = np.where(yes > 0, 1.0, -1.0).astype(np.float32)
record("hinge", lambda z, t: torch.clamp(1 - z * t, min=0).sum(), [logits(N, C)], labels=sign)
record("squared_hinge", lambda z, t: (torch.clamp(0.5 - z * t, min=0) ** 2).sum(), [logits(N, C)], labels=sign)

real = logits(N, C, extreme=False)
record("mse", lambda z, t: F.mse_loss(z, t, reduction="sum"), [logits(N, C)], labels=real)
record("mae", lambda z, t: F.l1_loss(z, t, reduction="sum"), [logits(N, C)], labels=real)
record("huber", lambda z, t: F.huber_loss(z, t, delta=1.5, reduction="sum"), [logits(N, C)], labels=real)
record("smooth_l1", lambda z, t: F.smooth_l1_loss(z, t, beta=0.5, reduction="sum"), [logits(N, C)], labels=real)
counts = rng.poisson(3.0, (N, C))
small = logits(N, C, extreme=False)
small[0, :2] = (30, -100)
record("poisson", lambda z, t: F.poisson_nll_loss(z, t, full=True, reduction="sum"), [small], labels=counts)
record(
    "poisson_rate",
    lambda z, t: F.poisson_nll_loss(z, t, log_input=False, reduction="sum"),
    [np.abs(small)],
    labels=counts,
)

mask = (rng.uniform(size=(3, 2, 4, 4)) < 0.4).astype(np.float32)
mask[0, 1] = 0  # an empty one
record("dice", lambda z, t: dice(torch.sigmoid(z), t, 1.0), [logits(3, 2, 4, 4)], 6, labels=mask)
regions = rng.integers(0, 3, (2, 4, 4))
regions[1] = 0  # two classes that are not there
record(
    "dice_classes",
    lambda z, t: dice(torch.softmax(z, 1), F.one_hot(t, 3).movedim(-1, 1).double(), 0.1),
    [logits(2, 3, 4, 4)],
    6,
    labels=regions,
)

a, b, c = (logits(N, 4, extreme=False) for _ in range(3))
together = np.array([1, -1, 1, -1, -1, 1])
a[3] = b[3]  # a pair that shouldn't be alike, and is
record(
    "cosine",
    lambda x, z, t: F.cosine_embedding_loss(x, z, t, margin=0.2, reduction="sum"),
    [a, b],
    N,
    labels=together,
)
record(
    "cosine_vectors",
    lambda x, t: F.cosine_embedding_loss(x, t, torch.ones(N), reduction="sum"),
    [a],
    N,
    labels=b,
)
record("triplet", lambda x, p, n: F.triplet_margin_loss(x, p, n, reduction="sum"), [a, b, c], N)
record("triplet_swap", lambda x, p, n: F.triplet_margin_loss(x, p, n, 3.0, swap=True, reduction="sum"), [a, b, c], N)
record("info_nce", lambda x, z: info_nce(x, z, 0.07, False), [a, b], N)
record("info_nce_both", lambda x, z: info_nce(x, z, 0.5, True), [a, b], N)

spoken = np.array([[1, 2, 2, 4], [3, 1, -1, -1], [2, -1, -1, -1]])
heard, count = np.array([9, 5, 9]), np.array([4, 2, 1])


def ctc(z: torch.Tensor, labels: torch.Tensor, times: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Each sample's loss by its number of labels."""
    each = F.ctc_loss(F.log_softmax(z, 2).transpose(0, 1), labels.clamp(min=0), times, counts, reduction="none")
    return (each / counts).sum()


record("ctc", ctc, [logits(3, 9, C, scale=1.0)], 3, labels=spoken, times=heard, counts=count)
filled = torch.tensor(count)
record("ctc_padded", lambda z, t: ctc(z, t, torch.full((3,), 9), filled), [logits(3, 9, C)], 3, labels=spoken)

student, teacher = logits(N, C), logits(N, C)
student[2] = np.nan  # its label is ignored
soft_teacher = F.softmax(torch.tensor(teacher[y >= 0], dtype=torch.float64) / 3, 1)


def distill(z: torch.Tensor, t: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Hinton's loss of the elements that count."""
    z, t = z[t >= 0], t[t >= 0]
    soft = F.kl_div(F.log_softmax(z / 3, 1), soft_teacher, reduction="sum")
    return 0.3 * 9 * soft + 0.7 * F.cross_entropy(z, t, reduction="sum")


record("distill", distill, [student], 5, labels=y, x=teacher)

np.savez_compressed(HERE / "losses.npz", **kept)
