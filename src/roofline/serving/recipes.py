"""What public launch scripts set an engine to: one table, from the facts of a run to the knobs of its scheduler.

Engine defaults live in the engine profiles. What a benchmark's script changed depends on engine, model, device, format,
layout, load and date; here, and nowhere else, stands which. Later rules win.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from roofline.errors import UnknownNameError
from roofline.specs.engine import Engine, GraphLimit

INFERENCEX = "SemiAnalysisAI/InferenceX launch scripts"
TREES = f"{INFERENCEX}, trees of 2025-10-29 to 2026-04-20"


@dataclass(frozen=True, slots=True)
class Run:
    """The facts of a benchmark run that its launch script looked at."""

    engine: str  # profile name
    model: str = ""
    gpu: str = ""  # hardware name
    weights: str = ""  # bf16 | fp8 | nvfp4 | ...
    tp: int = 1
    dp: int = 1
    concurrency: float = 1.0
    isl_max: float = 1024.0
    osl_max: float = 1024.0
    fixed_lengths: bool = False
    version: tuple[int, ...] = ()
    day: date | None = None
    disaggregated: bool = False

    @property
    def burst_tokens(self) -> float:
        """Prompt tokens that arrive together at the start."""
        return self.concurrency * self.isl_max


@dataclass(frozen=True, slots=True)
class Rule:
    """Knobs (`set`) of runs that meet `when`; a value of `when` is a name, several, or a test of the field."""

    when: Mapping[str, Any]
    set: Mapping[str, Any]
    source: str


def _at_least(value):
    return lambda x: x is not None and x >= value


def _below(value):
    return lambda x: x is not None and x < value


BLACKWELL = ("b200-sxm", "b300-sxm", "gb200", "gb300")
R1 = ("deepseek-r1", "deepseek-v3")
WARM_UP_DAY = date(2026, 1, 21)
COMPILES = (
    "inferred from 40 development rows of 2025-11 without warm-up: the first prompts compile kernels for their shapes"
)

RULES: tuple[Rule, ...] = (
    # vLLM
    Rule({"engine": "vllm", "model": "minimax-m2.5", "gpu": BLACKWELL}, {"token_budget": lambda r: 2.0 * r.isl_max},
         f"{TREES}: --max-num-batched-tokens 2 x input length"),
    Rule({"engine": "vllm", "model": ("llama-3.1-70b", "gpt-oss-120b")}, {"lookahead": 1},
         f"{INFERENCEX}, 2025-10-29: --async-scheduling"),
    # TensorRT-LLM
    Rule({"engine": "tensorrt-llm", "model": "llama-3.1-70b"}, {"token_budget": 16384},
         f"{INFERENCEX}, 2025-10-29: max_num_tokens"),
    Rule({"engine": "tensorrt-llm", "model": "gpt-oss-120b"}, {"token_budget": 20000},
         f"{INFERENCEX}, 2025-10-29: max_num_tokens"),
    Rule({"engine": "tensorrt-llm", "model": R1},
         {"token_budget": lambda r: max(8192.0, r.concurrency + r.isl_max + 64.0)}, f"{TREES}: max_num_tokens"),
    Rule({"engine": "tensorrt-llm", "model": "llama-3.1-70b", "tp": _below(8), "isl_max": 1024, "osl_max": 1024},
         {"hold_steps": 20, "hold_ratio": 0.9},
         f"{INFERENCEX}, 2025-10-29: batch_wait_timeout_iters 20, batch_wait_max_tokens_ratio 0.9"),
    Rule({"engine": "tensorrt-llm", "dp": _at_least(2)}, {"hold_steps": 30},
         f"{TREES}: attention_dp enable_balance, timeout_iters 60; half of it is waited on average"),
    Rule({"engine": "tensorrt-llm", "fixed_lengths": True}, {"token_budget": 2048},
         "inferred from the fixed-length development rows: their protocol is not published"),
    Rule({"engine": "tensorrt-llm", "model": R1, "day": _below(WARM_UP_DAY)},
         {"cold_start_s": lambda r: min(0.25 + r.burst_tokens / 36e3, 10.0)},
         "inferred from 54 development rows without warm-up: each new size of a step of prompts is prepared for"),
    Rule({"engine": "tensorrt-llm", "model": "gpt-oss-120b", "gpu": "h200-sxm", "day": _below(WARM_UP_DAY)},
         {"cold_start_s": 0.4}, "inferred from 70 development rows without warm-up"),
    # SGLang
    Rule({"engine": "sglang", "fixed_lengths": False}, {"token_budget": 32768}, f"{TREES}: --chunked-prefill-size"),
    Rule({"engine": "sglang", "model": R1, "weights": "nvfp4"}, {"token_budget": 16384},
         f"{TREES}: --chunked-prefill-size"),
    Rule({"engine": "sglang", "model": R1, "weights": "fp8", "gpu": BLACKWELL, "tp": 4}, {"token_budget": 8192},
         f"{TREES}: --chunked-prefill-size"),
    Rule({"engine": "sglang", "model": "qwen3.5-397b-a17b", "gpu": "b300-sxm", "weights": "fp8",
          "version": _at_least((0, 5, 10))}, {"token_budget": 16384}, f"{TREES}: --chunked-prefill-size"),
    Rule({"engine": "sglang", "gpu": BLACKWELL, "dp": 1, "fixed_lengths": False}, {"poll_interval": 10},
         f"{TREES}: --scheduler-recv-interval 10"),
    Rule({"engine": "sglang", "model": R1, "gpu": BLACKWELL, "dp": 1, "concurrency": _at_least(16)},
         {"poll_interval": 30}, f"{TREES}: --scheduler-recv-interval 30 from concurrency 16"),
    Rule({"engine": "sglang", "model": R1, "weights": "fp8", "gpu": BLACKWELL, "tp": _below(8)},
         {"poll_interval": 10}, f"{TREES}: 30 at TP8 only"),
    Rule({"engine": "sglang", "model": "qwen3.5-397b-a17b", "gpu": BLACKWELL, "concurrency": _at_least(5)},
         {"poll_interval": 30}, f"{TREES}: --scheduler-recv-interval 30 above concurrency 4"),
    Rule({"engine": "sglang", "model": "qwen3.5-397b-a17b", "gpu": "b300-sxm", "weights": "fp8",
          "version": _at_least((0, 5, 10))}, {"poll_interval": 10}, f"{TREES}: --scheduler-recv-interval 10"),
    Rule({"engine": "sglang", "weights": "nvfp4", "day": _below(date(2025, 12, 1))}, {"cold_start_s": 3.0}, COMPILES),
    Rule({"engine": "sglang", "weights": "nvfp4", "day": _below(date(2025, 12, 1)), "burst_tokens": _at_least(32768)},
         {"cold_start_s": 70.0}, COMPILES),
    Rule({"engine": "sglang", "weights": "fp8", "day": _below(date(2025, 12, 1)), "burst_tokens": _at_least(65536)},
         {"cold_start_s": 20.0}, COMPILES),
    Rule({"engine": "sglang", "model": "qwen3.5-397b-a17b"}, {"tokenizers": 6}, f"{TREES}: --tokenizer-worker-num 6"),
)  # fmt: skip


def matches(rule: Rule, run: Run) -> bool:
    """Whether a rule speaks of a run."""
    return all(_meets(getattr(run, name), wanted) for name, wanted in rule.when.items())


def _meets(value: Any, wanted: Any) -> bool:
    if callable(wanted):
        return bool(value) and wanted(value)
    return value in wanted if isinstance(wanted, tuple) else value == wanted


def knobs(run: Run) -> dict[str, tuple[float, str]]:
    """The knobs that a run's script set, each with its source."""
    found: dict[str, tuple[float, str]] = {}
    for rule in RULES:
        if matches(rule, run):
            for knob, value in rule.set.items():
                found[knob] = (value(run) if callable(value) else value, rule.source)
    return found


