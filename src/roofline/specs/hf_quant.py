"""Which role of a model's weights a checkpoint keeps in which format.

A `Scheme` speaks of module names; a `Precision` of roles. For every weight of the model the module that holds it is
looked up in the scheme, and a role whose weights differ gets the mean by parameters.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from roofline.errors import SpecError, UnsupportedError
from roofline.layers.weight import Weight
from roofline.precision import FORMATS, Format, Precision, mixture
from roofline.specs.model import Model
from roofline.specs.quant_schemes import Scheme, read_scheme

QUANTISED_ROLES = ("attention", "ffn", "expert", "shared")
_SNAP = 0.005  # a format that holds less than this share of a role is not told apart
_SMALLEST_SIDE = 16  # convolution kernels and vectors are never quantised

# Modules that hold a role's weights, as the families call them; `{m}` is the leaf of a weight.
_CONTAINERS: dict[str, tuple[str, ...]] = {
    "attention": ("self_attn.{m}", "attn.{m}", "linear_attn.{m}", "mixer.{m}", "mamba.{m}", "attention.{m}"),
    "ffn": ("mlp.{m}", "feed_forward.{m}", "ffn.{m}", "mixer.{m}"),
    "expert": tuple(
        f"{c}experts.0.{{m}}" for c in ("mlp.", "block_sparse_moe.", "ffn.", "mixer.", "feed_forward.", "")
    ),
    "shared": tuple(
        f"{c}{s}.{{m}}"
        for c in ("mlp.", "block_sparse_moe.", "ffn.", "mixer.", "feed_forward.", "")
        for s in ("shared_experts", "shared_expert")
    ),
    "router": ("mlp.gate", "mlp.router", "block_sparse_moe.gate", "mixer.gate", "ffn.gate", "router.proj"),
    "embed": ("embed_tokens", "embeddings"),
    "head": ("lm_head", "head"),
}
_PARALLEL_EXPERTS = {  # Gemma 4: the dense block beside the experts counts as shared
    "expert": ("experts.0.{m}", "experts"),
    "shared": ("mlp.{m}",),
    "router": ("router.proj",),
}
_LEAVES: dict[str, tuple[str, ...]] = {
    "q": ("q_proj",), "k": ("k_proj",), "v": ("v_proj",), "o": ("o_proj", "out_proj"), "q_a": ("q_a_proj",),
    "q_b": ("q_b_proj",), "kv_a": ("kv_a_proj_with_mqa",), "kv_b": ("kv_b_proj",), "index.q": ("indexer.wq_b",),
    "qkv": ("q_proj", "k_proj", "v_proj"), "qkvz": ("in_proj_qkvz", "in_proj_qkv", "in_proj_z"),
    "kv": ("kv_proj",), "o_a": ("o_a_proj",), "o_b": ("o_b_proj",), "in_bc": ("in_proj",),
    "index.k": ("indexer.wk",), "index.head_weights": ("indexer.weights_proj",), "in": ("in_proj",),
    "up": ("up_proj", "gate_proj"), "down": ("down_proj",),
}  # fmt: skip


def checkpoint_precision(
    model: Model, config: Mapping[str, Any], side: Mapping[str, Any] | None, dtype: str, where: str
) -> tuple[Precision, list[str]]:
    """The precision of a checkpoint and notes about it.

    Args:     config: the `config.json`; side: `hf_quant_config.json` if there is one; dtype: format of what is not
              quantised
    Errors:   UnsupportedError for a dialect or format that is not modelled
    """
    wide = FORMATS[dtype]
    quant = _quantization_config(config, where)
    if not quant and not side:
        return Precision(dtype, default=wide, kv=wide), []
    scheme = read_scheme(quant, side or {}, config, where)
    containers = _CONTAINERS | (_PARALLEL_EXPERTS if "gemma4" in str(config.get("model_type")) else {})
    means = _role_formats(model, scheme, wide, containers)
    formats = {role: mean for role, mean in means.items() if mean != wide}
    notes = list(scheme.notes)
    named = {_role_of(name) for name, _ in scheme.modules}
    if scheme.shortened and not scheme.default and "expert" in means and not scheme.experts and "expert" not in named:
        notes.append("the cut list names no expert: their format is not known, they count as not quantised")
    if scheme.shortened:
        notes.append("the quantisation lists are cut: each entry was taken for all layers of its kind")
    notes += [f"{role}: {fmt.name} (mean over its weights)" for role, fmt in formats.items() if "*" in fmt.name]
    kv, static = scheme.kv or wide, scheme.static
    absent = {role: scheme.default for role in QUANTISED_ROLES if role not in means and scheme.default}
    spelled = min((Precision("", f, wide, kv, static) for f in (formats, formats | absent)), key=lambda p: len(p.text))
    return replace(spelled, name=spelled.text), notes


def _quantization_config(config: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    for holder in (config, *(v for v in config.values() if isinstance(v, Mapping))):
        for key in ("quantization_config", "compression_config"):
            found = holder.get(key)
            if found and not isinstance(found, Mapping):  # not read as if nothing were quantised
                raise SpecError(f"{where}: {key} is {str(found)[:60]!r}; allowed: an object with quant_method")
            if found:
                return found
    return {}


def _role_formats(
    model: Model, scheme: Scheme, wide: Format, containers: Mapping[str, tuple[str, ...]]
) -> dict[str, Format]:
    """Role -> mean format over its matrices."""
    rules = _Rules(scheme, containers)
    shares: dict[str, dict[Format, float]] = defaultdict(lambda: defaultdict(float))
    for layer, weight in _matrices(model):
        shares[weight.role][rules.format_of(layer, weight) or wide] += weight.params
    means = {}
    for role, formats in shares.items():
        total = sum(formats.values())
        means[role] = mixture({f: n for f, n in formats.items() if n >= _SNAP * total})
    return means


def _matrices(model: Model) -> Iterator[tuple[int | None, Weight]]:
    """(layer, matrix) of all layers, embedding and head; the layer counts from 0."""
    at = 0
    for layer, count in model.layers:
        weights = layer.weights(model.hidden, model.norm_params)
        weights = [w for w in weights if w.role != "norm" and min(w.n, w.k) > _SMALLEST_SIDE]
        for i in range(count):
            yield from ((at + i, w) for w in weights)
        at += count
    yield None, Weight("embed", model.vocab, model.hidden, role="embed")
    if not model.tied:
        yield None, Weight("head", model.vocab, model.hidden, role="head")


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A module pattern: `re:` regular expression, glob, dotted name or single word. It covers what lies below, too."""

    text: str
    test: Any

    def matches(self, names: Iterable[str]) -> bool:
        return any(self.test(name) for name in names)


