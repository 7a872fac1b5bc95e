"""The chapter's measurements at toy size: every figure of it from seconds of work."""

from functools import cache

from swalib.systems import grids, table
from swalib.systems.cost import Shape
from swalib.systems.machine import Limits
from swalib.systems.plan import Plan

SHAPE = Shape(layers=1, hidden=32, heads=2, kv_heads=2, head_dim=16, intermediate=64, vocab=32)
PLAN = Plan(
    windows=[8, 16],
    sinks=2,
    features=[4, 8],
    hybrid_windows=[8, 16],
    mixers=["gla"],
    contexts=[16, 64, 256],
    prefill=[32, 64],
    batches=[1, 2, 4],
    batch_context=16,
    widths=[16, 32, 64],
    width_context=16,
    shape=SHAPE,
    repeats=2,
)
LIMITS = Limits(copied_bytes=1 << 20, side=64)


@cache
def measured():
    """(rows, limits, grid of memory, grid of FLOPs)."""
    sizes = {"contexts": [16, 64, 256, 1024], "windows": [8, 16, 64], "features": [4, 8]}
    return (
        table.measure("smoke", PLAN.cells()),
        table.limits("smoke", [LIMITS]),
        grids.memory(SHAPE, **sizes, groups=[1, 2], dtypes=["float16", "float32"], hybrid_window=8),
        grids.flops(SHAPE, **sizes, hybrid_window=8),
    )
