"""The engine that a bare torch program is: no scheduler, no fusion, launches as measured."""

from __future__ import annotations

from roofline.specs.engine import Engine, StepProfile
from roofline.units import format as quantity


def torch_engine(launch_s: float) -> Engine:
    """The profile of a model that torch runs op by op.

    Args:     launch_s: fixed time of one small kernel, alone or in a graph, as the op `launch` measures it [s]
    """
    return Engine(
        name="torch",
        title="torch, eager or in one CUDA graph",
        step=StepProfile(
            schedule="serial",
            small_kernel_s=quantity(launch_s, "s", digits=9),
            sources={"*": "definition; small_kernel_s: measured on the device"},
        ),
    )
