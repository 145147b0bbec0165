"""What does a module of the transformers library compute? Asked by values, as names and sources differ.

A copy of the module with random weights gets random numbers, and its answer is compared with what a kernel of
ours would say.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import nn
from torch.nn import functional

_ROWS, _WIDTH, _INNER = 5, 16, 24
_EPS_NAMES = ("variance_epsilon", "eps", "epsilon")


class RmsNorm(NamedTuple):
    """x / rms(x) * (weight + offset)."""

    eps: float
    offset: float


class GatedMlp(NamedTuple):
    """down(activation(gate(x)) * up(x)).

    Attributes:
        inner: names of gate and up, or of a layer whose outputs are both.
        outer: of the layer back.
        activation: "silu" or "gelu_tanh".
    """

    inner: tuple[str, ...]
    outer: str
    activation: str


_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu": functional.gelu,
}
_GATED = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"), ("gate_up_proj", "down_proj"))


def rms_norm_of(module: nn.Module) -> RmsNorm | None:
    """Return what kind of RMS norm a module is; None if it is none of ours."""
    eps = next((getattr(module, name) for name in _EPS_NAMES if hasattr(module, name)), None)
    if [name for name, _ in module.named_parameters()] != ["weight"] or not isinstance(eps, float):
        return None
    probe = _on_cpu(module)
    if next(probe.parameters()).ndim != 1:
        return None
    weight = 1.0 + 0.2 * _random(len(next(probe.parameters())))
    probe._parameters["weight"] = nn.Parameter(weight, requires_grad=False)
    x = _random(_ROWS, len(weight))
    normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    for offset in (0.0, 1.0):
        if _gives(probe, x, normed * (weight + offset)):
            return RmsNorm(eps, offset)
    return None


def activation_of(module: nn.Module) -> str | None:
    """Return which activation a module without parameters is; None if it is none of ours."""
    x = 3.0 * _random(_ROWS, _WIDTH)
    return next((name for name, f in _ACTIVATIONS.items() if _gives(module, x, f(x))), None)


def gated_mlp_of(module: nn.Module) -> GatedMlp | None:
    """Return what kind of gated MLP a module is; None if it is none of ours."""
    linears = {name: child for name, child in module.named_children() if type(child) is nn.Linear}
    names = next((names for names in _GATED if set(names) == set(linears)), None)
    if names is None or len({child.bias is None for child in linears.values()}) != 1:
        return None
    *inner, outer = names
    others = [child for name, child in module.named_children() if name not in linears]
    if any(list(child.parameters()) for child in others) or list(module.parameters(recurse=False)):
        return None
    probe = copy.deepcopy(module)
    for seed, name in enumerate(inner):
        setattr(probe, name, _linear(_WIDTH, _INNER * (2 if len(inner) == 1 else 1), seed))
    setattr(probe, outer, _linear(_INNER, _WIDTH))
    x = _random(_ROWS, _WIDTH)
    with torch.inference_mode():
        hidden = torch.cat([getattr(probe, name)(x) for name in inner], -1)
        gate, up = hidden.chunk(2, dim=-1)
        for activation in ("silu", "gelu_tanh"):
            expected = getattr(probe, outer)(_ACTIVATIONS[activation](gate) * up)
            if _gives(probe, x, expected):
                return GatedMlp(tuple(inner), outer, activation)
    return None


def turns_halves(function: object, *, part: bool = False) -> bool:
    """Whether a function of q and k [1, H, T, D], cos and sin [1, T, R] turns elements i and i + R / 2.

    Args:
        function: of any kind.
        part: asked is for R < D, where the other elements have to stay; else for R = D.
    """
    if not callable(function):
        return False
    q, k = _random(1, 2, _ROWS, _WIDTH), _random(1, 1, _ROWS, _WIDTH, seed=1)
    angles = _random(1, _ROWS, _WIDTH // (4 if part else 2), seed=2).repeat(1, 1, 2)
    cos, sin = angles.cos(), angles.sin()
    try:
        turned = function(q.clone(), k.clone(), cos, sin)
        return len(turned) == 2 and all(
            torch.allclose(found, _turned(x, cos, sin), rtol=1e-4, atol=1e-5)
            for found, x in zip(turned, (q, k), strict=True)
        )
    except Exception:
        # It takes other arguments, or none of these sizes.
        return False


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    x, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = x.chunk(2, dim=-1)
    return torch.cat((x * cos + torch.cat((-second, first), dim=-1) * sin, rest), dim=-1)


def gelu_form(name: str | None) -> Literal["none", "tanh"] | None:
    """Return the form of a GELU by its name; None for other activations."""
    forms: dict[str | None, Literal["none", "tanh"]] = {"gelu": "none", "gelu_tanh": "tanh"}
    return forms.get(name)


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _linear(num_inputs: int, num_outputs: int, seed: int = 0) -> nn.Linear:
    linear = nn.Linear(num_inputs, num_outputs, bias=False)
    weight = 0.3 * _random(num_outputs, num_inputs, seed=seed)
    linear.weight = nn.Parameter(weight, requires_grad=False)
    return linear


def _on_cpu(module: nn.Module) -> nn.Module:
    """Return a copy without the values of parameters."""
    return copy.deepcopy(module).to_empty(device="cpu").float().eval()


def _gives(module: nn.Module, x: torch.Tensor, expected: torch.Tensor) -> bool:
    with torch.inference_mode():
        try:
            given = module(x)
        except Exception:
            # It takes other arguments, or none of these sizes.
            return False
    is_like = isinstance(given, torch.Tensor) and given.shape == expected.shape
    return is_like and torch.allclose(given.float(), expected, rtol=1e-4, atol=1e-5)
