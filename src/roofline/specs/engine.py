"""The schema of an engine profile: the numbers and policies of a serving engine that cost models need.

A profile is one YAML in `roofline/engines/`. Its `versions` list what older releases did differently, so that
`engine_named("vllm", version="0.11.0")` answers for that release. Every block says where its numbers come from:
`sources` maps a field (or '*', all others) to a citation or to the rows it was fitted on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from roofline.errors import InputError, SpecError, UnknownNameError
from roofline.specs.library import build, canonical, head_aliases
from roofline.specs.yaml_file import read_yaml
from roofline.units import Bytes, Seconds

FOLDER = Path(__file__).resolve().parents[1] / "engines"

Count = Annotated[int, Field(strict=True, ge=0)]
Fraction = Annotated[FiniteFloat, Field(ge=0, le=1)]
Factor = Annotated[FiniteFloat, Field(ge=0)]
Size = Bytes | Literal[0]

SECTIONS = ("memory", "step", "scheduler", "speculation")  # of a profile
PoolRule = Literal["after_peak", "fraction_of_total", "fraction_of_free", "contiguous"]


class Block(BaseModel):
    """A group of settings with their sources: immutable, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    sources: dict[str, Annotated[str, Field(min_length=3)]] = Field({}, description="field or '*' -> where it is from")

    @model_validator(mode="after")
    def _sourced(self):
        given = self.model_fields_set - {"sources"}
        if unknown := set(self.sources) - set(type(self).model_fields) - {"*"}:
            raise ValueError(f"sources names unknown fields: {', '.join(sorted(unknown))}")
        missing = sorted(given - set(self.sources))
        if missing and "*" not in self.sources:
            raise ValueError(f"no source for {', '.join(missing)}")
        return self


