"""Files are written whole or not at all, and refusals are said in words."""

from __future__ import annotations

import os
import stat

import pytest

from roofline.errors import InputError
from roofline.files import check_target, write_atomically


@pytest.mark.parametrize("data", ["text", b"bytes"])
def test_a_file_is_replaced_whole(tmp_path, data):
    path = tmp_path / "a.txt"
    path.write_text("old and longer than the new")
    assert write_atomically(path, data) == path
    assert path.read_bytes() == (data if isinstance(data, bytes) else data.encode())
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_link_goes_on_pointing(tmp_path):
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "a.txt", tmp_path / "a.txt"
    target.write_text("old")
    link.symlink_to(target)
    write_atomically(link, "new")
    assert link.is_symlink() and target.read_text() == "new"


def test_a_device_is_written_to_and_not_replaced():
    write_atomically(os.devnull, "x" * 100)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_what_stands_in_the_way(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        check_target(tmp_path)
    with pytest.raises(InputError, match="nosuch' is not a folder"):
        check_target(tmp_path / "nosuch" / "a")
    with pytest.raises(InputError, match="cannot write"):
        write_atomically(tmp_path / ("a" * 300), "text")
    if os.getuid():
        tmp_path.chmod(0o500)
        with pytest.raises(InputError, match="read-only for you"):
            check_target(tmp_path / "a")


def test_a_full_disk_leaves_the_old_file_and_a_message(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(InputError, match=r"cannot write .*a\.txt"):
            write_atomically(path, "x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1
