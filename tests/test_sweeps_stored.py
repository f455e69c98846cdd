"""Sweeps on disk: equal to those in memory, resumed after an interruption, the same on a cluster."""

from __future__ import annotations

import json

import numpy as np
import pytest

from roofline.errors import InputError
from roofline.sweeps import stored, sweep
from roofline.sweeps.result import MissingPackageError, require

INPUTS = {"hw": ["h100-sxm", "l40s"], "tp": [1, 2, 5], "isl": [500, 4000], "osl": [100, 300], "concurrency": [1, 8, 64]}
MODEL = "llama-3.1-8b"


def test_missing_package_says_how_to_get_it():
    with pytest.raises(MissingPackageError, match=r"pip install 'roofline\[parquet\]'"):
        require("no_such_package", "parquet")


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of about ten points, so that a little sweep has several."""
    pytest.importorskip("pyarrow")
    plain = stored.parts
    monkeypatch.setattr(stored, "parts", lambda grid, most=10: plain(grid, 10))


def test_equal_to_memory(tmp_path, small_parts):
    whole = sweep(MODEL, **INPUTS)
    on_disk = sweep(MODEL, **INPUTS, out=tmp_path / "points")
    assert on_disk.points == len(whole) and on_disk.parts > 3
    frame, expected = on_disk.to_pandas(), whole.to_pandas()
    assert list(frame.columns) == list(expected.columns)
    assert frame.hw.astype(str).tolist() == expected.hw.tolist()
    for name in ("tp", "isl", "osl", "concurrency", "reasons"):
        assert frame[name].tolist() == expected[name].tolist()
    for name in whole.columns:  # stored as float32
        np.testing.assert_array_equal(frame[name].to_numpy(), expected[name].to_numpy(np.float32))


def test_resumes(tmp_path, small_parts, monkeypatch):
    folder = tmp_path / "points"
    written = []
    plain = stored.write_part

    def interrupted(grid, blocks, metrics, path):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path)
        return plain(grid, blocks, metrics, path)

    monkeypatch.setattr(stored, "write_part", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep(MODEL, **INPUTS, out=folder)
    assert len(list(folder.glob("part-*.parquet"))) == 2
    stamps = {p: p.stat().st_mtime_ns for p in folder.glob("part-*.parquet")}
    monkeypatch.setattr(stored, "write_part", plain)
    done = sweep(MODEL, **INPUTS, out=folder)
    assert all(p.stat().st_mtime_ns == t for p, t in stamps.items())  # what was there is kept
    assert len(done.to_pandas()) == done.points
    assert not [p for p in folder.iterdir() if p.name.startswith(".")]


def test_a_failed_part_leaves_nothing(tmp_path, small_parts, monkeypatch):
    import pandas as pd

    def full(self, path, **_):
        path.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", full)
    with pytest.raises(OSError, match="no space"):
        sweep(MODEL, **INPUTS, out=tmp_path / "points")
    assert [p.name for p in (tmp_path / "points").iterdir()] == ["sweep.json"]


def test_another_sweep_is_not_overwritten(tmp_path, small_parts):
    folder = tmp_path / "points"
    sweep(MODEL, **INPUTS, out=folder)
    with pytest.raises(InputError, match="holds another sweep"):
        sweep(MODEL, **(INPUTS | {"isl": [501, 4000]}), out=folder)
    assert json.loads((folder / "sweep.json").read_text())["points"] == 72
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("x")
    with pytest.raises(InputError, match="not empty"):
        sweep(MODEL, **INPUTS, out=other)


def test_one_file(tmp_path):
    pytest.importorskip("pyarrow")
    import pandas as pd

    s = sweep(MODEL, **INPUTS)
    s.to_parquet(tmp_path / "points.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "points.parquet"), s.to_pandas())


@pytest.fixture(scope="module")
def client():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_cluster_gives_the_same(client):
    here, there = sweep(MODEL, **INPUTS), sweep(MODEL, **INPUTS, cluster=client)
    assert here.shape == there.shape and here.messages == there.messages
    np.testing.assert_array_equal(here.reasons, there.reasons)
    for name in here.columns:
        np.testing.assert_array_equal(here.columns[name], there.columns[name])


def test_cluster_writes_the_same_files(client, tmp_path, small_parts):
    here = sweep(MODEL, **INPUTS, out=tmp_path / "here")
    there = sweep(MODEL, **INPUTS, out=tmp_path / "there", cluster=client)
    import pandas as pd

    pd.testing.assert_frame_equal(here.to_pandas(), there.to_pandas())
