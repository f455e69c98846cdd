"""A weight as a layer declares it."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.arrays import Array
from roofline.parallel import Plan
from roofline.precision import FORMATS, Precision

VECTOR_FORMAT = FORMATS["bf16"]


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix [n, k] (a vector has k = 1), stored `copies` times, of which a token uses `active`.

    `cut` says how tensor parallelism divides it: "n" (column parallel), "k" (row parallel) or "" (replicated), into at
    most `limit` pieces (KV projections: the KV heads; past that they are replicated). `expert` weights are divided over
    ep by copies and over moe_tp by `cut`. A vector (norm, bias, gate) is never quantised.
    """

    name: str
    n: int
    k: int = 1
    role: str = "attention"
    copies: int = 1
    active: float | None = None
    cut: str = ""
    limit: int | None = None
    expert: bool = False

    @property
    def params(self) -> int:
        """Parameters as stored."""
        return self.copies * self.n * self.k

    @property
    def active_params(self) -> float:
        """Parameters that one token uses."""
        return (self.copies if self.active is None else self.active) * self.n * self.k

    def ways(self, plan: Plan) -> int:
        """Pieces that a rank's share is one of."""
        if not self.cut:
            return 1
        wide = plan.moe_tp if self.expert else plan.tp
        return min(wide, self.limit) if self.limit else wide

    def bytes_per_rank(self, plan: Plan, precision: Precision) -> Array:
        """Bytes on one rank in the format of its role."""
        fmt = precision.of(self.role) if self.k > 1 else VECTOR_FORMAT
        ways = self.ways(plan)
        n = self.n / ways if self.cut == "n" else self.n
        k = self.k / ways if self.cut == "k" else self.k
        return fmt.bytes(n, k, self.copies / plan.ep if self.expert else self.copies)