class GraphLimit(BaseModel):
    """Sequences of the largest decode step that an engine captures, on some devices and layouts."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    batch: Annotated[int, Field(strict=True, ge=1)]
    memory_below: Bytes | None = Field(None, description="of devices with less visible memory; absent: of all")
    ranks_below: Annotated[int, Field(strict=True, ge=1)] | None = Field(None, description="where tp x dp is less")
    dp_from: Count = Field(0, description="where attention is data parallel over so many ranks or more")

    def holds(self, memory_bytes: float, tp: int, dp: int) -> bool:
        """Whether it speaks of a device with so much visible memory under that layout."""
        small = self.memory_below is None or memory_bytes < self.memory_below
        few = self.ranks_below is None or tp * dp < self.ranks_below
        return small and few and dp >= self.dp_from


class MemoryProfile(Block):
    """What an engine does with a device's memory: limits, what it keeps beside weights and cache, how it pages.

    Bytes of the activation peak follow from these and the model's shapes: see `roofline.memory.activations`.
    """

    # Limits, as the engine sets them when the user does not.
    pool_rule: PoolRule = Field("after_peak", description="what the KV pool is the rest of; see memory.footprint")
    utilisation: Fraction = Field(1.0, description="gpu_memory_utilization, mem_fraction_static or their like")
    max_num_seqs: Count = Field(1, description="most sequences in a step")
    max_num_batched_tokens: Count = Field(1, description="most tokens in a step: the profiling forward has this many")
    small_device: Size = Field(0, description="below this visible memory the two limits that follow apply")
    small_max_num_seqs: Count = 0
    small_max_num_batched_tokens: Count = 0

    # Paging.
    block_size: Count = Field(1, description="tokens of a block; 1 is paging without waste")
    cell_multiple: Count = Field(1, description="contiguous caches are rounded up to this many tokens")
    window_holds: Literal["window", "step", "all"] = Field(
        "window", description="tokens that a windowed layer reserves: the window, window + step, or the whole context"
    )
    hybrid_groups: bool = Field(False, description="layers of unlike caches share one pool of equal pages, in groups")
    swap: Size = Field(0, description="host memory for preempted sequences, per device")

    # Weights as loaded.
    rope_tables: bool = Field(False, description="a cos/sin table for every position is kept, one per kind of rope")
    allocator_rounding: bool = Field(False, description="torch's allocator rounds tensors up; see memory.weights")
    mla_copies: bool = Field(False, description="a quantised latent up-projection is kept once more in 16 bits")
    mla_workspace_tokens: Count = Field(0, description="latents of this many tokens are kept for chunked prefill")
    mxfp4_multiple: Count = Field(1, description="expert inner width is padded to this for the MXFP4 kernel")
    mxfp4_k_multiple: Count = Field(1, description="the packed input side of MXFP4 experts is padded to this")
    mxfp4_scale_multiple: Count = Field(1, description="output rows of the kernel's MXFP4 scales are padded to this")
    mxfp4_scale_copies: Count = Field(1, description="times the MXFP4 scales are kept: as read and as swizzled")

    # Activation peak of the profiling forward.
    hidden_copies: Factor = Field(0.0, description="buffers of [tokens, hidden] alive at the peak of a layer")
    stage_copies: Factor = Field(0.0, description="more of them on a pipeline stage that receives its input")
    first_stage_copies: Factor = Field(0.0, description="more of them on a first stage that is not the last")
    logit_bytes: Factor = Field(0.0, description="sampler bytes per logit beside the raw ones")
    logit_core_bytes: Factor = Field(0.0, description="sampler bytes per core (SM) and vocabulary row")
    logit_rows: Factor = Field(0.0, description="buffers of [sequences, hidden] alive while sampling")
    sampler_hidden_copies: Factor = Field(0.0, description="buffers of [tokens, hidden] alive while sampling")
    moe_workspace: bool = Field(False, description="two [tokens x top_k, widest side] buffers are kept for the experts")
    matmul_workspace: Size = Field(0, description="library workspace taken from the framework's allocator")
    image_inputs: bool = Field(False, description="profiles vision inputs: their embeddings and pixels stay alive")
    mla_prefill_tokens: Count = Field(0, description="cached tokens that a chunk of MLA prefill up-projects at once")

    # Outside the framework's allocator.
    context: Size = Field(0, description="taken before the engine measures free memory, one device")
    context_tp: Size = Field(0, description="more of it on tensor-parallel ranks")
    context_pp: Size = Field(0, description="more of it on pipeline stages")
    context_moe: Size = Field(0, description="more of it on tensor-parallel ranks of a mixture of experts")
    non_torch: Size = Field(0, description="growth during profiling, one device")
    non_torch_tp: Size = Field(0, description="more of it on two tensor-parallel ranks behind a switch")
    non_torch_tp_plain: Size = Field(0, description="in place of it where the links are not switched")
    non_torch_rank: Size = Field(0, description="more of it for each doubling of tp beyond two")
    non_torch_pp: Size = Field(0, description="in place of non_torch on pipeline stages")

    # CUDA graphs.
    graphs_in_budget: bool = Field(False, description="the graphs are subtracted before the KV pool is sized")
    graph_base: Size = Field(0, description="CUDA graph pool: constant part")
    graph_layer: Size = Field(0, description="CUDA graph pool: per layer and 50 captured sizes")
    graph_special: Size = Field(0, description="the same, more of it, over tp: latent attention and MXFP4 experts")
    graph_sizes: Count = Field(50, description="batch sizes that are captured")
    warmup_headroom: Fraction = Field(0.0, description="share of the sampler's peak still needed after capture")


class StepProfile(Block):
    """What an engine adds to the kernels of a step, and how it lets them follow one another."""

    kernels: Literal["calibrated", "datasheet"] = Field(
        "calibrated", description="what an op costs: see roofline.pricing"
    )
    sums: Literal["fp32", "fp16"] = Field(
        "fp32", description="what products of 16-bit operands are added up in; fp16 is twice as fast on GeForce cards"
    )
    schedule: Literal["serial", "overlapped", "megakernel"] = "serial"
    tensor_parallel: Literal["reduced", "gathered"] = Field(
        "reduced",
        description="row-parallel products and an all-reduce, or columns everywhere, gathered through host memory",
    )
    cuda_graphs: bool = Field(True, description="decode steps are replayed graphs: no launch gap between kernels")
    graph_limits: tuple[GraphLimit, ...] = Field(
        (), description="up to which batch, the first that fits: larger steps are launched kernel by kernel"
    )
    piece_s: Seconds | Literal[0] = Field(
        0, description="least time of a layer where the host launches its attention between two graphs; 0: one graph"
    )
    small_kernel_s: Seconds | Literal[0] = Field(0, description="fixed time of a small kernel (norm, rope, ...)")
    fused: tuple[str, ...] = Field((), description="Elementwise ops that do not run on their own")
    fused_tp: tuple[str, ...] = Field((), description="the same where tp > 1: fused into the all-reduce")
    beside: tuple[str, ...] = Field((), description="ops on a second stream: only their memory traffic is paid")
    fused_quantisers: tuple[str, ...] = Field((), description="formats whose activations the op before quantises")
    measured_on: dict[str, tuple[str, ...]] = Field(
        {}, description="kernel model -> devices on which these kernels were measured, where others run other ones"
    )
    host_gap_s: Seconds | Literal[0] = Field(0, description="time between steps in which the device waits for the host")
    host_sequence_s: Seconds | Literal[0] = Field(0, description="the same, more of it for each decoding sequence")
    mixed_layer_s: Seconds | Literal[0] = Field(0, description="per layer of a step with prompt tokens: no graph")
    launch_s: Seconds | Literal[0] = Field(0, description="least time per kernel of such a step: launched one by one")
    launch_factors: dict[str, Factor] = Field(
        {}, description="launch_s is longer by these with a kind of attention in the model or on an architecture: of "
        "steps with prompt tokens, whose kernels are prepared for as well"
    )
    graph_batch: Count = Field(1, description="decode batches are padded to multiples of this, as graphs are captured")
    graph_tokens: Count = Field(0, description="prompt steps of at most so many tokens run in a graph all the same")


class SchedulerProfile(Block):
    """How an engine fills a step and when it lets tokens out."""

    policy: Literal["mixed", "prefill_first"] = Field("mixed", description="do prompts and decodes share a step?")
    chunked_prefill: bool = True
    token_budget: Count = Field(8192, description="most new tokens of a step, decodes included")
    poll_interval: Count = Field(1, description="decode steps between two looks at the queue of arrivals")
    stream_interval: Count = Field(1, description="tokens that are sent together")
    reserve_output: bool = Field(False, description="is room for a whole answer taken on admission? nobody is evicted")
    lookahead: Count = Field(0, description="steps that are scheduled before the last one is done (async scheduling)")
    prefix_caching: bool = False
    hold_steps: Count = Field(0, description="decode steps that prompts are held back for others to join them")
    hold_ratio: Fraction = Field(
        0.0, description="held prompts go as soon as they fill this share of the budget; 0: never"
    )
    tokenizers: Count = Field(1, description="tokeniser workers in front of the scheduler")
    tokenizer_token_s: Seconds | Literal[0] = Field(0, description="tokeniser, per prompt token: a serial server")
    tokenizer_request_s: Seconds | Literal[0] = Field(0, description="tokeniser, per request")
    front_end_s: Seconds | Literal[0] = Field(
        0, description="HTTP, detokeniser and transport: latency that does not queue"
    )
    emit_steps: Factor = Field(0.0, description="decode steps between the end of the step of a token and its sending")
    cold_start_s: Seconds | Literal[0] = Field(0, description="first prompts of a server that nobody warmed up")


class SpeculationProfile(Block):
    """What a cycle of drafting and verifying takes beside the kernels of both models."""

    draft_pass_s: Seconds | Literal[0] = Field(0, description="least time of a draft pass: the host prepares each")
    cycle_s: Seconds | Literal[0] = Field(0, description="per cycle: rejection sampling, looking at what was accepted")
    sequence_s: Seconds | Literal[0] = Field(0, description="the same, more of it for each sequence")


class Engine(BaseModel):
    """A serving engine at one version."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
    title: str
    aliases: tuple[str, ...] = ()
    version: Annotated[str, Field(pattern=r"^\d+(\.\d+)*$")] | None = None
    vendors: tuple[str, ...] = Field((), description="whose devices it runs on; empty: nothing is excluded here")
    memory: MemoryProfile = Field(default_factory=MemoryProfile)
    step: StepProfile = Field(default_factory=StepProfile)
    scheduler: SchedulerProfile = Field(default_factory=SchedulerProfile)
    speculation: SpeculationProfile = Field(default_factory=SpeculationProfile)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Engine {self.name}{f' {self.version}' if self.version else ''}: {self.title}>"


