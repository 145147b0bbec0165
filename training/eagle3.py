"""What does an EAGLE-3 head look like while it learns? Its layer, unrolled over its own states as in use.

The pair at place p is the model's hidden state there and the token behind it; what the layer returns there
says which token follows that one. In use the model's states end at some place, and the head goes on with its
own, so it learns that, too: in round j every place is the j-th behind the last state of the model's.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig

# Of the model whose states a head reads: in front of which layers; one more than the last: at the end.
READ_LAYERS = (1, 3, 5)


class Eagle3(nn.Module):
    """A head with the names of published ones, of the width of its model, whose embedding and output it has.

    Args:
        config: of the model, but for intermediate_size, which is the head's.
        table: [V, H], of the model: its embedding and its output, too.
    """

    def __init__(self, config: LlamaConfig, table: torch.Tensor) -> None:
        super().__init__()
        size = config.hidden_size
        self._table = table
        self.fc = nn.Linear(len(READ_LAYERS) * size, size, bias=False)
        self.midlayer = _Layer(config)
        self.norm = _Norm(size, config.rms_norm_eps)

    def forward(
        self, states: torch.Tensor, tokens: torch.Tensor, is_text: torch.Tensor, num_rounds: int
    ) -> list[torch.Tensor]:
        """Return each round's logits [B, P, V] of the token behind each place's own.

        Args:
            states: [B, P, len(READ_LAYERS) * H] of the model.
            tokens: int64 [B, P], the one behind each place.
            is_text: bool [B, P, P]: whether a place's query sees another place, or itself.
            num_rounds: how many.
        """
        stream = self.fc(states)
        embedded = functional.embedding(tokens, self._table)
        past: list[tuple[torch.Tensor, torch.Tensor]] = []
        logits = []
        for _ in range(num_rounds):
            stream = self.midlayer(stream, embedded, is_text, past)
            logits.append(functional.linear(self.norm(stream), self._table))
            # Of the place before; what stands in the first place is nobody's.
            stream = functional.pad(stream, (0, 0, 1, 0))[:, :-1]
        return logits


class _Norm(nn.RMSNorm):
    """In float32, whatever comes in."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.float()).to(x.dtype)


class _Layer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (
            _Norm(size, eps) for _ in range(3)
        )
        self.self_attn = _Attention(config)
        self.mlp = _Mlp(size, config.intermediate_size)

    def forward(
        self,
        stream: torch.Tensor,
        embedded: torch.Tensor,
        is_text: torch.Tensor,
        past: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        pairs = torch.cat((self.input_layernorm(embedded), self.hidden_norm(stream)), dim=-1)
        stream = stream + self.self_attn(pairs, is_text, past)
        out: torch.Tensor = stream + self.mlp(self.post_attention_layernorm(stream))
        return out


class _Mlp(nn.Module):
    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(size, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class _Attention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self._dim = dim = config.head_dim
        self._num_shared = config.num_attention_heads // config.num_key_value_heads
        self.q_proj = nn.Linear(2 * size, config.num_attention_heads * dim, bias=False)
        self.k_proj, self.v_proj = (
            nn.Linear(2 * size, config.num_key_value_heads * dim, bias=False) for _ in range(2)
        )
        self.o_proj = nn.Linear(config.num_attention_heads * dim, size, bias=False)

    def forward(
        self, pairs: torch.Tensor, is_text: torch.Tensor, past: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor:
        """Attend to the model's states up to `len(past)` places before, and to the head's own behind them."""
        q, k, v = (
            project(pairs).unflatten(-1, (-1, self._dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = _turned(q), _turned(k)
        k, v = (x.repeat_interleave(self._num_shared, dim=1) for x in (k, v))
        past.append((k, v))
        count, scale = q.shape[2], self._dim**-0.5
        num_own = len(past) - 1
        sees = is_text & torch.ones(count, count, dtype=torch.bool).tril(-num_own)
        keys, values = past[0]
        scores = [(q @ keys.transpose(-1, -2) * scale).masked_fill(~sees[:, None], -1e9)]
        # In the round after the i-th, a place behind the i-th round's.
        own = [tuple(_moved(x, num_own - i) for x in past[i]) for i in range(1, num_own + 1)]
        scores += [(q * key).sum(dim=-1, keepdim=True) * scale for key, _ in own]
        weights = torch.cat(scores, dim=-1).float().softmax(dim=-1).to(v.dtype)
        out = weights[..., :count] @ values
        for i, (_, value) in enumerate(own):
            out = out + weights[..., count + i, None] * value
        projected: torch.Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return projected


def _moved(x: torch.Tensor, places: int) -> torch.Tensor:
    """Return x [B, heads, P, D] so many places further back."""
    return functional.pad(x, (0, 0, places, 0))[:, :, : x.shape[2]]


def _turned(x: torch.Tensor) -> torch.Tensor:
    """Turn [B, heads, P, D] by its places, as the demo model does."""
    count, dim = x.shape[2:]
    frequencies = 10000.0 ** -(torch.arange(0, dim, 2) / dim)
    angles = torch.outer(torch.arange(count).float(), frequencies).repeat(1, 2)
    first, second = x.float().chunk(2, dim=-1)
    turned = x * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()
    return turned.to(x.dtype)
