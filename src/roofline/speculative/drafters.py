"""What proposes tokens: an independent model, heads on the target (EAGLE, Medusa), its own MTP modules, or the prompt.

A drafter says what one cycle of drafting takes on the replica of its target, and what it holds there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from roofline.arrays import Array
from roofline.deployment import Deployment
from roofline.errors import InputError, SpecError, UnknownNameError
from roofline.forward import on_rank, step_ops
from roofline.layers.attention.gqa import GQA
from roofline.layers.ffn.dense import Dense
from roofline.layers.ffn.moe import MoE
from roofline.layers.layer import Layer
from roofline.memory.paging import CacheKind, cache_kinds
from roofline.ops import ACTIVATION_BYTES, Elementwise, Gemm, Op
from roofline.parallel import Plan, padded_vocab
from roofline.precision import Precision, precision_named
from roofline.specs.library import names
from roofline.specs.model import Model
from roofline.specs.refs import load_model
from roofline.speculative.acceptance import TokenTree
from roofline.workload import Sequences


@dataclass(frozen=True, slots=True)
class Round:
    """One cycle as a drafter sees it: `drafts` tokens for each of `batch` sequences, or a tree of them.

    `tokens` is what the verification before it yielded: a head that reads the target's features runs over all of them.
    """

    batch: Array
    context: Array
    drafts: Array
    tokens: Array = 1.0
    tree: TokenTree | None = None


class Drafter(Protocol):
    """What every kind of drafter answers."""

    @property
    def name(self) -> str: ...

    def drafting_s(self, target: Deployment, asked: Round) -> Array:
        """Seconds of drafting in one cycle."""

    def prompt_s(self, target: Deployment, group: Sequences) -> Array:
        """Seconds of reading prompts, so that drafts can follow them."""

    def weight_bytes(self, target: Deployment) -> float:
        """Weights beside the target's, on one rank."""

    def caches(self, target: Deployment) -> tuple[CacheKind, ...]:
        """Kinds of cache beside the target's, on one rank."""


class Sequential(ABC):
    """Drafters that need one pass for each drafted position."""

    catches_up: bool = False  # the first pass runs over all tokens that were accepted

    @abstractmethod
    def _pass_s(self, target: Deployment, group: Sequences) -> Array:
        """Seconds of one pass over `group`."""

    def drafting_s(self, target: Deployment, asked: Round) -> Array:
        """Return the seconds of all passes of a cycle.

        Formula:  chain: P(E) + (k - 1) P(1);  tree: P(E) + sum over levels but the last of P(nodes of the level);
                  a pass P takes what its ops take and at least the host's time for launching one; E = tokens of the
                  verification before it for heads that read the target's features, else 1
        Args:     target: the replica that drafter and target share; asked: see `Round`
        Returns:  [s]
        Assumes:  all passes at the context of the first
        Error:    docs/speculation.md
        Source:   derivation
        """
        least = target.engine.speculation.draft_pass_s
        first = asked.tokens if self.catches_up else 1.0

        def pass_s(rows: Array, logits: Array) -> Array:
            return np.maximum(self._pass_s(target, Sequences(asked.batch, rows, asked.context, logits)), least)

        start = pass_s(first, 1.0)
        if asked.tree is not None:
            return start + sum(pass_s(float(n), float(n)) for n in asked.tree.widths[:-1])
        return start * np.minimum(asked.drafts, 1.0) + np.maximum(asked.drafts - 1.0, 0.0) * pass_s(1.0, 1.0)

    def prompt_s(self, target: Deployment, group: Sequences) -> Array:
        """Return the seconds of one pass over prompts.

        Formula:  P(prompt), at least the host's time for launching a pass
        Args:     target, group: prompts of the whole replica
        Returns:  [s]
        Assumes:  chunks as the target's
        Error:    not measured
        Source:   vLLM v1/spec_decode/eagle.py: the first pass runs over every token of the target's step
        """
        return np.maximum(self._pass_s(target, group), target.engine.speculation.draft_pass_s)


@dataclass(frozen=True)
class DraftModel(Sequential):
    """An independent smaller model on the ranks of its target, cut over `plan` (absent: as the target is)."""

    model: Model
    precision: Precision
    plan: Plan | None = None

    @property
    def name(self) -> str:
        return self.model.name

    def deployed(self, target: Deployment) -> Deployment:
        """The draft model as a replica beside its target."""
        plan = self.plan or Plan(tp=target.plan.tp, dp=target.plan.dp)
        return Deployment(self.model, target.accelerator, plan, self.precision, target.engine)

    def _pass_s(self, target: Deployment, group: Sequences) -> Array:
        return self.deployed(target).step(group).total_s

    def weight_bytes(self, target: Deployment) -> float:
        return float(self.model.weight_bytes(self.deployed(target).plan, self.precision))

    def caches(self, target: Deployment) -> tuple[CacheKind, ...]:
        return tuple(cache_kinds(self.model, self.deployed(target).plan, self.precision))


