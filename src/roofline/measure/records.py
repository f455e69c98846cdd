"""The file of measurements: JSON lines, each a session (device, versions, date), a measured row or a skipped case.

The file is replaced as a whole after every case, so that it is complete whenever the run breaks off.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from roofline.errors import InputError
from roofline.files import write_atomically
from roofline.measure.interruptions import DISTURBED

VERSION = 1
KINDS = ("session", "row", "skipped")


class Log:
    """A measurement file that is being written."""

    def __init__(self, path: str | Path, *, resume: bool = False):
        self.path = Path(path)
        self.records: list[dict[str, Any]] = []
        if self.path.exists():
            if not resume:
                raise InputError(f"'{path}' exists; go on with it (--resume) or name another file (--out)")
            self.records = read_records(self.path)

    def add(self, kind: str, record: Mapping[str, Any]) -> None:
        """Append a record and write the whole file in one step."""
        self.records.append({"record": kind} | dict(record))
        write_atomically(self.path, "".join(json.dumps(r, allow_nan=False) + "\n" for r in self.records))

    def start(self, session: Mapping[str, Any]) -> int:
        """Begin a session and return its number; a file is about one device.

        Errors: InputError where the file has rows of another device
        """
        before = [r for r in self.records if r["record"] == "session"]
        for other in before:
            if other["device"] != session["device"]:
                raise InputError(
                    f"'{self.path}' holds measurements of {other['device']}, this is {session['device']}; "
                    "name another file (--out)"
                )
        self.add("session", {"version": VERSION, "session": len(before)} | dict(session))
        return len(before)

    def done(self) -> set[str]:
        """Keys of the cases that were measured undisturbed, or found impossible on this device."""
        return {
            r["case"] for r in self.records if r["record"] == "skipped" or (r["record"] == "row" and not disturbed(r))
        }

    def rows(self) -> Iterator[dict[str, Any]]:
        """The measured rows."""
        return (r for r in self.records if r["record"] == "row")


def disturbed(row: Mapping[str, Any]) -> bool:
    """Whether other work took the processor away while a row was measured: it is measured again when resumed."""
    return row["sensors"].get("interruptions_per_s", 0.0) > DISTURBED


def read_records(path: str | Path) -> list[dict[str, Any]]:
    """All records of a measurement file, checked.

    Errors: InputError naming the line that is not a record
    """
    records = []
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read '{path}': {error}") from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            record = None
        if not isinstance(record, dict) or record.get("record") not in KINDS:
            raise InputError(f"'{path}', line {number} is not a record of 'roofline measure' (JSON lines)")
        if record["record"] == "session" and record.get("version") != VERSION:
            raise InputError(f"'{path}' has format version {record.get('version')}; this reads version {VERSION}")
        records.append(record)
    if not any(r["record"] == "session" for r in records):
        raise InputError(f"'{path}' is not a file of 'roofline measure': it has no session")
    return records


def read_measurements(path: str | Path):
    """The measured rows of a file as one pandas.DataFrame, shapes and times beside each other, seconds and bytes.

    Returns:  DataFrame with `op`, the columns of the op's kernel table, `time_s`, `p10_s`, `p90_s`, `samples`, and the
              telemetry of the device while it ran; `.attrs["session"]` is the last session
    """
    import pandas as pd

    records = read_records(path)
    sessions = [r for r in records if r["record"] == "session"]
    rows = list({r["case"]: r for r in records if r["record"] == "row"}.values())  # the last of each case
    dates = {s["session"]: s["date"] for s in sessions}
    flat = [
        {
            "op": r["op"],
            "case": r["case"],
            "disturbed": disturbed(r),
            **r["shape"],
            **r["timing"],
            **{f"sensor_{k}": v for k, v in r["sensors"].items()},
        }
        | {"date": dates.get(r["session"], "")}
        for r in rows
    ]
    frame = pd.DataFrame(flat)
    frame.attrs["session"] = sessions[-1]
    return frame
