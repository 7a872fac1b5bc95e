"""Timings of the 4-layer model: what is timed is what is said, what does not fit is told, nothing is lost."""

import pandas as pd
import pytest
import torch
from systems_small import LIMITS, PLAN, SHAPE, measured

from swalib import SWA, Full, results, under
from swalib.systems import cost, counters, grids, machine, measure, orders, table, toy
from swalib.systems.kinds import FAMILIES, Kind, kinds
from swalib.systems.measure import Cell

KINDS = kinds([8], 2, [4], [8], ["gla", "liger", "gated_deltanet"])


# ---- The model and its cache.


def test_the_default_shape_is_the_paper_s_model():
    config = toy.model(SHAPE).config
    assert (cost.Shape().layers, cost.Shape().hidden, cost.Shape().heads, cost.Shape().head_dim) == (
        4,
        1024,
        16,
        64,
    )
    assert cost.Shape.wide(1024) == cost.Shape()
    assert (config.hidden_size, config.num_attention_heads, config.head_dim) == (32, 2, 16)
    assert toy.model_id(SHAPE) != toy.model_id(SHAPE, seed=1) != toy.model_id(cost.Shape())


def test_weights_are_seeded_and_the_global_state_is_left_alone():
    toy.model.cache_clear()
    before = torch.get_rng_state()
    first = toy.model(SHAPE).state_dict()
    toy.model.cache_clear()
    again = toy.model(SHAPE).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.method)
@torch.inference_mode()
def test_a_filled_cache_is_like_one_that_has_read_a_text(kind):
    student = toy.student(toy.model(SHAPE), kind, 40)
    read = student(torch.randint(32, (3, 40)), use_cache=True).cache
    filled = toy.filled_cache(student, 40, batch=3)
    assert described(filled) == described(read)
    step = {"input_ids": torch.zeros(3, 1, dtype=torch.long), "use_cache": True}
    counts = [
        counters.operations(lambda cache=cache: student(cache=cache, **step)) for cache in (read, filled)
    ]
    assert counts[0] == counts[1]
    assert described(filled) == described(read)
    assert filled.get_seq_length() == 41


def described(cache) -> list:
    """Sizes, counts and positions: all that a step's work depends on."""
    found = [cache.get_seq_length(), cache.allocated_bytes]
    for layer in cache.layers:
        state = getattr(layer, "state", None)
        tensors = state if state is not None else {"k": layer.keys, "v": layer.values}
        found.append({name: (tuple(x.shape), x.dtype) for name, x in tensors.items()})
        found.append(tensors["position"].sort().values.tolist() if "position" in tensors else None)
    return found


@torch.inference_mode()
def test_a_filled_sink_cache_steps_as_one_that_was_given_the_same_keys():
    student = toy.student(toy.model(SHAPE), Kind("swa", 8, 2), 40)
    read = student(torch.randint(32, (1, 40)), use_cache=True).cache
    filled = toy.filled_cache(student, 40)
    for ours, theirs in zip(filled.layers, read.layers, strict=True):
        ours.keys.copy_(theirs.keys), ours.values.copy_(theirs.values)
    token = torch.tensor([[3]])
    logits = [student(token, cache=cache, use_cache=True).logits for cache in (filled, read)]
    assert torch.equal(*logits)


@torch.inference_mode()
def test_full_attention_in_slots_is_full_attention():
    ids = torch.randint(32, (2, 30))
    slots = toy.student(toy.model(SHAPE), Kind("full"), 30)
    assert torch.allclose(slots(ids).logits, toy.model(SHAPE)(ids).logits, atol=1e-5)


def test_an_empty_cache_can_t_be_filled():
    with pytest.raises(ValueError, match="at least 1 token, got 0"):
        toy.filled_cache(toy.student(toy.model(SHAPE), Kind("full"), 4), 0)


# ---- One measurement.


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.method)
def test_a_decode_row_holds_the_bytes_that_were_predicted(kind):
    found = {v.metric: v.value for v in Cell(kind, "decode", 64, 2, SHAPE, repeats=2).compute().values}
    assert found["fits"] == 1
    assert found["step_low_ms"] <= found["step_ms"] <= found["step_high_ms"]
    assert found["speed"] == pytest.approx(2000 / found["step_ms"])
    assert found["ops"] > 50
    if kind.attention:
        assert found["state_bytes"] == cost.state_bytes(kind.attention, SHAPE, 64, 2)
        held = cost.weight_bytes(kind.attention, SHAPE, "float32") + found["state_bytes"]
        assert held < found["peak_bytes"] < 2 * held


