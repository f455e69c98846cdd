"""What one rank of a replica has to do and by which rules: the numbers that every serving formula starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from roofline.arrays import Array
from roofline.errors import UnknownNameError
from roofline.serving.steps import Steps, StepTable
from roofline.specs.engine import SchedulerProfile


@dataclass(frozen=True, slots=True)
class Load:
    """What one rank has to do, or all that step together, per point: lengths in tokens, and requests in flight."""

    new: Array  # prompt tokens to compute
    past: Array  # prompt tokens found in the cache
    osl: Array
    osl_ratio: Array  # shortest over longest output
    osl_longest: Array
    batch: Array  # sequences that decode together
    padding: Array = 0.0  # mean number by which graphs are larger than the batch
    grown: float = 1.0  # tokens by which a step lengthens a sequence; osl counts steps
    osl_cv2: Array = 0.0  # squared coefficient of variation of the outputs
    prompts: Array = 1.0  # computed for each answer: more than one where sequences are evicted
    ranks: float = 1.0  # whose sequences these are

    @property
    def evictions(self) -> Array:
        """Mean number of times that a sequence is evicted: each time its prompt and part of its answer come again.

        Formula:  (p - 1)/(1 + O/(4 I)): a quarter of the answer is there by then
        """
        return (self.prompts - 1.0) / (1.0 + self.grown * self.osl / (4.0 * self.new))

    @property
    def context(self) -> Array:
        """Mean cached tokens of a decoding sequence; long answers are met more often.

        Formula:  I + O (1 + cv^2)/2
        """
        return self.new + self.past + self.grown * self.osl * (1.0 + self.osl_cv2) / 2.0


@dataclass(frozen=True, slots=True)
class Rules:
    """A scheduler profile as numbers of one rank."""

    mixed: bool
    chunked: bool
    budget: Array
    poll: Array
    late: Array  # steps between the arrival of a request and the first step that can see it
    hold: Array
    hold_ratio: Array
    request_s: Array  # tokeniser, per request of this rank
    front_s: Array
    emit: Array
    cold_s: Array
    verified: float = 1.0  # tokens that a decoding sequence takes out of the budget


KNOBS = (
    "token_budget", "poll_interval", "lookahead", "hold_steps", "hold_ratio", "tokenizers", "tokenizer_token_s",
    "tokenizer_request_s", "front_end_s", "emit_steps", "cold_start_s",
)  # fmt: skip


def rules(profile: SchedulerProfile, isl: Array, dp: float, knobs: Mapping[str, Array]) -> Rules:
    """The rules of an engine for prompts of `isl` tokens, some knobs replaced (by arrays: one per point).

    Attention-data-parallel ranks share the tokenisers.
    """
    if unknown := sorted(set(knobs) - set(KNOBS)):
        raise UnknownNameError("scheduler knob", unknown[0], KNOBS)
    k = {name: np.asarray(knobs.get(name, getattr(profile, name)), float) for name in KNOBS}
    request = (k["tokenizer_request_s"] + k["tokenizer_token_s"] * isl) * dp / k["tokenizers"]
    return Rules(
        profile.policy == "mixed", profile.chunked_prefill, k["token_budget"], k["poll_interval"], k["lookahead"],
        k["hold_steps"], k["hold_ratio"], request, k["front_end_s"], k["emit_steps"], k["cold_start_s"],
    )  # fmt: skip


def prompts_per_step(load: Load, r: Rules) -> Array:
    """How many prompts the token budget lets into one step; below 1 a prompt takes several.

    Formula:  g = (B - v (b - 1))/x mixed and chunked; max(1, floor(g)) mixed, whole prompts; B/x prompts first; of n
              ranks that step together: n times that, b being a rank's
    Source:   scheduler rules of vLLM, TensorRT-LLM and SGLang
    """
    new, n = np.maximum(load.new, 1.0), load.ranks
    if not r.mixed:
        return n * r.budget / new
    room = np.maximum(r.budget - r.verified * (load.batch / n - 1.0), 1.0) / new
    return n * (room if r.chunked else np.maximum(np.floor(room), 1.0))


def step_kinds(table: StepTable, load: Load, r: Rules, fill: Array = 1.0) -> Steps:
    """The steps that carry prompts, beside `fill` of the decoding batch; of prompts-first engines: beside none."""
    batch = 1.0 + fill * (load.batch - 1.0) if r.mixed else 0.0
    return table.beside(batch, load.context, load.new, load.past, load.padding if r.mixed else 0.0)


def prompt_s(table: StepTable, load: Load, r: Rules) -> Array:
    """Least seconds of a rank per prompt: nobody waits less for an answer than all prompts in flight take.

    Formula:  max(S(j)/j, f) for j = min(g, b) prompts in a step without decodes, which is as full as the budget lets it
    Source:   derivation; it binds where answers are so short that prompts are nearly all of the work
    """
    inside = np.minimum(np.maximum(prompts_per_step(load, r), 1e-9), np.maximum(load.batch, 1.0))
    alone = table.beside(0.0, load.context, load.new, load.past)
    return np.maximum(alone.with_prompts_s(inside) / inside, r.request_s)


def steps_to_first(prompts: Array, per_step: Array) -> Array:
    """Mean number of steps to the first token of `prompts` prompts that are let in together.

    Formula:  (ceil(k/g) + ceil(1/g))/2
    Args:     prompts k [-], per_step g [-]
    Returns:  [-]
    Source:   derivation: they finish one after another, the first after ceil(1/g) steps, the last after ceil(k/g)
    """
    return (np.ceil(prompts / per_step - 1e-9) + np.ceil(1.0 / per_step - 1e-9)) / 2.0


def alone_s(steps: Steps, per_step: Array) -> Array:
    """Seconds of the steps that one prompt takes, the last of which may be shorter.

    Formula:  (n - 1) S(min(g, 1)) + S(1 - (n - 1) min(g, 1)),  n = ceil(1/g)
    Args:     per_step g [-]: prompts that one step has room for
    Returns:  [s]
    Source:   derivation
    """
    more, most = np.ceil(1.0 / per_step - 1e-9) - 1.0, np.minimum(per_step, 1.0)
    return more * steps.with_prompts_s(most) + steps.with_prompts_s(1.0 - more * most)
