"""Replays request traces through replicas: what closed forms of serving cannot say.

`simulate(trace, deployed(deployment(...), trace))` jumps from event to event, not from step to step.
"""

from roofline.simulation.costs import StepCosts, tabulate
from roofline.simulation.cycles import Cycles
from roofline.simulation.deployed import deployed
from roofline.simulation.engine import Link, Pool, simulate
from roofline.simulation.lockstep import Lockstep
from roofline.simulation.result import Result, Span
from roofline.simulation.routing import CacheAware, FreshWarm, LeastLoaded, RoundRobin
from roofline.simulation.scheduler import Scheduler, sglang, static, tensorrt_llm, vllm
from roofline.simulation.trace import Trace, bursty, closed_loop, constant, multi_turn, poisson, read_trace, write_trace

__all__ = [
    "CacheAware",
    "Cycles",
    "FreshWarm",
    "LeastLoaded",
    "Link",
    "Lockstep",
    "Pool",
    "Result",
    "RoundRobin",
    "Scheduler",
    "Span",
    "StepCosts",
    "Trace",
    "bursty",
    "closed_loop",
    "constant",
    "deployed",
    "multi_turn",
    "poisson",
    "read_trace",
    "sglang",
    "simulate",
    "static",
    "tabulate",
    "tensorrt_llm",
    "vllm",
    "write_trace",
]
