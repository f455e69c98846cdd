"""Base of everything that is declared in a spec file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """Frozen; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some fields changed, without the properties that were derived from the old ones and kept."""
        copied = super().model_copy(update=update, deep=deep)
        for kept in vars(copied).keys() - type(self).model_fields.keys():
            del vars(copied)[kept]
        return copied
