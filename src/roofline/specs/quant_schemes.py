"""What a checkpoint says about its number formats: the dialects of `quantization_config`, brought to one form.

Dialects: fp8 (DeepSeek, Qwen, MiniMax, Z.ai), mxfp4 (gpt-oss), compressed-tensors, modelopt (inline, or in a side file
`hf_quant_config.json`), quark, AWQ, GPTQ, AutoRound, bitsandbytes, fbgemm. A dialect that is not known is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from roofline.errors import UnsupportedError
from roofline.precision import FORMATS, Format, format_named


@dataclass(frozen=True, slots=True)
class Scheme:
    """`default` serves every linear layer that no `ignored` pattern names; `modules` maps patterns to other formats.

    `experts` overrides the routed experts; `only_named`: what no pattern names stays wide. `head`: the head is a linear
    layer like others. `shortened`: lists were cut, so each pattern stands for its whole family of layers.
    """

    default: Format | None
    ignored: tuple[str, ...] = ()
    modules: tuple[tuple[str, Format], ...] = ()
    experts: Format | None = None
    kv: Format | None = None
    static: bool = False
    head: bool = False
    shortened: bool = False
    notes: tuple[str, ...] = ()


_ALGORITHMS = {  # modelopt quant_algo -> format
    "FP8": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8_channel", "FP8_PB_WO": "fp8_block", "FP8_BLOCK_SCALES": "fp8_block",
    "FP8_PB_REAL": "fp8_block", "NVFP4": "nvfp4", "NVFP4_AWQ": "nvfp4", "W4A16_NVFP4": "nvfp4_w4a16", "MXFP8": "mxfp8",
    "MXFP4": "mxfp4", "W4A8_MXFP4_FP8": "mxfp4_mxfp8", "W4A16": "int4_awq", "W4A16_AWQ": "int4_awq",
    "W4A8_AWQ": "int4_awq", "INT8": "int8", "INT8_SQ": "int8", "W8A8_SQ_PER_CHANNEL": "int8", "W8A16": "w8a16",
}  # fmt: skip
_KV = {"FP8": "fp8", "INT8": "int8", "NVFP4": "nvfp4"}
_IGNORE_KEYS = ("ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers", "exclude")


def read_scheme(quant: Mapping[str, Any], side: Mapping[str, Any], config: Mapping[str, Any], where: str) -> Scheme:
    """The scheme of a checkpoint from `quantization_config` and the side file (either may be empty)."""
    inner = _mapping(side.get("quantization"))
    quant = quant or inner
    method = str(quant.get("quant_method") or ("modelopt" if quant.get("quant_algo") else "")).lower()
    readers = {
        "fp8": _fp8, "mxfp4": _mxfp4, "compressed-tensors": _compressed, "modelopt": _modelopt,
        "modelopt_fp4": _modelopt,
        "awq": _integer, "gptq": _integer, "auto-round": _integer, "intel/auto-round": _integer,
        "bitsandbytes": _bitsandbytes, "fbgemm_fp8": _fbgemm, "quark": _quark,
    }  # fmt: skip
    if method not in readers:
        known = ", ".join(readers)
        raise UnsupportedError(f"{where}: quant_method '{method[:40]}' is not modelled; known: {known}")
    if str(quant.get("quant_algo", "")).upper() == "MIXED_PRECISION":
        return _mixed(quant, inner, where)
    scheme = readers[method](quant, where)
    if method == "fp8" and config.get("expert_dtype") == "fp4":  # DeepSeek-V4: beside quantization_config
        return replace(scheme, experts=FORMATS["mxfp4_mxfp8"])
    return scheme


def _fp8(quant: Mapping[str, Any], where: str) -> Scheme:
    block = quant.get("weight_block_size")
    if block not in (None, [128, 128]):
        raise UnsupportedError(f"{where}: weight_block_size {str(block)[:40]} is not modelled; known: [128, 128]")
    static = quant.get("activation_scheme") == "static"
    return _scheme(quant, "fp8_block" if block else "fp8", where, static=static and not block)


def _mxfp4(quant: Mapping[str, Any], where: str) -> Scheme:
    return _scheme(quant, "mxfp4", where)


def _fbgemm(quant: Mapping[str, Any], where: str) -> Scheme:
    return _scheme(quant, "fp8_channel", where)


def _integer(quant: Mapping[str, Any], where: str) -> Scheme:
    """AWQ, GPTQ and AutoRound: weight-only integers in groups; GPTQ stores zero points even when it is symmetric."""
    bits, group = quant.get("bits", quant.get("w_bit", 4)), quant.get("group_size", quant.get("q_group_size", 128))
    zero = "z" if quant.get("zero_point", quant.get("quant_method") != "awq") else ""
    if not isinstance(bits, int) or not isinstance(group, int) or bits not in (2, 3, 4, 8):
        raise UnsupportedError(f"{where}: {str(bits)[:20]} bits in groups of {str(group)[:20]} is not modelled")
    name = f"int{bits}_g{group}{zero}" if group > 0 else "w8a16" if bits == 8 else ""
    if not name:
        raise UnsupportedError(f"{where}: {bits} bits with one scale a channel is not modelled; known: groups")
    if (bits, group, zero) == (4, 128, "z"):
        name = "int4_awq" if quant.get("quant_method") == "awq" else "int4_gptq"
    return _scheme(quant, name, where, head=bool(quant.get("lm_head")))


def _bitsandbytes(quant: Mapping[str, Any], where: str) -> Scheme:
    if quant.get("load_in_8bit"):
        return _scheme(quant, "int8", where)
    return _scheme(quant, "nf4_double" if quant.get("bnb_4bit_use_double_quant") else "nf4", where)


def _quark(quant: Mapping[str, Any], where: str) -> Scheme:
    both = _mapping(quant.get("global_quant_config"))
    weight, acts = _mapping(both.get("weight")), _mapping(both.get("input_tensors"))
    dtype = str(weight.get("dtype", ""))
    names = {
        "fp4": "mxfp4_w4a4" if acts.get("dtype") == "fp4" else "mxfp4",
        "fp8_e4m3": "fp8_channel" if weight.get("qscheme") == "per_channel" else "fp8",
        "int8": "int8" if acts else "w8a16",
    }
    if dtype not in names:
        raise UnsupportedError(
            f"{where}: quark weights of dtype '{dtype[:20]}' are not modelled; known: {', '.join(names)}"
        )
    return _scheme(quant, names[dtype], where)


def _compressed(quant: Mapping[str, Any], where: str) -> Scheme:
    groups = [_mapping(g) for g in _mapping(quant.get("config_groups")).values()]
    formats = [_group_format(g, quant, where) for g in groups]
    if not formats:
        raise UnsupportedError(f"{where}: quantization_config without config_groups")
    everywhere = [f for g, f in zip(groups, formats) if not _named_targets(g)]
    named = tuple((t, f) for g, f in zip(groups, formats) for t in _named_targets(g))
    static = any(f.name == "fp8" and _mapping(g.get("input_activations")).get("dynamic") is False
                 for g, f in zip(groups, formats))  # fmt: skip
    scheme = _scheme(quant, everywhere[0] if everywhere else None, where, static=static, head=True)
    return replace(scheme, modules=named)


def _modelopt(quant: Mapping[str, Any], where: str) -> Scheme:
    algorithm = str(quant.get("quant_algo") or "").upper()
    if not algorithm and quant.get("config_groups"):
        return replace(_compressed(quant, where), head=False)
    fmt = _algorithm(algorithm, where)
    scheme = _scheme(quant, fmt, where, static=algorithm == "FP8")
    if not scheme.ignored:
        scheme = replace(scheme, notes=("the checkpoint names no excluded modules: all linear layers are quantised",))
    return scheme


def _mixed(quant: Mapping[str, Any], inner: Mapping[str, Any], where: str) -> Scheme:
    """MIXED_PRECISION: a map from module to algorithm, over fp8 blocks where `quant_method` says so."""
    table = _mapping(quant.get("quantized_layers")) or _mapping(inner.get("quantized_layers"))
    modules = [(name, _algorithm(str(_mapping(v).get("quant_algo", "")).upper(), where)) for name, v in table.items()]
    groups = [_mapping(g) for g in _mapping(quant.get("config_groups")).values()]
    if not quant.get("moe_quant_algo"):
        modules += [(t, _group_format(g, quant, where)) for g in groups for t in _named_targets(g)]
    cut = any(_is_cut(source) for source in (quant, inner, *groups))
    if quant.get("quant_method") == "fp8":  # the ignore list speaks of the 4-bit part only
        base = replace(_fp8({**quant, "ignore": None, "exclude_modules": None}, where), shortened=cut, kv=_kv(quant))
    else:
        base = replace(_scheme(quant, None, where), shortened=cut)
    moe = str(quant.get("moe_quant_algo") or "").upper()
    return replace(base, modules=tuple(modules), experts=_algorithm(moe, where) if moe else None)


def _scheme(quant: Mapping[str, Any], fmt: str | Format | None, where: str, **more: Any) -> Scheme:
    lists = [quant[key] for key in _IGNORE_KEYS if quant.get(key)]
    patterns = [p for values in lists if isinstance(values, list) for p in values if isinstance(p, str)]
    return Scheme(
        default=None if fmt is None else format_named(fmt),
        ignored=tuple(dict.fromkeys(patterns)),
        kv=_kv(quant),
        shortened=_is_cut(quant),
        **more,
    )


def _group_format(group: Mapping[str, Any], quant: Mapping[str, Any], where: str) -> Format:
    """The format of one compressed-tensors group: bits, type, group size, strategy, and whether activations narrow."""
    weights, acts = _mapping(group.get("weights")), group.get("input_activations")
    bits, kind = str(weights.get("num_bits")), str(weights.get("type", "int"))
    size, strategy = weights.get("group_size"), str(weights.get("strategy") or "")
    layout = str(group.get("format") or quant.get("format") or "")
    zero = "" if weights.get("symmetric", True) else "z"
    fp8 = {"block": "fp8_block", "channel": "fp8_channel"}.get(strategy, "mxfp8" if size == 32 else "fp8")
    name = {
        ("float", "8"): fp8,
        ("float", "4"): (("mxfp4" if acts is None else "mxfp4_w4a4") if size == 32 or "mxfp4" in layout
                       else "nvfp4_w4a16" if acts is None else "nvfp4"),
        ("int", "8"): (f"int8_g{size}{zero}" if strategy == "group" else "w8a16" if acts is None else "int8"),
        ("int", "4"): f"int4_g{size}{zero}" if isinstance(size, int) and size > 0 else "",
    }.get((kind, bits), "")  # fmt: skip
    if not name:
        raise UnsupportedError(
            f"{where}: weights of {bits[:20]} bits, type {kind[:20]}, strategy '{strategy[:20]}' are not modelled"
        )
    return format_named(name)


def _named_targets(group: Mapping[str, Any]) -> list[str]:
    """Targets that are module names or patterns; a class name ('Linear') means everything."""
    targets = group.get("targets")
    return [t for t in targets if isinstance(t, str) and t != "Linear"] if isinstance(targets, list) else []


def _algorithm(name: str, where: str) -> Format:
    if name not in _ALGORITHMS:
        raise UnsupportedError(f"{where}: quant_algo '{name[:40]}' is not modelled; known: {', '.join(_ALGORITHMS)}")
    return FORMATS[_ALGORITHMS[name]]


def _kv(quant: Mapping[str, Any]) -> Format | None:
    """The KV format that the checkpoint was calibrated for: an algorithm's name, or bits and type."""
    said = quant.get("kv_cache_quant_algo") or quant.get("kv_cache_scheme") or quant.get("kv_cache_quant_method")
    if isinstance(said, Mapping):
        said = {"float8": "FP8", "int8": "INT8", "float4": "NVFP4"}.get(f"{said.get('type')}{said.get('num_bits')}")
    name = _KV.get(str(said).upper())
    return FORMATS[name] if name else None


def _is_cut(quant: Mapping[str, Any]) -> bool:
    return any(str(key).endswith("_dropped") for key in quant)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
