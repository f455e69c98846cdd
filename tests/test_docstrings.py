"""Public functions of the modules that hold formulas say which, from where, and in which units."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src" / "roofline"
FORMULA_MODULES = (
    "ops", "workload", "parallel", "forward", "memory", "kernels", "step", "regimes", "economics", "serving",
    "speculative",
)  # fmt: skip

# Public functions there that hold no formula, by what they do instead.
NOT_FORMULAS = {
    "makes a record from its arguments": {
        "workload.prefill", "workload.decode", "workload.verify", "serving.lengths.fixed", "serving.lengths.of_mean",
        "serving.lengths.observed", "serving.lengths.as_lengths",
    },
    "makes a list of ops, weights, tensors or caches": {
        "forward.step_ops", "forward.encoder_ops", "forward.head_ops", "memory.weights.weight_tensors",
        "memory.weights.layer_tensors", "memory.paging.cache_kinds", "speculative.drafters.eagle",
        "speculative.drafters.eagle3", "speculative.drafters.head_layer", "speculative.drafters.mtp",
        "speculative.drafters.drafter_named",
    },
    "looks a value up in a spec or profile": {
        "serving.bands.kind_of", "serving.bands.tpot_band", "serving.bands.ttft_band",
        "serving.disaggregated.link_of", "serving.recipes.matches", "serving.recipes.knobs", "serving.recipes.warm",
        "serving.recipes.configured", "serving.recipes.with_graphs", "serving.recipes.with_scheduler",
        "serving.load.rules", "serving.steps.step_table", "memory.footprint.limits",
        "memory.weights.wide", "memory.weights.stored_parts",
    },
    "passes on to formulas, or searches over them": {
        "regimes.regime_of", "serving.steady.steady_state", "serving.load.step_kinds",
        "speculative.acceptance.tokens_of", "memory.search.largest_whole", "memory.search.fewest_gpus",
        "memory.search.widest_format", "memory.activations.graph_bytes_per_size", "kernels.blocks.in_blocks",
        "kernels.blocks.quickest",
    },
    "rounds or checks": {"memory.paging.up_to_cells", "memory.weights.up_to", "memory.weights.check_cut"},
}  # fmt: skip
EXEMPT = set().union(*NOT_FORMULAS.values())
UNIT_IN_NAME = re.compile(r"_(s|bytes|flops|w|j|usd|tokens|layers|elements|factor)$|_per_[a-z]+$")


def functions():
    for name in FORMULA_MODULES:
        path = SRC / name
        for file in [path.with_suffix(".py")] if path.with_suffix(".py").exists() else sorted(path.rglob("*.py")):
            module = ".".join(file.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                    yield f"{module}.{node.name}", node


FUNCTIONS = dict(functions())


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n not in EXEMPT])
def test_says_formula_source_and_units(name):
    node = FUNCTIONS[name]
    text = ast.get_docstring(node) or ""
    for field in ("Formula:", "Source:"):
        assert re.search(rf"^{field} +\S", text, re.MULTILINE), f"{name} has no '{field}'"
    takes = [a.arg for a in [*node.args.args, *node.args.kwonlyargs]]
    units = re.search(r"\[[^\]\n]+\]", text) or UNIT_IN_NAME.search(node.name) or any(map(UNIT_IN_NAME.search, takes))
    assert units, f"{name} names no unit: write e.g. 'Returns:  [s]', or [-] for a ratio"


@pytest.mark.parametrize("name", sorted(EXEMPT))
def test_exceptions_are_needed(name):
    """A function that has come to state its formula, or is gone, is no exception any more."""
    assert name in FUNCTIONS
    assert "Formula:" not in (ast.get_docstring(FUNCTIONS[name]) or "")


@pytest.mark.parametrize("name", sorted(EXEMPT))
def test_exceptions_are_described(name):
    assert (ast.get_docstring(FUNCTIONS[name]) or "").strip()
