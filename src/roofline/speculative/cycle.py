"""What speculation brings: time of a cycle of drafting and verifying, TPOT, throughput, the best draft length, and the
batch from which on it no longer pays."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from roofline.arrays import Array
from roofline.deployment import Deployment
from roofline.errors import InputError
from roofline.speculative.acceptance import Acceptance, ByPosition, TokenTree, tokens_of
from roofline.speculative.drafters import Drafter, Round
from roofline.speculative.setting import Speculation, fixed_s
from roofline.workload import verify

PER_OCTAVE = 4  # batches that are looked at between one and its double


@dataclass(frozen=True, slots=True)
class Cycle:
    """Drafts are made and verified, `tokens` come out for each sequence. Seconds; every field broadcasts."""

    batch: Array
    drafts: Array  # verified beside the token before them
    tokens: Array  # that a cycle yields for one sequence
    draft_s: Array
    verify_s: Array
    fixed_s: Array  # rejection sampling and the host's part of a cycle
    plain_s: Array  # a decode step without speculation

    @property
    def cycle_s(self) -> Array:
        """Seconds of a cycle."""
        return self.draft_s + self.verify_s + self.fixed_s

    @property
    def tpot_s(self) -> Array:
        """Mean seconds per output token of one sequence."""
        return self.cycle_s / self.tokens

    @property
    def tokens_per_s(self) -> Array:
        """Output tokens per second of the replica."""
        return self.batch * self.tokens / self.cycle_s

    @property
    def speedup(self) -> Array:
        """How many times faster than without speculation at the same batch."""
        return self.plain_s / self.tpot_s

    @property
    def cost(self) -> Array:
        """A cycle in units of a plain step: speculation pays where it yields more tokens than this."""
        return self.cycle_s / self.plain_s

    @property
    def pays(self) -> Array:
        """Whether it is faster than plain decoding."""
        return self.speedup > 1.0


def speculate(
    deployment: Deployment,
    drafter: Drafter,
    *,
    batch: Array = 1.0,
    context: Array,
    drafts: Array | None = None,
    tree: TokenTree | None = None,
    acceptance: Acceptance | None = None,
    tokens: Array | None = None,
    beyond_s: Array = 0.0,
) -> Cycle:
    """Return what a cycle of speculation takes and yields on a replica.

    Formula:  cycle = draft + V(k) + t_cycle + b t_sequence;  V(k) = step of b sequences with k + 1 new tokens each
              TPOT = cycle / tokens;  speedup = plain step / TPOT
    Args:     batch b [sequences] of the whole replica, context [tokens] in the cache of each; drafts k [tokens] of a
              chain, or a tree; acceptance [-] of each draft, or `ByPosition`; or in its place tokens per cycle as
              measured (of a tree they must be given: `TokenTree.expected_tokens`); beyond_s [s]: what every step of
              the target takes beyond the model, e.g. a measured plain step less `decode_step`. Arrays broadcast
    Returns:  Cycle
    Assumes:  every sequence of the batch drafts as much; t_cycle, t_sequence as in the engine profile
    Error:    docs/speculation.md: held out by source
    Source:   derivation; Leviathan, Kalman, Matias 2023 in the limit V(k) = V(0)
    """
    if (drafts is None) == (tree is None):
        raise InputError("give drafts (a chain) or tree, one of them")
    if (acceptance is None) == (tokens is None):
        raise InputError("give acceptance or tokens, one of them")
    if tree is not None and tokens is None:
        raise InputError("tokens: of a tree they follow from its rates: TokenTree.expected_tokens")
    k = np.asarray(float(tree.nodes) if tree is not None else drafts, float)
    b, c = np.asarray(batch, float), np.asarray(context, float)
    if any(np.any(~(np.isfinite(x) & (x >= low))) for x, low in ((b, 1.0), (c, 0.0), (k, 0.0))):
        raise InputError("batch is 1 or more, context and drafts 0 or more")
    yielded = np.asarray(tokens if acceptance is None else tokens_of(acceptance, k), float)
    most = tree.depth if tree is not None else k
    if np.any((yielded < 1.0 - 1e-9) | (yielded > most + 1.0 + 1e-9)):
        raise InputError("tokens: a cycle yields at least 1 and at most one more than can be accepted")
    deployment = replace(deployment, speculation=None)
    plain = deployment.decode_step(b, c).total_s
    verified = deployment.pipelined(lambda micro: (verify(micro, c, k),), b).total_s
    drafting = drafter.drafting_s(deployment, Round(b, c, k, yielded, tree))
    fixed = np.where(k > 0, fixed_s(deployment, b), 0.0)
    return Cycle(*np.broadcast_arrays(b, k, yielded, drafting, verified + beyond_s, fixed, plain + beyond_s))


def best_draft_length(
    deployment: Deployment,
    drafter: Drafter,
    *,
    acceptance: Acceptance,
    batch: Array = 1.0,
    context: Array,
    longest: int = 16,
    beyond_s: Array = 0.0,
) -> Cycle:
    """Return speculation at the draft length with the lowest TPOT; its `drafts` is 0 where plain decoding is faster.

    Formula:  argmin over k = 0 .. longest of cycle(k) / tokens(k)
    Args:     as `speculate`; longest [tokens]
    Returns:  Cycle in the broadcast shape of the inputs
    Assumes:  as `speculate`
    Error:    as `speculate`
    Source:   definition
    """
    if isinstance(acceptance, ByPosition):
        longest, accepted = min(longest, len(acceptance.rates)), acceptance
    else:
        accepted = np.asarray(acceptance, float)[..., None]
    lengths = np.arange(longest + 1.0)
    b, c = (np.asarray(x, float)[..., None] for x in (batch, context))
    extra = np.asarray(beyond_s, float)[..., None]
    every = speculate(deployment, drafter, batch=b, context=c, drafts=lengths, acceptance=accepted, beyond_s=extra)
    best = np.argmin(every.tpot_s, axis=-1)[..., None]
    fields = (every.batch, every.drafts, every.tokens, every.draft_s, every.verify_s, every.fixed_s, every.plain_s)
    return Cycle(*(np.take_along_axis(x, best, -1)[..., 0][()] for x in fields))


def break_even_batch(
    deployment: Deployment,
    drafter: Drafter,
    *,
    drafts: Array,
    acceptance: Acceptance,
    context: Array,
    largest: float = 4096.0,
    beyond_s: Array = 0.0,
) -> Array:
    """Return the batch from which on speculation no longer pays.

    Formula:  the last crossing of speedup(b) = 1 from above, between batches at equal ratios, linear in log b
    Args:     as `speculate`; largest [sequences]: where the search ends
    Returns:  [sequences] 0 where it never pays up to `largest`, inf where it still pays there
    Assumes:  as `speculate`. Mixtures of experts may lose at small batches and win at larger ones, where the plain step
              reads all experts already: look at `speculate` over batches
    Error:    as `speculate`
    Source:   definition
    """
    if isinstance(acceptance, ByPosition):
        accepted = acceptance
    else:
        accepted = np.asarray(acceptance, float)[..., None]
    k, c = (np.asarray(x, float)[..., None] for x in (drafts, context))
    batches = 2.0 ** np.arange(0.0, np.log2(largest) + 1e-9, 1.0 / PER_OCTAVE)
    extra = np.asarray(beyond_s, float)[..., None]
    found = speculate(deployment, drafter, batch=batches, context=c, drafts=k, acceptance=accepted, beyond_s=extra)
    gain = np.log(found.speedup)
    pays = gain > 0.0
    last = batches.size - 1 - np.argmax(pays[..., ::-1], axis=-1)
    after = np.minimum(last + 1, batches.size - 1)
    high, low = (np.take_along_axis(gain, i[..., None], -1)[..., 0] for i in (last, after))
    share = high / np.where(high > low, high - low, 1.0)
    found = batches[last] * (batches[after] / batches[last]) ** share
    return np.where(~pays.any(-1), 0.0, np.where(last == batches.size - 1, np.inf, found))[()]


def kv_tokens(deployment: Deployment, drafter: Drafter, pool_bytes: Array) -> Array:
    """Return the tokens that a KV pool holds when target and drafter both keep their cache in it.

    Formula:  pool / (bytes of a token in the target + bytes of a token in the drafter)
    Args:     pool_bytes [B] of one rank
    Returns:  [tokens]
    Assumes:  long sequences: windows and states are full, blocks without waste
    Error:    0.01 % against an engine's log (vllm-project/vllm 19996)
    Source:   definition
    """
    long = 2.0**30
    one, two = (
        deployment.model.kv_bytes_per_sequence(n, deployment.plan, deployment.precision) for n in (long, 2 * long)
    )
    own = sum(kind.layers * kind.token_bytes for kind in drafter.caches(deployment) if np.isinf(kind.window))
    return np.asarray(pool_bytes, float) / ((two - one) / long + own)


def most_sequences(deployment: Deployment, drafter: Drafter, *, length: Array, drafts: Array) -> Array:
    """Return how many sequences of `length` tokens fit beside the weights of target and drafter, on one rank's share.

    Formula:  that of `memory.footprint`, with the drafter's weights and cache on the last stage and k slots a sequence
    Args:     length [tokens]: prompt and output together, drafts k [tokens]: slots kept for what may be accepted
    Returns:  [sequences] of one attention-data-parallel rank, at least 0
    Assumes:  as `memory.footprint`
    Error:    not measured; without a drafter the pool is that of docs/memory.md
    Source:   definition
    """
    beside = replace(Speculation(drafter, 1, 0.0).beside(deployment), slots=drafts)
    held = np.asarray(replace(deployment, speculation=None).footprint(length, beside).max_concurrency, float)
    return np.floor(held)[()]
