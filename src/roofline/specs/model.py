"""The schema of a model YAML: an ordered list of groups of like layers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from roofline.layers.attention import AttentionKind
from roofline.layers.ffn import FFNKind
from roofline.layers.spec import Spec
from roofline.layers.weight import Weight


class LayerGroup(Spec):
    """`count` like layers in a row, executed `loops` times (looped models store once and run often)."""

    count: int = Field(ge=1)
    attention: AttentionKind | None = None
    ffn: FFNKind | None = None
    norms: float = Field(2, ge=0, description="norm vectors of width hidden per layer")
    loops: int = Field(1, ge=1)

    def weights(self, hidden: int, norm_params: int) -> list[Weight]:
        """The weights of one layer."""
        parts = [p.weights(hidden) for p in (self.attention, self.ffn) if p is not None]
        return [w for part in parts for w in part] + [Weight("norms", int(self.norms * norm_params), role="norm")]


class Model(Spec):
    """A model as far as its cost is concerned."""

    name: str
    aliases: tuple[str, ...] = ()
    hidden: int = Field(ge=1)
    vocab: int = Field(ge=1)
    layers: tuple[LayerGroup, ...]
    tied: bool = Field(False, description="the head is the embedding")
    norm: Literal["rms", "layer", "layer_no_bias"] = "rms"
    max_positions: int | None = None
    native: str = "bf16"
    source: str = ""

    @property
    def norm_params(self) -> int:
        """Parameters of one norm: LayerNorm has a bias."""
        return self.hidden * (2 if self.norm == "layer" else 1)

    @property
    def params(self) -> int:
        """Parameters as stored: embedding, layers, final norm, head unless tied."""
        layers = sum(g.count * sum(w.params for w in g.weights(self.hidden, self.norm_params)) for g in self.layers)
        return layers + self.vocab * self.hidden * (1 if self.tied else 2) + self.norm_params

    @property
    def active_params(self) -> float:
        """Parameters that one token uses, embedding and head included."""
        idle = sum(
            g.count * sum(w.params - w.active_params for w in g.weights(self.hidden, self.norm_params))
            for g in self.layers
        )
        return self.params - idle