def warm(run: Run) -> bool:
    """Whether requests before the measured ones had warmed the server up.

    Source: InferenceX commit d053ae24ea30500c88dd740ac6213b8fe1d9c9f5 (2026-01-21) added a warm-up
    """
    return run.day is None or run.day >= WARM_UP_DAY


def configured(engine: Engine, run: Run) -> Engine:
    """The engine profile with the scheduler knobs of a run."""
    chosen = knobs(run)
    if not warm(run):
        chosen.setdefault("cold_start_s", (engine.scheduler.cold_start_s, "profile"))
    else:
        chosen["cold_start_s"] = (0.0, "warmed up")
    values = {knob: int(v) if v and float(v).is_integer() else v for knob, (v, _) in chosen.items()}
    sources = {knob: source for knob, (_, source) in chosen.items()}
    return with_scheduler(engine, values, sources)


def with_graphs(engine: Engine, batch: int | None = None) -> Engine:
    """The profile with graphs captured for decode steps of up to `batch` sequences of a rank; None: of any number.

    Args:     engine; batch [-]
    Returns:  `Engine`
    Source:   --max-cudagraph-capture-size (vLLM), --cuda-graph-max-bs (SGLang), cuda_graph_config.max_batch_size
              (TensorRT-LLM); scripts of benchmarks set it to the concurrency that they send (SemiAnalysisAI/InferenceX,
              trees of 2025-10-29 to 2026-04-20)
    """
    limits = () if batch is None else (GraphLimit(batch=batch),)
    sources = {**engine.step.sources, "graph_limits": "set by the caller"}
    step = engine.step.model_copy(update={"cuda_graphs": True, "graph_limits": limits, "sources": sources})
    return engine.model_copy(update={"step": step})


def with_scheduler(engine: Engine, values: Mapping[str, Any], sources: Mapping[str, str] | None = None) -> Engine:
    """The profile with some scheduler knobs replaced."""
    old = engine.scheduler
    if unknown := sorted(set(values) - set(type(old).model_fields)):
        raise UnknownNameError("scheduler knob", unknown[0], type(old).model_fields)
    told = dict.fromkeys(values, "set by the caller") | dict(sources or {})
    scheduler = old.model_copy(update=dict(values) | {"sources": {**old.sources, **told}})
    return engine.model_copy(update={"scheduler": scheduler})
