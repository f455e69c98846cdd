"""How a replica speculates: who drafts, how many tokens, and how many of them are accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from roofline.arrays import Array
from roofline.deployment import Deployment
from roofline.errors import InputError, check_number
from roofline.memory.footprint import Beside
from roofline.speculative.acceptance import Acceptance, ByPosition, acceptance_of, yield_shares
from roofline.speculative.drafters import KINDS, Drafter, Round, drafter_named
from roofline.workload import Sequences

MOST_DRAFTS = 64


@dataclass(frozen=True)
class Speculation:
    """`drafts` tokens of `drafter` are verified in every step of a sequence; a field of `Deployment`."""

    drafter: Drafter
    drafts: int
    acceptance: Acceptance  # of each draft, or `ByPosition`

    def __post_init__(self):
        check_number("drafts", self.drafts, low=1, high=getattr(self.drafter, "heads", MOST_DRAFTS), integer=True)
        _ = self.shares  # an acceptance that cannot be is refused here

    @property
    def verified(self) -> int:
        """Tokens of a sequence in a step: the drafts and the token before them."""
        return self.drafts + 1

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """Probability that a cycle yields 1, 2, .. drafts + 1 tokens."""
        return tuple(yield_shares(self.acceptance, self.drafts).tolist())

    @property
    def tokens(self) -> float:
        """Tokens that a cycle yields on average."""
        return float(np.dot(self.shares, np.arange(1, self.drafts + 2)))

    def cycle_s(self, where: Deployment, batch: Array, context: Array) -> Array:
        """Seconds of a cycle beside its verification: drafting, rejection sampling and the host's part.

        Args:     batch [sequences] of the whole replica, context [tokens] in the cache of each
        """
        drafting = self.drafter.drafting_s(where, Round(batch, context, float(self.drafts), self.tokens))
        return drafting + fixed_s(where, batch)

    def prompt_s(self, where: Deployment, group: Sequences) -> Array:
        """Seconds in which the drafter reads prompts that the target computes."""
        return self.drafter.prompt_s(where, group)

    def beside(self, where: Deployment) -> Beside:
        """What the drafter holds on a rank."""
        return Beside(self.drafter.weight_bytes(where), self.drafter.caches(where), float(self.drafts))

    def __str__(self) -> str:
        return f"{self.drafts} draft{'s' * (self.drafts > 1)} by {self.drafter.name}"


def fixed_s(where: Deployment, batch: Array) -> Array:
    """Seconds of a cycle that neither model computes: rejection sampling and the host's part.

    Formula:  t_cycle + b / dp t_sequence
    Source:   the engine profile
    """
    profile = where.engine.speculation
    return profile.cycle_s + np.asarray(batch, float) / where.plan.dp * profile.sequence_s


def speculating(
    where: Deployment, speculation: str | Speculation | None, specs: str | Path | None = None
) -> Deployment:
    """The same replica with speculative decoding, as it is described.

    Formula:  none; above 1 the acceptance a [-] is that at which drafts yield so many tokens, see `acceptance_of`
    Args:     speculation: DRAFTER:DRAFTS:ACCEPTANCE, e.g. 'eagle:3:0.8', 'mtp:1:0.85', 'llama-3.2-1b:4:0.7'; the last
              by position, given those before it ('eagle:3:0.8,0.7,0.6'), or above 1 the mean tokens of a cycle as
              engines log them ('eagle:3:2.4'); or a Speculation; 'none'; None: as `where` is
    Errors:   InputError, UnknownNameError, SpecError where the model has no such head
    Source:   definition
    """
    if not speculation:
        return where
    if speculation == "none":
        return where.with_(speculation=None)
    if not isinstance(speculation, str | Speculation):
        raise InputError(f"speculation: {str(speculation)[:80]!r} is not DRAFTER:DRAFTS:ACCEPTANCE, e.g. 'eagle:3:0.8'")
    if isinstance(speculation, str):
        if where.model.encoder:
            raise InputError(f"speculation: {where.model.name} has an encoder; only decoders are verified")
        name, drafts, rates = _parts(speculation)
        speculation = Speculation(drafter_named(name, where, specs), drafts, _acceptance(rates, drafts))
    return where.with_(speculation=speculation)


def _parts(text: str) -> tuple[str, int, list[float]]:
    try:
        name, drafts, rates = text.rsplit(":", 2)
        return name.strip(), int(drafts), [float(r) for r in rates.split(",")]
    except ValueError:
        raise InputError(
            f"speculation: '{text}' is not DRAFTER:DRAFTS:ACCEPTANCE, e.g. eagle:3:0.8; "
            f"drafters are {', '.join(KINDS)} and draft models"
        ) from None


def _acceptance(rates: Sequence[float], drafts: int) -> Acceptance:
    if len(rates) > 1:
        return ByPosition(tuple(rates))
    return float(acceptance_of(rates[0], drafts)) if rates[0] > 1.0 else rates[0]
