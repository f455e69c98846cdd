"""What a rank, or all that step together, are asked for and have: steps, rules, lengths, room."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from roofline.arrays import Array
from roofline.serving.capacity import Room
from roofline.serving.lengths import Lengths
from roofline.serving.load import Load, Rules
from roofline.serving.steps import StepTable


@dataclass(frozen=True, slots=True)
class Site:
    """A rank, or all that step together, with their rules, the lengths they are asked for, and the room of each."""

    table: StepTable
    rules: Rules
    prompts: Lengths
    outputs: Lengths
    cached: Array
    room: Room
    padding: float = 0.0  # a batch that comes and goes is, on average, padded by half the distance of two graphs
    grown: float = 1.0  # tokens that a step brings a sequence; outputs count steps

    @property
    def ranks(self) -> float:
        """Ranks that this is about."""
        return self.table.ranks

    @property
    def cap(self) -> Array:
        """Sequences that can run together."""
        return self.ranks * self.room.seats

    def load(self, batch: Array, prompts: Array = 1.0) -> Load:
        """What `batch` such requests ask of it, `prompts` of them computed for each answer."""
        new, o = np.maximum(self.prompts.mean - self.cached, 1.0), self.outputs
        cv2 = np.square(o.cv)
        about = self.padding, self.grown, cv2, prompts, self.ranks
        return Load(new, self.cached, o.mean, o.ratio_min, o.longest, batch, *about)

    def at(self, where: np.ndarray) -> Site:
        """The points at which `where` is true, in a row."""

        def chosen(x: Array) -> Array:
            return np.broadcast_to(x, where.shape)[where] if np.ndim(x) else x

        def each(record):
            return replace(record, **{f.name: chosen(getattr(record, f.name)) for f in fields(record)})

        rules, *rows = each(self.rules), each(self.prompts), each(self.outputs)
        return Site(self.table, rules, *rows, chosen(self.cached), each(self.room), self.padding, self.grown)
