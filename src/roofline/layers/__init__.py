"""What a layer is made of: each kind of attention and feed-forward block declares its weights once.

Parameter counts, weight memory, weight traffic and matmul FLOPs all derive from the same declaration.

    attention kind:  weights(hidden) -> [Weight]     cache_bytes(tokens, plan, precision) -> B a sequence, rank
                     ops(hidden, groups, plan, precision) -> [Op] of one layer on one rank, from the input projection
                     to the output projection: norms and the all-reduce around it are the layer's
    ffn kind:        weights(hidden) -> [Weight]     ops(hidden, tokens, plan, precision) -> [Op], collectives included

Every small kernel is an `Elementwise` op with a name of its own (attn.rope, moe.top_k, ...), so that an engine profile
can say which of them it fuses. Ops called shared.* run beside the routed experts.
"""
