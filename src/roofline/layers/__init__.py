"""What a layer is made of: each kind of attention and feed-forward block declares its weights once.

Parameter counts, weight memory, weight traffic and matmul FLOPs all derive from the same declaration.

    attention kind:  weights(hidden) -> [Weight]     cache_bytes(tokens, plan, precision) -> B a sequence, rank
                     ops(hidden, groups, plan, precision) -> [Op] of one layer on one rank
    ffn kind:        weights(hidden) -> [Weight]     ops(hidden, tokens, plan, precision) -> [Op]
"""
