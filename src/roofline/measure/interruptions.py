"""How often other work took the processor away while a measurement ran: what sensors are to a GPU, this is to a CPU."""

from __future__ import annotations

import time
from typing import Any

# [1/s] A quiet machine takes a few; two processes that share a core take turns every few milliseconds.
DISTURBED = 50.0


class Interruptions:
    """Counts involuntary context switches of this process while the `with` block runs."""

    def __enter__(self) -> Interruptions:
        self._begin, self._before = time.perf_counter(), _involuntary()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds, after = time.perf_counter() - self._begin, _involuntary()
        self.count = None if after is None or self._before is None else after - self._before

    def summary(self) -> dict[str, Any]:
        """`interruptions_per_s`; nothing where the system does not count them."""
        if self.count is None:
            return {}
        return {"interruptions_per_s": float(f"{self.count / max(self.seconds, 1e-9):.4g}")}


def _involuntary() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
