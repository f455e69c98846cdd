"""Kinds of attention and of what stands in its place. A new one is one file here and its name in the union."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from roofline.layers.attention.compressed import Compressed
from roofline.layers.attention.gqa import GQA
from roofline.layers.attention.linear import KDA, GatedDelta
from roofline.layers.attention.mla import MLA
from roofline.layers.attention.ssm import Mamba1, Mamba2

AttentionKind = Annotated[GQA | MLA | Compressed | GatedDelta | KDA | Mamba1 | Mamba2, Field(discriminator="kind")]
