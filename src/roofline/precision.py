"""Number formats with their scales, and which part of a model is kept in which format.

A `Format` says how many bytes a matrix takes and what arithmetic it is made for. A `Precision` says which format each
role of weight has (real checkpoints keep embeddings, head, router and norms wide), and the format of the KV cache.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from roofline.arrays import Array
from roofline.errors import InputError, UnknownNameError

ROLES = ("attention", "ffn", "expert", "shared", "router", "embed", "head", "norm")


@dataclass(frozen=True, slots=True)
class Format:
    """A storage format: bits of an element, and of the scale and zero point that a block of elements shares.

    `scale_block` is (output rows, input columns) that share one scale; 0 means the whole extent of that side.
    `matmul` names the arithmetic that the format is made for where the hardware has it; `act_bits` is what a matmul
    with such weights reads per activation element (16: weight-only).
    """

    name: str
    bits: float
    matmul: str
    act_bits: float = 16.0
    scale_bits: float = 0.0
    scale_block: tuple[int, int] = (0, 0)
    zero_bits: float = 0.0
    note: str = ""

    def bytes(self, n: Array, k: Array, copies: Array = 1.0) -> Array:
        """Bytes of `copies` matrices of n output rows by k input columns, scales and zero points included.

        Formula:  copies (n k bits + ceil(n/bn) ceil(k/bk) (scale_bits + zero_bits)) / 8
        Source:   the layouts that checkpoints use: OCP MX v1.0 (block 32, 8-bit scale), NVFP4 (block 16, 8-bit
                  scale), DeepSeek-V3 section 3.3 (128x128), AWQ/GPTQ g128 (16-bit scale, 4-bit zero)

        >>> float(FORMATS["nvfp4"].bytes(1, 16) * 8 / 16), float(FORMATS["mxfp4"].bytes(1, 32) * 8 / 32)
        (4.5, 4.25)
        """
        blocks = 0.0
        if self.scale_bits or self.zero_bits:
            rows, columns = self.scale_block
            blocks = (np.ceil(n / rows) if rows else 1.0) * (np.ceil(k / columns) if columns else 1.0)
        return copies * (n * k * self.bits + blocks * (self.scale_bits + self.zero_bits)) / 8.0

    @property
    def element_bytes(self) -> float:
        """Mean bytes of an element in a large matrix (block scales included, row and tensor scales not)."""
        rows, columns = self.scale_block
        per_block = (self.scale_bits + self.zero_bits) / (max(rows, 1) * columns) if columns else 0.0
        return (self.bits + per_block) / 8.0


def _formats(*formats: Format) -> dict[str, Format]:
    return {f.name: f for f in formats}


# GGUF block sizes: llama.cpp ggml-common.h (bytes of a block over its elements); the K-quant mixtures are per-tensor
# recipes, so only their parts are formats here and the mixture is a Precision.
FORMATS: Mapping[str, Format] = _formats(
    Format("fp32", 32, "fp32", 32),
    Format("bf16", 16, "bf16"),
    Format("fp16", 16, "fp16"),
    Format("fp8", 8, "fp8", 8, 32, (0, 0), note="e4m3, one scale per tensor"),
    Format("fp8_channel", 8, "fp8", 8, 32, (1, 0), note="e4m3, one scale per output channel, per-token activations"),
    Format("fp8_block", 8, "fp8", 8, 32, (128, 128), note="e4m3, 128x128 weight blocks, 1x128 activation groups"),
    Format("mxfp8", 8, "fp8", 8.25, 8, (1, 32), note="OCP MX, 32 elements share an e8m0 scale"),
    Format("int8", 8, "int8", 8, 32, (1, 0), note="one scale per output channel, int8 activations"),
    Format("w8a16", 8, "bf16", 16, 16, (1, 0), note="weight-only int8"),
    Format("int4_awq", 4, "bf16", 16, 16, (1, 128), 4, "weight-only, groups of 128, 4-bit zero point"),
    Format("int4_gptq", 4, "bf16", 16, 16, (1, 128), 4, "weight-only, groups of 128, 4-bit zero point"),
    Format("int4_g32", 4, "bf16", 16, 16, (1, 32), 0, "weight-only, symmetric, groups of 32"),
    Format("nvfp4", 4, "fp4", 4.5, 8, (1, 16), note="16 elements share an e4m3 scale"),
    Format("mxfp4", 4, "bf16", 16, 8, (1, 32), note="32 elements share an e8m0 scale, 16-bit activations"),
    Format("mxfp4_mxfp8", 4, "fp8", 8.25, 8, (1, 32), note="MXFP4 weights, MXFP8 activations"),
    Format("mxfp4_w4a4", 4, "fp4", 4.25, 8, (1, 32), note="MXFP4 weights and activations"),
    Format("nvfp4_w4a16", 4, "bf16", 16, 8, (1, 16), note="NVFP4 weights, 16-bit activations"),
    Format("nf4", 4, "bf16", 16, 32, (1, 64), note="bitsandbytes 4 bit, one fp32 absmax per 64"),
    Format("nf4_double", 4, "bf16", 16, 8.125, (1, 64), note="the absmax itself in 8 bits, one fp32 per 256 of them"),
    Format("q8_0", 8, "fp16", 16, 16, (1, 32), note="GGUF"),
    Format("q6_k", 6.5625, "fp16", note="GGUF, 210 B per 256"),
    Format("q5_k", 5.5, "fp16", note="GGUF, 176 B per 256"),
    Format("q4_k", 4.5, "fp16", note="GGUF, 144 B per 256"),
    Format("q3_k", 3.4375, "fp16", note="GGUF, 110 B per 256"),
    Format("q2_k", 2.625, "fp16", note="GGUF, 84 B per 256"),
    Format("q5_1", 6, "fp16", note="GGUF, 24 B per 32"),
    Format("q5_0", 5.5, "fp16", note="GGUF, 22 B per 32"),
    Format("q4_1", 5, "fp16", note="GGUF, 20 B per 32"),
    Format("q4_0", 4.5, "fp16", note="GGUF, 18 B per 32"),
    Format("iq4_nl", 4.5, "fp16", note="GGUF, 18 B per 32"),
    Format("iq4_xs", 4.25, "fp16", note="GGUF, 136 B per 256"),
    Format("iq3_s", 3.4375, "fp16", note="GGUF, 110 B per 256"),
    Format("iq3_xxs", 3.0625, "fp16", note="GGUF, 98 B per 256"),
    Format("iq2_s", 2.5625, "fp16", note="GGUF, 82 B per 256"),
    Format("iq2_xs", 2.3125, "fp16", note="GGUF, 74 B per 256"),
    Format("iq2_xxs", 2.0625, "fp16", note="GGUF, 66 B per 256"),
    Format("iq1_m", 1.75, "fp16", note="GGUF, 56 B per 256"),
    Format("iq1_s", 1.5625, "fp16", note="GGUF, 50 B per 256"),
    Format("tq2_0", 2.0625, "fp16", note="GGUF, ternary, 66 B per 256"),
    Format("tq1_0", 1.6875, "fp16", note="GGUF, ternary, 54 B per 256"),
    Format("fp8_ds_mla", 8, "fp8", 8, note="latent cache: 512 e4m3 + 4 fp32 scales + 64 bf16 = 656 B a token"),
)

_ALIASES = {
    "float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "f16": "fp16", "f32": "fp32",
    "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "float8": "fp8", "e4m3": "fp8", "w8a8_int8": "int8", "w8a8": "int8",
    "awq": "int4_awq", "gptq": "int4_gptq", "int4": "int4_awq", "w4a16": "int4_awq", "fp4": "nvfp4",
    "w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4_mxfp8",
}  # fmt: skip


def format_named(name: str | Format) -> Format:
    """The storage format of that name (case, '-' and '_' do not matter).

    Beside the names of `FORMATS`: `int4_g64` is symmetric weight-only with groups of 64, `int4_g64z` has zero points
    (2, 3, 4, 5, 6 or 8 bits); `0.9*q4_k+0.1*q6_k` is a mean over parts of a role.

    >>> format_named("BF16").bits, format_named("int8_g128").element_bytes, format_named("0.5*fp8+0.5*bf16").bits
    (16, 1.015625, 12.0)
    """
    if isinstance(name, Format):
        return name
    key = _key(name)
    if key in FORMATS:
        return FORMATS[key]
    if grouped := re.fullmatch(r"int([234568])_g([1-9]\d{0,4})(z?)", key):
        bits, group, zero = int(grouped[1]), int(grouped[2]), grouped[3]
        return Format(key, bits, "bf16", 16, 16, (1, group), bits if zero else 0, "weight-only")
    if "*" in key:
        return mixture({format_named(f): share for f, share in map(_share, key.split("+"))})
    raise UnknownNameError("number format", str(name)[:80], [*FORMATS, *_ALIASES], "see 'roofline list formats'")


def _key(name: object) -> str:
    key = str(name).strip().lower().replace("-", "_")
    return _ALIASES.get(key, key)


def _share(part: str) -> tuple[str, float]:
    number, _, name = part.partition("*")
    try:
        share = float(number)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise InputError(f"'{part}' is not a share of a format; write e.g. 0.5*q4_k+0.5*q6_k")
    return name.strip(), share


def mixture(shares: Mapping[Format, float]) -> Format:
    """The mean of formats that different tensors of one role have; `shares` are parts of its parameters.

    Formula:  bits = sum of share x mean bits; the arithmetic is that of the largest share
    Args:     shares [-], any positive scale
    Source:   derivation: bytes are linear in the shares. Assumes large matrices (per-row scales are left out)

    >>> mixture({FORMATS["q4_k"]: 3, FORMATS["q6_k"]: 1}).name
    '0.75*q4_k+0.25*q6_k'
    """
    total = sum(shares.values())
    parts = sorted(((round(s / total, 4), f) for f, s in shares.items()), key=lambda p: (-p[0], p[1].name))
    parts = [(s, f) for s, f in parts if s > 0]
    main = parts[0][1]
    if len(parts) == 1:
        return main
    bits = 8.0 * sum(s * f.element_bytes for s, f in parts) / sum(s for s, _ in parts)
    return Format("+".join(f"{s:g}*{f.name}" for s, f in parts), bits, main.matmul, main.act_bits, note="a mean")


@dataclass(frozen=True, slots=True)
class Precision:
    """Which format each role of weight is stored in, and the KV cache. Activations are 16 bits wide between ops."""

    name: str
    weights: Mapping[str, Format] = field(default_factory=dict)
    default: Format = FORMATS["bf16"]
    kv: Format = FORMATS["bf16"]
    static_activation_scales: bool = False  # calibrated per-tensor fp8: the quantiser is fused into the op before

    def of(self, role: str) -> Format:
        """The format of a role's weights."""
        if role not in ROLES:
            raise InputError(f"role: '{role}' is not one of {', '.join(ROLES)}")
        return self.weights.get(role, self.default)

    def with_kv(self, kv: str | Format | None) -> Precision:
        """The same weights with another KV format (`None` or 'auto': as it is)."""
        return self if kv in (None, "auto") else replace(self, kv=format_named(kv))

    @property
    def text(self) -> str:
        """A name that `precision_named` turns back into this: one of `PRECISIONS`, or every role spelled out."""
        return ",".join(min((self._over(base) for base in PRECISIONS.values()), key=len))

    def _over(self, base: Precision) -> list[str]:
        """This as `base` and what differs from it; a flag that only `base` has cannot be taken back."""
        items = [f"{r}={self.of(r).name}" for r in ROLES if self.of(r) != base.of(r)]
        items += [f"kv={self.kv.name}"] if self.kv != base.kv else []
        if base.static_activation_scales and not self.static_activation_scales:
            items += ["?"] * len(ROLES) * 2
        elif self.static_activation_scales and not base.static_activation_scales:
            items += ["static"]
        return [base.name, *items]


