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
        width, fmt = heads_per_rank(self.width, plan.tp, "feed-forward columns"), precision.of("ffn")
        static, row = precision.static_activation_scales, ACTIVATION_BYTES * tokens
        wide = 2 if self.gated else 1
        out: list[Op] = [
            Elementwise("ffn.norm", 4.0 * hidden * row),
            Gemm("ffn.up", tokens, wide * width, hidden, fmt, static_scales=static),
            Elementwise("ffn.activation", (wide + 1.0) * width * row),
            Gemm("ffn.down", tokens, hidden, width, fmt, static_scales=static),
        ]
        if plan.tp > 1:
            out += [Collective("tp.all_reduce", "all_reduce", hidden * row, plan.tp)]
        return out
