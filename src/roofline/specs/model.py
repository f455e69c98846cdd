"""The schema of a model YAML: what the layers are, and in which order they are stored and executed.

    kinds:  {dense: {attention: {...}, ffn: {...}}, moe: {...}}     layers of a kind are alike
    layers: 3*dense 58*moe                                         groups nest: 10*(5*sliding full) 2*sliding

`layers` may also be a list of layers written out (with `count`), of kinds (`{of: 2*core, loops: 8}`) or both.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import groupby
from typing import Any, Literal, NamedTuple

from pydantic import Field, InstanceOf, model_validator

from roofline.arrays import Array
from roofline.errors import InfeasibleError, InputError
from roofline.layers.ffn.moe import MoE
from roofline.layers.layer import Layer
from roofline.layers.spec import Spec
from roofline.layers.weight import Weight
from roofline.ops import ACTIVATION_BYTES, Elementwise, Gemm, Op
from roofline.parallel import Plan, kv_heads_per_rank, padded_vocab
from roofline.precision import FORMATS, Precision
from roofline.specs.layer_text import MAX_LAYERS, layer_text, parse_layers
from roofline.workload import Sequences

__all__ = ["MTP", "Extra", "Layer", "Model", "Published", "Run", "Vision", "layer_text", "parse_layers", "stage_bounds"]

ActiveConvention = Literal["all", "no_embedding", "no_embedding_no_head"]


class Run(NamedTuple):
    """`count` like layers in a row."""

    layer: Layer
    count: int


class Extra(Spec):
    """A table that belongs to no layer (relative position biases, mixing heads), counted and loaded with the head."""

    name: str
    n: int = Field(ge=1)
    k: int = Field(1, ge=1)
    role: Literal["attention", "ffn", "embed", "norm", "router"] = "norm"


class MTP(Spec):
    """Layers that predict further tokens, stored beside the model and used only to draft."""

    count: int = Field(1, ge=1, description="modules, one per drafted token")
    layers: tuple[InstanceOf[Layer], ...] = Field(min_length=1, description="decoder layers of one module")
    projection: bool = Field(True, description="a matrix joins hidden state and embedding: 2 h^2")
    norms: int = Field(3, ge=0, description="norms of width hidden outside the layers")
    own_vocab: bool = Field(False, description="embedding and head of its own")
    vocab_stored: bool = Field(True, description="false: the checkpoint leaves the copies of embedding and head out")
    extra_params: int = Field(0, ge=0, description="parameters of a module that fit nowhere else")

    def weights(self, hidden: int, vocab: int, norm_params: int) -> list[Weight]:
        """The weights of one module as it runs, with embedding and head where it has its own."""
        w = [w for layer in self.layers for w in layer.weights(hidden, norm_params)]
        w += [Weight("mtp.norms", self.norms * norm_params, role="norm")]
        if self.projection:
            w += [Weight("mtp.projection", hidden, 2 * hidden, "ffn")]
        if self.extra_params:
            w += [Weight("mtp.extra", self.extra_params, role="norm")]
        if self.own_vocab:
            w += [
                Weight("mtp.embedding", vocab, hidden, "embed", cut="n"),
                Weight("mtp.head", vocab, hidden, "head", cut="n"),
            ]
        return w


class Vision(Spec):
    """The vision tower and projector of a multimodal model: loaded, but not executed in the cost model."""

    params: int = Field(ge=1, description="parameters as loaded, on the first pipeline stage")
    cut: bool = Field(True, description="false: every tensor-parallel rank holds all of it (Pixtral's own format)")
    image_tokens: int = Field(0, ge=0, description="tokens of the largest image that the model takes; 0: not known")
    image_values: int = Field(0, ge=0, description="pixel values that the tower gets for that image")
    source: str = ""


class Published(Spec):
    """What the publisher says, to hold the derived counts against."""

    params: int = Field(ge=1)
    note: str = Field("", description="what the published figure contains besides params")
    active_params: int | None = Field(None, ge=1)
    active_convention: ActiveConvention = "all"
    source: str


def _runs(value: Any, kinds: dict[str, Layer]) -> list[Run]:
    """Layers as they are written, as a list of runs."""
    if isinstance(value, str):
        found = []
        for name, count in parse_layers(value):
            if name not in kinds:
                raise ValueError(f"layers: no kind is called '{name}'; kinds: {', '.join(kinds) or 'none'}")
            found += [Run(kinds[name], count)]
        return found
    if not isinstance(value, list | tuple):
        raise ValueError("layers: a text such as '3*dense 58*moe', or a list of layers, is needed")
    return [run for item in value for run in _item(item, kinds)]


def _item(item: Any, kinds: dict[str, Layer]) -> list[Run]:
    if isinstance(item, Run):
        return [item]
    if isinstance(item, Layer):
        return [Run(item, 1)]
    if isinstance(item, str):
        return _runs(item, kinds)
    if not isinstance(item, dict):
        raise ValueError(f"layers: {str(item)[:60]!r} is not a layer")
    if "of" in item:
        changes = {k: v for k, v in item.items() if k != "of"}
        if set(changes) - {"loops", "loop_cache"}:
            raise ValueError("layers: an entry with 'of' takes only loops and loop_cache")
        return [Run(Layer.model_validate(dict(run.layer) | changes), run.count) for run in _runs(item["of"], kinds)]
    count = item.get("count", 1)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_LAYERS:
        raise ValueError(f"layers: count must be a whole number from 1 to {MAX_LAYERS}, not {str(count)[:40]!r}")
    return [Run(Layer.model_validate({k: v for k, v in item.items() if k != "count"}), count)]


class Model(Spec):
    """A model as far as its cost is concerned."""

    name: str
    aliases: tuple[str, ...] = ()
    hidden: int = Field(ge=1)
    vocab: int = Field(ge=1)
    layers: tuple[InstanceOf[Run], ...]
    encoder: tuple[InstanceOf[Run], ...] = Field((), description="layers of an encoder that runs once per prompt")
    tied: bool = Field(False, description="the head is the embedding")
    head_bias: bool = False
    positions: int | None = Field(None, ge=1, description="rows of a learned position table")
    embed_norm: bool = False
    per_layer_vocab: int | None = Field(None, ge=1, description="rows of the per-layer embedding tables (Gemma 4)")
    norm: Literal["rms", "layer", "layer_no_bias"] = "rms"
    extras: tuple[Extra, ...] = ()
    mtp: MTP | None = None
    vision: Vision | None = None
    max_positions: int | None = Field(None, ge=1)
    native: str = Field("bf16", description="precision of the published checkpoint")
    published: Published | None = None
    source: str = ""
    notes: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        kinds = data.pop("kinds", None) or {}
        if not isinstance(kinds, dict):
            raise ValueError("kinds: a mapping of names to layers is needed")
        kinds = {str(name): k if isinstance(k, Layer) else Layer.model_validate(k) for name, k in kinds.items()}
        for field in ("layers", "encoder"):
            if field in data:
                data[field] = tuple(_runs(data[field], kinds))
        mtp = data.get("mtp")
        if isinstance(mtp, dict) and "layers" in mtp:
            data["mtp"] = mtp | {"layers": tuple(r.layer for r in _runs(mtp["layers"], kinds) for _ in range(r.count))}
        return data

    @model_validator(mode="after")
    def _consistent(self):
        if not self.layers:
            raise ValueError("layers: at least one is needed")
        if bool(self.per_layer_vocab) != any(r.layer.per_layer_input for r in self.layers):
            raise ValueError("per_layer_vocab goes with layers that have per_layer_input")
        return self

    @property
    def norm_params(self) -> int:
        """Parameters of one norm: LayerNorm has a bias."""
        return self.hidden * (2 if self.norm == "layer" else 1)

    @cached_property
    def layer_runs(self) -> tuple[Run, ...]:
        """Stored layers in order, like ones in a row joined; `run.layer.loops` says how often each is executed."""
        return tuple(
            Run(layer, sum(r.count for r in runs)) for layer, runs in groupby(self.layers, key=lambda r: r.layer)
        )

    def has_attention(self, kind: str) -> bool:
        """Whether any layer has that kind of attention."""
        return any(getattr(run.layer.attention, "kind", "") == kind for run in self.layer_runs)

    @property
    def is_mixture(self) -> bool:
        """Whether any layer routes tokens to experts."""
        return any(isinstance(run.layer.ffn, MoE) for run in self.layer_runs)

    @property
    def stored_layers(self) -> int:
        """Decoder layers whose weights are stored."""
        return sum(run.count for run in self.layers)

    @property
    def executed_layers(self) -> int:
        """Decoder layers that a token passes: a looped layer counts once per loop."""
        return sum(run.count * run.layer.loops for run in self.layers)

    # What is stored.

    def _first(self, vocab: int) -> list[Weight]:
        """Weights that go with the first layer; `vocab` rows as they are stored or padded."""
        h = self.hidden
        w = [Weight("embedding", vocab, h, "embed", cut="n")]
        if self.positions:
            w += [Weight("positions", self.positions, h, "embed")]
        if self.embed_norm:
            w += [Weight("embed_norm", self.norm_params, role="norm")]
        if self.per_layer_vocab:
            wide = sum(run.count * (run.layer.per_layer_input or 0) for run in self.layers)
            p = max(run.layer.per_layer_input or 0 for run in self.layers)
            w += [
                Weight("per_layer.embedding", self.per_layer_vocab, wide, "embed", cut="n"),
                Weight("per_layer.projection", wide, h, "ffn"),
                Weight("per_layer.projection_norm", p, role="norm"),
            ]
        return w

    def _last(self, vocab: int) -> list[Weight]:
        """Weights that go with the last layer, the head where it is a matrix of its own included."""
        w = [Weight("final_norm", self.norm_params, role="norm")]
        w += [] if self.tied else [Weight("head", vocab, self.hidden, "head", cut="n")]
        w += [Weight("head_bias", vocab, role="head", cut="n")] if self.head_bias else []
        return w + [Weight(e.name, e.n, e.k, e.role) for e in self.extras]

    def _layer_weights(self, runs: tuple[Run, ...]) -> list[tuple[Weight, int]]:
        return [(w, r.count) for r in runs for w in r.layer.weights(self.hidden, self.norm_params)]

    def _encoder_weights(self) -> list[tuple[Weight, int]]:
        norm = [(Weight("encoder.final_norm", self.norm_params, role="norm"), 1)] if self.encoder else []
        return self._layer_weights(self.encoder) + norm

    @cached_property
    def _stored(self) -> list[tuple[Weight, int]]:
        ends = [(w, 1) for w in self._first(self.vocab) + self._last(self.vocab)]
        return ends + self._encoder_weights() + self._layer_weights(self.layer_runs)

    @cached_property
    def params(self) -> int:
        """Parameters as stored: embedding, layers, norms, head unless tied; without MTP modules."""
        return sum(count * w.params for w, count in self._stored)

    @property
    def params_embedding(self) -> int:
        """Parameters of the input embedding table."""
        return self.vocab * self.hidden

    @property
    def params_head(self) -> int:
        """Parameters of the head matrix; 0 where it is the embedding."""
        return 0 if self.tied else self.vocab * self.hidden

    def active_params(self, convention: ActiveConvention = "all") -> int:
        """Parameters that one token uses.

        Vendors count differently: `all`; `no_embedding` leaves the input table out (a tied table stays: it is the
        head); `no_embedding_no_head` leaves both out.
        """
        active = sum(count * w.active_params for w, count in self._stored)
        untied = 0 if self.tied else self.params_embedding
        try:
            left_out = {
                "all": 0,
                "no_embedding": untied,
                "no_embedding_no_head": self.params_embedding + self.params_head,
            }
            return round(active - left_out[convention])
        except KeyError:
            raise InputError(
                f"convention: '{convention}' is not one of all, no_embedding, no_embedding_no_head"
            ) from None

    @property
    def params_mtp(self) -> int:
        """Parameters of all MTP modules as they run, an embedding and head of their own included."""
        if not self.mtp:
            return 0
        return self.mtp.count * sum(w.params for w in self.mtp.weights(self.hidden, self.vocab, self.norm_params))

    @property
    def params_mtp_stored(self) -> int:
        """The same as the checkpoint has them: GLM-4.6 and GLM-5 leave the copies of embedding and head out."""
        if not self.mtp or not self.mtp.own_vocab or self.mtp.vocab_stored:
            return self.params_mtp
        return self.params_mtp - self.mtp.count * 2 * self.params_embedding

    def entry_ops(self, tokens: Array, plan: Plan, precision: Precision) -> list[Op]:
        """What a step does before the first layer: the embedding look-up, and making the per-layer inputs (Gemma 4)."""
        row = ACTIVATION_BYTES * tokens
        out: list[Op] = [Elementwise("embed", 2.0 * self.hidden * row)]
        if self.embed_norm:
            out += [Elementwise("embed.norm", 2.0 * self.hidden * row)]
        if self.per_layer_vocab:
            wide = sum(run.count * (run.layer.per_layer_input or 0) for run in self.layers)
            out += [
                Gemm("per_layer.projection", tokens, wide, self.hidden, precision.of("ffn")),
                Elementwise("per_layer.inputs", 4.0 * wide * row),  # look-up, norm of the projection, their sum
            ]
        return out

    def encoder_ops(self, groups: tuple[Sequences, ...], plan: Plan, precision: Precision) -> list[Op]:
        """The pass over new prompts that precedes the first token of an encoder-decoder.

        The encoder layers, and the keys and values of every cross-attention, which are made here and then cached.
        """
        tokens = sum(g.tokens for g in groups)
        out = [
            replace(op, count=op.count * count)
            for layer, count in self.encoder
            for op in layer.ops(self.hidden, groups, plan, precision)
        ]
        for layer, count in self.stage_runs():
            if layer.cross and self.encoder:
                a = layer.cross
                columns = kv_heads_per_rank(a.kv_heads, plan.tp) * (a.head_dim + a.value_dim)
                out += [Gemm("cross.kv", tokens, columns, self.hidden, precision.of("attention"), count=count)]
        return out

    # What is where.

    def stage_layers(self, plan: Plan, stage: int | None = None) -> tuple[tuple[Layer, int], ...]:
        """Layers of one pipeline stage (None: of all) and how often a step EXECUTES each kind, like ones joined."""
        return tuple((r.layer, r.count * r.layer.loops) for r in self.stage_runs(plan.pp, stage))

    @cached_property
    def _stages(self) -> dict[tuple[int, int | None], tuple[Run, ...]]:
        return {}  # what `stage_runs` has found

    def stage_runs(self, pp: int = 1, stage: int | None = None) -> tuple[Run, ...]:
        """Kinds of layer that one stage (None: all) STORES, with their counts, in order of first appearance."""
        if (pp, stage) not in self._stages:
            start, end = (0, self.stored_layers) if stage is None else stage_bounds(self.stored_layers, pp, stage)
            counts: dict[Layer, int] = {}
            at = 0
            for layer, count in self.layer_runs:
                inside = min(at + count, end) - max(at, start)
                if inside > 0:
                    counts[layer] = counts.get(layer, 0) + inside
                at += count
            self._stages[pp, stage] = tuple(Run(layer, n) for layer, n in counts.items())
        return self._stages[pp, stage]

    def weights_of_stage(self, plan: Plan, stage: int | None = None) -> list[tuple[Weight, int]]:
        """Weights that a rank of one stage (None: all stages) loads, with their counts; MTP modules are not loaded.

        The vocabulary is padded as engines pad it. The first stage has the embedding (and an encoder), the last the
        final norm and the head; a tied head is stored again where that is another stage.
        """
        layers = self._layer_weights(self.stage_runs(plan.pp, stage))
        return self.weights_around_layers(plan, stage) + layers

    def weights_around_layers(self, plan: Plan, stage: int | None = None) -> list[tuple[Weight, int]]:
        """Those of `weights_of_stage` that belong to no decoder layer: embedding, encoder, final norm, head."""
        vocab = padded_vocab(self.vocab, plan.tp)
        first, last = stage in (None, 0), stage in (None, plan.pp - 1)
        out: list[tuple[Weight, int]] = []
        if first:
            out += [(w, 1) for w in self._first(vocab)] + self._encoder_weights()
        if last:
            out += [(w, 1) for w in self._last(vocab)]
            if self.tied and plan.pp > 1:
                out += [(Weight("head", vocab, self.hidden, "head", cut="n"), 1)]
        return out

    def weight_bytes(self, plan: Plan, precision: Precision, stage: int | None = None) -> Array:
        """Bytes of the weights of `weights_of_stage` on one rank."""
        return sum(count * w.bytes_per_rank(plan, precision) for w, count in self.weights_of_stage(plan, stage))

    def kv_bytes_per_sequence(
        self,
        tokens: Array,
        plan: Plan | None = None,
        precision: Precision | None = None,
        stage: int | None = None,
        encoder_tokens: Array = 0.0,
    ) -> Array:
        """Bytes that one sequence of `tokens` keeps on one rank of a stage (None: on one rank of every stage together).

        Recurrent state counts in full from the first token on; windowed layers hold at most their window.
        """
        plan, precision = plan or Plan(), precision or BF16
        held = 0.0 * tokens
        for layer, count in self.stage_runs(plan.pp, stage):
            held = held + count * layer.cache_bytes(tokens, plan, precision, encoder_tokens)
        return held

    def kv_bytes_per_token(
        self, plan: Plan | None = None, precision: Precision | None = None, stage: int | None = None
    ) -> float:
        """Bytes by which the cache of a long sequence grows with each token: full windows and states do not count."""
        long = 2.0**30
        twice, once = (self.kv_bytes_per_sequence(n * long, plan, precision, stage) for n in (2.0, 1.0))
        return float(twice - once) / long


BF16 = Precision("bf16", default=FORMATS["bf16"], kv=FORMATS["bf16"])


def stage_bounds(layers: int, pp: int, stage: int) -> tuple[int, int]:
    """First layer of a pipeline stage and the one after its last.

    Every stage gets layers // pp; of what is left, one each goes to the stages before the last, from the back.

    Source: vLLM get_pp_indices (vllm/distributed/utils.py)

    >>> [stage_bounds(61, 4, s) for s in range(4)], stage_bounds(32, 4, 3)
    ([(0, 15), (15, 30), (30, 46), (46, 61)], (24, 32))
    """
    if not 0 <= stage < pp:
        raise InputError(f"stage: {stage} is not one of 0 to {pp - 1}")
    if pp > layers:
        raise InfeasibleError(f"pp: {pp} stages, but only {layers} layers")
    each, left = divmod(layers, pp)
    sizes = [each + (1 if pp - 1 - left <= i < pp - 1 else 0) for i in range(pp)]
    return sum(sizes[:stage]), sum(sizes[: stage + 1])
