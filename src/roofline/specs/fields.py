"""The words of `config.json`: one table of spellings, and a reader that checks what it hands out.

A concept is asked for once (`fields.count("experts")`), never by one spelling. The reader remembers what was
asked, so that a structural field which nobody read is refused and not passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from roofline.errors import SpecError, UnsupportedError

# concept -> spellings in published configs; the first one present counts, and two that disagree are refused
FIELD_NAMES: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "d_model", "n_embd", "n_embed"),
    "vocab": ("vocab_size",),
    "heads": ("num_attention_heads", "n_heads", "n_head", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_kv_heads"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "width": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"),
    "max_positions": ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "model_max_length"),
    "tied": ("tie_word_embeddings",),
    "dtype": ("torch_dtype", "dtype"),
    "window": ("sliding_window", "sliding_window_size"),
    "experts": ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"),
    "top_k": ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts", "moe_top_k"),
    "expert_width": ("moe_intermediate_size", "expert_intermediate_size"),
    "shared_experts": ("n_shared_experts", "num_shared_experts"),
    "shared_width": (
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
        "share_expert_dim",
    ),
    "first_dense": ("first_k_dense_replace",),
    "mtp_layers": ("num_nextn_predict_layers", "mtp_num_hidden_layers"),
    "q_rank": ("q_lora_rank",),
    "kv_rank": ("kv_lora_rank",),
    "nope_dim": ("qk_nope_head_dim",),
    "rope_dim": ("qk_rope_head_dim",),
    "v_dim": ("v_head_dim",),
    "index_heads": ("index_n_heads",),
    "index_dim": ("index_head_dim",),
    "index_top_k": ("index_topk",),
    "state": ("ssm_state_size", "state_size", "mamba_d_state"),
    "conv": ("conv_kernel", "mamba_d_conv", "linear_conv_kernel_dim", "short_conv_kernel_size"),
    "groups": ("n_groups", "mamba_n_groups"),
    "ssm_heads": ("mamba_num_heads", "mamba_n_heads"),
    "ssm_head_dim": ("mamba_head_dim", "mamba_d_head"),
    "dt_rank": ("time_step_rank", "mamba_dt_rank"),
    "expand": ("expand", "mamba_expand"),
}
LARGEST = {"layers": 4096, "vocab": 100_000_000} | dict.fromkeys(FIELD_NAMES["max_positions"], 10**12)
_ABSURD = 10_000_000  # for every other count

# Fields with such words change the architecture; one that is set and that no reader asked for is not modelled.
_STRUCTURAL = re.compile(
    r"expert|moe|sliding|window|lora_rank|loop|recur|recurrent|compress|latent|index_|linear_|mamba|ssm|state_size|"
    r"layer_types|layers_block_type|block_type|_pattern|interval|layer_freq|layer_step|_period|kv_shared|cla_|yoco|"
    r"chunk_size|hyper|engram|ngram|per_layer|altup|laurel|cross_attention|is_encoder_decoder|num_decoder_layers|"
    r"residual_rank|block_configs|num_nextn|mtp|d_inner|conv_kernel|attn_config|ffn_config|share|ut_steps|iteration|depth"
)
_HARMLESS = re.compile(
    r"loss|_coef|jitter|dropout|router_logits|norm_topk|topk_method|_scal|scoring|activation|_eps|theta|rope|token|"
    r"_dtype$|chunk_size$|_dropped$|overlap|max_window_layers|_id$|renormalize|expert_group|n_group|topk_group|"
    r"use_mamba_kernels|cache_implementation|attention_dropout|sinkhorn|share_for_mtp|output_|_type$|_act$|a2a|"
    r"window_size_fallback|mrope|vision"
)
# Of an architecture that is not known, these may stand beside the fields of a plain decoder; other numbers may not.
_PLAIN = re.compile(
    r"token_id|token_index|_scal|theta|rope|rotary|original_max|pretraining_tp|_range$|eps$|version|_id$|seed"
)
_PLAIN_FLAGS = re.compile(r"qk_norm|gate|parallel|bias|residual|alibi")


class Fields:
    """A config with checked access by concept. `where` names the config in messages."""

    def __init__(self, data: dict[str, Any], where: str, outer: dict[str, Any] | None = None):
        self.data, self.where, self.outer = data, where, outer or {}
        self.read: set[str] = set()

    def has(self, concept: str) -> bool:
        """Whether a field of that concept is present and not null."""
        return self.raw(concept) is not None

    def raw(self, concept: str) -> Any:
        """The value as written, or None; `concept` may be a bare field name."""
        found: dict[str, Any] = {}
        names = FIELD_NAMES.get(concept, (concept,))
        for name in names:
            self.read.add(name)
            if self.data.get(name) is not None:
                found[name] = self.data[name]
        values = list(found.values())
        if any(v != values[0] for v in values[1:]):
            said = " and ".join(f"{name} {_short(value)}" for name, value in found.items())
            raise SpecError(f"{self.where}: {said} contradict each other")
        return values[0] if values else None

    def count(self, concept: str, default: int | None = None, low: int = 1) -> int:
        """A whole number of at least `low`; without a default the field must be there."""
        value = self.raw(concept)
        if value is None:
            if default is None:
                raise self.missing([concept])
            return default
        return self._whole(self.spelling(concept), value, low, LARGEST.get(concept, _ABSURD))

    def flag(self, name: str, default: bool = False) -> bool:
        """A true or false field."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool) and value not in (0, 1):
            raise SpecError(f"{self.where}: {self.spelling(name)} is {_short(value)}; allowed: true or false")
        return bool(value)

    def text(self, name: str, default: str = "") -> str:
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise SpecError(f"{self.where}: {self.spelling(name)} is {_short(value)}; it must be text")
        return value

    def items(self, name: str, length: int | None = None) -> list[Any]:
        """A list, of `length` values if given; empty where the field is absent."""
        value = self.raw(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise SpecError(f"{self.where}: {self.spelling(name)} is {_short(value)}; it must be a list")
        if length is not None and len(value) != length:
            raise SpecError(f"{self.where}: {self.spelling(name)} has {len(value)} values for {length} layers")
        return value

    def whole_items(self, name: str, length: int | None = None, low: int = 0) -> list[int]:
        """A list of whole numbers."""
        return [self._whole(f"{name}[{i}]", v, low, _ABSURD) for i, v in enumerate(self.items(name, length))]

    def inner(self, name: str) -> Fields:
        """The fields of a nested object (an empty one where it is absent)."""
        value = self.raw(name)
        if value is not None and not isinstance(value, dict):
            raise SpecError(f"{self.where}: {name} is {_short(value)}; it must be an object")
        return Fields(value or {}, f"{self.where}: {name}")

    def require(self, concepts: Iterable[str]) -> None:
        """Raise one error that names every missing field of `concepts`."""
        absent = [c for c in concepts if not self.has(c)]
        if absent:
            raise self.missing(absent)

    def missing(self, concepts: Iterable[str]) -> SpecError:
        names = [" or ".join(FIELD_NAMES.get(c, (c,))[:2]) for c in concepts]
        return SpecError(f"{self.where}: missing {', '.join(names)}")

    def spelling(self, concept: str) -> str:
        """How this config spells the concept."""
        return next((n for n in FIELD_NAMES.get(concept, (concept,)) if self.data.get(n) is not None), concept)

    def skip(self, *names: str) -> None:
        """Declare fields as known and of no consequence."""
        self.read.update(names)

    def refuse_unread(self, family: str, known: bool = True) -> None:
        """Raise UnsupportedError if a field is set that nobody asked for: a structural one, or, where the architecture
        is not known, any number above 1, list of numbers or flag that could mean structure."""
        unread = {k: v for k, v in self.data.items() if k not in self.read and v not in (None, False, 0, "", [], {})}
        odd = [
            f"{name} {_short(value)}"
            for name, value in unread.items()
            if (_STRUCTURAL.search(name) and not _HARMLESS.search(name)) or (not known and _telling(name, value))
        ]
        if odd:
            raise UnsupportedError(f"{self.where}: not modelled for model_type '{family}': {', '.join(odd[:6])}")

    def _whole(self, name: str, value: Any, low: int, high: int) -> int:
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole or not low <= value <= high:
            raise SpecError(f"{self.where}: {name} is {_short(value)}; allowed: whole numbers from {low} to {high}")
        return int(value)


def _telling(name: str, value: Any) -> bool:
    """Whether a field of an unknown architecture may mean more than a plain decoder has."""
    if isinstance(value, bool):
        return bool(_PLAIN_FLAGS.search(name))
    numbers = value if isinstance(value, list) else [value]
    counts = any(isinstance(n, int) and not isinstance(n, bool) and n > 1 for n in numbers)
    return counts and not _PLAIN.search(name)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
