"""Every technique that the model knows, as a what-if on a deployment, and which of four costs it cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import numpy as np

from roofline.deployment import Deployment
from roofline.errors import InfeasibleError, check_number
from roofline.layers.attention.gqa import GQA
from roofline.layers.attention.mla import MLA
from roofline.parallel import Plan
from roofline.planner.layouts import plans
from roofline.precision import precision_named
from roofline.serving.disaggregated import Pools, pooled_state
from roofline.serving.prefix import fresh_warm_gain
from roofline.serving.recipes import with_graphs, with_scheduler
from roofline.serving.tiers import fetch_s
from roofline.specs.engine import Engine
from roofline.specs.library import hardware
from roofline.specs.model import Model
from roofline.specs.prices import priced, quote
from roofline.speculative import Speculation, best_draft_length, eagle3, mtp
from roofline.techniques.outcome import NotPossibleError, Outcome, Scene, outcome, running


class Cut(StrEnum):
    """The four costs of inference that a technique can lower."""

    HBM = "HBM round-trips"
    KV = "KV bytes"
    COMPUTE = "compute per token"
    WAITING = "sequential waiting"


@dataclass(frozen=True)
class WhatIf:
    """One technique in one setting, ready to be evaluated."""

    family: str
    name: str
    cuts: tuple[Cut, ...]
    evaluate: Callable[[], Outcome]
    assumes: str = ""


@dataclass(frozen=True, slots=True)
class Assumed:
    """What techniques need to know about traffic and drafts that the load does not say."""

    hit_rate: float = 0.5  # of prompt tokens, where a prefix cache is tried
    acceptance: float = 0.7  # of a drafted token
    warm_share: float = 0.5  # of requests with most of the prompt cached, for cache-aware pools
    warm_hit: float = 0.9  # their hit rate
    servers: int = 8  # prefill servers that cache-aware pools divide
    specs: str | Path | None = None  # folder with the user's own hardware and prices

    def __post_init__(self):
        for share in ("hit_rate", "acceptance", "warm_share", "warm_hit"):
            check_number(share, getattr(self, share), high=1.0)
        check_number("servers", self.servers, low=2, high=1e6, integer=True)


Source = Callable[[Deployment, Scene, float, Assumed], Iterator[WhatIf]]


def _of(family: str, name: str, cuts: tuple[Cut, ...], where: Callable[[], Deployment], scene: Scene, usd: float,
        assumes: str = "") -> WhatIf:  # fmt: skip
    return WhatIf(family, name, cuts, lambda: outcome(where(), scene, usd), assumes)


# Weight and KV formats.

NARROW = ("fp8", "fp8_block", "nvfp4", "mxfp4", "int4_awq", "int8")


def weight_formats(d: Deployment, scene: Scene, usd: float, known: Assumed) -> Iterator[WhatIf]:
    """Narrower weights: fewer bytes for every token; fewer FLOP-seconds where the matrix unit multiplies the format."""
    mixture = d.model.is_mixture
    now = d.precision.of("expert" if mixture else "ffn")
    for name in NARROW:
        found = precision_named(name).with_kv(d.precision.kv)
        fmt = found.of("expert" if mixture else "ffn")
        if fmt.element_bytes > 0.95 * now.element_bytes or name == d.precision.name:
            continue
        native = fmt.act_bits < 16 and d.accelerator.is_native(d.machine.operand(fmt))
        faster = native and d.machine.matmul_flops_per_s(fmt) > d.machine.matmul_flops_per_s(now)
        cuts = (Cut.HBM, Cut.COMPUTE) if faster else (Cut.HBM,)
        assumes = "accuracy is checked" if native else "accuracy is checked; multiplied in 16 bits"
        yield _of("weight format", f"weights {name}", cuts, lambda p=found: d.with_(precision=p), scene, usd, assumes)


def kv_formats(d: Deployment, scene: Scene, usd: float, known: Assumed) -> Iterator[WhatIf]:
    """A narrower KV cache: fewer bytes to read for every token, and more requests at a time."""
    for name in ("fp8", "int8", "nvfp4"):
        found = d.precision.with_kv(name)
        if found.kv.element_bytes < 0.95 * d.precision.kv.element_bytes:
            yield _of("KV format", f"KV {name}", (Cut.KV,), lambda p=found: d.with_(precision=p), scene, usd,
                      "accuracy is checked")  # fmt: skip


# Batch and layout.


def batch(d: Deployment, scene: Scene, usd: float, known: Assumed) -> Iterator[WhatIf]:
    """More requests share one reading of the weights; fewer wait less for each other."""
    for factor, text in ((2.0, "twice the concurrency"), (0.5, "half the concurrency")):
        if scene.concurrency * factor >= 1.0:
            other = replace(scene, concurrency=scene.concurrency * factor)
            cut = Cut.HBM if factor > 1 else Cut.WAITING
            family = "larger batch" if factor > 1 else "smaller batch"
            yield _of(family, text, (cut,), lambda: d, other, usd, "the traffic is there" if factor > 1 else "")


def layouts(d: Deployment, scene: Scene, usd: float, known: Assumed) -> Iterator[WhatIf]:
    """The same model over half, as many or twice as many devices, cut in other ways."""
    gpus = d.plan.gpus
    for plan in plans(d.model, d.accelerator, 2 * gpus):
        if plan == d.plan or plan.gpus not in (gpus // 2, gpus, 2 * gpus):
            continue
        load = replace(scene, concurrency=scene.concurrency * plan.gpus / gpus)
        cuts = _layout_cuts(d, plan)
        assumes = "" if plan.gpus == gpus else f"{plan.gpus} devices, concurrency in proportion"
        yield _of("layout", f"{plan}", cuts, lambda p=plan: d.with_(plan=p), load, usd, assumes)


def _layout_cuts(d: Deployment, plan: Plan) -> tuple[Cut, ...]:
    """What a layout cuts against the present one: shards of weights, replicas of KV, or collectives."""
    out = []
    if plan.gpus > d.plan.gpus:
        out.append(Cut.HBM)
    if _kv_copies(d, plan) < 0.99 * _kv_copies(d, d.plan):
        out.append(Cut.KV)
    if plan.tp * plan.pp < d.plan.tp * d.plan.pp:
        out.append(Cut.WAITING)
    return tuple(out) or (Cut.WAITING,)


def _kv_copies(d: Deployment, plan: Plan) -> float:
    """KV bytes of a token on all tensor-parallel ranks together; NaN where the model cannot be cut so."""
    try:
        return d.model.kv_bytes_per_token(plan, d.precision) * plan.tp
    except InfeasibleError:
        return float("nan")


# Scheduling and caches.


def chunks(d: Deployment, scene: Scene, usd: float, known: Assumed) -> Iterator[WhatIf]:
    """How many prompt tokens share a step with decodes: small chunks shorten gaps, large ones lose less."""
    s = d.engine.scheduler
    if s.policy == "mixed":
        flipped = with_scheduler(d.engine, {"chunked_prefill": not s.chunked_prefill})
        text = "without chunked prefill" if s.chunked_prefill else "chunked prefill"
        yield _of("chunked prefill", text, (Cut.WAITING,), lambda: d.with_(engine=flipped), scene, usd)
    for factor in (0.25, 0.5, 2.0, 4.0):
        budget = int(s.token_budget * factor)
        if 256 <= budget <= 65536:
            memory = d.engine.memory.model_copy(update={"max_num_batched_tokens": budget})
            engine = with_scheduler(d.engine, {"token_budget": budget}).model_copy(update={"memory": memory})
            yield _of("chunked prefill", f"token budget {budget}", (Cut.WAITING,),
                      lambda e=engine: d.with_(engine=e), scene, usd)  # fmt: skip


def prefix_cache(d: Deployment, scene: Scene, usd: float, known: Assumed) -> Iterator[WhatIf]:
    """Prompt tokens that another request has already paid for."""
    hit = known.hit_rate * scene.isl
    if hit > scene.cached:
        more = replace(scene, cached=hit)
        assumes = f"{known.hit_rate:.0%} of prompt tokens are repeated and still in the GPU's cache"
        yield _of("prefix cache", "prefix cache", (Cut.COMPUTE,), lambda: d, more, usd, assumes)
        host = d.accelerator.host_bytes_per_s
        if host:
            assumes = f"{known.hit_rate:.0%} of prompt tokens are found in host memory"
            yield WhatIf("tiered KV", "KV tier in host memory", (Cut.COMPUTE, Cut.WAITING),
                         lambda: tiered(d, scene, more, usd, host), assumes)  # fmt: skip


def tiered(d: Deployment, scene: Scene, more: Scene, usd: float, host: float) -> Outcome:
    """Cached tokens cross the host link before the rest is computed; where that is slower, they are computed again."""
    found = outcome(d, more, usd)
    # every stage has a host link of its own: the one with most KV on it is the last to have it
    per_token = max(d.model.kv_bytes_per_token(d.plan, d.precision, stage) for stage in range(d.plan.pp))
    fetch = float(fetch_s(more.cached, per_token, host))
    before = outcome(d, scene, usd)
    later = replace(found, ttft_s=found.ttft_s + fetch)
    return later if later.ttft_s < before.ttft_s else before


RATIOS = ((1, 1), (1, 2), (1, 3), (2, 1), (3, 1))  # prefill workers to decode workers that are tried


def disaggregation(d: Deployment, scene: Scene, usd: float, known: Assumed) -> Iterator[WhatIf]:
    """Prompts and decodes on workers of their own: no decode waits for a prompt."""
    if d.plan.pp == 1:
        yield WhatIf("disaggregation", "prefill and decode pools", (Cut.WAITING,), lambda: _pools(d, scene, usd),
                     "the best of the pool ratios 1:1 to 1:3 and 3:1")  # fmt: skip


def _pools(d: Deployment, scene: Scene, usd: float) -> Outcome:
    base = outcome(d, scene, usd)
    best: Outcome | None = None
    for p, n in RATIOS:
        points = np.concatenate(([scene.concurrency], np.geomspace(1.0, base.peak_concurrency, 12))) * (p + n)
        pools = Pools(d, d, p, n)
        s = pooled_state(pools, isl=scene.isl, osl=scene.osl, concurrency=points, cached=scene.cached)
        rate = np.asarray(s.tokens_per_s, float) / pools.gpus
        ttft, tpot = (np.broadcast_to(x, points.shape) for x in (s.ttft_s, s.tpot_s))
        found = replace(base, ttft_s=float(ttft[0]), tpot_s=float(tpot[0]), tokens_per_s_gpu=float(rate[0]),
                        peak_tokens_per_s_gpu=float(rate.max()), gpus=pools.gpus,
                        usd_per_mtok=base.usd_per_mtok * base.tokens_per_s_gpu / float(rate[0]))  # fmt: skip
        if best is None or found.tokens_per_s_gpu > best.tokens_per_s_gpu:
            best = found
    assert best is not None, "RATIOS is not empty"
    return best


def cache_aware_pools(d: Deployment, scene: Scene, usd: float, known: Assumed) -> Iterator[WhatIf]:
    """Prefill pools of their own for requests with warm and with cold prefixes: short work does not wait for long."""
    yield WhatIf(
        "cache-aware pools", "warm and cold prefill pools", (Cut.WAITING,), lambda: _fresh_warm(d, scene, usd, known),
        f"{known.warm_share:.0%} of requests have {known.warm_hit:.0%} of the prompt cached; "
        f"TTFT limits of 3 x service; {known.servers} prefill servers; the gain is that of their sustainable rate",
    )  # fmt: skip


def _fresh_warm(d: Deployment, scene: Scene, usd: float, known: Assumed) -> Outcome:
    base = outcome(d, scene, usd)
    warm = float(d.prefill_step(1.0, scene.isl, known.warm_hit * scene.isl).total_s)
    fresh = float(d.prefill_step(1.0, scene.isl, 0.0).total_s)
    gain, _ = fresh_warm_gain(known.warm_share, warm, fresh, 3.0 * warm, 3.0 * fresh, known.servers)
    if float(gain) <= 1.0:
        raise NotPossibleError("dividing the prefill servers loses for this mix")
    return replace(base, peak_tokens_per_s_gpu=base.peak_tokens_per_s_gpu * float(gain))


# Steps: speculation, launches.


def speculation(d: Deployment, scene: Scene, usd: float, known: Assumed) -> Iterator[WhatIf]:
    """Several tokens from one reading of the weights."""
    if d.model.encoder:
        return
    if d.model.mtp is not None:
        drafter = lambda: mtp(d.model)  # noqa: E731
        name = "MTP"
    else:
        drafter, name = lambda: eagle3(d.model), "EAGLE-3"
    yield WhatIf("speculation", f"speculative decoding ({name})", (Cut.HBM, Cut.WAITING),
                 lambda: _speculated(d, scene, usd, known, drafter()),
                 f"{known.acceptance:.0%} of drafts accepted; at its best draft length")  # fmt: skip


def _speculated(d: Deployment, scene: Scene, usd: float, known: Assumed, drafter) -> Outcome:
    context = scene.isl + scene.osl / 2.0
    found = best_draft_length(d, drafter, acceptance=known.acceptance, batch=running(d, scene), context=context)
    if float(found.drafts) < 1:
        raise NotPossibleError("verification costs more than the drafts bring at this batch")
    return outcome(d.with_(speculation=Speculation(drafter, int(found.drafts), known.acceptance)), scene, usd)


def launches(d: Deployment, scene: Scene, usd: float, known: Assumed) -> Iterator[WhatIf]:
    """Fewer gaps between kernels: captured graphs, overlap of the network, one kernel for the whole pass."""
    step = d.engine.step
    host = d.decode_launch
    if not host.never and running(d, scene) / d.plan.dp > host.most:
        yield _of("launches", f"CUDA graphs beyond {host.most:g} sequences" if host.most else "CUDA graphs",
                  (Cut.WAITING,), lambda: d.with_(engine=with_graphs(d.engine)), scene, usd)  # fmt: skip
    if host.held_s:
        yield _of("launches", "CUDA graphs of whole steps", (Cut.WAITING,),
                  lambda: d.with_(engine=_step(d.engine, piece_s=0)), scene, usd)  # fmt: skip
    if step.schedule == "serial" and d.plan.tp * d.plan.dp > 1:
        yield _of("launches", "collectives overlapped with kernels", (Cut.WAITING,),
                  lambda: d.with_(engine=_step(d.engine, schedule="overlapped")), scene, usd,
                  "all of the shorter one hides: an upper bound")  # fmt: skip
    if step.schedule != "megakernel":
        yield _of("launches", "one megakernel per pass", (Cut.WAITING, Cut.HBM),
                  lambda: d.with_(engine=_step(d.engine, schedule="megakernel")), scene, usd,
                  "such a kernel exists for this model: an upper bound")  # fmt: skip


def _step(engine: Engine, **changes) -> Engine:
    return engine.model_copy(update={"step": engine.step.model_copy(update=changes)})


# Hardware and models.


def other_hardware(d: Deployment, scene: Scene, usd: float, known: Assumed) -> Iterator[WhatIf]:
    """The same layout on every other datacentre GPU that has a price."""
    for name in priced(known.specs):
        a = hardware(name, specs=known.specs)
        found = quote(a, specs=known.specs)
        if a.name == d.accelerator.name or a.kind != "gpu-datacentre" or found is None:
            continue
        cuts = tuple(
            cut for cut, better in (
                (Cut.HBM, a.bandwidth_bytes_per_s > d.accelerator.bandwidth_bytes_per_s),
                (Cut.COMPUTE, a.peak_flops_per_s("bf16") > d.accelerator.peak_flops_per_s("bf16")),
                (Cut.WAITING, (a.link_bytes_per_s or 0.0) > (d.accelerator.link_bytes_per_s or 0.0)),
            ) if better
        )  # fmt: skip
        yield _of("hardware", f"{a.name}", cuts, lambda a=a: d.with_(accelerator=a), scene, found.usd_per_hour,
                  str(found))  # fmt: skip


def model_variants(d: Deployment, scene: Scene, usd: float, known: Assumed) -> Iterator[WhatIf]:
    """The same model with less cache: windows, fewer KV heads, a latent. Each of them has to be trained."""
    kinds = {run.layer.attention.kind for run in d.model.layer_runs if run.layer.attention is not None}
    if "gqa" not in kinds:
        return
    text = "the model is trained so"

    def windowed(i: int, a: GQA) -> GQA:
        return a if i % 4 == 3 or a.window or a.chunk else a.model_copy(update={"window": 4096})

    def grouped(i: int, a: GQA) -> GQA:
        if a.kv_heads % 2:
            raise NotPossibleError(f"{a.kv_heads} KV heads cannot be halved")
        return a.model_copy(update={"kv_heads": a.kv_heads // 2})

    def latent(i: int, a: GQA) -> MLA:
        return MLA(heads=a.heads, q_rank=1536, kv_rank=512, nope_dim=a.head_dim, rope_dim=64, v_dim=a.head_dim)

    ways = (("window of 4096 on 3 of 4 layers", windowed), ("half the KV heads", grouped),
            ("MLA (latent of 512 + 64)", latent))  # fmt: skip
    for name, change in ways:
        yield _of("model", name, (Cut.KV,), lambda c=change: d.with_(model=changed_attention(d.model, c)), scene, usd,
                  text)  # fmt: skip


def changed_attention(model: Model, change: Callable[[int, GQA], GQA | MLA]) -> Model:
    """The model with every grouped attention replaced; `change` is given the layer's number."""
    layers, i = [], 0
    for run in model.layers:
        for _ in range(run.count):
            layer = run.layer
            if isinstance(layer.attention, GQA) and not layer.attention.shared_kv:
                layer = layer.model_copy(update={"attention": change(i, layer.attention)})
            layers.append(dict(layer) | {"count": 1})
            i += 1
    kept = {name: getattr(model, name) for name in model.model_fields_set}  # built anew: a copy keeps derived numbers
    return Model(**kept | {"layers": layers, "name": f"{model.name}-variant"})


