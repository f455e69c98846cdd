"""What a kernel model needs to know of an accelerator, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.arrays import Array


@dataclass(frozen=True, slots=True)
class Chip:
    """Datasheet numbers of one accelerator; each field a float or an array that broadcasts.

    The peak of a matmul depends on its number format and is passed to the kernel functions beside the chip.
    """

    bandwidth_bytes_per_s: Array  # HBM (or whatever holds the weights), datasheet
    sms: Array = 1.0  # SM / CU / core count: units that run one thread block at a time
    l2_bytes: Array = 0.0  # cache shared by the whole device
    link_bytes_per_s: Array = 0.0  # scale-up links of one device, all together, one direction
    pair_bytes_per_s: Array = 0.0  # one direction between one pair of devices (equals link behind a switch)
