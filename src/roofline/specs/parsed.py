"""What every reader of models returns."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.precision import Precision
from roofline.specs.model import Model


@dataclass(frozen=True, slots=True)
class ParsedModel:
    """A model as it was read, how its checkpoint stores it, and what the reader wants known.

    `precision` is None where the source says nothing of formats; `file_bytes` is the size of all tensors where the
    source lists them (GGUF, or a folder with weights).
    """

    model: Model
    precision: Precision | None = None
    notes: tuple[str, ...] = ()
    file_bytes: int | None = None

    @property
    def name(self) -> str:
        """The model's."""
        return self.model.name

    def __repr__(self) -> str:
        stored = "" if self.precision is None else f" in {self.precision.name}"
        return f"<ParsedModel {self.name}: {self.model.params / 1e9:.4g} B parameters{stored}>"
