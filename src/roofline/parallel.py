"""How one replica is cut over ranks."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.errors import InfeasibleError, check_number


@dataclass(frozen=True, slots=True)
class Plan:
    """Ranks of one replica: `gpus = tp * dp * pp * cp`.

    tp: tensor parallel (attention and dense layers). dp: attention data parallel: groups of tp ranks that hold
    different sequences and share the experts. ep: expert parallel over the tp * dp ranks; what is left,
    `moe_tp = tp * dp / ep`, cuts each expert. pp: pipeline stages. cp: context parallel (a sequence cut over ranks).
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    cp: int = 1

    def __post_init__(self):
        for name in ("tp", "pp", "ep", "dp", "cp"):
            ranks = check_number(name, getattr(self, name), low=1, high=65536, integer=True)
            object.__setattr__(self, name, int(ranks))
        if self.tp * self.dp % self.ep:
            raise InfeasibleError(
                f"ep: {self.ep} does not divide the {self.tp * self.dp} ranks of tp {self.tp} x dp {self.dp}"
            )

    @property
    def gpus(self) -> int:
        """Devices of one replica."""
        return self.tp * self.dp * self.pp * self.cp

    @property
    def stage_gpus(self) -> int:
        """Devices of one pipeline stage."""
        return self.tp * self.dp * self.cp

    @property
    def moe_tp(self) -> int:
        """Ranks that share one expert."""
        return self.tp * self.dp // self.ep

    def __str__(self) -> str:
        parts = [f"{k.upper()}{v}" for k in ("tp", "pp", "dp", "ep", "cp") if (v := getattr(self, k)) > 1]
        return " ".join(parts) or "1 device"


def heads_per_rank(heads: int, tp: int, what: str = "attention heads") -> float:
    """Query heads on a rank; they must divide evenly.

    Formula:  heads / tp
    Args:     heads, tp [-]; what: in the message
    Errors:   InfeasibleError
    Source:   Shoeybi et al. 2019 (Megatron-LM), section 3

    >>> heads_per_rank(64, 4)
    16.0
    """
    if heads % tp:
        allowed = [d for d in range(1, heads + 1) if heads % d == 0]
        raise InfeasibleError(f"tp: {tp} does not divide the {heads} {what}; allowed: {', '.join(map(str, allowed))}")
    return heads / tp


def kv_heads_per_rank(kv_heads: int, tp: int) -> float:
    """KV heads on a rank: at least one, so they are replicated past tp = kv_heads.

    Formula:  max(kv_heads / tp, 1)
    Args:     kv_heads, tp [-]
    Errors:   InfeasibleError where neither divides the other
    Source:   vLLM and Megatron-LM keep one head where tp > kv_heads

    >>> kv_heads_per_rank(8, 4), kv_heads_per_rank(4, 8)
    (2.0, 1.0)
    """
    if max(kv_heads, tp) % min(kv_heads, tp):
        raise InfeasibleError(f"tp: {tp} and {kv_heads} KV heads do not divide one another")
    return max(kv_heads / tp, 1.0)


def padded_vocab(vocab: int, tp: int, multiple: int = 64) -> int:
    """Vocabulary rows after padding to a multiple of 64; each rank must hold a whole number of them.

    Formula:  multiple ceil(vocab / multiple)
    Args:     vocab, tp, multiple [-]
    Errors:   InfeasibleError
    Source:   vLLM VocabParallelEmbedding (pads to 64, refuses a tp that does not divide the result)

    >>> padded_vocab(128256, 4), padded_vocab(50257, 2)
    (128256, 50304)
    """
    rows = -(-vocab // multiple) * multiple
    if rows % tp:
        raise InfeasibleError(f"tp: {tp} does not divide the vocabulary of {rows} rows ({vocab} padded to {multiple})")
    return rows
