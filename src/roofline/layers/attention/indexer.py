"""The indexer of sparse attention: a small attention whose scores choose the tokens that the large one reads."""

from __future__ import annotations

from pydantic import Field

from roofline.arrays import Array
from roofline.layers.spec import Spec
from roofline.layers.weight import Weight
from roofline.ops import ACTIVATION_BYTES, Elementwise, Gemm, IndexScores, Op
from roofline.precision import Precision
from roofline.workload import Sequences, attended_pairs

SCORE_BYTES = 4.0  # scores are fp32 between the scoring and the top-k kernel
KEY_SCALE_BYTES = 4.0  # a cached key is fp8 with one fp32 scale (DeepSeek-V3.2 inference code)


class Indexer(Spec):
    """`heads` query heads of width `dim` score every cached key; a query then sees the `top_k` best tokens.

    Source: DeepSeek-V3.2 report, section 2.1 (lightning indexer)
    """

    heads: int = Field(ge=1)
    dim: int = Field(ge=1)
    top_k: int = Field(ge=1, description="tokens that a query sees (blocks times block size where blocks are chosen)")
    head_weights: bool = Field(True, description="a learned weight per head and token (absent in MiniMax-M3)")
    k_norm: str = Field("layer", pattern="^(layer|qk)$", description="layer: norm with bias on the key; qk: on both")
    shared: bool = Field(
        False, description="uses the choice of an earlier layer: no weights, scores or keys of its own"
    )

    def weights(self, hidden: int, q_in: int) -> list[Weight]:
        """The weights; queries are projected from a row of `q_in` values. All are replicated over ranks."""
        if self.shared:
            return []
        w = [Weight("index.q", self.heads * self.dim, q_in), Weight("index.k", self.dim, hidden)]
        if self.head_weights:
            w += [Weight("index.head_weights", self.heads, hidden)]
        return [*w, Weight("index.norm", 2 * self.dim, role="norm")]

    def cache_bytes(self, tokens: Array) -> Array:
        """Bytes of index keys of one sequence."""
        return 0.0 * tokens if self.shared else tokens * self.key_bytes

    @property
    def key_bytes(self) -> float:
        """Cached bytes of a token: fp8 elements and their scale."""
        return self.dim + KEY_SCALE_BYTES

    def ops(
        self,
        hidden: int,
        q_in: int,
        groups: tuple[Sequences, ...],
        precision: Precision,
        ratio: float = 1.0,
        key_columns: float | None = None,
    ) -> list[Op]:
        """`ratio` positions share one key; `key_columns` is how wide it is projected where that is not `dim`."""
        if self.shared:
            return []
        tokens, fmt = sum(g.tokens for g in groups), precision.of("attention")
        row = ACTIVATION_BYTES * tokens
        scores = sum(g.count * attended_pairs(g.new, g.past) for g in groups) / ratio
        return [
            Gemm("index.q", tokens, self.heads * self.dim, q_in, fmt),
            Gemm("index.k", tokens, (key_columns or self.dim) + self.heads * self.head_weights, hidden, fmt),
            Elementwise("index.prepare", 2.0 * (self.heads + 1) * self.dim * row, kernels=2),  # norm + rope, quantise
            *(IndexScores("index.scores", g, self.heads, self.dim, self.key_bytes, ratio=ratio) for g in groups),
            Elementwise("index.top_k", scores * SCORE_BYTES),
        ]