@dataclass(frozen=True)
class DraftHead(Sequential):
    """A few layers that read the target's hidden states: EAGLE heads and MTP modules.

    `model` is what one pass executes, its vocabulary the one that it drafts from; `joins` rows of width hidden (the
    embedding and features of the target) are multiplied down to one before the layers.
    """

    name: str
    model: Model
    joins: float
    own_head: bool  # a matrix to the vocabulary of its own, else the target's
    own_embedding: bool = False
    modules: int = 1  # stored; a later draft than that uses the last one again
    precision: Precision | None = None  # absent: the target's
    catches_up = True

    def _pass_s(self, target: Deployment, group: Sequences) -> Array:
        return target.timed(self.ops(target, group)).total_s

    def ops(self, target: Deployment, group: Sequences) -> list[Op]:
        """The ops of one pass on one rank."""
        h, precision, plan = self.model.hidden, self.precision or target.precision, replace(target.plan, pp=1)
        rows = on_rank(group, plan).tokens
        joined = [Gemm("draft.join", rows, h, self.joins * h, precision.of("ffn"))] if self.joins else []
        return joined + step_ops(self.model, (group,), plan, precision)

    def weight_bytes(self, target: Deployment) -> float:
        precision, plan = self.precision or target.precision, replace(target.plan, pp=1)
        layers = sum(
            count * w.bytes_per_rank(plan, precision)
            for run in self.model.layer_runs
            for w, count in ((w, run.count) for w in run.layer.weights(self.model.hidden, self.model.norm_params))
        )
        join = precision.of("ffn").bytes(self.model.hidden, self.joins * self.model.hidden) if self.joins else 0.0
        rows = padded_vocab(self.model.vocab, plan.tp) / plan.tp
        vocab = self.own_head * precision.of("head").bytes(rows, self.model.hidden)
        vocab += self.own_embedding * precision.of("embed").bytes(rows, self.model.hidden)
        return float(self.modules * (layers + join + vocab))

    def caches(self, target: Deployment) -> tuple[CacheKind, ...]:
        kinds = cache_kinds(self.model, replace(target.plan, pp=1), self.precision or target.precision)
        return tuple(replace(kind, layers=self.modules * kind.layers) for kind in kinds)


@dataclass(frozen=True)
class MedusaHeads:
    """Heads side by side on the last hidden state, one for each drafted position: all of them in one pass, no cache.

    Source: Cai et al. 2024 (Medusa), section 2.1: a residual block (one matrix) and a matrix to the vocabulary each
    """

    heads: int = 5
    name: str = "medusa"

    def drafting_s(self, target: Deployment, asked: Round) -> Array:
        """Return the seconds of running the heads once.

        Formula:  time of k products [b, h] x [h, h] and k products [b, h] x [h, V]
        Args:     as `Sequential.drafting_s`
        Returns:  [s]
        Assumes:  one head after another
        Error:    docs/speculation.md
        Source:   derivation
        """
        k = asked.drafts if asked.tree is None else asked.tree.depth
        if np.any(np.asarray(k) > self.heads):
            raise InputError(f"drafts: {self.name} has {self.heads} heads")
        m, plan, precision = target.model, target.plan, target.precision
        rows = on_rank(Sequences(asked.batch, 1.0), plan).count
        vocab = padded_vocab(m.vocab, plan.tp) / plan.tp
        ops: list[Op] = [
            Gemm("draft.block", rows, m.hidden, m.hidden, precision.of("head"), count=k),
            Elementwise("draft.residual", 3.0 * ACTIVATION_BYTES * rows * m.hidden, count=k),
            Gemm("draft.head", rows, vocab, m.hidden, precision.of("head"), count=k),
        ]
        least = target.engine.speculation.draft_pass_s
        return np.where(np.asarray(k) > 0, np.maximum(target.timed(ops).total_s, least), 0.0)

    def prompt_s(self, target: Deployment, group: Sequences) -> Array:
        return 0.0

    def weight_bytes(self, target: Deployment) -> float:
        m, head = target.model, target.precision.of("head")
        rows = padded_vocab(m.vocab, target.plan.tp) / target.plan.tp
        return float(self.heads * (head.bytes(m.hidden, m.hidden) + head.bytes(rows, m.hidden)))

    def caches(self, target: Deployment) -> tuple[CacheKind, ...]:
        return ()


@dataclass(frozen=True)
class PromptLookup:
    """Drafts copied from where the last tokens occurred before (n-gram): nothing runs on the device.

    Source: Saxena 2023 (prompt lookup decoding); vLLM's method "ngram"
    """

    host_s: float = 0.0  # per sequence and cycle: searching the context
    name: str = "ngram"

    def drafting_s(self, target: Deployment, asked: Round) -> Array:
        """Return the seconds of the host's search.

        Formula:  b t_host, where anything is drafted
        Args:     as `Sequential.drafting_s`
        Returns:  [s]
        Assumes:  one sequence after another, nothing else meanwhile
        Error:    docs/speculation.md
        Source:   definition
        """
        sequences = on_rank(Sequences(asked.batch, 1.0), target.plan).count
        return np.where(np.asarray(asked.drafts) > 0, sequences * self.host_s, 0.0)

    def prompt_s(self, target: Deployment, group: Sequences) -> Array:
        return 0.0

    def weight_bytes(self, target: Deployment) -> float:
        return 0.0

    def caches(self, target: Deployment) -> tuple[CacheKind, ...]:
        return ()