def graph_limit(profile: StepProfile, memory_bytes: float, tp: int = 1, dp: int = 1) -> float:
    """Sequences of the largest decode step of a rank that the engine captures: inf for any, 0 where it captures none.

    >>> graph_limit(engine_named("sglang").step, 79 * 2**30, tp=8), graph_limit(engine_named("ideal").step, 1e9)
    (512.0, inf)
    """
    if not profile.cuda_graphs:
        return 0.0
    return next((float(g.batch) for g in profile.graph_limits if g.holds(memory_bytes, tp, dp)), float("inf"))


def engine_names() -> list[str]:
    """Names of the profiles that are shipped.

    >>> "vllm" in engine_names()
    True
    """
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def engine_named(name: str | Engine, version: str | None = None, **memory: Any) -> Engine:
    """The engine profile of that name, at `version` (None: the newest described), with some memory settings replaced.

    `version` may also follow the name: "vllm==0.11.0", "vllm 0.11.x".

    >>> engine_named("vLLM").memory.block_size, engine_named("vllm==0.11.2", block_size=128).memory.block_size
    (16, 128)
    """
    if isinstance(name, Engine):
        found = name
    elif not isinstance(name, str):
        raise InputError(f"engine: {name!r} is no name; see 'roofline list engines'")
    else:
        match = re.fullmatch(r"\s*([^\s=@<>]+)[\s=@<>]*(\d[\w.]*)?\s*", str(name))
        plain, tail = (match[1], match[2]) if match else (str(name), None)
        found = _profile(_file_of(plain), release(version or tail or ""))
    if not memory:
        return found
    unknown = sorted(set(memory) - set(MemoryProfile.model_fields))
    if unknown:
        raise UnknownNameError("memory setting", unknown[0], list(MemoryProfile.model_fields))
    checked = build(MemoryProfile, memory | {"sources": {"*": "set by the caller"}}, where=found.name)
    sources = found.memory.sources | dict.fromkeys(memory, "set by the caller")
    changed = {field: getattr(checked, field) for field in memory} | {"sources": sources}
    return found.model_copy(update={"memory": found.memory.model_copy(update=changed)})