def _only(name: str, fmt: str, roles: tuple[str, ...], rest: str = "bf16", **more) -> Precision:
    return Precision(name, {r: FORMATS[fmt] for r in roles}, FORMATS[rest], **more)


def _gguf(name: str, base: str, attention: str = "", ffn: str = "", embed: str = "", head: str = "q6_k") -> Precision:
    """A llama.cpp file type: `base` everywhere, norms and router fp32, and the means that its recipe comes to."""
    ffn = ffn or base
    roles = {
        "attention": attention or base, "ffn": ffn, "expert": ffn, "shared": ffn,
        "embed": embed or base, "head": head, "router": "fp32", "norm": "fp32",
    }  # fmt: skip
    formats = {r: format_named(f) for r, f in roles.items()}
    return Precision(name, formats, FORMATS[base], FORMATS["fp16"])


_LINEAR = ("attention", "ffn", "expert", "shared")
PRECISIONS: Mapping[str, Precision] = {
    "fp32": Precision("fp32", default=FORMATS["fp32"], kv=FORMATS["fp32"]),
    "bf16": Precision("bf16"),
    "fp16": Precision("fp16", default=FORMATS["fp16"], kv=FORMATS["fp16"]),
    **{
        name: _only(name, name, _LINEAR)
        for name in ("fp8", "fp8_channel", "fp8_block", "mxfp8", "int8", "w8a16", "int4_awq", "int4_gptq", "int4_g32")
    },
    "fp8_static": _only("fp8_static", "fp8", _LINEAR, static_activation_scales=True),
    # NVFP4 and 4-bit MoE checkpoints as published keep attention wide; dense ones quantise every linear layer.
    "nvfp4": _only("nvfp4", "nvfp4", _LINEAR),
    "nvfp4_mlp": _only("nvfp4_mlp", "nvfp4", ("ffn", "expert", "shared")),
    "nvfp4_experts": _only("nvfp4_experts", "nvfp4", ("expert",)),
    "int4_experts": _only("int4_experts", "int4_g32", ("expert",)),
    "mxfp4_experts": _only("mxfp4_experts", "mxfp4", ("expert",)),
    "mxfp4": _only("mxfp4", "mxfp4", _LINEAR),
    # llama.cpp recipes (src/llama-quant.cpp) as means over a role. V is a tenth of the attention weights where four
    # queries share a key, V and O together are half of them; down is a third of a gated block; "more bits" is half of
    # the layers (the first and last eighth, and every third between). No importance matrix. Against the sizes that
    # llama-quantize prints (tests/test_precision.py): within 0.05 % for Llama-3.1-8B, 1 % for Llama-2.
    "q2_k": _gguf("q2_k", "q2_k", "0.5*q2_k+0.4*q3_k+0.1*q4_k", "0.6667*q2_k+0.3333*q3_k"),
    "q3_k_s": _gguf("q3_k_s", "q3_k"),
    "q3_k_m": _gguf("q3_k_m", "q3_k", "0.5*q3_k+0.5*q4_k", "0.6667*q3_k+0.3125*q4_k+0.0208*q5_k"),
    "q3_k_l": _gguf("q3_k_l", "q3_k", "0.5*q3_k+0.5*q5_k", "0.6667*q3_k+0.3333*q5_k"),
    "q4_0": _gguf("q4_0", "q4_0"),
    "q4_1": _gguf("q4_1", "q4_1"),
    "q4_k_s": _gguf("q4_k_s", "q4_k", "0.99*q4_k+0.01*q5_k", "0.9583*q4_k+0.0417*q5_k"),
    "q4_k_m": _gguf("q4_k_m", "q4_k", "0.95*q4_k+0.05*q6_k", "0.8333*q4_k+0.1667*q6_k"),
    "q5_0": _gguf("q5_0", "q5_0"),
    "q5_1": _gguf("q5_1", "q5_1"),
    "q5_k_s": _gguf("q5_k_s", "q5_k"),
    "q5_k_m": _gguf("q5_k_m", "q5_k", "0.95*q5_k+0.05*q6_k", "0.8333*q5_k+0.1667*q6_k"),
    "q6_k": _gguf("q6_k", "q6_k"),
    "q8_0": _gguf("q8_0", "q8_0", head="q8_0"),
    "iq4_xs": _gguf("iq4_xs", "iq4_xs", "0.9*iq4_xs+0.1*q5_k", "0.9583*iq4_xs+0.0417*q5_k"),
    "iq4_nl": _gguf("iq4_nl", "iq4_nl", "0.9*iq4_nl+0.1*q5_k", "0.9583*iq4_nl+0.0417*q5_k"),
    "iq3_m": _gguf("iq3_m", "iq3_s", "0.5*iq3_s+0.5*q4_k", "0.9583*iq3_s+0.0417*q4_k"),
    "iq3_s": _gguf("iq3_s", "iq3_s", "0.9*iq3_s+0.1*q4_k"),
    "iq3_xxs": _gguf("iq3_xxs", "iq3_xxs", "0.5*iq2_s+0.4*iq3_s+0.1*q4_k", embed="iq3_s", head="q5_k"),
}
_RECIPE_ALIASES = {"q4_k": "q4_k_m", "q5_k": "q5_k_m", "q3_k": "q3_k_m"}  # as llama-quantize reads them


