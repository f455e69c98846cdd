"""The figures by name; light to import, as the command line lists them."""

KINDS = {
    "roofline": "every op of prefill and decode under the peaks of the device",
    "waterfall": "a step from the speed of light to what is predicted",
    "regimes": "what decoding waits for, over batch and context",
    "frontier": "throughput against speed per user for every layout, with an SLO",
    "memory": "the memory of each GPU, adding up to what is visible",
    "speculation": "tokens per verify step and speed-up over draft length and acceptance",
    "experts": "distinct experts that a step touches, over its tokens",
    "tiles": "the sawtooth of tiles and waves of a matrix product",
    "tiers": "fetching a cached prefix against computing it again",
    "timeline": "the life of requests in the simulator: queue, prefill chunks, decode",
    "validation": "predicted against measured, with bands",
    "cost": "dollars per million tokens against speed per user",
}
