"""Turns a GGUF file into a `Model` and the `Precision` of its tensors.

Layers are read off from the tensors that are there (shapes, biases, norms); metadata says what shapes cannot: heads,
windows, experts per token. What the tensors hold in all is compared with what the model comes to.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from roofline.errors import SpecError, UnsupportedError
from roofline.precision import FORMATS, Format, Precision, mixture
from roofline.specs.gguf_file import GGUF, Tensor, open_gguf
from roofline.specs.library import build
from roofline.specs.model import Model
from roofline.specs.parsed import ParsedModel

Part = dict[str, Any]
Block = dict[str, Tensor]

# Every n-th layer sees everything where a file gives a window but no pattern (llama.cpp src/llama-model.cpp).
WINDOW_PERIOD = {"gemma2": 2, "gemma3": 6, "cohere2": 4, "gpt-oss": 2, "olmo2": 4, "exaone4": 4, "smallthinker": 4}
_UNCOUNTED = re.compile(r"^(rope_|blk\.\d+\.rope_)")  # rotary tables are not parameters
_TOLERANCE = 0.02
_SMALLEST_SIDE = 16  # convolution kernels and decay tables are never quantised


def from_gguf(path: str | os.PathLike, name: str | None = None) -> ParsedModel:
    """The model of a GGUF file, the mean format of each role, and the bytes of all its tensors.

    Errors:   SpecError for a file that is not GGUF, is incomplete or contradicts itself; UnsupportedError for layers
              or quantisations that are not read from GGUF
    """
    file = open_gguf(path)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise SpecError(f"{file.where}: has no tensor token_embd.weight")
    if file.count("embedding_length") != embedding.columns:
        raise SpecError(
            f"{file.where}: embedding_length {file.count('embedding_length')} and the {embedding.columns} columns of "
            "token_embd.weight contradict each other"
        )
    blocks = _blocks(file)
    drafts = min(file.count("nextn_predict_layers", 0), max(len(blocks) - 1, 0))
    layers = [_layer(file, i, block, len(blocks) - drafts) for i, block in enumerate(blocks[: len(blocks) - drafts])]
    model = build(Model, _spec(file, blocks[0], layers, name or Path(path).stem), file.where)
    precision = _precision(file)
    model = model.model_copy(update={"native": precision.text})
    notes = _differences(file, model, len(blocks) - drafts)
    notes += [f"{drafts} multi-token-prediction layers of the file are not part of the model"] if drafts else []
    if file.value("attention.sliding_window") and not any(
        p["attention"].get("window") for p in layers if p["attention"]
    ):
        notes.append("the file gives a sliding window, but not on which layers: all see everything")
    total = sum(t.bytes for t in file.tensors.values())
    return ParsedModel(model, precision, tuple(notes), file_bytes=total)


def _blocks(file: GGUF) -> list[Block]:
    """The tensors of each layer, by the name after `blk.<i>.`."""
    n = file.count("block_count", low=1)
    if n > 4096:
        raise SpecError(f"{file.where}: block_count is {n}; allowed: 1 to 4096")
    blocks: list[Block] = [{} for _ in range(n)]
    for tensor in file.tensors.values():
        numbered = re.fullmatch(r"blk\.(\d{1,6})\.(.+)", tensor.name)
        if numbered and int(numbered[1]) < n:
            blocks[int(numbered[1])][numbered[2]] = tensor
    if empty := [i for i, block in enumerate(blocks) if not block]:
        raise SpecError(f"{file.where}: has no tensors of layer {empty[0]} of {n}")
    if odd := next((t for block in blocks for t in block if t.startswith(("time_mix", "shortconv"))), None):
        raise UnsupportedError(
            f"{file.where}: '{file.architecture}' with {odd} (another kind of mixer) is not read from GGUF; "
            "give the config.json of the model and name the quantisation"
        )
    return blocks


def _spec(file: GGUF, first: Block, layers: list[Part], name: str) -> Part:
    biased = "attn_norm.bias" in first or "ffn_norm.bias" in first
    positions = file.tensors.get("position_embd.weight")
    spec = {
        "name": name,
        "hidden": file.count("embedding_length"),
        "vocab": file.tensors["token_embd.weight"].rows,
        "tied": "output.weight" not in file.tensors,
        "head_bias": "output.bias" in file.tensors,
        "embed_norm": "token_embd_norm.weight" in file.tensors,
        "norm": "layer" if biased else "rms",
        "max_positions": file.count("context_length", 0) or None,
        "layers": [part | {"count": len(list(run))} for part, run in groupby(layers)],
    }
    return {k: v for k, v in (spec | ({"positions": positions.rows} if positions else {})).items() if v is not None}


def _layer(file: GGUF, i: int, block: Block, layers: int) -> Part:
    hidden = file.count("embedding_length")
    attention, ffn = _attention(file, i, block, layers), _ffn(file, block)
    norms = sum(
        name.endswith("norm.weight")
        and t.columns == hidden
        and not re.search(r"attn_(q|k)_norm|_a_norm|ssm_|indexer", name)
        for name, t in block.items()
    )
    parts = (attention is not None) + (ffn is not None)
    parallel = parts == 2 and norms == 1
    usual = norms == (1 if parallel else parts)
    return {"attention": attention, "ffn": ffn, "parallel": parallel} | ({} if usual else {"norms": norms})


def _attention(file: GGUF, i: int, block: Block, layers: int) -> Part | None:
    if "attn_kv_a_mqa.weight" in block:
        return _latent(file, block)
    if "ssm_out.weight" in block:
        return _state_space(file, block)
    if "attn_q.weight" not in block and "attn_qkv.weight" not in block:
        return None
    window = _windows(file, layers)[i]
    heads = file.per_layer("attention.head_count", layers)[i]
    if not heads:
        raise SpecError(f"{file.where}: attention.head_count of layer {i} is 0")
    kv = file.per_layer("attention.head_count_kv", layers, heads)[i] or heads
    own = "_swa" if window and file.value("attention.key_length_swa") else ""
    hidden = file.count("embedding_length")
    d = file.count(f"attention.key_length{own}", hidden // heads, low=1)
    v = file.count(f"attention.value_length{own}", d, low=1)
    part: Part = {"kind": "gqa", "heads": heads, "kv_heads": kv, "head_dim": d, "window": window}
    part |= {"v_dim": v} if v != d else {}
    q, k = block.get("attn_q.weight"), block.get("attn_k.weight")
    if q is not None:
        shared = k is None or i >= layers - file.count("attention.shared_kv_layers", 0)
        part |= {"shared_kv": shared, "k_is_v": not shared and "attn_v.weight" not in block}
        _check_rows(file, i, "attn_q", q.rows, (heads * d, 2 * heads * d))
        part |= {"output_gate": "full"} if q.rows == 2 * heads * d else {}
        if k is not None:
            _check_rows(file, i, "attn_k", k.rows, (kv * d,))
    else:
        _check_rows(file, i, "attn_qkv", block["attn_qkv.weight"].rows, (heads * d + kv * (d + v),))
    part["qkv_bias"] = "attn_q.bias" in block or "attn_qkv.bias" in block
    part["o_bias"] = "attn_output.bias" in block
    part["sinks"] = "attn_sinks.weight" in block or "attn_sinks" in block
    if norm := block.get("attn_q_norm.weight"):
        part["qk_norm"] = "head" if norm.params == d else "full"
    return {k: v for k, v in part.items() if v not in (None, False)}


def _latent(file: GGUF, block: Block) -> Part:
    heads, rope = file.count("attention.head_count", low=1), file.count("rope.dimension_count")
    key = file.count("attention.key_length_mla", file.value("attention.key_length"))
    value = file.count("attention.value_length_mla", file.value("attention.value_length"))
    part: Part = {"kind": "mla", "heads": heads, "kv_rank": file.count("attention.kv_lora_rank", low=1)}
    part |= {"nope_dim": key - rope, "rope_dim": rope, "v_dim": value}
    if "attn_q_a.weight" in block:
        part["q_rank"] = block["attn_q_a.weight"].rows
    if any(name.startswith("indexer.") for name in block):
        part["index"] = {
            "heads": file.count("attention.indexer.head_count", low=1),
            "dim": file.count("attention.indexer.key_length", low=1),
            "top_k": file.count("attention.indexer.top_k", low=1),
        }
    return part


def _state_space(file: GGUF, block: Block) -> Part:
    """Gated DeltaNet (it has beta and alpha), Mamba (it projects the step size) or Mamba-2."""
    inner, state = file.count("ssm.inner_size", low=1), file.count("ssm.state_size", low=1)
    conv, rank = file.count("ssm.conv_kernel", low=1), file.count("ssm.time_step_rank", low=1)
    if "ssm_dt.weight" in block:
        norms = "ssm_dt_norm.weight" in block
        return {"kind": "mamba1", "inner": inner, "state": state, "conv": conv, "dt_rank": rank, "norms": norms}
    if inner % rank:
        raise SpecError(f"{file.where}: ssm.inner_size {inner} is no multiple of {rank} heads")
    groups = file.count("ssm.group_count", 1, low=1)
    if {"ssm_ba.weight", "ssm_beta.weight", "ssm_alpha.weight"} & set(block):
        heads = {"heads": rank, "key_heads": groups, "key_dim": state, "value_dim": inner // rank}
        return {"kind": "gated_delta", "conv": conv} | heads
    return {"kind": "mamba2", "heads": rank, "head_dim": inner // rank, "state": state, "groups": groups, "conv": conv}


def _ffn(file: GGUF, block: Block) -> Part | None:
    dense = block.get("ffn_down.weight")
    width = dense.columns if dense is not None else 0
    if "ffn_gate_inp.weight" in block and "ffn_down_exps.weight" in block:
        down, shared = block["ffn_down_exps.weight"], block.get("ffn_down_shexp.weight")
        part: Part = {
            "kind": "moe",
            "width": down.columns,
            "experts": down.copies,
            "top_k": file.count("expert_used_count", low=1),
            "gated": "ffn_gate_exps.weight" in block or "ffn_gate_up_exps.weight" in block,
            "shared_width": shared.columns if shared is not None else width,  # Gemma 4: a dense block beside
            "shared_gate": "ffn_gate_inp_shexp.weight" in block,
            "router_bias": "ffn_gate_inp.bias" in block,
            "correction_bias": "exp_probs_b.bias" in block or "exp_probs_b" in block,
            "bias": "ffn_down_exps.bias" in block,
        }
        return part
    if dense is None:
        return None
    up = block.get("ffn_up.weight")
    gated = "ffn_gate.weight" in block or (up is not None and up.rows == 2 * width)
    return {"kind": "dense", "width": width, "gated": gated, "bias": "ffn_down.bias" in block}


def _windows(file: GGUF, layers: int) -> list[int | None]:
    """The window of each layer: from the pattern of the file (flags or a period), or the architecture's period."""
    window = file.count("attention.sliding_window", 0)
    pattern = file.value("attention.sliding_window_pattern", WINDOW_PERIOD.get(file.architecture, 0))
    if not window or not pattern:
        return [None] * layers
    if isinstance(pattern, list):
        flags = file.per_layer("attention.sliding_window_pattern", layers)
        return [window if flag else None for flag in flags]
    return [window if (i + 1) % pattern else None for i in range(layers)]


