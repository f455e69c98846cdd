"""Opens a GGUF file: metadata by key, tensors by name with shape and quantisation. Needs the extra `roofline[gguf]`."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roofline.errors import SpecError, UnsupportedError
from roofline.precision import FORMATS, Format

_NAMES = {"F32": "fp32", "F16": "fp16", "BF16": "bf16", "F64": "fp32"}
_LONG_ARRAY = 65_536  # token lists are longer; only their length is of use


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: `columns` input columns by `rows` output rows, `copies` of them (experts)."""

    name: str
    columns: int
    rows: int
    copies: int
    quantisation: str
    bytes: int

    @property
    def params(self) -> int:
        return self.columns * self.rows * self.copies

    @property
    def format(self) -> Format:
        """The storage format of its quantisation."""
        name = _NAMES.get(self.quantisation, self.quantisation.lower())
        if name not in FORMATS:
            raise UnsupportedError(f"tensor '{self.name[:80]}': quantisation {self.quantisation} is not modelled")
        return FORMATS[name]


@dataclass(frozen=True, slots=True)
class GGUF:
    """Metadata and tensors of a GGUF file, all parts of a split one together. `where` names it in messages."""

    where: str
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def value(self, key: str, default: Any = None) -> Any:
        """A value below the architecture's prefix."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def count(self, key: str, default: int | None = None, low: int = 0) -> int:
        """A whole number below the architecture's prefix."""
        value = self.value(key, default)
        if value is None:
            raise SpecError(f"{self.where}: metadata misses {self.architecture}.{key}")
        return self._whole(key, value, low)

    def per_layer(self, key: str, layers: int, default: int | None = None) -> list[int]:
        """A number for each layer: one value for all, or an array."""
        value = self.value(key, default)
        if value is None:
            raise SpecError(f"{self.where}: metadata misses {self.architecture}.{key}")
        if not isinstance(value, list):
            return [self._whole(key, value, 0)] * layers
        if len(value) < layers:
            raise SpecError(f"{self.where}: {key} has {len(value)} values for {layers} layers")
        return [self._whole(key, v, 0) for v in value[:layers]]

    def _whole(self, key: str, value: Any, low: int) -> int:
        if not isinstance(value, int) or not low <= value <= 10**9:
            raise SpecError(f"{self.where}: {key} is {str(value)[:40]}; allowed: whole numbers from {low}")
        return int(value)


def open_gguf(path: str | os.PathLike) -> GGUF:
    """The metadata and tensors of a GGUF file; of a split one, all parts must lie beside each other."""
    path = Path(path)
    if path.is_dir():
        raise SpecError(f"'{path}' is a folder; give the path of a .gguf file")
    if not path.is_file():
        raise SpecError(f"there is no file '{path}'")
    readers = [_read(part) for part in _parts(path)]
    metadata = readers[0][0]
    if int(metadata.get("split.count", 1) or 1) > len(readers):
        raise SpecError(f"{path.name}: is one of {metadata['split.count']} parts; the others are not beside it")
    tensors = {t.name: t for _, part in readers for t in part}
    return GGUF(path.name, metadata, tensors)


def _parts(path: Path) -> list[Path]:
    """All parts of a split file (name-00001-of-00003.gguf), the first one first."""
    split = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", path.name)
    if not split or int(split[3]) > 1000:
        return [path]
    parts = [path.with_name(f"{split[1]}-{i:05d}-of-{split[3]}.gguf") for i in range(1, int(split[3]) + 1)]
    if absent := next((p for p in parts if not p.is_file()), None):
        raise SpecError(f"{path.name}: the part '{absent.name}' is not beside it")
    return parts


def _read(path: Path) -> tuple[dict[str, Any], Sequence[Tensor]]:
    try:
        from gguf import GGUFReader
    except ImportError:
        raise SpecError(
            f"{path.name}: reading GGUF files needs the package 'gguf'; install it with: pip install 'roofline[gguf]'"
        ) from None
    try:
        reader = GGUFReader(path)
        metadata = {name: _value(field) for name, field in reader.fields.items()}
        tensors = [_tensor(t) for t in reader.tensors]
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, OSError, MemoryError, struct.error) as error:
        text = " ".join(str(error).split())[:120]
        raise SpecError(f"{path.name}: not a readable GGUF file: {text or type(error).__name__}") from None
    return metadata, tensors


def _value(field: Any) -> Any:
    """The value of a metadata field; a very long array only as a range of its length."""
    kinds = [kind.name for kind in field.types]
    if not kinds:
        return None
    if kinds[0] == "STRING":
        return bytes(field.parts[field.data[0]]).decode("utf-8", errors="replace")
    if kinds[0] != "ARRAY":
        return field.parts[field.data[0]].tolist()[0]
    if len(field.data) > _LONG_ARRAY or kinds[-1] == "STRING":
        return range(len(field.data))
    return [field.parts[i].tolist()[0] for i in field.data]


def _tensor(tensor: Any) -> Tensor:
    shape = [int(n) for n in tensor.shape] + [1, 1]
    copies = 1
    for n in shape[2:]:
        copies *= n
    return Tensor(str(tensor.name), shape[0], shape[1], copies, tensor.tensor_type.name, int(tensor.n_bytes))