def test_steps_of_full_attention_all_see_as_many_keys():
    cell = Cell(Kind("full"), "decode", 12, 1, SHAPE)
    step, _ = measure._decode(cell, toy.student(toy.model(SHAPE), cell.kind, 12))
    seen = []
    for _ in range(3):
        with Keys() as keys:
            step()
        seen.append(keys.most)
    assert seen == [12, 12, 12]


class Keys(torch.utils._python_dispatch.TorchDispatchMode):
    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "scaled_dot_product" in str(function):
            self.most = max(self.most, args[1].shape[2])
        return function(*args, **(kwargs or {}))


def test_what_does_not_fit_is_told_before_it_is_allocated(monkeypatch, capsys):
    monkeypatch.setattr(measure, "available_bytes", lambda device: 1_000_000)
    monkeypatch.setattr(measure.toy, "model", None)  # nothing may be made
    found = {v.metric: v.value for v in Cell(Kind("full"), "decode", 262_144, 1, SHAPE).compute().values}
    kept = 2 * 262_144 * 32 * 4
    assert found["fits"] == 0
    assert kept < found["needed_bytes"] < 1.01 * kept + 100_000
    assert found["available_bytes"] == 1_000_000
    assert "does not fit: full attention, 262144 tokens" in "".join(capsys.readouterr())


def test_a_prompt_is_read_by_the_unchanged_model_under_full_attention():
    assert Cell(Kind("full"), "prefill", 16, shape=SHAPE).config()["impl"] == "transformers"
    assert Cell(Kind("swa", 8, 2), "prefill", 16, shape=SHAPE).config()["impl"] == "sdpa"
    assert Cell(Kind("gla"), "decode", 16, shape=SHAPE).config()["impl"] is None
    cell = Cell(Kind("full"), "prefill", 16, shape=SHAPE)
    assert measure._student(cell) is toy.model(SHAPE, "float32", "cpu")


def test_peak_memory_is_the_allocator_s():
    assert counters.peak_bytes(lambda: torch.ones(1000), "cpu") == 4000


def test_quartiles_and_speed_of_known_times():
    found = {v.metric: v.value for v in counters.timings([0.01, 0.02, 0.03, 0.04, 0.05], 6)}
    assert found == pytest.approx({"step_ms": 30, "step_low_ms": 20, "step_high_ms": 40, "speed": 200})


def test_one_thread_is_timed_by_what_it_ran():
    assert machine.clock("cpu") is machine.time.thread_time
    waited = machine.seconds(lambda: machine.time.sleep(0.2), "cpu")
    assert waited < 0.1


def test_limits_are_positive_and_named():
    found = {v.metric: (v.value, v.unit) for v in LIMITS.compute().values}
    assert {name: unit for name, (_, unit) in found.items()} == {
        "copy": "GB/s",
        "read": "GB/s",
        "matrix": "GFLOP/s",
        "op": "us",
    }
    assert all(value > 0 for value, _ in found.values())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Cell(Kind("full"), "train", 64), "task must be one of decode, prefill"),
        (lambda: Cell(Kind("full"), "decode", 1), "at least 2 tokens"),
        (lambda: Cell(Kind("full"), "decode", 64, graph=True), "captures a decode step on a CUDA device"),
        (lambda: cost.Shape.wide(100), "16 heads can't share 100 dimensions"),
    ],
)
def test_bad_cells_are_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_an_unknown_impl_is_refused():
    with pytest.raises(ValueError, match="impl must be one of"):
        Cell(Kind("swa", 8, 2), "decode", 16, shape=SHAPE, impl="magic").compute()


# ---- Tables.

SOME = [
    Cell(Kind("full"), "decode", 16, 1, SHAPE, repeats=2),
    Cell(Kind("swa", 8, 2), "decode", 16, 1, SHAPE, repeats=2),
]


def test_rows_are_stored_once_and_read_for_every_machine(results_folder, monkeypatch):
    with pytest.raises(results.MissingResult, match="measure it with: swa run 08_systems -p mode run"):
        table.measure("stored", SOME)
    here = table.measure("run", SOME)
    monkeypatch.setattr(Cell, "compute", None)  # nothing is measured again
    pd.testing.assert_frame_equal(table.measure("run", SOME), here)
    monkeypatch.setattr(table, "hardware", lambda: "another machine")
    pd.testing.assert_frame_equal(table.measure("stored", SOME), here)
    absent = [Cell(Kind("gla"), "decode", 16, 1, SHAPE)]
    pd.testing.assert_frame_equal(table.measure("stored", SOME, optional=absent), here)


