"""What an engine does with waiting requests, as rules and knobs. No number here is fitted; all are inputs.

The four constructors set the rules of an engine; every knob can be passed to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from roofline.errors import InputError, check_number

VICTIMS = ("latest", "shortest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """Rules and knobs of one replica's scheduler and front end."""

    name: str = "vllm"
    mixed: bool = True  # prompts and decodes share a step; otherwise prompts go first and decodes wait
    chunked: bool = True  # a prompt may be cut by the token budget; otherwise it goes whole, and one always goes
    continuous: bool = True  # seats are refilled at once; otherwise a batch runs until its longest request ends
    seen_late: bool = True  # a request is seen one step after it arrived (asynchronous or overlapped scheduling)
    reserve_output: bool = False  # KV for the whole request is taken at admission; otherwise it grows, and may preempt
    token_budget: int = 8192  # tokens a step, decodes included when mixed
    max_seqs: int = 256  # running sequences
    kv_blocks: float = math.inf  # of the KV pool
    block_tokens: int = 16
    preempt: str = "latest"  # who gives way and is computed again: the latest admitted, or the shortest (fewest tokens)
    poll_steps: int = 1  # decode steps between two looks at the queue; a look follows every prompt step and idle turn
    hold_steps: int = 0  # steps that prompts wait for company,
    hold_ratio: float = 0.9  # or until tokens fill that share of the budget
    batch_wait_s: float = 0.0  # static: how long an idle replica waits for a full batch
    stream_interval: int = 1  # tokens in a chunk of the answer
    stream_first: bool = True  # the first token goes at once; otherwise the first chunk waits to be full as well
    tokenizer_s_per_token: float = 0.0  # a serial server before the engine
    tokenizer_s_per_request: float = 0.0
    tokenizers: int = 1  # that share this work
    front_end_s: float = 0.0  # latency before the engine that does not queue
    emit_steps: float = 0.0  # detokenising and sending, in decode steps without KV
    cold_start_s: float = 0.0  # one-off cost of the first prompt step of a run without warm-up

    def __post_init__(self):
        for knob in ("token_budget", "max_seqs", "block_tokens", "poll_steps", "stream_interval", "tokenizers"):
            check_number(knob, getattr(self, knob), low=1, integer=True)
        check_number("hold_steps", self.hold_steps, integer=True)
        for knob in ("hold_ratio", "batch_wait_s", "tokenizer_s_per_token", "tokenizer_s_per_request", "front_end_s",
                     "emit_steps", "cold_start_s"):  # fmt: skip
            check_number(knob, getattr(self, knob))
        if not self.kv_blocks >= 1:
            raise InputError(f"kv_blocks: {self.kv_blocks!r}; allowed: 1 or more, or inf")
        if self.preempt not in VICTIMS:
            raise InputError(f"preempt: {self.preempt!r}; allowed: {', '.join(VICTIMS)}")
        if self.mixed and self.chunked and self.continuous and self.token_budget < self.max_seqs:
            raise InputError(
                f"token_budget {self.token_budget} is below max_seqs {self.max_seqs}: decodes alone would not fit"
            )

    def request_blocks(self, tokens: float) -> int:
        """Whole KV blocks that hold `tokens`."""
        return -int(-tokens // self.block_tokens)


def vllm(**knobs) -> Scheduler:
    """vLLM v1: decodes first, the rest of the budget to prompts, one mixed step; KV grows, the latest is preempted."""
    return Scheduler(**({"name": "vllm"} | knobs))


def tensorrt_llm(**knobs) -> Scheduler:
    """TensorRT-LLM in-flight batching: mixed steps, whole prompts, KV reserved for the whole request (no eviction)."""
    rules = {"name": "tensorrt-llm", "chunked": False, "reserve_output": True, "token_budget": 16384}
    return Scheduler(**(rules | knobs))


def sglang(**knobs) -> Scheduler:
    """SGLang: prompt-only steps first, chunked; decodes run only when nothing seen waits; retracts the shortest."""
    rules = {"name": "sglang", "mixed": False, "preempt": "shortest", "block_tokens": 1}
    return Scheduler(**(rules | knobs))


def static(batch: int, **knobs) -> Scheduler:
    """Static batching: `batch` prompts together, then decode until the longest has ended; seats stay taken."""
    rules = {"name": "static", "mixed": False, "chunked": False, "continuous": False, "seen_late": False,
             "reserve_output": True, "token_budget": 2**40}  # fmt: skip
    return Scheduler(**(rules | {"max_seqs": batch} | knobs))
