"""Base of everything that is declared in a spec file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """Frozen; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