def _check_rows(file: GGUF, i: int, name: str, rows: int, allowed: tuple[int, ...]) -> None:
    if rows not in allowed:
        raise SpecError(f"{file.where}: blk.{i}.{name} has {rows} rows, but metadata comes to {allowed[0]}")


def _role(name: str) -> str:
    """The role of a tensor."""
    leaf = name.split(".", 2)[-1] if name.startswith("blk.") else name
    words = (
        ("token_embd", "embed"), ("per_layer_token_embd", "embed"), ("position_embd", "embed"), ("output.", "head"),
        ("ffn_gate_inp.", "router"), ("attn", "attention"), ("indexer", "attention"), ("ssm", "attention"),
    )  # fmt: skip
    if "_shexp" in leaf:
        return "shared"
    if "_exps" in leaf:
        return "expert"
    return next((role for word, role in words if leaf.startswith(word)), "ffn" if leaf.startswith("ffn") else "norm")


def _precision(file: GGUF) -> Precision:
    """The mean format of each role over its matrices."""
    shares: dict[str, dict[Format, float]] = defaultdict(lambda: defaultdict(float))
    for tensor in file.tensors.values():
        if tensor.rows * tensor.copies > 1 and tensor.columns > _SMALLEST_SIDE and not _UNCOUNTED.match(tensor.name):
            shares[_role(tensor.name)][tensor.format] += tensor.params
    formats = {role: mixture(parts) for role, parts in shares.items()}
    main = formats.get("ffn") or formats.get("expert") or formats["embed"]
    absent = dict.fromkeys(("attention", "ffn", "expert", "shared"), main) | {"head": formats["embed"]}
    absent |= dict.fromkeys(("router", "norm"), FORMATS["fp32"])
    precision = Precision("", absent | formats, FORMATS["fp16"], FORMATS["fp16"])
    return replace(precision, name=precision.text)


def _differences(file: GGUF, model: Model, layers: int) -> list[str]:
    """A note on tensors that the model does not account for; an error where they are more than 2 % of it."""

    def counted(name: str) -> bool:
        numbered = re.match(r"blk\.(\d+)\.", name)
        return not _UNCOUNTED.match(name) and (numbered is None or int(numbered[1]) < layers)

    stored = sum(t.params for t in file.tensors.values() if counted(t.name))
    if stored == model.params:
        return []
    said = f"the tensors hold {stored:,} parameters, the layers that were recognised {model.params:,}"
    if abs(stored - model.params) > _TOLERANCE * stored:
        raise UnsupportedError(f"{file.where}: '{file.architecture}' is not modelled in full: {said}")
    return [said]
