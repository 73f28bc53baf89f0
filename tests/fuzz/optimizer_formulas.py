"""What PyTorch's optimizers, Lion and LAMB make of a parameter, in float64.

``step(p, g, state, settings, lr, t)``: the new parameter; ``state`` is changed, ``t`` counts from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .making import Array

NEAR = 1e-3  # of its terms: Lion's direction may be either sign where it is smaller
State = dict[str, Array]


def _kept(state: State, name: str, like: Array, start: float = 0.0) -> Array:
    return state.setdefault(name, np.full(like.shape, start))


def _moments(g: Array, state: State, betas: tuple[float, float]) -> tuple[Array, Array]:
    for name, beta, new in (("m", betas[0], g), ("v", betas[1], g * g)):
        state[name] = beta * _kept(state, name, g) + (1 - beta) * new
    return state["m"], state["v"]


def _sgd(p: Array, g: Array, state: State, s: Mapping[str, Any], lr: float, t: int) -> Array:
    g = g + s["weight_decay"] * p
    if s["momentum"]:
        state["velocity"] = s["momentum"] * _kept(state, "velocity", g) + g
        g = g + s["momentum"] * state["velocity"] if s["nesterov"] else state["velocity"]
    return p - lr * g


def _adam(p: Array, g: Array, state: State, s: Mapping[str, Any], lr: float, t: int) -> Array:
    m, v = _moments(g + s["weight_decay"] * p, state, s["betas"])
    if s["amsgrad"]:
        v = state["most"] = np.maximum(_kept(state, "most", g), v)
    return _adam_step(p, m, v, s, lr, t)


def _adamw(p: Array, g: Array, state: State, s: Mapping[str, Any], lr: float, t: int) -> Array:
    return _adam_step(p * (1 - lr * s["weight_decay"]), *_moments(g, state, s["betas"]), s, lr, t)


def _adam_step(p: Array, m: Array, v: Array, s: Mapping[str, Any], lr: float, t: int) -> Array:
    of_m, of_v = (1 - beta**t for beta in s["betas"])
    return p - lr * (m / of_m) / (np.sqrt(v / of_v) + s["epsilon"])


def _adamax(p: Array, g: Array, state: State, s: Mapping[str, Any], lr: float, t: int) -> Array:
    g = g + s["weight_decay"] * p
    m, _ = _moments(g, state, s["betas"])
    state["u"] = np.maximum(s["betas"][1] * _kept(state, "u", g), np.abs(g) + s["epsilon"])
    return p - lr / (1 - s["betas"][0] ** t) * m / state["u"]


def _nadam(p: Array, g: Array, state: State, s: Mapping[str, Any], lr: float, t: int) -> Array:
    g = g + s["weight_decay"] * p
    m, v = _moments(g, state, s["betas"])
    mu, after = (s["betas"][0] * (1 - 0.5 * 0.96 ** (n * s["momentum_decay"])) for n in (t, t + 1))
    product = state["product"] = _kept(state, "product", np.zeros(()), 1.0) * mu
    below = np.sqrt(v / (1 - s["betas"][1] ** t)) + s["epsilon"]
    return p - lr * ((1 - mu) / (1 - product) * g + after / (1 - product * after) * m) / below


def _radam(p: Array, g: Array, state: State, s: Mapping[str, Any], lr: float, t: int) -> Array:
    m, v = _moments(g + s["weight_decay"] * p, state, s["betas"])
    beta = s["betas"][1]
    step, most = m / (1 - s["betas"][0] ** t), 2 / (1 - beta) - 1
    length = most - 2 * t * beta**t / (1 - beta**t)
    if length > 5:
        rect = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
        step = step * rect**0.5 * (1 - beta**t) ** 0.5 / (np.sqrt(v) + s["epsilon"])
    return p - lr * step


def _rmsprop(p: Array, g: Array, state: State, s: Mapping[str, Any], lr: float, t: int) -> Array:
    g = g + s["weight_decay"] * p
    mean, square = _moments(g, state, (s["alpha"], s["alpha"]))
    step = g / (np.sqrt(square - mean**2 if s["centered"] else square) + s["epsilon"])
    if s["momentum"]:
        step = state["velocity"] = s["momentum"] * _kept(state, "velocity", g) + step
    return p - lr * step


def _adagrad(p: Array, g: Array, state: State, s: Mapping[str, Any], lr: float, t: int) -> Array:
    g = g + s["weight_decay"] * p
    state["sum"] = _kept(state, "sum", g, s["start"]) + g * g
    return p - lr / (1 + (t - 1) * s["lr_decay"]) * g / (np.sqrt(state["sum"]) + s["epsilon"])


def _adadelta(p: Array, g: Array, state: State, s: Mapping[str, Any], lr: float, t: int) -> Array:
    g, rho, epsilon = g + s["weight_decay"] * p, s["rho"], s["epsilon"]
    state["square"] = rho * _kept(state, "square", g) + (1 - rho) * g * g
    step = np.sqrt(_kept(state, "steps", g) + epsilon) / np.sqrt(state["square"] + epsilon) * g
    state["steps"] = rho * state["steps"] + (1 - rho) * step**2
    return p - lr * step


def _lion(p: Array, g: Array, state: State, s: Mapping[str, Any], lr: float, t: int) -> Array:
    one, two = s["betas"]
    m = _kept(state, "m", g)
    step = one * m + (1 - one) * g
    state["unsure"] = np.abs(step) < NEAR * (one * np.abs(m) + (1 - one) * np.abs(g))
    state["m"] = two * m + (1 - two) * g
    return p * (1 - lr * s["weight_decay"]) - lr * np.sign(step)


def _lamb(p: Array, g: Array, state: State, s: Mapping[str, Any], lr: float, t: int) -> Array:
    step = -_adam_step(np.zeros(p.shape), *_moments(g, state, s["betas"]), s, 1.0, t) + s["weight_decay"] * p
    length, size = (float(np.sqrt((a * a).sum())) for a in (p, step))
    return p - lr * (length / size if length and size else 1.0) * step


STEPS: dict[str, Callable[..., Array]] = {
    "SGD": _sgd,
    "AdamW": _adamw,
    "Adam": _adam,
    "Adamax": _adamax,
    "NAdam": _nadam,
    "RAdam": _radam,
    "RMSprop": _rmsprop,
    "Adagrad": _adagrad,
    "Adadelta": _adadelta,
    "Lion": _lion,
    "LAMB": _lamb,
}
