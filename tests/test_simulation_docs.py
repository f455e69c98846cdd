"""The code in docs/simulation.md and docs/prefix-and-tiers.md runs, and prints what the text says."""

from __future__ import annotations

import re

import pytest


def blocks(root, page):
    return re.findall(r"```python\n(.*?)```", (root / "docs" / page).read_text(), re.DOTALL)


@pytest.mark.parametrize(("page", "count"), [("simulation.md", 3), ("prefix-and-tiers.md", 2)])
def test_blocks_run(root, capsys, page, count):
    found = blocks(root, page)
    assert len(found) == count
    for block in found:
        exec(block, {})
    assert capsys.readouterr().out


def test_break_even_lengths_of_the_page(root, capsys):
    exec(blocks(root, "prefix-and-tiers.md")[1], {})
    lengths = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert lengths == pytest.approx([2, 740, 460_000], rel=0.04)
