"""The table of launch-script knobs."""

from dataclasses import replace
from datetime import date

import pytest

from roofline.errors import UnknownNameError
from roofline.serving.recipes import RULES, Run, configured, knobs, warm, with_scheduler
from roofline.specs.engine import engine_named
from roofline.specs.library import names

BASE = Run("sglang", "deepseek-r1", "b200-sxm", "fp8", 8, 1, 32.0, 1024.0, 1024.0, day=date(2026, 3, 1))


def value(run, knob):
    return getattr(configured(engine_named(run.engine), run).scheduler, knob)


def test_every_rule_has_a_source_and_known_names():
    known = set(names("model")) | {"deepseek-v3"}
    for rule in RULES:
        assert rule.source and rule.set
        models = rule.when.get("model", ())
        for model in (models,) if isinstance(models, str) else models:
            assert model in known, model


@pytest.mark.parametrize(
    "change, knob, expected",
    [
        ({}, "poll_interval", 30),  # README of the rows: DeepSeek-R1 30 from concurrency 16, fp8 at TP8
        ({"concurrency": 4.0}, "poll_interval", 10),
        ({"tp": 4}, "poll_interval", 10),
        ({"gpu": "h200-sxm"}, "poll_interval", 1),
        ({"dp": 8}, "poll_interval", 1),
        ({"model": "glm-5", "weights": "nvfp4"}, "poll_interval", 10),
        ({}, "token_budget", 32768),
        ({"weights": "nvfp4"}, "token_budget", 16384),
        ({"engine": "vllm", "model": "minimax-m2.5", "isl_max": 8192.0}, "token_budget", 16384),
        ({"engine": "vllm", "model": "llama-3.1-70b"}, "token_budget", 8192),
        ({"engine": "tensorrt-llm", "isl_max": 8192.0, "concurrency": 64.0}, "token_budget", 8320),
        ({"engine": "tensorrt-llm", "model": "llama-3.1-70b", "tp": 4}, "hold_steps", 20),
        ({"engine": "tensorrt-llm", "model": "llama-3.1-70b", "tp": 8}, "hold_steps", 0),
        ({"model": "qwen3.5-397b-a17b"}, "tokenizers", 6),
    ],
)
def test_knobs(change, knob, expected):
    assert value(replace(BASE, **change), knob) == expected


def test_runs_before_the_warm_up_start_cold():
    """InferenceX warms servers up since 2026-01-21."""
    cold = replace(BASE, day=date(2025, 11, 1))
    assert not warm(cold) and warm(BASE)
    assert value(BASE, "cold_start_s") == 0
    assert value(cold, "cold_start_s") >= engine_named("sglang").scheduler.cold_start_s


def test_each_knob_names_its_source():
    for knob, (_, source) in knobs(BASE).items():
        assert knob and source


def test_with_scheduler_checks():
    engine = engine_named("vllm")
    assert with_scheduler(engine, {"token_budget": 4096}).scheduler.token_budget == 4096
    assert engine.scheduler.token_budget == 8192
    with pytest.raises((UnknownNameError, ValueError)):
        with_scheduler(engine, {"no_such_knob": 1})
