"""Recall by the mechanism alone: every rule by hand, windows that hold what they show, equal bytes."""

import json
import math
import re

import numpy as np
import pandas as pd
import pytest
import torch

from swalib import SWA, Full, results
from swalib.evals import recall
from swalib.evals.mechanisms import MECHANISMS, mapped, softmax, unit
from swalib.notebooks import load
from swalib.provenance import ROOT

N, D = 7, 6


def pairs(n=N, d=D, keys="random", draws=2, seed=5):
    return recall.draw(n, d, keys, draws, seed)


# ---- the pairs.


def test_keys_have_norm_sqrt_d_and_values_norm_1_the_same_for_the_same_seed():
    k, v = pairs(50, 16)
    assert torch.allclose((k**2).sum(-1), torch.tensor(16.0).double())
    assert torch.allclose((v**2).sum(-1), torch.tensor(1.0).double())
    again, other = pairs(50, 16), pairs(50, 16, seed=6)
    assert torch.equal(k, again[0])
    assert torch.equal(v, again[1])
    assert not torch.allclose(k, other[0])
    assert not torch.allclose(k[0], k[1]), "draws differ"


@pytest.mark.parametrize(("keys", "expected"), [("random", 0.0), ("alike", 0.5)])
def test_the_mean_cosine_of_two_keys(keys, expected):
    k = unit(pairs(300, 64, keys, draws=4)[0])[:, 0]
    apart = ~torch.eye(300, dtype=torch.bool)
    assert (k @ k.mT)[:, apart].mean().item() == pytest.approx(expected, abs=0.02)


def test_unknown_keys_are_refused():
    with pytest.raises(ValueError, match="keys must be one of random, alike, got 'same'"):
        pairs(keys="same")


# ---- each rule, by hand, in numpy.


def plain(k, v, weights):
    """o_j = sum_i (k_j · weight_i ∘ k_i) v_i with weights [n, d], one a token and channel."""
    return np.array([sum(key @ (weights[i] * k[i]) * v[i] for i in range(len(k))) for key in k])


def slow(d):
    return math.exp(-1 / (4 * d))


def channels(d):
    return np.exp(-1 / np.geomspace(d, 16 * d, d))


def delta(k, v, decay=1.0):
    state = np.zeros((k.shape[1], v.shape[1]))
    for key, value in zip(k, v, strict=True):
        state = decay * state
        state = state + np.outer(key, value - key @ state)
    return k @ state


def rwkv7(k, v):
    w = channels(k.shape[1])
    state = np.zeros((k.shape[1], v.shape[1]))
    for key, value in zip(k, v, strict=True):
        erased = np.outer(0.5 * key, key @ state)
        state = w[:, None] * state - erased + np.outer(key * (1 - w + 0.5), value)
    return k @ state


def aged(decay):
    return lambda k, v: plain(k, v, np.array([decay ** (len(k) - 1 - i) * np.ones(D) for i in range(len(k))]))


BY_HAND = {
    "identity": lambda k, v: D * plain(k, v, np.ones_like(k)),  # its keys keep their norm, sqrt(D)
    "scalar_decay": aged(slow(D)),
    "diagonal_decay": aged(channels(D)),
    "delta_rule": delta,
    "gated_delta": lambda k, v: delta(k, v, slow(D)),
    "rwkv7": rwkv7,
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_rule_reads_what_its_formula_says(name):
    k, v = pairs()
    found = MECHANISMS[name].read(k, v)
    for b in range(2):
        expected = BY_HAND[name](unit(k)[b, 0].numpy(), v[b, 0].numpy())
        assert np.allclose(found[b, 0], expected, atol=1e-12)


def test_the_maps_weigh_as_they_are_written():
    k, v = pairs()
    elu = lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))  # noqa: E731
    over = lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)  # noqa: E731
    for name, scale, phi in (("elu_plus_one", 16, elu), ("softmax", 2, over)):
        features = phi(scale * k[1, 0].numpy())
        expected = (features @ features.T) @ v[1, 0].numpy()
        assert np.allclose(MECHANISMS[name].read(k, v)[1, 0], expected, atol=1e-10)