def test_a_killed_run_keeps_what_it_had(results_folder, monkeypatch):
    compute, calls = Cell.compute, []

    def once(self):
        if calls:
            raise KeyboardInterrupt
        calls.append(1)
        return compute(self)

    monkeypatch.setattr(Cell, "compute", once)
    with pytest.raises(KeyboardInterrupt):
        table.measure("run", SOME)
    assert len(table.measure("stored", SOME[:1])) == 1


def test_the_plan_holds_every_kind_at_every_context_once():
    cells = PLAN.cells()
    assert len(set(cells)) == len(cells)
    decode = {
        (c.kind, c.context_tokens) for c in cells if c.task == "decode" and c.batch == 1 and c.shape == SHAPE
    }
    every = kinds(PLAN.windows, PLAN.sinks, PLAN.features, PLAN.hybrid_windows, PLAN.mixers)
    assert {(kind, n) for kind in every for n in PLAN.contexts} <= decode
    gpu = PLAN.on("cuda")
    assert {cell.graph for cell in gpu} == {True, False}
    assert {cell.dtype for cell in gpu} == {"float16"}
    assert set(FAMILIES) >= {kind.method for kind in every}


def test_floors_by_hand():
    rows, limits, *_ = measured()
    one = grids.floors(rows, limits).iloc[0]
    bandwidth = 1e9 * max(limits["copy"].iloc[0], limits["read"].iloc[0])
    assert one["bytes_ms"] == pytest.approx(1e3 * one["moved_bytes"] / bandwidth)
    assert one["floor_ms"] >= one["bytes_ms"]
    assert one["launch_ms"] == pytest.approx(one["ops"] * limits["op"].iloc[0] / 1e3)
    assert one["reached"] == pytest.approx(one["floor_ms"] / one["step_ms"])


# ---- The printed orders.


def timed(**times: tuple[float, float]) -> pd.DataFrame:
    """Rows with (ms at 1024, ms at 4096) for each name, quartiles 10 % around them."""
    names = {"narrow": ("swa", 64, None), "wide": ("swa", 512, None), "linear": ("hedgehog", None, 128)}
    names |= {"lolcats": ("lolcats", 256, 128), "full": ("full", None, None)}
    lines = []
    for name, pair in times.items():
        method, window, features = names[name]
        for context, ms in zip((1024, 4096), pair, strict=True):
            own = {"method": method, "window": window, "features": features, "context_tokens": context}
            quartiles = {"step_ms": ms, "step_low_ms": 0.9 * ms, "step_high_ms": 1.1 * ms, "speed": 1000 / ms}
            lines.append(
                {**own, **quartiles, "batch": 1, "fits": True, "task": "decode", "state_bytes": 1e6 * ms}
            )
    return pd.DataFrame(lines).astype({"window": float, "features": float})


def test_orders_hold_fail_or_can_t_be_told():
    rows = timed(narrow=(10, 10), wide=(15, 15.5), linear=(16, 30), lolcats=(14, 16.5), full=(20, 80))
    found = orders.table(rows, 4096, orders.Chosen()).set_index("printed")["holds"].to_dict()
    assert found == {
        "SWA(64) > SWA(512)": "yes",
        "SWA(512) > linear": "yes",
        "SWA(512) > LoLCATs": "can't tell",
        "SWA(64) is flat": "yes",
        "SWA(512) is flat": "yes",
        "linear is flat": "no",
        "LoLCATs is flat": "yes",
        "full falls beyond 1K": "yes",
        "SWA(64) < linear": "yes",
        "linear < LoLCATs": "no",
        "LoLCATs < SWA(512)": "no",
        "SWA(512) < full": "yes",
    }
    slower = timed(narrow=(30, 30), wide=(15, 15), linear=(16, 16), lolcats=(17, 17), full=(20, 21))
    told = orders.table(slower, 4096, orders.Chosen()).set_index("printed")["holds"]
    assert told["SWA(64) > SWA(512)"] == "no"
    assert told["full falls beyond 1K"] == "no"


def test_the_growing_cache_is_full_attention_too():
    student = under(toy.model(SHAPE), Full())
    assert type(toy.filled_cache(student, 5).layers[0]).__name__ == "DynamicLayer"
    assert toy.student(toy.model(SHAPE), Kind("swa", 8, 2), 9).model._swa.spec == SWA(8, 2)