KINDS = ("eagle", "eagle-3", "medusa", "mtp", "ngram")
EAGLE3_VOCAB = 32000  # tokens that published EAGLE-3 heads draft from, of vocabularies that are larger


def drafter_named(name: str, target: Deployment, specs: str | Path | None = None) -> Drafter:
    """The drafter of that kind for a target, or the draft model that `name` is.

    Args:     name: one of KINDS, or whatever `load_model` reads; specs: folder with own specs
    Errors:   UnknownNameError with the nearest names; SpecError where the target has no such head
    """
    kinds: dict[str, Callable[[], Drafter]] = {
        "eagle": lambda: eagle(target.model),
        "eagle-3": lambda: eagle3(target.model, vocab=min(EAGLE3_VOCAB, target.model.vocab)),
        "medusa": MedusaHeads,
        "mtp": lambda: mtp(target.model),
        "ngram": PromptLookup,
    }
    if name in kinds:
        return kinds[name]()
    try:
        loaded = load_model(name, specs=specs)
    except UnknownNameError:
        known = [*KINDS, *names("model", specs)]
        hint = f"{', '.join(KINDS)}, or a draft model of 'roofline list models'"
        raise UnknownNameError("drafter", name, known, hint) from None
    return DraftModel(loaded.model, loaded.precision or precision_named(loaded.model.native))


def eagle(target: Model, *, layers: int = 1, layer: Layer | None = None) -> DraftHead:
    """An EAGLE or EAGLE-2 head for `target`: decoder layers like its own behind a 2h x h matrix, its vocabulary.

    Source: Li et al. 2024 (EAGLE, arXiv 2401.15077, section 4.1; EAGLE-2 has the same head, arXiv 2406.16858)
    """
    found = layer or head_layer(target)
    return DraftHead("eagle", _head_model(target, "eagle", found, layers, target.vocab), 2.0, own_head=False)


def eagle3(target: Model, *, vocab: int | None = None, layer: Layer | None = None) -> DraftHead:
    """An EAGLE-3 head for `target`: one layer over features of three depths, with `vocab` tokens to draft from.

    The features are joined by a 3h x h matrix, and query, key and value are made from two rows (feature, embedding).

    Source: Li et al. 2025 (EAGLE-3, arXiv 2503.01840, section 3.1)
    """
    found = layer or head_layer(target)
    a = found.attention
    wider = (a.heads + 2 * a.kv_heads) * a.head_dim / target.hidden  # second row that q, k and v are made from
    model = _head_model(target, "eagle-3", found, 1, vocab or target.vocab)
    return DraftHead("eagle-3", model, 3.0 + wider, own_head=True)


def head_layer(target: Model) -> Layer:
    """The decoder layer that an EAGLE head of `target` has, as far as it can be derived.

    Assumes: softmax attention like the target's last, without window; a dense block as wide as what a token passes in
             the target (a mixture: its active experts together)
    """
    last = target.layer_runs[-1].layer
    if not isinstance(last.attention, GQA):
        raise SpecError(f"{target.name}: an EAGLE head needs a layer with grouped-query attention; give `layer`")
    a = last.attention
    attention = GQA(heads=a.heads, kv_heads=a.kv_heads, head_dim=a.head_dim)
    ffn = last.ffn
    if isinstance(ffn, MoE):
        ffn = Dense(width=ffn.top_k * ffn.width + ffn.shared_width, gated=ffn.gated)
    return Layer(attention=attention, ffn=ffn)


def _head_model(target: Model, name: str, layer: Layer, count: int, vocab: int) -> Model:
    return Model(
        name=f"{target.name}-{name}", hidden=target.hidden, vocab=vocab, tied=True, norm=target.norm,
        layers=[dict(layer) | {"count": count}],
    )  # fmt: skip


def mtp(target: Model, precision: Precision | None = None) -> DraftHead:
    """The multi-token-prediction modules that `target` is published with.

    Source: DeepSeek-V3 report, section 2.2; engines run them one after another, the last again for further drafts
    """
    m = target.mtp
    if m is None:
        raise SpecError(f"{target.name}: the model has no MTP modules")
    layers = [dict(layer) | {"count": 1} for layer in m.layers]
    model = Model(name=f"{target.name}-mtp", hidden=target.hidden, vocab=target.vocab, tied=True, norm=target.norm,
                  layers=layers)  # fmt: skip
    return DraftHead("mtp", model, 2.0 if m.projection else 0.0, m.own_vocab, m.own_vocab, m.count, precision)
