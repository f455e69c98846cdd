"""The dense feed-forward block."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from roofline.arrays import Array
from roofline.layers.spec import Spec
from roofline.layers.weight import Weight
from roofline.ops import ACTIVATION_BYTES, Collective, Elementwise, Gemm, Op
from roofline.parallel import Plan, heads_per_rank
from roofline.precision import Precision


class Dense(Spec):
    """Gated (SwiGLU: three matrices) or plain (two) feed-forward of `width`."""

    kind: Literal["dense"] = "dense"
    width: int = Field(ge=1)
    gated: bool = True
    bias: bool = False

    def weights(self, hidden: int) -> list[Weight]:
        wide = 2 if self.gated else 1
        w = [
            Weight("up", wide * self.width, hidden, role="ffn", cut="n"),
            Weight("down", hidden, self.width, role="ffn", cut="k"),
        ]
        if self.bias:
            w += [Weight("up_bias", wide * self.width, role="ffn", cut="n"), Weight("down_bias", hidden, role="ffn")]
        return w

    def ops(self, hidden: int, tokens: Array, plan: Plan, precision: Precision) -> list[Op]:
        out = gated_pair("ffn", self.width, self.gated, hidden, tokens, plan.tp, precision, "ffn")
        if plan.tp > 1:
            out += [Collective("tp.all_reduce", "all_reduce", hidden * ACTIVATION_BYTES * tokens, plan.tp)]
        return out


def gated_pair(
    name: str, width: int, gated: bool, hidden: int, tokens: Array, tp: int, precision: Precision, role: str
) -> list[Op]:
    """Up product, activation, down product: a dense block, or the shared expert of a mixture."""
    inner, fmt = heads_per_rank(width, tp, "feed-forward columns"), precision.of(role)
    static, wide = precision.static_activation_scales, 2 if gated else 1
    return [
        Gemm(f"{name}.up", tokens, wide * inner, hidden, fmt, static_scales=static),
        Elementwise(f"{name}.activation", (wide + 1.0) * inner * ACTIVATION_BYTES * tokens),
        Gemm(f"{name}.down", tokens, hidden, inner, fmt, static_scales=static),
    ]
