"""A transformer with the layer shapes of a model spec and random weights: real steps without a checkpoint."""

from __future__ import annotations

import math
from typing import Any

from roofline.errors import InfeasibleError, UnsupportedError
from roofline.layers.attention.gqa import GQA
from roofline.layers.ffn.dense import Dense
from roofline.layers.ffn.moe import MoE
from roofline.layers.layer import Layer
from roofline.measure.device import Device
from roofline.measure.kernels import Routed, dtype_of, random
from roofline.specs.model import Model, Run

ROOM = 0.85  # [-] share of the device's memory that weights and cache may take


def supported(model: Model) -> None:
    """Nothing, where every layer can be built.

    Errors: UnsupportedError naming what cannot
    """
    for run in model.layers:
        a, ffn = run.layer.attention, run.layer.ffn
        plain = isinstance(a, GQA) and not (
            a.window or a.chunk or a.index or a.sinks or a.shared_kv or a.k_is_v or a.output_gate != "none"
        )
        if not plain or a.value_dim != a.head_dim or run.layer.cross or run.layer.streams or run.layer.loops > 1:
            raise UnsupportedError(
                f"{model.name}: only layers of plain full attention (MHA, GQA, MQA) can be built here"
            )
        if not isinstance(ffn, (Dense, MoE)) or (isinstance(ffn, MoE) and (ffn.latent or not ffn.gated)):
            raise UnsupportedError(f"{model.name}: only dense and gated mixture-of-experts blocks can be built here")


def truncated(model: Model, layers: int) -> Model:
    """The model with its first `layers` layers only; embedding and head stay."""
    left, runs = layers, []
    for run in model.layers:
        take = min(run.count, left)
        if take:
            runs.append(Run(run.layer, take))
        left -= take
    kept = {name: getattr(model, name) for name in Model.model_fields}
    changes = {"layers": tuple(runs), "mtp": None, "vision": None, "published": None}
    return Model.model_validate(kept | changes)  # a copy would carry over what the model has worked out of its layers


def enough_layers(model: Model, device: Device, element_bytes: float = 2.0) -> int:
    """The fewest layers whose weights exceed the caches four times over, at least two, at most all."""
    first = model.layers[0].layer
    layer_bytes = element_bytes * sum(w.params for w in first.weights(model.hidden, model.norm_params))
    return int(min(max(math.ceil(4.0 * device.cache_bytes / layer_bytes), 2), model.stored_layers))


class RandomTransformer:
    """Executes decode steps at a fixed context, or prompts, of `model` for `batch` sequences.

    A decode step embeds the last token, passes every layer over a cache of `context` tokens (the newest included),
    and picks the likeliest next token, which the next step starts from.
    """

    def __init__(self, model: Model, device: Device, *, batch: int, context: int, dtype: str = "bf16"):
        supported(model)
        torch = device.torch
        self.torch, self.device, self.model, self.batch, self.context = torch, device, model, batch, context
        self.data_dependent = any(isinstance(run.layer.ffn, MoE) for run in model.layers)
        element = dtype_of(torch, dtype).itemsize
        needed = element * model.params + element * batch * context * sum(
            2.0 * r.count * r.layer.attention.kv_heads * r.layer.attention.head_dim for r in model.layers
        )
        if needed > ROOM * device.memory_bytes:
            raise InfeasibleError(
                f"{model.name} with {model.stored_layers} layers, batch {batch} and {context} tokens needs "
                f"{needed / 1e9:.1f} GB; "
                f"{device.name} has {device.memory_bytes / 1e9:.1f} GB: give fewer layers"
            )
        h = model.hidden
        self.embedding = random(device, (model.vocab, h), dtype)
        self.head = self.embedding if model.tied else random(device, (model.vocab, h), dtype, h**-0.5)
        self.layers = [_Layer(run.layer, self, dtype) for run in model.layers for _ in range(run.count)]
        self.tokens = torch.zeros((batch, 1), dtype=torch.int64, device=device.where)
        self.prompt = torch.randint(0, model.vocab, (batch, context), device=device.where)

    def decode(self) -> None:
        """One token for each sequence at the full context."""
        with self.torch.inference_mode():
            x = self._run(self.tokens, self.context - 1)
            self.tokens.copy_(x.argmax(-1, keepdim=True))

    def prefill(self) -> None:
        """`context` prompt tokens of each sequence, and the first token of the answer."""
        with self.torch.inference_mode():
            self.tokens.copy_(self._run(self.prompt, 0).argmax(-1, keepdim=True))

    def _run(self, tokens: Any, past: int) -> Any:
        x = self.torch.nn.functional.embedding(tokens, self.embedding)
        for layer in self.layers:
            x = layer(x, past)
        last = self.torch.nn.functional.rms_norm(x[:, -1], (self.model.hidden,))
        return self.torch.nn.functional.linear(last, self.head)


