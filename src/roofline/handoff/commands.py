"""The launch command of an engine that realises a deployment, in the flags of the engine's own documentation.

Each flag was looked up in November 2026; docs/handoff.md says where.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from roofline.deployment import Deployment
from roofline.errors import InfeasibleError, UnknownNameError
from roofline.memory.footprint import limits
from roofline.specs.engine import engine_named, graph_limit

GPUS_PER_NODE = 8


@dataclass(frozen=True, slots=True)
class Launch:
    """A command, the files it reads, and what has to be known about it."""

    command: tuple[str, ...]
    files: dict[str, str] = field(default_factory=dict)  # name -> text
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Files as here-documents, notes as comments, the command over several lines."""
        out = [f"# {note}" for note in self.notes]
        for name, content in self.files.items():
            out += [f"cat > {shlex.quote(name)} <<'EOF'", content.rstrip("\n"), "EOF"]
        return "\n".join([*out, wrapped(self.command)])


def wrapped(command: tuple[str, ...]) -> str:
    """A command with one option a line."""
    parts: list[str] = []
    for word in command:
        quoted = shlex.quote(word)
        if word.startswith("--") or not parts:
            parts.append(quoted)
        else:
            parts[-1] += f" {quoted}"
    return " \\\n  ".join(parts)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a launch asks the engine to prepare for."""

    max_model_len: int
    max_num_seqs: int | None = None  # None: the engine's own


def hub_id(d: Deployment) -> str:
    """The model as an engine loads it: its Hub name where one is on record."""
    return next((alias for alias in d.model.aliases if "/" in alias), d.model.name)


def _settings(d: Deployment, asked: Limits) -> tuple[int, int]:
    """Sequences and tokens of a step."""
    seqs, tokens = limits(d.engine.memory, d.accelerator.usable_bytes)
    return int(asked.max_num_seqs or seqs), int(d.engine.scheduler.token_budget or tokens)


def _captured(d: Deployment, seqs: int) -> int | None:
    """The largest decode step to capture, where that is not what the engine does by itself."""
    own = graph_limit(engine_named(d.engine.name).step, d.accelerator.usable_bytes, d.plan.tp, d.plan.dp)
    most = min(d.graph_batch, float(seqs))
    return None if most == min(own, float(seqs)) else int(most)


# What engines call our KV formats; 16 bits are what they do by themselves.
KV_WORDS: dict[str, dict[str, str]] = {
    "vllm": {"fp8": "fp8", "int8": "int8_per_token_head", "nvfp4": "nvfp4", "fp8_ds_mla": "fp8_ds_mla"},
    "sglang": {"fp8": "fp8_e4m3", "mxfp4": "fp4_e2m1"},
    "tensorrt-llm": {"fp8": "fp8", "nvfp4": "nvfp4"},
    "llama.cpp": {name: name for name in ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")},
}

# Weights that an engine quantises while it loads a 16-bit checkpoint.
ONLINE: dict[str, dict[str, str]] = {
    "vllm": {"fp8": "fp8", "fp8_block": "fp8_per_block", "fp8_channel": "fp8_per_channel", "mxfp8": "mxfp8",
             "w8a16": "int8_per_channel_weight_only"},
    "sglang": {"fp8": "fp8"},
}  # fmt: skip


def kv_word(d: Deployment, engine: str) -> str | None:
    """The engine's name of the deployment's KV format; None where it needs none (16 bits)."""
    kv, words = d.precision.kv, KV_WORDS[engine]
    if kv.name in words:
        return words[kv.name]
    if kv.element_bytes >= 1.5:
        return None
    raise InfeasibleError(f"kv: {engine} has no KV cache in {kv.name}; it has bf16, {', '.join(words)}")


def _no_context_parallel(d: Deployment, engine: str, why: str) -> None:
    if d.plan.cp > 1:
        raise InfeasibleError(f"cp: {engine} cannot be launched with cp {d.plan.cp}: {why}")


def _weights_note(d: Deployment, engine: str) -> tuple[list[str], list[str]]:
    """Quantisation flags and notes for weights that differ from the published checkpoint."""
    name, online = d.precision.name, ONLINE.get(engine, {})
    if name == d.model.native:
        return [], []
    if name in online:
        return ["--quantization", online[name]], [
            f"weights are quantised to {name} while loading; a calibrated checkpoint does better"
        ]
    return [], [f"point the model at a checkpoint quantised to {name}; the name below is the published one"]


def _experts(d: Deployment) -> bool:
    """Whether experts are dealt to all ranks; refuses what no engine does."""
    ranks = d.plan.tp * d.plan.dp
    if d.plan.ep not in (1, ranks):
        raise InfeasibleError(
            f"ep: engines deal experts to all {ranks} ranks of tp x dp or to none; ep {d.plan.ep} cannot be launched"
        )
    return d.plan.ep > 1


def vllm(d: Deployment, asked: Limits, role: str = "replica") -> Launch:
    """`vllm serve` for a replica, or for a worker of a prefill or decode pool."""
    p, (seqs, tokens) = d.plan, _settings(d, asked)
    _no_context_parallel(d, "vllm", "its --decode-context-parallel-size takes tensor-parallel ranks and adds none")
    quantised, notes = _weights_note(d, "vllm")
    words = ["vllm", "serve", hub_id(d), "--tensor-parallel-size", str(p.tp)]
    words += ["--pipeline-parallel-size", str(p.pp)] if p.pp > 1 else []
    words += ["--data-parallel-size", str(p.dp)] if p.dp > 1 else []
    words += ["--enable-expert-parallel"] if _experts(d) else []
    words += quantised
    kv = kv_word(d, "vllm")
    words += ["--kv-cache-dtype", kv] if kv else []
    words += ["--max-model-len", str(asked.max_model_len), "--max-num-seqs", str(seqs)]
    words += ["--max-num-batched-tokens", str(tokens)]
    words += ["--gpu-memory-utilization", f"{d.engine.memory.utilisation:g}"]
    graphs = _captured(d, seqs)
    words += ["--max-cudagraph-capture-size", str(graphs)] if graphs else []
    if role != "replica":
        words += ["--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}']
        notes.append("a proxy sends each prompt to a prefill worker first, then to a decode worker (or use Dynamo)")
        notes.append("export VLLM_NIXL_SIDE_CHANNEL_HOST=its address, and a _PORT of its own for each on one host")
    notes += _nodes(d, "with Ray, or --headless workers for data parallelism over nodes")
    return Launch(tuple(words), notes=tuple(notes))


def sglang(d: Deployment, asked: Limits, role: str = "replica") -> Launch:
    """`sglang.launch_server`; its tp counts all ranks, attention data parallelism divides them, their requests and the
    tokens of a chunk."""
    p, (seqs, tokens) = d.plan, _settings(d, asked)
    _no_context_parallel(d, "sglang", "it cuts contexts of DeepSeek's sparse attention only")
    quantised, notes = _weights_note(d, "sglang")
    words = ["python", "-m", "sglang.launch_server", "--model-path", hub_id(d), "--tp-size", str(p.tp * p.dp)]
    words += ["--dp-size", str(p.dp), "--enable-dp-attention"] if p.dp > 1 else []
    words += ["--ep-size", str(p.ep)] if _experts(d) else []
    words += ["--pp-size", str(p.pp)] if p.pp > 1 else []
    words += quantised
    kv = kv_word(d, "sglang")
    words += ["--kv-cache-dtype", kv] if kv else []
    words += ["--context-length", str(asked.max_model_len), "--max-running-requests", str(seqs * p.dp)]
    words += ["--chunked-prefill-size", str(tokens * p.dp), "--mem-fraction-static", f"{d.engine.memory.utilisation:g}"]
    graphs = _captured(d, seqs)
    words += ["--cuda-graph-max-bs", str(graphs)] if graphs else []
    if role != "replica":
        words += ["--disaggregation-mode", role, "--disaggregation-transfer-backend", "nixl"]
        notes.append("router: python -m sglang_router.launch_router --pd-disaggregation --prefill URL --decode URL")
    nodes = -(-p.gpus // GPUS_PER_NODE)
    words += ["--nnodes", str(nodes), "--node-rank", "0", "--dist-init-addr", "HEAD:50000"] if nodes > 1 else []
    if nodes > 1:
        notes.append(f"run it on {nodes} nodes with --node-rank 0 to {nodes - 1}")
    return Launch(tuple(words), notes=tuple(notes))


def tensorrt_llm(d: Deployment, asked: Limits, role: str = "replica") -> Launch:
    """`trtllm-serve` with the PyTorch backend and its YAML."""
    p, (seqs, tokens) = d.plan, _settings(d, asked)
    if p.dp > 1 and p.tp > 1:
        raise InfeasibleError(
            f"dp: tensorrt-llm's attention data parallelism is over all ranks: tp 1 dp {p.tp * p.dp}, not {p}"
        )
    _no_context_parallel(d, "tensorrt-llm", "its cp is for prompts only")
    _, notes = _weights_note(d, "tensorrt-llm")
    experts = _experts(d)
    name = "config.yaml" if role == "replica" else f"{role}.yaml"
    lines = [
        f"enable_attention_dp: {str(p.dp > 1).lower()}",
        f"enable_chunked_prefill: {str(d.engine.scheduler.chunked_prefill).lower()}",
        "cuda_graph_config:", "  enable_padding: true", f"  max_batch_size: {min(seqs, d.graph_batch):.0f}",
        "kv_cache_config:", f"  free_gpu_memory_fraction: {d.engine.memory.utilisation:g}",
        f"  dtype: {kv_word(d, 'tensorrt-llm') or 'auto'}",
    ]  # fmt: skip
    if role != "replica":
        lines += ["cache_transceiver_config:", "  backend: DEFAULT", f"  max_tokens_in_buffer: {asked.max_model_len}"]
        lines += ["disable_overlap_scheduler: true"] if role == "prefill" else []
        notes.append(
            "then: trtllm-serve disaggregated -c disagg_config.yaml, with the URLs of context and generation servers"
        )
    words = ["trtllm-serve", hub_id(d), "--backend", "pytorch", "--tp_size", str(p.tp * p.dp)]
    words += ["--ep_size", str(p.ep)] if experts else []
    words += ["--pp_size", str(p.pp)] if p.pp > 1 else []
    words += ["--max_batch_size", str(seqs), "--max_num_tokens", str(tokens), "--max_seq_len", str(asked.max_model_len)]
    words += ["--config", name]
    notes += _nodes(d, "under mpirun or srun (trtllm-llmapi-launch)")
    return Launch(tuple(words), {name: "\n".join(lines) + "\n"}, tuple(notes))


def llama_cpp(d: Deployment, asked: Limits, role: str = "replica") -> Launch:
    """`llama-server` with every layer on the devices; its context is shared by all slots."""
    p = d.plan
    if role != "replica":
        raise InfeasibleError("llama.cpp has no prefill and decode pools; plan with --no-disaggregation")
    if p.dp > 1 or p.ep > 1 or p.cp > 1:
        raise InfeasibleError("llama.cpp has neither data, expert nor context parallelism; plan with tp or pp only")
    slots = int(asked.max_num_seqs or max(d.engine.memory.max_num_seqs, 1))
    fmt = d.precision.name
    words = ["llama-server", "--model", f"{d.model.name}-{fmt.upper()}.gguf", "--n-gpu-layers", "all"]
    words += ["--ctx-size", str(asked.max_model_len * slots), "--parallel", str(slots), "--flash-attn", "on"]
    words += ["--split-mode", "tensor" if p.tp > 1 else "layer"] if p.gpus > 1 else []
    words += ["--tensor-split", ",".join(["1"] * p.gpus)] if p.gpus > 1 else []
    kv = kv_word(d, "llama.cpp")
    words += ["--cache-type-k", kv, "--cache-type-v", kv] if kv else []
    words += ["--batch-size", "2048", "--ubatch-size", "512"]
    notes = ["the GGUF file is one quantised to " + fmt]
    if p.tp > 1:
        notes.append("split mode tensor is experimental; row, its elder, keeps the KV cache on one device")
    return Launch(tuple(words), notes=tuple(notes))


_DYNAMO = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}


def dynamo(d: Deployment, asked: Limits, role: str = "replica") -> Launch:
    """A Dynamo worker around the engine of the deployment; the frontend is one more command."""
    if d.engine.name not in _DYNAMO:
        raise InfeasibleError(f"dynamo runs {', '.join(_DYNAMO)}; this deployment is for {d.engine.name}")
    inner = EMITTERS[d.engine.name](d, asked, role)
    words = list(inner.command)
    notes = [n for n in inner.notes if "proxy" not in n and "router:" not in n and "trtllm-serve disagg" not in n]
    head = ["python", "-m", f"dynamo.{_DYNAMO[d.engine.name]}"]
    if d.engine.name == "vllm":
        words = [*head, "--model", words[2], *words[3:]]
        if d.plan.dp > 1:
            words += ["--data-parallel-rank", "0"]
            notes.append(f"one such process for each --data-parallel-rank 0 to {d.plan.dp - 1}")
    elif d.engine.name == "sglang":
        words = head + words[3:]
    else:
        p = d.plan
        words = [*head, "--model", words[1], "--tensor-parallel-size", str(p.tp * p.dp)]
        words += ["--enable-attention-dp"] if p.dp > 1 else []
        words += ["--expert-parallel-size", str(p.ep)] if p.ep > 1 else []
        words += ["--pipeline-parallel-size", str(p.pp)] if p.pp > 1 else []
        words += ["--max-batch-size", inner.command[inner.command.index("--max_batch_size") + 1]]
        words += ["--max-num-tokens", inner.command[inner.command.index("--max_num_tokens") + 1]]
        words += ["--max-seq-len", str(asked.max_model_len), "--extra-engine-args", next(iter(inner.files))]
    if role != "replica" and d.engine.name != "sglang":
        words += ["--disaggregation-mode", role]
    notes.append("frontend, once: python -m dynamo.frontend --router-mode kv --no-router-kv-events")
    return Launch(tuple(words), inner.files, tuple(notes))


def _nodes(d: Deployment, how: str) -> list[str]:
    nodes = math.ceil(d.plan.gpus / GPUS_PER_NODE)
    inside = d.plan.gpus <= max(d.accelerator.domain, GPUS_PER_NODE)
    return [] if inside or nodes == 1 else [f"it spans {nodes} nodes: start it {how}"]


EMITTERS: dict[str, Callable[..., Launch]] = {
    "vllm": vllm, "sglang": sglang, "tensorrt-llm": tensorrt_llm, "llama.cpp": llama_cpp, "dynamo": dynamo,
}  # fmt: skip


def launch(d: Deployment, engine: str, asked: Limits, role: str = "replica") -> Launch:
    """The launch of a deployment on an engine.

    Args:     engine: vllm, sglang, tensorrt-llm, llama.cpp or dynamo; asked: lengths and sequences to prepare for;
              role: replica, or prefill or decode for a worker of a pool
    Returns:  Launch
    Errors:   InfeasibleError where the engine cannot do what the deployment says
    """
    if engine not in EMITTERS:
        raise UnknownNameError("engine to emit for", engine, EMITTERS)
    runs_on = engine_named(engine).vendors if engine != "dynamo" else d.engine.vendors
    if runs_on and d.accelerator.vendor not in runs_on:
        raise InfeasibleError(f"{engine} runs on {', '.join(runs_on)} devices; this one is of {d.accelerator.vendor}")
    found = EMITTERS[engine](d, asked, role)
    if d.speculation is None:
        return found
    note = f"the command does not speculate: add the engine's own flags for {d.speculation}"
    return replace(found, notes=(*found.notes, note))