def precision_named(weights: str | Precision, kv: str | Format | None = None) -> Precision:
    """The precision of that name, with another KV format if one is given.

    A bare format name serves all linear layers and leaves embedding, head and router 16 bits wide. After a comma single
    roles may be named: 'bf16,expert=mxfp4,kv=fp8'; 'static' says that activation scales are calibrated.

    >>> p = precision_named("fp8", kv="fp8"); p.of("ffn").name, p.of("head").name, p.kv.name
    ('fp8', 'bf16', 'fp8')
    >>> precision_named("bf16,expert=int4_g32").of("expert").name
    'int4_g32'
    """
    if isinstance(weights, Precision):
        return weights.with_kv(kv)
    base, *items = (part.strip() for part in str(weights).split(","))
    precision = _base_precision(base)
    for item in items:
        precision = _with_item(precision, item)
    return (replace(precision, name=precision.text) if items else precision).with_kv(kv)


def _base_precision(name: str) -> Precision:
    key = _key(name)
    key = _RECIPE_ALIASES.get(key, key)
    if key in PRECISIONS:
        return PRECISIONS[key]
    try:
        fmt = format_named(key)
    except UnknownNameError:
        known = [*PRECISIONS, *_ALIASES]
        raise UnknownNameError("precision", name[:80], known, "see 'roofline list formats'") from None
    return Precision(fmt.name, {r: fmt for r in _LINEAR})


def _with_item(precision: Precision, item: str) -> Precision:
    role, sign, fmt = (part.strip() for part in item.partition("="))
    if item == "static":
        return replace(precision, static_activation_scales=True)
    if role == "kv" and sign:
        return precision.with_kv(fmt)
    if role not in ROLES or not sign:
        raise InputError(f"precision: '{item[:60]}' is not role=format; roles: {', '.join(ROLES)}, kv")
    return replace(precision, weights={**precision.weights, role: format_named(fmt)})
