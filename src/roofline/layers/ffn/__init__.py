"""Kinds of feed-forward block."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from roofline.layers.ffn.dense import Dense
from roofline.layers.ffn.moe import MoE

FFNKind = Annotated[Dense | MoE, Field(discriminator="kind")]
