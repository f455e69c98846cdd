"""Kinds of attention. A new one is one file here and its name in the union."""

from __future__ import annotations

from roofline.layers.attention.gqa import GQA

AttentionKind = GQA
