"""Number formats with their scales, and which part of a model is kept in which format.

A `Format` says how many bytes a matrix takes and what arithmetic it is made for. A `Precision` says which format each
role of weight has (real checkpoints keep embeddings, head, router and norms wide), and the format of the KV cache.
"""

from __future__ import annotations

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
    Format("q8_0", 8, "fp16", 16, 16, (1, 32), note="GGUF"),
    Format("q6_k", 6.5625, "fp16", note="GGUF, 210 B per 256"),
    Format("q5_k", 5.5, "fp16", note="GGUF, 176 B per 256"),
    Format("q4_k", 4.5, "fp16", note="GGUF, 144 B per 256"),
    Format("q3_k", 3.4375, "fp16", note="GGUF, 110 B per 256"),
    Format("q2_k", 2.625, "fp16", note="GGUF, 84 B per 256"),
    Format("q5_0", 5.5, "fp16", note="GGUF, 22 B per 32"),
    Format("q4_0", 4.5, "fp16", note="GGUF, 18 B per 32"),
    Format("iq4_xs", 4.25, "fp16", note="GGUF, 136 B per 256"),
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

    >>> format_named("BF16").bits
    16
    """
    if isinstance(name, Format):
        return name
    key = str(name).strip().lower().replace("-", "_")
    key = _ALIASES.get(key, key)
    if key not in FORMATS:
        raise UnknownNameError("number format", str(name), [*FORMATS, *_ALIASES])
    return FORMATS[key]


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


def _only(name: str, fmt: str, roles: tuple[str, ...], rest: str = "bf16", **more) -> Precision:
    return Precision(name, {r: FORMATS[fmt] for r in roles}, FORMATS[rest], **more)


_LINEAR = ("attention", "ffn", "expert", "shared")
PRECISIONS: Mapping[str, Precision] = {
    "fp32": Precision("fp32", default=FORMATS["fp32"], kv=FORMATS["fp32"]),
    "bf16": Precision("bf16"),
    "fp16": Precision("fp16", default=FORMATS["fp16"], kv=FORMATS["fp16"]),
    **{
        name: _only(name, name, _LINEAR)
        for name in ("fp8", "fp8_channel", "fp8_block", "mxfp8", "int8", "w8a16", "int4_awq", "int4_gptq", "int4_g32")
    },
    # NVFP4 and 4-bit MoE checkpoints as published keep attention wide; dense ones quantise every linear layer.
    "nvfp4": _only("nvfp4", "nvfp4", _LINEAR),
    "nvfp4_mlp": _only("nvfp4_mlp", "nvfp4", ("ffn", "expert", "shared")),
    "nvfp4_experts": _only("nvfp4_experts", "nvfp4", ("expert",)),
    "int4_experts": _only("int4_experts", "int4_g32", ("expert",)),
    "mxfp4_experts": _only("mxfp4_experts", "mxfp4", ("expert",)),
    "mxfp4": _only("mxfp4", "mxfp4", _LINEAR),
    # llama.cpp recipes: embeddings follow the file type, the head is q6_k; q4_k_m keeps half of the value and
    # down-projection tensors in q6_k, which the mean formats below carry (bits per weight of llama-quantize).
    "q8_0": Precision("q8_0", {"norm": FORMATS["fp32"], "router": FORMATS["fp32"]}, FORMATS["q8_0"], FORMATS["fp16"]),
    "q6_k": Precision("q6_k", {"norm": FORMATS["fp32"], "router": FORMATS["fp32"]}, FORMATS["q6_k"], FORMATS["fp16"]),
    "q4_0": Precision(
        "q4_0",
        {"norm": FORMATS["fp32"], "router": FORMATS["fp32"], "head": FORMATS["q6_k"]},
        FORMATS["q4_0"],
        FORMATS["fp16"],
    ),
}


def precision_named(weights: str | Precision, kv: str | Format | None = None) -> Precision:
    """The precision of that name, with another KV format if one is given. A bare format name serves all linear layers.

    >>> p = precision_named("fp8", kv="fp8"); p.of("ffn").name, p.of("head").name, p.kv.name
    ('fp8', 'bf16', 'fp8')
    """
    if isinstance(weights, Precision):
        return weights.with_kv(kv)
    key = str(weights).strip().lower().replace("-", "_")
    key = _ALIASES.get(key, key)
    if key in PRECISIONS:
        return PRECISIONS[key].with_kv(kv)
    if key in FORMATS:
        return _only(key, key, _LINEAR).with_kv(kv)
    raise UnknownNameError("precision", str(weights), [*PRECISIONS, *_ALIASES])