@pytest.mark.parametrize("name", ["hedgehog", "dijiang"])
def test_a_drawn_map_differs_by_draw_and_leaves_the_random_state_alone(name):
    k, v = pairs(draws=1)
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    first, second = MECHANISMS[name].read(k.repeat(2, 1, 1, 1), v.repeat(2, 1, 1, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not torch.allclose(first, second)
    assert torch.allclose(first, MECHANISMS[name].read(k, v)[0])


def test_the_scales_of_the_maps_are_the_best_of_five():
    k, v = recall.draw(128, 64, "random", 8, seed=1)
    for name in ("elu_plus_one", "softmax", "hedgehog", "dijiang"):
        shares = {scale: recall.judge(mapped(name, scale)(k, v), v)[0].mean() for scale in (1, 2, 4, 8, 16)}
        best = max(shares, key=shares.get)
        assert MECHANISMS[name].setting.startswith(f"keys × {best}"), shares


# ---- windows and bytes.


@pytest.mark.parametrize("keys", recall.KEYS)
@pytest.mark.parametrize(("w", "s"), [(16, 0), (16, 4), (8, 7), (64, 4)])
def test_a_window_recalls_its_sinks_and_its_latest_and_nothing_else(w, s, keys):
    k, v = pairs(40, 32, keys, draws=3)
    right, cosine = recall.judge(softmax(SWA(w, s))(k, v), v)
    held = np.array([j < s or j >= 40 - (w - s) for j in range(40)])
    assert (right == held).all()
    assert (cosine[:, held] > 0.97).all()
    assert right.sum(1).tolist() == [min(w, 40)] * 3


def test_full_attention_recalls_all():
    k, v = pairs(200, 32, "alike")
    assert recall.judge(softmax(Full())(k, v), v)[0].all()


def test_the_nearest_value_is_judged_by_distance_whatever_the_scale():
    v = torch.eye(3).double()[None, None]
    o = torch.tensor([[0.9, 0.1, 0.0], [5.0, 4.9, 0.0], [-0.1, -0.2, 0.001]]).double()[None, None]
    right, cosine = recall.judge(o, v)
    assert right.tolist() == [[1, 0, 1]]
    assert cosine[0] == pytest.approx(
        [0.9 / math.hypot(0.9, 0.1), 4.9 / math.hypot(5, 4.9), 0.00447], rel=1e-2
    )


# The book's own table: 16 heads of 64, then Llama-3.1-8B's 32 query and 8 KV heads of 128.
@pytest.mark.parametrize(
    ("expected", "d", "sizes"),
    [
        (32, 64, {"state_heads": 16, "kv_heads": 16, "state_bytes": 2, "kv_bytes": 2}),
        (128, 64, {"features": 128, "state_heads": 16, "kv_heads": 16, "state_bytes": 4, "kv_bytes": 2}),
        (256, 128, {"state_heads": 32, "kv_heads": 8, "state_bytes": 2, "kv_bytes": 2}),
        (512, 128, {"state_heads": 32, "kv_heads": 8, "state_bytes": 4, "kv_bytes": 2}),
        (1024, 128, {"features": 256, "state_heads": 32, "kv_heads": 8, "state_bytes": 4, "kv_bytes": 2}),
    ],
)
def test_the_window_of_equal_bytes(expected, d, sizes):
    assert recall.equal_window(d, **sizes) == expected


@pytest.mark.parametrize("d", [8, 32, 64])
def test_a_state_and_its_window_take_the_same_bytes(d):
    by_factor = {factor: cell for cell, factor in recall.cells([d], (1, 4), sinks=1) if factor}
    state = recall.Cell("identity", d).state_bytes()
    assert by_factor[1].state_bytes() == state
    assert by_factor[4].state_bytes() == 4 * state
    assert recall.Cell("full", d, spec=Full(), pairs=(8, 16)).state_bytes() == 2 * 16 * d * 4


# ---- the rows.


SIZES = {"head_dims": [8], "pairs": [4, 40], "factors": [1, 4], "sinks": 1, "draws": 3}


def test_measured_once_and_read_back(results_folder, capsys):
    with pytest.raises(results.MissingResult, match="measure it with: swa measure recall"):
        recall.measure("stored", **SIZES)
    rows, ages = recall.measure("run", **SIZES)
    assert "core-hours for 26 missing runs" in capsys.readouterr().err
    again = recall.measure("stored", **SIZES)
    pd.testing.assert_frame_equal(rows, again[0])
    pd.testing.assert_frame_equal(ages, again[1])
    assert len(rows) == 26 * 2
    assert results.read("recall")["run_key"].nunique() == 26
    assert rows["n"].tolist() == [3 * 4, 3 * 40] * 26
    by = rows.set_index(["mechanism", "keys", "factor", "pairs"])["recall"]
    assert by["swa", "random", 1, 40] == pytest.approx(4 / 40)
    assert by["swa", "alike", 4, 40] == pytest.approx(16 / 40)
    means = ages.groupby(["mechanism", "keys", "factor", "pairs"], dropna=False, sort=False).size()
    assert means.tolist() == [4, 32] * 26


def test_a_run_holds_recall_cosine_and_the_spread_over_draws():
    cell = recall.Cell("delta_rule", 8, "alike", pairs=(4, 40), draws=3)
    measured = cell.compute()
    k, v = recall.draw(40, 8, "alike", 3, 0)
    right, cosine = recall.judge(MECHANISMS["delta_rule"].read(k, v), v)
    value = {found.metric: found for found in measured.values}["recall_40"]
    assert value.value == pytest.approx(right.mean())
    assert value.stderr == pytest.approx(right.mean(1).std(ddof=1) / math.sqrt(3))
    assert measured.arrays["recall_4"].shape == (4,)
    first_bin = cosine[:, :2].mean()  # 40 pairs in 32 bins: the first eight hold two
    assert measured.arrays["cosine_40"][0] == pytest.approx(first_bin, rel=1e-6)


def test_the_headline_names_each_number_of_one_size():
    rows, _ = recall.measure("smoke", **SIZES)
    found = recall.headline(rows, 8, 40)
    assert found["swa1_random"] == pytest.approx(0.1)
    assert found["swa4_window"] == 16
    assert found["state_kb"] == pytest.approx(0.256)
    here = rows[(rows["mechanism"] == "rwkv7") & (rows["keys"] == "alike") & (rows["pairs"] == 40)]
    assert found["rwkv7_alike"] == here["recall"].item()
    assert found["rwkv7_alike_cosine"] == here["cosine"].item()
    assert set(map(type, found.values())) <= {int, float}


def test_every_setting_has_a_key_of_its_own():
    asked = [cell for cell, _ in recall.cells([8, 16], (1, 4), sinks=1)]
    others = [recall.Cell("identity", 8, seed=1), recall.Cell("identity", 8, draws=4)]
    assert len({results.run_key(cell.config()) for cell in [*asked, *others]}) == len(asked) + 2


def test_the_stored_rows_are_those_of_a_window_that_holds_exactly_w_pairs():
    rows = results.read("recall", ROOT / "results")
    rows = rows[rows["metric"].str.startswith("recall_")]
    count = rows["metric"].str.removeprefix("recall_").astype(int)
    swa = rows["method"] == "swa"
    expected = np.minimum(1, rows.loc[swa, "window"].astype(float) / count[swa])
    # A pair that is gone can still come out by chance.
    assert np.allclose(rows.loc[swa, "value"], expected, atol=0.004)
    assert (rows.loc[rows["method"] == "full", "value"] == 1).all()
    seconds = results.run_seconds(rows)
    assert seconds < 1200, "the chapter says a minute or two of a free core"
    settings = [json.loads(text) for text in rows["params_json"]]
    assert {row["head_dim"] for row in settings} == {32, 64, 128}


def test_the_chapters_own_example_runs():
    source = ["".join(cell["source"]) for cell in load("03_linear_attention")["cells"]]
    snippet = re.search(r"```python\n(.*?)```", "\n".join(source), re.DOTALL)[1]
    found: dict = {}
    exec(snippet, found)
    assert found["right"].shape == found["cosine"].shape == (8, 128)
    assert 0.01 < found["right"].mean() < 0.15