class _Layer:
    """One layer: norm, attention over the cache, norm, feed-forward, with residuals."""

    def __init__(self, layer: Layer, owner: RandomTransformer, dtype: str):
        device, torch = owner.device, owner.torch
        h, a = owner.model.hidden, layer.attention
        self.torch, self.hidden, self.attention, self.ffn = torch, h, a, layer.ffn
        q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
        self.qkv = random(device, (q + 2 * kv, h), dtype, h**-0.5)
        self.out = random(device, (h, q), dtype, q**-0.5)
        cache = (owner.batch, a.kv_heads, owner.context, a.head_dim)
        self.k, self.v = (random(device, cache, dtype) for _ in range(2))
        angle = random(device, (owner.context, a.head_dim // 2), dtype)
        self.cos, self.sin = angle.cos(), angle.sin()
        self.grouped = {"enable_gqa": True} if a.heads != a.kv_heads else {}
        wide = 2 if layer.ffn.gated else 1
        if isinstance(layer.ffn, MoE):
            f, e = layer.ffn, layer.ffn.experts
            self.router = random(device, (e, h), dtype, h**-0.5)
            self.up = random(device, (e, 2 * f.width, h), dtype, h**-0.5)
            self.down = random(device, (e, h, f.width), dtype, f.width**-0.5)
            shared = f.shared_width
        else:
            shared = layer.ffn.width
        self.shared_up = random(device, (wide * shared, h), dtype, h**-0.5) if shared else None
        self.shared_down = random(device, (h, shared), dtype, shared**-0.5) if shared else None
        self.device, self._routed = device, {}

    def __call__(self, x: Any, past: int) -> Any:
        f = self.torch.nn.functional
        x = x + self._attend(f.rms_norm(x, (self.hidden,)), past)
        return x + self._feed_forward(f.rms_norm(x, (self.hidden,)))

    def _attend(self, x: Any, past: int) -> Any:
        torch, a = self.torch, self.attention
        batch, new, _ = x.shape
        q, k, v = torch.nn.functional.linear(x, self.qkv).split(
            (a.heads * a.head_dim, a.kv_heads * a.head_dim, a.kv_heads * a.head_dim), dim=-1
        )
        q, k, v = (t.view(batch, new, -1, a.head_dim).transpose(1, 2) for t in (q, k, v))
        q, k = (self._rotated(t, past) for t in (q, k))
        end = past + new
        self.k[:, :, past:end].copy_(k)
        self.v[:, :, past:end].copy_(v)
        seen = torch.nn.functional.scaled_dot_product_attention(
            q, self.k[:, :, :end], self.v[:, :, :end], is_causal=new > 1, **self.grouped
        )
        return torch.nn.functional.linear(seen.transpose(1, 2).reshape(batch, new, -1), self.out)

    def _rotated(self, x: Any, past: int) -> Any:
        first, second = x.chunk(2, dim=-1)
        rows = slice(past, past + x.shape[2])
        cos, sin = self.cos[rows], self.sin[rows]
        return self.torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def _feed_forward(self, x: Any) -> Any:
        out = self._dense(x) if self.shared_up is not None else 0.0
        return out + self._mixture(x) if isinstance(self.ffn, MoE) else out

    def _dense(self, x: Any) -> Any:
        f = self.torch.nn.functional
        inner = f.linear(x, self.shared_up)
        if self.ffn.gated:
            gate, value = inner.chunk(2, dim=-1)
            inner = f.silu(gate) * value
        else:
            inner = f.gelu(inner)
        return f.linear(inner, self.shared_down)

    def _mixture(self, x: Any) -> Any:
        """Scores are computed as in a real model; rows go to experts in turn: random weights would not route evenly."""
        rows = x.reshape(-1, self.hidden)
        self.torch.nn.functional.linear(rows, self.router).topk(self.ffn.top_k, dim=-1)
        tokens = rows.shape[0]
        if tokens not in self._routed:
            self._routed[tokens] = Routed(self.device, tokens, self.ffn.experts, self.ffn.top_k)
        return self._routed[tokens](rows, self.up, self.down).view_as(x)
