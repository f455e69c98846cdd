"""What must fit in the memory of a device, and what then fits beside it.

weights       the checkpoint as an engine loads it
activations   the peak of its profiling forward, and what lies outside the framework's allocator
paging        blocks, groups of unlike layers, waste
footprint     the table that adds up, and why something would not start
search        the other way round: longest context, largest batch, fewest devices, widest format
"""

from roofline.memory.footprint import Footprint, StageMemory, footprint
from roofline.memory.paging import Pool, contiguous_waste, length_of_waste, paged_waste, swap_blocks
from roofline.memory.search import fewest_gpus, largest_batch, longest_context, widest_format
from roofline.memory.weights import weight_bytes

__all__ = [
    "Footprint",
    "Pool",
    "StageMemory",
    "contiguous_waste",
    "fewest_gpus",
    "footprint",
    "largest_batch",
    "length_of_waste",
    "longest_context",
    "paged_waste",
    "swap_blocks",
    "weight_bytes",
    "widest_format",
]
