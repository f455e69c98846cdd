"""One replica: a model in some formats, cut over some devices, run by an engine. It can say how long a step takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from roofline.arrays import Array
from roofline.errors import InfeasibleError, UnsupportedError
from roofline.forward import encoder_ops, gathered, step_ops
from roofline.kernels.host import DecodeLaunch, step_launches
from roofline.kernels.times import OpTime
from roofline.layers.attention.mla import PACKED_LATENT
from roofline.machine import Machine, machine
from roofline.memory import Footprint, footprint
from roofline.memory.footprint import Beside
from roofline.ops import Experts, Op
from roofline.parallel import Plan
from roofline.precision import Format, Precision, precision_named
from roofline.pricing import executed, op_times
from roofline.specs.engine import Engine, engine_named, graph_limit
from roofline.specs.hardware import Accelerator
from roofline.specs.library import hardware
from roofline.specs.model import Model
from roofline.specs.parsed import ParsedModel
from roofline.specs.refs import load_model
from roofline.step import StepTime, compose
from roofline.workload import Sequences, decode, prefill, verify


class Speculates(Protocol):
    """How a replica speculates: `roofline.speculative.Speculation`."""

    @property
    def drafts(self) -> int: ...

    def beside(self, where: Deployment) -> Beside:
        """What the drafter holds on a rank."""


@dataclass(frozen=True)
class Deployment:
    """A replica of `model` on `plan.gpus` of `accelerator`, under `engine`.

    With `speculation` a decode step verifies drafts. It is then one part of a cycle that yields several tokens: steady
    states, simulations and estimates count those.
    """

    model: Model
    accelerator: Accelerator
    plan: Plan
    precision: Precision
    engine: Engine
    expert_imbalance: Array = 1.0  # rows of the busiest expert-parallel rank over the mean; see serving.expert_load
    speculation: Speculates | None = None

    @cached_property
    def machine(self) -> Machine:
        """Numeric view of accelerator and engine."""
        return machine(self.accelerator, self.engine)

    def step(self, *groups: Sequences, stage: int | None = None, encoder_tokens: Array = 0.0) -> StepTime:
        """The time of one engine step over `groups` (counts of the whole replica).

        With pipeline stages this is the latency of one pass through all of them, unless `stage` names one. Of an
        encoder-decoder it is a decoder step that looks at `encoder_tokens` encoded tokens.
        """
        return self.timed(self.ops(*groups, stage=stage, encoder_tokens=encoder_tokens))

    def ops(self, *groups: Sequences, stage: int | None = None, encoder_tokens: Array = 0.0) -> list[Op]:
        """What one rank executes in such a step, in order."""
        llc = self.accelerator.llc_bytes
        ops = step_ops(self.model, groups, self.plan, self.precision, stage, encoder_tokens, llc)
        if self.engine.step.tensor_parallel == "gathered":
            ops = gathered(ops, self.plan)
        if isinstance(self.expert_imbalance, float) and self.expert_imbalance == 1.0:
            return ops
        return [replace(op, imbalance=self.expert_imbalance) if isinstance(op, Experts) else op for op in ops]

    def launched(self, *groups: Sequences) -> float:
        """Kernels that one rank launches in such a step where no graph holds them."""
        return step_launches(executed(self.ops(*groups), self.machine, self.plan))

    @cached_property
    def graph_batch(self) -> float:
        """Sequences of a rank in the largest decode step that a graph was captured for: inf for any, 0 for none."""
        profile, plan = self.engine.step, self.plan
        if profile.schedule == "megakernel":  # which is one launch
            return np.inf
        most = graph_limit(profile, self.accelerator.usable_bytes, plan.tp, plan.dp)
        if self.speculation is not None and profile.graph_tokens:  # graphs are made for tokens
            most = min(most, profile.graph_tokens / self.speculation.verified)
        return most

    @cached_property
    def decode_launch(self) -> DecodeLaunch:
        """What launching a decode step takes the host: nothing up to the largest batch that has a graph of its own."""
        profile, most = self.engine.step, self.graph_batch
        never = most == np.inf or not profile.launch_s
        eager_s = 0.0 if never else profile.launch_s * self.launched(decode(float(self.plan.dp), 1.0))
        pieces = 0.0 if profile.schedule == "megakernel" else profile.piece_s
        return DecodeLaunch(self.model.executed_layers * pieces, eager_s, most)

    def check(self) -> None:
        """Raise what a step raises where the model cannot be cut as the plan says or the device lacks a rate."""
        for op in self.ops(decode(1.0, 1.0)):
            self.machine.datasheet(op)

    def timed(self, ops: list[Op]) -> StepTime:
        """The time that any list of ops takes one rank, under the engine's schedule."""
        return self._composed(op_times(ops, self.machine, self.plan))

    def steps(self, *steps: tuple[Sequences, ...]) -> list[StepTime]:
        """Several steps at once: their ops are priced together, which costs little more than one of them."""
        return self._together([self.ops(*groups) for groups in steps])

    def passes(self, *groups: Sequences, encoder_tokens: Array = 0.0) -> tuple[StepTime, list[StepTime]]:
        """A step over all pipeline stages, and over each of them: alike for the most part, and priced together."""
        stages = (None, *range(self.plan.pp))
        whole, *each = self._together([self.ops(*groups, stage=s, encoder_tokens=encoder_tokens) for s in stages])
        return whole, each

    def _together(self, parts: list[list[Op]]) -> list[StepTime]:
        times = iter(op_times([op for ops in parts for op in ops], self.machine, self.plan))
        kept = [len(executed(ops, self.machine, self.plan)) for ops in parts]
        return [self._composed([next(times) for _ in range(n)]) for n in kept]

    def _composed(self, times: list[OpTime]) -> StepTime:
        profile = self.engine.step
        launch_s = 0.0 if profile.cuda_graphs else profile.launch_s
        return compose(times, schedule=profile.schedule, host_gap_s=profile.host_gap_s, launch_s=launch_s)

    def decoding(self, batch: Array, context: Array) -> Sequences:
        """What `batch` sequences at `context` cached tokens work on in a step: a token each, or that and its drafts."""
        return decode(batch, context) if self.speculation is None else verify(batch, context, self.speculation.drafts)

    def decode_step(self, batch: Array, context: Array, encoder_tokens: Array = 0.0) -> StepTime:
        """One step of `batch` sequences that decode at `context` cached tokens.

        Over pp stages the batch runs as up to pp micro-batches, and a token comes out when its own has passed every
        stage: the pass takes the sum of the stages, or that of the slowest for every micro-batch where this is longer.
        A step that no graph was captured for waits for the host.
        """
        step = self.pipelined(lambda micro: (self.decoding(micro, context),), batch, encoder_tokens)
        profile, batch = self.engine.step, np.asarray(batch, float) / self.plan.dp  # of a rank
        micro = batch / self.plan.pp
        if not (profile.piece_s or profile.host_sequence_s or np.any(micro > self.graph_batch)):
            return step
        more_s = profile.host_sequence_s * batch
        return step.waiting(more_s, self.decode_launch.seconds(micro) + profile.host_gap_s + more_s)

    def prefill_step(self, batch: Array, isl: Array, cached: Array = 0.0) -> StepTime:
        """`batch` prompts of `isl` tokens, `cached` of them already in the KV cache, until the last has passed.

        Over pp stages they run as up to pp micro-batches, and these in the chunks that the engine cuts prompts into,
        one behind the other: the sum of the stages for the first, and the slowest stage once more for each that
        follows. Of an encoder-decoder: the encoder over the prompts and the first decoder step, without micro-batches.

        Formula:  S/c + (m - 1/c) T for m micro-batches of c chunks, S the sum of the stages and T the slowest one
        Source:   derivation; the next chunk starts before the last has passed: vLLM V1 scheduler, llama.cpp PR 6017
        """
        if not self.model.encoder:
            if self.plan.pp == 1:
                return self.step(prefill(batch, isl, cached))
            whole, slowest_s, under_way = self._micro_batches(lambda micro: (prefill(micro, isl, cached),), batch)
            rules = self.engine.scheduler
            tokens = np.maximum(np.asarray(batch, float) / self.plan.pp, np.minimum(batch, 1.0)) * (isl - cached)
            chunks = np.maximum(tokens / rules.token_budget, 1.0) if rules.chunked_prefill else 1.0
            return _stretched(whole, whole.total_s / chunks + (under_way - 1.0 / chunks) * slowest_s)
        prompts = prefill(batch, isl, cached)
        ops = encoder_ops(self.model, (prompts,), self.plan, self.precision)
        first = (Sequences(batch, 1.0, 0.0),)
        return self.timed(ops + step_ops(self.model, first, self.plan, self.precision, None, isl))

    def pipelined(
        self, groups: Callable[[Array], tuple[Sequences, ...]], batch: Array, encoder_tokens: Array = 0.0
    ) -> StepTime:
        """The round trip of one of up to pp micro-batches; `groups` turns its size into what it works on."""
        if self.plan.pp == 1:
            return self.step(*groups(batch), encoder_tokens=encoder_tokens)
        whole, slowest_s, under_way = self._micro_batches(groups, batch, encoder_tokens)
        return _stretched(whole, np.maximum(whole.total_s, under_way * slowest_s))

    def _micro_batches(
        self, groups: Callable[[Array], tuple[Sequences, ...]], batch: Array, encoder_tokens: Array = 0.0
    ) -> tuple[StepTime, Array, Array]:
        """The pass of one micro-batch, the seconds of its slowest stage, and how many micro-batches there are."""
        pp, batch = self.plan.pp, np.asarray(batch, float)
        micro = np.maximum(batch / pp, np.minimum(batch, 1.0))
        whole, stages = self.passes(*groups(micro), encoder_tokens=encoder_tokens)
        return whole, np.max([s.total_s for s in stages], axis=0), np.clip(batch, 1.0, pp)

    def footprint(self, length: Array, beside: Beside | None = None) -> Footprint:
        """The memory table of every stage, and how many requests of `length` tokens are cached together.

        `beside` is a drafter in place of the one that speculates here.
        """
        if beside is None and self.speculation is not None:
            beside = self.speculation.beside(self)
        return footprint(self.model, self.accelerator, self.plan, self.precision, self.engine, length, beside)

    def with_(self, **changes) -> Deployment:
        """The same replica with some fields changed."""
        return replace(self, **changes)

    def __str__(self) -> str:
        kv = "" if self.precision.kv.name == "bf16" else f", {self.precision.kv.name} KV"
        plan = "" if self.plan.gpus == 1 else f" ({self.plan})"
        return (
            f"{self.model.name} {self.precision.name}{kv} on {self.plan.gpus} x {self.accelerator.name}{plan}, "
            f"{self.engine.name}{f', {self.speculation}' if self.speculation else ''}"
        )

    def __repr__(self) -> str:
        return f"<Deployment: {self}>"


