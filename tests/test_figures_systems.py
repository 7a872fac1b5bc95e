"""The figures of costs and timings: data in = data drawn, for every stand of their controls."""

import itertools

import pytest
from systems_small import PLAN, SHAPE, measured

from swalib import figures
from swalib.systems import cost, grids
from swalib.systems.kinds import Kind

ROWS, LIMITS, MEMORY, FLOPS = measured()
AT = ROWS[ROWS["hidden"] == 32]
FLOORS = grids.floors(ROWS, LIMITS)


def test_memory_ships_the_formula_for_every_stand():
    data = figures.systems_memory(MEMORY, caption="c", batches=(1, 4)).data
    for w, group, dtype in itertools.product([8, 16, 64], [1, 2], ["float16", "float32"]):
        shape = cost.Shape(1, 32, 2, 2 // group, 16, 64, 32)
        curve = data["values"][f"swa|{w}|{group}|{dtype}"]
        held = [
            cost.state_bytes(Kind("swa", w, 0).attention, shape, n, 1, dtype) for n in (16, 64, 256, 1024)
        ]
        assert curve["x"] == [16, 64, 256, 1024]
        assert curve["y"] == pytest.approx([1e-6 * bytes for bytes in held], rel=1e-4)
    for f, group, dtype, state in itertools.product([4, 8], [1, 2], *[["float16", "float32"]] * 2):
        shape = cost.Shape(1, 32, 2, 2 // group, 16, 64, 32)
        assert data["marks"]["values"][f"mark|{f}|{group}|{dtype}|{state}"]["x"] == cost.equal_window(
            shape, f, dtype, state
        )
    assert data["scale"] == "batch"
    assert not any(line["layer"] == "measured" for line in data["lines"])


def test_allocated_bytes_lie_where_they_were_measured():
    data = figures.systems_memory(MEMORY, caption="c", rows=AT).data
    row = AT[(AT["method"] == "swa") & (AT["window"] == 16) & (AT["task"] == "decode") & (AT["batch"] == 1)]
    curve = data["values"]["allocated-swa|16|1|float32|float32|1"]
    assert curve["y"] == pytest.approx(list(row.sort_values("context_tokens")["state_bytes"] / 1e6), rel=1e-4)
    formula = data["values"]["hedgehog|8|float32"]["y"][0]
    assert data["values"]["allocated-hedgehog|8|1|float32|float32|1"]["y"][0] == formula
    assert {line["layer"] for line in data["lines"] if line["name"].startswith("allocated")} == {"measured"}


def test_flops_ship_tokens_and_prompts_alone_and_with_the_model():
    data = figures.systems_flops(FLOPS, caption="c").data
    attention = Kind("hedgehog", features=8).attention
    step, prompt = cost.decode_flops(attention, SHAPE, 256), cost.prefill_flops(attention, SHAPE, 256)
    for key, flops in {
        "decode|attention": step.total - step.decoder,
        "decode|all": step.total,
        "prefill|attention": prompt.total - prompt.decoder,
        "prefill|all": prompt.total,
    }.items():
        assert data["values"][f"hedgehog|8|{key}"]["y"][2] == pytest.approx(flops / 1e6, rel=1e-4)


def test_speeds_and_their_quartiles_are_the_rows():
    data = figures.systems_speed(AT, caption="c").data
    machine = data["fixed"]["machine"]
    part = AT[(AT["method"] == "lolcats") & (AT["window"] == 16) & (AT["features"] == 8)]
    part = part[(part["task"] == "decode") & (part["batch"] == 1)].sort_values("context_tokens")
    curve = data["values"][f"lolcats|8|16|decode|{machine}"]
    assert curve["x"] == PLAN.contexts
    assert curve["y"] == pytest.approx(list(part["speed"]), rel=1e-4)
    assert curve["low"] == pytest.approx(list(1000 / part["step_high_ms"]), rel=1e-4)
    prompt = AT[(AT["method"] == "full") & (AT["task"] == "prefill")].sort_values("context_tokens")
    assert data["values"][f"full|prefill|{machine}"]["y"] == pytest.approx(list(prompt["speed"]), rel=1e-4)


def test_batches_hold_only_what_was_measured_at_several():
    data = figures.systems_batch(AT, caption="c").data
    names = {line["name"] for line in data["lines"]}
    assert names == {"full", "swa", "hedgehog", "lolcats"}
    assert all(curve["x"] == [1, 2, 4] for curve in data["values"].values())


def test_what_did_not_fit_is_not_drawn():
    full = (AT["method"] == "full") & (AT["batch"] == 4)
    data = figures.systems_batch(AT.assign(fits=AT["fits"] & ~full), caption="c").data
    curve = next(curve for key, curve in data["values"].items() if key.startswith("full|"))
    assert curve["x"] == [1, 2]


def test_bars_and_their_limits_are_the_floors():
    alone = FLOORS[(FLOORS["hidden"] == 32) & (FLOORS["batch"] == 1)]
    figure = figures.systems_roofline(alone, caption="c", context_tokens=64, features=8)
    bars = {bar["label"]: bar for bar in figure.data["values"]["64"]}
    row = alone[
        (alone["method"] == "hedgehog") & (alone["context_tokens"] == 64) & (alone["features"] == 8)
    ].iloc[0]
    for name in ("step_ms", "floor_ms", "launch_ms"):
        assert bars[row["label"]][name] == pytest.approx(row[name], rel=1e-4)
    assert not any("F = 4" in label or "copying" in label for label in bars)


def test_launches_hold_the_measured_times_and_both_limits():
    chosen = FLOORS[(FLOORS["method"] == "swa") & (FLOORS["window"] == 8) & (FLOORS["context_tokens"] == 16)]
    chosen = chosen[(chosen["batch"] == 1)].drop_duplicates("hidden").sort_values("hidden")
    data = figures.systems_launches(chosen, caption="c").data
    assert data["values"]["swa"]["x"] == [16, 32, 64]
    for name, column in {"swa": "step_ms", "bytes_ms": "bytes_ms", "launch_ms": "launch_ms"}.items():
        assert data["values"][name]["y"] == pytest.approx(list(chosen[column]), rel=1e-4)
    layers = {line["name"]: line["layer"] for line in data["lines"]}
    assert layers == {"swa": "measured", "bytes_ms": "formula", "launch_ms": "formula"}


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda: figures.systems_speed(ROWS, caption="c"), "several widths"),
        (lambda: figures.systems_speed(AT.assign(method="new"), caption="c"), "no colour is known for 'new'"),
        (lambda: figures.systems_memory(MEMORY.drop(columns="bytes"), caption="c"), "bytes"),
        (lambda: figures.systems_launches(FLOORS[FLOORS["hidden"] == 32], caption="c"), "one width"),
    ],
)
def test_what_can_t_be_drawn_is_refused(draw, says):
    with pytest.raises(ValueError, match=says):
        draw()