def _pattern(text: str) -> _Pattern:
    if text.startswith("re:"):
        try:
            expression = re.compile(text[3:])
        except (re.error, RecursionError, OverflowError):
            raise UnsupportedError(f"quantisation pattern {text[:60]!r} is not a regular expression") from None
        return _Pattern(text, lambda name: expression.match(name) or expression.match("model." + name))
    text = re.sub(r"^[a-z_.]*?(?=layers\.)", "", text)
    if "*" in text:
        glob = ".*".join(map(re.escape, text.split("*")))
        below = re.compile(f"(?:.*\\.)?{glob}(?:\\..*)?")
        return _Pattern(text, lambda name: bool(below.fullmatch(name)))
    return _Pattern(text, lambda name: f".{text}." in f".{name}.")


class _Rules:
    """A scheme indexed by layer, so that a weight is held against the few patterns that can name it."""

    def __init__(self, scheme: Scheme, containers: Mapping[str, tuple[str, ...]]):
        self.scheme, self.containers = scheme, containers
        self.ignored = self._by_layer((p, None) for p in scheme.ignored)
        self.modules = self._by_layer(scheme.modules)
        self.by_role = {_role_of(name): fmt for name, fmt in reversed(scheme.modules)} if scheme.shortened else {}

    def format_of(self, layer: int | None, weight: Weight) -> Format | None:
        """The format of a weight; None: it stays wide."""
        names = list(_module_names(layer, weight, self.containers))
        named = next((f for p, f in self._near(self.modules, layer) if p.matches(names)), None)
        if any(p.matches(names) for p, _ in self._near(self.ignored, layer)):
            return named if self.scheme.default is None else None
        if named:
            return named
        if weight.role == "expert" and self.scheme.experts:
            return self.scheme.experts
        if weight.role in self.by_role:
            return self.by_role[weight.role]
        if weight.role in QUANTISED_ROLES or (weight.role == "head" and self.scheme.head):
            return self.scheme.default
        return None

    def _by_layer(self, patterns: Iterable[tuple[str, Any]]) -> dict[int | None, list[tuple[_Pattern, Any]]]:
        table: dict[int | None, list[tuple[_Pattern, Any]]] = defaultdict(list)
        seen = set()
        for text, value in patterns:
            numbered = re.search(r"(?:^|\.)layers\.(\d{1,6}|N)(?=[.*]|$)", text) if not text.startswith("re:") else None
            key: int | None = None
            if numbered:
                rest = text[numbered.end() :]
                whole = rest in ("", ".", "*", ".*")
                if numbered[1] == "N" and whole:
                    continue  # a collapsed list does not say which layers are meant
                if numbered[1] == "N" or (self.scheme.shortened and not whole):
                    text = f"layers.*{rest}"
                elif numbered[1] != "N":
                    key, text = int(numbered[1]), f"layers.{numbered[1]}{'' if whole else rest}"
            if (key, text) not in seen:
                seen.add((key, text))
                table[key].append((_pattern(text), value))
        return table

    def _near(self, table: Mapping, layer: int | None) -> Iterator[tuple[_Pattern, Any]]:
        yield from table.get(layer, ())
        if layer is not None:
            yield from table.get(None, ())


def _role_of(module: str) -> str:
    """The role of a module, for lists that were cut: an entry then stands for all weights of its role."""
    words = (("shared_expert", "shared"), ("expert", "expert"), ("lm_head", "head"), ("attn", "attention"))
    words += (("mixer.in_proj", "attention"), ("mixer.out_proj", "attention"), ("mlp", "ffn"), ("ffn", "ffn"))
    return next((role for word, role in words if word in module), "")


def _module_names(layer: int | None, weight: Weight, containers: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """The names that published models give to the module that holds `weight`."""
    leaves = _LEAVES.get(weight.name.removeprefix("experts.").removeprefix("shared."), (weight.name,))
    for container in containers.get(weight.role, ()):
        prefix = "" if layer is None else f"layers.{layer}."
        for leaf in leaves:
            yield prefix + container.format(m=leaf)
