"""Prices of the ops of a step: layers that are alike are priced once, and come out as if each were priced alone."""

import numpy as np
import pytest

from roofline.deployment import deployment
from roofline.pricing import op_times
from roofline.workload import Sequences


@pytest.mark.parametrize(("model", "gpu", "plan"), [
    ("deepseek-r1", "b200-sxm", {"tp": 8, "ep": 8}),  # dense and mixture layers share their attention
    ("gemma-3-27b", "h100-sxm", {}),  # windowed and full attention
])  # fmt: skip
def test_ops_of_one_shape_are_priced_once_and_alike(model, gpu, plan):
    where = deployment(model, gpu, **plan)
    past = np.array([100.0, 2000.0, 30_000.0])
    ops = where.ops(Sequences(np.array([[1.0], [64.0]]), 1.0, past))
    together = op_times(ops, where.machine, where.plan)
    alone = [t for op in ops for t in op_times([op], where.machine, where.plan)]
    for a, b in zip(together, alone, strict=True):
        assert a.op is b.op
        for field in ("compute_s", "memory_s", "launch_s", "total_s", "low_s", "high_s"):
            np.testing.assert_allclose(getattr(a, field), getattr(b, field), rtol=1e-12)
    attention = [id(t.total_s) for t in together if t.op.name == "attn.core"]
    assert len(attention) == 2 and (len(set(attention)) == 1) == (model == "deepseek-r1")