def release(text: str) -> tuple[int, ...]:
    """The numbers of a version, as far as it states them; empty for none.

    >>> release("0.11.x"), release("0.19.0rc1"), release("newest")
    ((0, 11), (0, 19, 0), ())
    """
    match = re.match(r"\s*v?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


@lru_cache(maxsize=64)
def _file_of(name: str) -> Path:
    key, files = canonical(name), {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}
    if key in files:
        return files[key]
    for path in files.values():
        if key in map(canonical, head_aliases(path)):
            return path
    raise UnknownNameError("engine", name[:80], engine_names(), hint="see 'roofline list engines'")


@lru_cache(maxsize=64)
def _profile(path: Path, version: tuple[int, ...]) -> Engine:
    """The profile in `path` with the changes of every rule whose `before` is later than `version`."""
    data = read_yaml(path)
    rules = data.pop("versions", [])
    if version:
        data["version"] = ".".join(map(str, version))
    for rule in sorted(rules, key=lambda r: release(str(r.get("before"))), reverse=True):
        if set(rule) - {"before", *SECTIONS} or not release(str(rule.get("before"))):
            raise SpecError(f"{path.name}: a rule of 'versions' has 'before' and some of {', '.join(SECTIONS)}")
        if version and version < release(str(rule["before"])):
            for section in SECTIONS:
                data[section] = _merged(data.get(section, {}), rule.get(section, {}))
    return build(Engine, data, where=path.name)


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    return {**old, **new, "sources": {**old.get("sources", {}), **new.get("sources", {})}}
