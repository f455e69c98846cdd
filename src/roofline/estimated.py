"""What an estimate holds: the two steps, times with their bands, and on demand all that follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from roofline.arrays import Array
from roofline.deployment import Deployment
from roofline.economics import board_power_w, joules_per_token, usd_per_mtok, usd_per_mtok_split
from roofline.kernels.times import OpTime
from roofline.memory import Footprint, fewest_gpus
from roofline.parallel import Plan
from roofline.plotted import Plotted
from roofline.regimes import Regime, critical_batch, decode_regime
from roofline.serving.pipeline import decode_share
from roofline.serving.steady import SteadyState
from roofline.speculative import Cycle, break_even_batch, expected_cycles, speculate
from roofline.step import StepTime

_NOTHING_FITS = "no plan of up to 64 of these devices fits it; try narrower formats"


@dataclass(frozen=True, slots=True)
class Value:
    """A number with its 80 % band."""

    value: float
    low: float
    high: float

    def __float__(self) -> float:
        return self.value

    def inverse(self, numerator: float = 1.0) -> Value:
        """numerator / value, with the ends of the band swapped."""
        return Value(numerator / self.value, numerator / self.high, numerator / self.low)

    def times(self, factor: float) -> Value:
        """value x factor."""
        return Value(self.value * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True, slots=True)
class OpRow:
    """One line of the per-op table: all layers of the same shape, on one rank."""

    op: str
    count: float
    flops: float
    bytes: float
    intensity: float  # FLOP/B
    time_s: float
    low_s: float
    high_s: float
    share: float
    bound: str
    evidence: str


@dataclass(frozen=True)
class Estimate(
    Plotted,
    figures=(
        "roofline", "waterfall", "regimes", "memory", "frontier", "cost", "tiles", "experts", "tiers", "timeline",
        "speculation",
    ),
):  # fmt: skip
    """What one deployment does for one load. Seconds, bytes, tokens; bands are 80 % intervals."""

    deployment: Deployment
    isl: float
    osl: float
    batch: float
    cached: float
    memory: Footprint
    prefill: StepTime
    decode: StepTime
    ttft_s: Value
    tpot_s: Value
    e2e_s: Value
    usd_per_h: float | None  # of one device
    price_source: str
    load: str  # "static batch", "closed loop" or "open loop"
    notes: tuple[str, ...] = field(default=())
    state: SteadyState | None = None  # of continuous batching: percentiles, utilisation, occupancy
    running: float | None = None  # sequences that decode together, where that is not all of `batch`

    # Rates.

    @cached_property
    def tokens_per_s_user(self) -> Value:
        """Output tokens per second that one user sees after the first token."""
        return self.tpot_s.inverse()

    @cached_property
    def tokens_per_s(self) -> Value:
        """Output tokens per second of the replica, prompts included in the time."""
        return self.e2e_s.inverse(self.batch * self.osl)

    @cached_property
    def tokens_per_s_gpu(self) -> Value:
        """Output tokens per second and device."""
        return self.tokens_per_s.times(1.0 / self.deployment.plan.gpus)

    # Utilisation.

    @cached_property
    def mfu(self) -> float:
        """Model FLOP utilisation of a decode step, see `flops_utilisation`."""
        return float(flops_utilisation(self.deployment, self.decode, self.running or self.batch))

    @cached_property
    def mfu_prefill(self) -> float:
        """The same of the prefill step: of all prompts of a static batch, else of one."""
        prompts = self.batch if self.state is None else 1.0
        return float(flops_utilisation(self.deployment, self.prefill, prompts))

    @cached_property
    def mbu(self) -> float:
        """Memory bandwidth utilisation of a decode step, see `bandwidth_utilisation`."""
        return float(bandwidth_utilisation(self.deployment, self.decode, self.running or self.batch))

    @cached_property
    def intensity(self) -> float:
        """Arithmetic intensity of a decode step [FLOP/B]."""
        return float(self.decode.flops / self.decode.bytes)

    @cached_property
    def ridge_point(self) -> float:
        """Intensity above which the matmuls of this precision are compute-bound [FLOP/B]."""
        return peak_flops_per_s(self.deployment) / self.deployment.machine.chip.bandwidth_bytes_per_s

    @cached_property
    def cycle(self) -> Cycle | None:
        """A cycle of speculation at the batch and mean context, beside a plain step; None without speculation."""
        s = self.deployment.speculation
        if s is None:
            return None
        return speculate(self.deployment, s.drafter, **self._cycles(), batch=self.running or self.batch)

    @cached_property
    def pays_up_to(self) -> float:
        """Batch from which on speculation no longer pays: 0 at none, inf at all, see `break_even_batch`."""
        assert self.deployment.speculation is not None, "asked of an estimate with speculation"
        return float(break_even_batch(self.deployment, self.deployment.speculation.drafter, **self._cycles()))

    def _cycles(self) -> dict[str, Any]:
        s = self.deployment.speculation
        return {"drafts": float(s.drafts), "acceptance": s.acceptance, "context": self.isl + self.osl / 2.0}

    @cached_property
    def steps(self) -> float:
        """Decode steps of a request: its output tokens but the first, or the cycles that bring them."""
        s = self.deployment.speculation
        return self.osl - 1.0 if s is None else float(expected_cycles(self.osl - 1.0, s.shares))

    @cached_property
    def ttft_parts_s(self) -> dict[str, float]:
        """What a mean TTFT is spent on under a load [s]; empty for a static batch, whose prefill is all of it.

        Waits are those for the engine, its front end, and the steps and prompts of others.
        """
        if self.state is None:
            return {}
        seat_s = float(self.state.seat_s)
        own_s = min(float(self.prefill.total_s), self.ttft_s.value - seat_s)
        return {"own prefill": own_s, "waits": self.ttft_s.value - seat_s - own_s, "for a seat": seat_s}

    @cached_property
    def tpot_parts_s(self) -> dict[str, float]:
        """What a mean TPOT is spent on under a load [s]: a step that only decodes, and what others add to it.

        Empty for a static batch, where no prompt comes between, and with speculation, see `cycle`.
        """
        if self.state is None or self.cycle is not None:
            return {}
        decode_s = min(float(self.decode.total_s), self.tpot_s.value)
        others = "prompts and preemptions" if bool(self.state.saturated) else "prompts"
        return {"step": decode_s, others: self.tpot_s.value - decode_s}

    @cached_property
    def regime(self) -> Regime:
        """What a decode step is bound by, and where that changes."""
        return decode_regime(self.deployment, self.running or self.batch, self.isl + self.osl / 2.0)

    @cached_property
    def critical_batch(self) -> float:
        """Tokens per step at which weights cost as much to multiply as to read, at datasheet peaks."""
        return critical_batch(self.deployment)

    # Money and energy.

    @cached_property
    def usd_per_mtok_output(self) -> Value | None:
        """All cost over output tokens alone [USD/Mtok]; None without a price."""
        return self._usd(self.tokens_per_s)

    @cached_property
    def usd_per_mtok_blended(self) -> Value | None:
        """All cost over input and output tokens together [USD/Mtok]; None without a price."""
        return self._usd(self.tokens_per_s.times((self.isl + self.osl) / self.osl))

    def _usd(self, rate: Value) -> Value | None:
        if self.usd_per_h is None:
            return None
        return rate.inverse(usd_per_mtok(self.usd_per_h * self.deployment.plan.gpus, 1.0))

    @cached_property
    def joules_per_token(self) -> float | None:
        """Energy of an output token with every device at its rated power: an upper bound [J]; None where unknown."""
        tdp = self.deployment.accelerator.tdp_w
        return None if tdp is None else joules_per_token(tdp * self.deployment.plan.gpus, self.tokens_per_s.value)

    @cached_property
    def _steps_each(self) -> float:
        """Decode steps for each prefill: those of one request over the requests that share them under the load."""
        return self.steps / (1.0 if self.state is None else max(self.running or 1.0, 1.0))

    @cached_property
    def input_share(self) -> float:
        """Part of the step time that prompts take, as they come under the load."""
        return float(self.prefill.total_s / (self.prefill.total_s + self._steps_each * self.decode.total_s))

    @cached_property
    def usd_per_mtok_split(self) -> tuple[float, float] | None:
        """Prices of input and of output that pay all cost, in proportion to the time that each takes [USD/Mtok]."""
        if self.usd_per_h is None:
            return None
        output, usd_per_h = self.tokens_per_s.value, self.usd_per_h * self.deployment.plan.gpus
        return usd_per_mtok_split(usd_per_h, output * self.isl / self.osl, output, self.input_share)

    @cached_property
    def compute_share(self) -> float:
        """Part of the step time in which matrix units are busy, prompts and decodes as they come under the load."""
        busy = self.prefill.busy_s("compute") + self._steps_each * self.decode.busy_s("compute")
        return float(busy / (self.prefill.total_s + self._steps_each * self.decode.total_s))

    @cached_property
    def joules_per_token_expected(self) -> float | None:
        """The same at the power that a device draws for this work, see `board_power_w`; None where unknown [J]."""
        tdp = self.deployment.accelerator.tdp_w
        if tdp is None:
            return None
        power = float(board_power_w(tdp, self.compute_share)) * self.deployment.plan.gpus
        return joules_per_token(power, self.tokens_per_s.value)

    # Explanation.

    @property
    def fits(self) -> bool:
        """Whether it starts and holds at least one request of this length."""
        return bool(self.memory.fits)

    @cached_property
    def resident(self) -> float:
        """Requests of this length whose KV fits at the same time, on the whole replica."""
        return float(self.memory.max_concurrency) * self.deployment.plan.dp if self.fits else 0.0

    @cached_property
    def too_long(self) -> bool:
        """Whether a request has more tokens than the model has positions: no device helps."""
        longest = self.deployment.model.max_positions
        return bool(longest) and self.isl + self.osl > longest

    @cached_property
    def violations(self) -> list[str]:
        """What is wrong with this deployment for this load, worst first; empty where nothing is."""
        if not self.fits:
            if self.too_long:
                return [f"does not fit: {self.memory.failure}"]
            smallest = self.smallest_plan
            hint = f"the smallest plan that fits is {_devices(smallest)}" if smallest else _NOTHING_FITS
            return [f"does not fit: {self.memory.failure}", hint]
        if self.state is not None and bool(self.state.saturated) and self.load == "open loop":
            return [
                f"overload: {float(self.state.utilisation):.2f} times what one replica can do; more replicas are needed"
            ]
        if self.resident < self.batch:
            return [
                f"KV for {self.batch:.0f} requests of {self.isl + self.osl:.0f} tokens does not fit at the same time: "
                f"{self.resident:.0f} do; the others wait or are preempted"
            ]
        return []

    @cached_property
    def smallest_plan(self) -> Plan | None:
        """Fewest of these devices that hold this load's KV beside the weights, in the same formats."""
        d = self.deployment
        length, s = self.isl + self.osl, d.speculation
        drafter = {} if s is None else {"beside": lambda plan: s.beside(d.with_(plan=plan))}
        found = fewest_gpus(d.model, d.accelerator, d.precision, d.engine, length, self.batch, **drafter)
        return found[0] if found else None

    @cached_property
    def evidence(self) -> str:
        """The weakest evidence among the kernels that matter: measured, transferred or datasheet."""
        order = ("measured", "transferred", "datasheet")
        return max((self.prefill.evidence, self.decode.evidence), key=order.index)

    @cached_property
    def decode_table(self) -> list[OpRow]:
        """Ops of a decode step, in order."""
        return op_rows(self.decode)

    @cached_property
    def prefill_table(self) -> list[OpRow]:
        """Ops of the prefill step, in order."""
        return op_rows(self.prefill)

    @cached_property
    def sources(self) -> list[str]:
        """Where the numbers come from."""
        from roofline.explain import sources

        return sources(self)

    @cached_property
    def not_modelled(self) -> list[str]:
        """What this estimate leaves out."""
        from roofline.explain import not_modelled

        return not_modelled(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        from roofline.explain import as_dict

        return as_dict(self)

    def to_pandas(self):
        """The per-op tables of both steps as one DataFrame."""
        import pandas as pd

        frames = [pd.DataFrame(rows).assign(step=step) for step, rows in self._tables()]
        return pd.concat(frames, ignore_index=True)

    def _tables(self):
        from dataclasses import asdict

        yield "prefill", [asdict(row) for row in self.prefill_table]
        yield "decode", [asdict(row) for row in self.decode_table]

    def __str__(self) -> str:
        from roofline.display import to_text

        return to_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from roofline.display import to_html

        return to_html(self)


def _devices(plan: Plan) -> str:
    return f"{plan.gpus} devices ({plan})" if plan.gpus > 1 else "1 device"


def peak_flops_per_s(where: Deployment) -> float:
    """Dense peak of the feed-forward matmuls of a deployment, of a mixture those of its experts [FLOP/s]."""
    role = "expert" if where.model.is_mixture else "ffn"
    return where.machine.matmul_flops_per_s(where.precision.of(role))


def flops_utilisation(where: Deployment, step: StepTime, sequences: Array) -> Array:
    """Model FLOP utilisation of a step: 2 FLOPs per active matmul weight and token, over time and dense peak.

    Of a pipeline, `step` is that of one micro-batch on its way through all stages; `sequences`, those of all
    micro-batches, say how many stages work at a time.
    """
    busy = decode_share(where.plan.pp, sequences)
    return step.matmul_flops / step.total_s / peak_flops_per_s(where) * busy


def bandwidth_utilisation(where: Deployment, step: StepTime, sequences: Array) -> Array:
    """Memory bandwidth utilisation of a step: weight and KV bytes that it has to read, over time and peak.

    `sequences` as in `flops_utilisation`.
    """
    busy = decode_share(where.plan.pp, sequences)
    return (step.weight_bytes + step.kv_bytes) / step.total_s / where.machine.chip.bandwidth_bytes_per_s * busy


def op_rows(step: StepTime) -> list[OpRow]:
    """The per-op table of a scalar step; ops of one name and kind are one row."""
    rows: dict[tuple[str, str], list[OpTime]] = {}
    for t in step.times:
        rows.setdefault((t.op.name, t.op.kind), []).append(t)
    return [_row(name, group, step) for (name, _), group in rows.items()]


def _row(name: str, group: list[OpTime], step: StepTime) -> OpRow:
    def total(term):
        return float(sum(t.op.count * term(t) for t in group))

    time, flops, moved = total(lambda t: t.total_s), total(lambda t: t.op.flops), total(lambda t: t.op.bytes)
    longest = max(group, key=lambda t: float(t.op.count * t.total_s))
    return OpRow(
        op=name,
        count=float(sum(t.op.count for t in group)),
        flops=flops,
        bytes=moved,
        intensity=flops / moved if moved else 0.0,
        time_s=time,
        low_s=total(lambda t: t.low_s),
        high_s=total(lambda t: t.high_s),
        share=time * float(step.scale) / float(step.total_s),
        bound=str(longest.bound),
        evidence=longest.evidence,
    )
