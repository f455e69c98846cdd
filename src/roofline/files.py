"""Writing files so that nothing is ever half-written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from roofline.errors import InputError


def write_atomically(path: str | os.PathLike, data: str | bytes) -> Path:
    """Write `data` to `path` in one step: a reader sees the old file or the whole new one, never a part."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"'{path}' is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise InputError(f"'{path.parent}' is not a folder")
    binary = isinstance(data, bytes)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb" if binary else "w", **({} if binary else {"encoding": "utf-8"})) as file:
            file.write(data)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path
