"""Collectives over all devices of one kind, each driven by a process of its own."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roofline.errors import UnsupportedError
from roofline.measure.timing import BLOCK, WARM_UPS

ELEMENT_BYTES = 2  # bf16
REPEATS = 10  # collectives inside one sample


def time_collectives(kind: str, shapes: Sequence[Mapping[str, Any]], blocks: int = 4) -> list[list[float] | str]:
    """Samples [s] of each collective, or why there are none; all shapes have the same `ranks`.

    Args:     kind: 'cuda' or 'rocm' (NCCL, RCCL), or 'cpu' (gloo); shapes: collective, ranks, bytes (whole buffer)
    """
    import torch.multiprocessing as processes

    ranks = int(shapes[0]["ranks"])
    with tempfile.TemporaryDirectory() as folder:
        job = (ranks, kind, json.dumps([dict(s) for s in shapes]), folder, blocks)
        processes.spawn(_rank, args=job, nprocs=ranks, join=True)
        return json.loads((Path(folder) / "samples.json").read_text())


def _rank(rank: int, ranks: int, kind: str, shapes: str, folder: str, blocks: int) -> None:
    import torch
    import torch.distributed as dist

    gpu = kind in ("cuda", "rocm")
    if gpu:
        torch.cuda.set_device(rank)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("nccl" if gpu else "gloo", init_method=meeting, rank=rank, world_size=ranks)
    found: list[list[float] | str] = []
    for shape in json.loads(shapes):
        try:
            call = _collective(torch, dist, shape, "cuda" if gpu else "cpu", ranks)
            found.append(_samples(torch, dist, call, gpu, blocks))
        except (RuntimeError, UnsupportedError) as error:
            found.append(str(error).splitlines()[0])
    if rank == 0:
        (Path(folder) / "samples.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def _collective(torch: Any, dist: Any, shape: Mapping[str, Any], where: str, ranks: int):
    whole = torch.randn(max(int(shape["bytes"]) // ELEMENT_BYTES // ranks, 1) * ranks, device=where).to(torch.bfloat16)
    part = whole[: whole.numel() // ranks].clone()
    kind = shape["collective"]
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole)
    if kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part)
    if kind == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, whole)
    if kind == "alltoall":
        other = torch.empty_like(whole)
        return lambda: dist.all_to_all_single(other, whole)
    raise UnsupportedError(f"collective '{kind}' is not measured")


def _samples(torch: Any, dist: Any, call: Any, gpu: bool, blocks: int) -> list[float]:
    for _ in range(WARM_UPS):
        call()
    out = []
    for _ in range(BLOCK * blocks):
        if gpu:
            torch.cuda.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(REPEATS):
            call()
        if gpu:
            torch.cuda.synchronize()
        out.append((time.perf_counter() - begin) / REPEATS)
    return out