CATALOGUE: tuple[Source, ...] = (
    weight_formats, kv_formats, batch, layouts, chunks, prefix_cache, disaggregation, cache_aware_pools, speculation,
    launches, other_hardware, model_variants,
)  # fmt: skip

FAMILIES = (
    "weight format", "KV format", "larger batch", "smaller batch", "chunked prefill", "prefix cache", "tiered KV",
    "cache-aware pools", "disaggregation", "speculation", "launches", "layout", "hardware", "model",
)  # fmt: skip

# Families that take from each other, and why.
CONFLICTS: tuple[tuple[str, str, str], ...] = (
    (
        "speculation",
        "larger batch",
        "a large batch is bound by compute, where verifying more tokens costs what they bring",
    ),
    ("speculation", "weight format", "narrower weights leave less reading to share: the gains do not multiply"),
    ("disaggregation", "chunked prefill", "a decode pool has no prompts to cut into chunks"),
    ("launches", "larger batch", "gaps and floors are a small part of a large step"),
    ("prefix cache", "cache-aware pools", "both live off the same hits: routing only adds what it finds more of"),
    ("prefix cache", "tiered KV", "a tier serves the hits that the GPU's own cache has lost, not the same ones again"),
    ("model", "KV format", "less cache leaves less to narrow"),
)

__all__ = ["CATALOGUE", "CONFLICTS", "FAMILIES", "Assumed", "Cut", "WhatIf"]
