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
    """Rules and knobs of one replica's scheduler and front end.

    Rules
      mixed            prompts and decodes share a step; otherwise prompts go first and decodes wait
      chunked          a prompt may be cut by the token budget; otherwise it goes whole, and one always goes
      continuous       seats are refilled at once; otherwise a batch runs until its longest request ends (static)
      seen_late        a request is seen one step after it arrived (asynchronous or overlapped scheduling)
      reserve_output   KV for the whole request is taken at admission; otherwise it grows, and may preempt
    Knobs
      token_budget     tokens a step, decodes included when mixed
      max_seqs         running sequences
      kv_blocks, block_tokens   KV pool of the replica
      preempt          who gives way when the pool is full: the `latest` admitted, or the `shortest` (fewest tokens
                       generated); it is computed again later
      poll_steps       decode steps between two looks at the queue; a look follows every prompt step and idle turn
      hold_steps, hold_ratio    prompts wait so many steps, or until tokens fill that share of the budget
      batch_wait_s     static: how long an idle replica waits for a full batch
      stream_interval, stream_first   tokens a chunk; with stream_first=False the first chunk waits to be full as well
      tokenizer_s_per_token, tokenizer_s_per_request, tokenizers   a serial server before the engine, shared work
      front_end_s      latency before the engine that does not queue
      emit_steps       detokenising and sending, in decode steps without KV
      cold_start_s     one-off cost of the first prompt step of a run without warm-up
    """

    name: str = "vllm"
    mixed: bool = True
    chunked: bool = True
    continuous: bool = True
    seen_late: bool = True
    reserve_output: bool = False
    token_budget: int = 8192
    max_seqs: int = 256
    kv_blocks: float = math.inf
    block_tokens: int = 16
    preempt: str = "latest"
    poll_steps: int = 1
    hold_steps: int = 0
    hold_ratio: float = 0.9
    batch_wait_s: float = 0.0
    stream_interval: int = 1
    stream_first: bool = True
    tokenizer_s_per_token: float = 0.0
    tokenizer_s_per_request: float = 0.0
    tokenizers: int = 1
    front_end_s: float = 0.0
    emit_steps: float = 0.0
    cold_start_s: float = 0.0

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
