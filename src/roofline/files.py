"""Reading text files with a message for people where that fails, and writing so that nothing is half-written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from roofline.errors import InputError, SpecError


def read_text(path: str | os.PathLike, most_bytes: int, what: str, encoding: str = "utf-8") -> str:
    """The text of a file that holds `what` ("a spec") and has at most so many bytes; else a SpecError says why not."""
    path = Path(path)
    try:
        if path.is_dir():
            raise SpecError(f"'{path}' is a folder; give the path of a file")
        size = path.stat().st_size
        if size > most_bytes:
            raise SpecError(f"{path.name}: {size} bytes; {what} has at most {most_bytes}")
        return path.read_text(encoding=encoding)
    except FileNotFoundError:
        raise SpecError(f"there is no file '{path}'") from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        raise SpecError(f"cannot read '{path}': {error}") from None


def check_target(path: str | os.PathLike) -> Path:
    """The path of a file that may be written, else an InputError says why not: asked before long work."""
    path = Path(path)
    try:
        if path.is_dir():
            raise InputError(f"'{path}' is a folder; give the name of a file")
        if path.exists() and not path.is_file():  # a device or a pipe
            return path
        if not path.parent.is_dir():
            raise InputError(f"'{path.parent}' is not a folder")
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise InputError(f"cannot write '{path}': the folder '{path.parent}' is read-only for you")
    except (OSError, ValueError) as error:  # too long, or a NUL in it
        raise InputError(f"cannot write '{path}': {getattr(error, 'strerror', error)}") from None
    return path


def write_atomically(path: str | os.PathLike, data: str | bytes) -> Path:
    """Write `data` to `path` in one step: a reader sees the old file or the whole new one, never a part."""
    path = check_target(path)
    binary = isinstance(data, bytes)
    if path.exists() and not path.is_file():
        with path.open("wb" if binary else "w", **({} if binary else {"encoding": "utf-8"})) as file:
            file.write(data)
        return path
    try:
        handle, temporary = tempfile.mkstemp(dir=path.resolve().parent, prefix=".new.")
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb" if binary else "w", **({} if binary else {"encoding": "utf-8"})) as file:
            file.write(data)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path.resolve())
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):  # a full disk, a quota
            raise InputError(f"cannot write '{path}': {error.strerror}") from None
        raise
    return path