def _stretched(step: StepTime, total_s: Array) -> StepTime:
    """A step that takes longer because it waits; what it is spent on grows alike."""
    return replace(step, total_s=total_s, scale=step.scale * (total_s / step.total_s))


def deployment(
    model: str | Path | Model | ParsedModel,
    hw: str | Path | Accelerator,
    *,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dp: int = 1,
    cp: int = 1,
    weights: str | Precision | None = None,
    kv: str | Format | None = None,
    engine: str | Engine = "vllm",
    specs: str | Path | None = None,
) -> Deployment:
    """The replica that these names describe.

    Args:     model: library name or alias, config.json, model folder, GGUF file, spec YAML, Hub id or what `load_model`
              returns; hw: library name or YAML; tp, pp, ep, dp, cp: see `Plan`; weights: precision or format name,
              None: as the checkpoint is; kv: KV format, None or "auto": what the engine does by default; engine:
              profile name
    Errors:   UnknownNameError with the nearest names; UnsupportedError; InfeasibleError where the plan cannot be cut
    """
    loaded = load_model(model, specs=specs)
    parsed, precision = loaded.model, loaded.precision
    accelerator = hw if isinstance(hw, Accelerator) else hardware(hw, specs=specs)
    if weights is not None or precision is None:
        precision = precision_named(weights or parsed.native)
    profile = engine if isinstance(engine, Engine) else engine_named(engine)
    chosen = Deployment(parsed, accelerator, Plan(tp, pp, ep, dp, cp), precision.with_kv(kv), profile)
    if chosen.plan.gpus > 1 and not accelerator.connected:
        raise InfeasibleError(
            f"{accelerator.name}: no link between devices is on record, so {chosen.plan.gpus} of them cannot share a "
            f"model; give scale_up.bandwidth in a spec of your own"
        )
    if profile.step.tensor_parallel == "gathered" and tp > 1 and (parsed.is_mixture or parsed.encoder):
        raise UnsupportedError(f"tp: {profile.name} cuts dense decoders only over devices, not {parsed.name}; try pp")
    if chosen.precision.kv.name == PACKED_LATENT and not parsed.has_attention("mla"):
        raise UnsupportedError(
            f"kv: {PACKED_LATENT} is a layout of latent caches (MLA), which {parsed.name} does not have; try fp8"
        )
    if chosen.plan.pp > sum(count for _, count in parsed.stage_layers(Plan(), None)):
        raise InfeasibleError(f"pp: {pp} stages, but {parsed.name} has fewer layers")
    return chosen


deploy = deployment  # the public name: `roofline.deployment` is this module
