"""One setting at a time, on the same items: what changes is measured in pairs, and nothing is made up."""

import math
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest

from swalib import SWA
from swalib.evals import harness, variants
from swalib.evals.likelihood import Scorer
from swalib.evals.variants import REFERENCE, VARIANTS

TOY = {"tasks": ["piqa", "arc_easy"], "limit": 5, "source": "toy"}
FOUR = [REFERENCE, "bfloat16", "shots", "batch"]  # tiny models have neither a BOS nor a template
needs_harness = pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm-eval is not installed")


def scored(rng: np.random.Generator, right: float, n: int = 40) -> pd.DataFrame:
    """Items of two tasks under full attention and SWA(64, 4)."""
    parts = []
    for (window, sinks), task in [(spec, task) for spec in ((pd.NA, pd.NA), (64, 4)) for task in ("a", "b")]:
        correct = rng.random(n) < right
        about = {"window": window, "sinks": sinks, "task": task, "place": np.arange(n)}
        numbers = {"choice": rng.integers(0, 4, n), "correct": correct}
        parts.append(pd.DataFrame({**about, **numbers, "gold_loglikelihood": rng.normal(-4, 1, n)}))
    return pd.concat(parts, ignore_index=True)


@pytest.fixture
def found():
    rng = np.random.default_rng(5)
    reference = scored(rng, 0.5).assign(variant=REFERENCE)
    other = scored(rng, 0.8).assign(variant="bos").sample(frac=1, random_state=1)  # in another order
    return pd.concat([reference, other], ignore_index=True)


def test_an_effect_is_the_mean_over_tasks_of_paired_differences(found):
    table = variants.effects(found, draws=1000).set_index("variant")
    assert list(table.index.unique()) == list(VARIANTS)
    for window in (None, 64):
        row = table.loc["bos"]
        row = row[row["window"].isna() if window is None else row["window"] == 64].iloc[0]
        own = found[found["window"].isna() if window is None else found["window"].notna()]
        score = {
            name: np.mean([part["correct"].mean() for _, part in own[own["variant"] == name].groupby("task")])
            for name in (REFERENCE, "bos")
        }
        assert (row["n"], row["score"]) == (80, pytest.approx(score["bos"]))
        assert row["difference"] == pytest.approx(score["bos"] - score[REFERENCE])
        assert row["low"] < row["difference"] < row["high"]
        keyed = [
            {(r.task, r.place): r for r in own[own["variant"] == name].itertuples()}
            for name in (REFERENCE, "bos")
        ]
        pairs = [(keyed[0][key], keyed[1][key]) for key in keyed[0]]
        assert row["changed"] == pytest.approx(sum(a.choice != b.choice for a, b in pairs) / 80)
        moved = max(abs(a.gold_loglikelihood - b.gold_loglikelihood) for a, b in pairs)
        assert row["moved"] == pytest.approx(moved)


def test_the_reference_differs_from_itself_in_nothing_and_gaps_are_nan(found):
    table = variants.effects(found, draws=200).set_index("variant")
    assert (table.loc[REFERENCE, ["difference", "low", "high", "changed", "moved"]] == 0).all(axis=None)
    assert (table.loc["bfloat16", "n"] == 0).all()
    assert table.loc["bfloat16", ["score", "difference", "moved"]].isna().all(axis=None)


def test_other_items_and_unknown_variants_are_refused(found):
    spoiled = found[(found["variant"] == REFERENCE) | (found["place"] > 0)]
    with pytest.raises(ValueError, match="scored on other items"):
        variants.effects(spoiled, draws=10)
    with pytest.raises(ValueError, match="no variant is called 'fp8': choose from reference"):
        variants.variants("stored", "tiny-llama", names=["fp8"])


@needs_harness
def test_each_variant_is_the_harness_with_that_setting(results_folder):
    spec = SWA(16, 2)
    found = variants.variants("run", "tiny-llama", spec, names=FOUR, **TOY)
    assert list(found["variant"].unique()) == FOUR
    for name, settings in (("bfloat16", {"shots": [0], "dtype": "bfloat16"}), ("shots", {"shots": [5]})):
        expected = harness.short(
            "smoke", "tiny-llama", [spec], TOY["tasks"], limit=5, source="toy", **settings
        )
        own = found[found["variant"] == name].reset_index(drop=True)
        assert np.allclose(own["gold_loglikelihood"], expected["gold_loglikelihood"], atol=1e-5)
        assert (own["choice"] == expected["choice"]).all()
    told = variants.effects(found, spec, draws=100).set_index("variant")
    # What sets rows apart moves them; how many are read at once does not.
    assert (told.loc[["bfloat16", "shots"], "moved"] > 1e-4).all()
    assert (told.loc["batch", "moved"] < 1e-4).all()
    assert (told.loc[["bos", "template"], "n"] == 0).all()
    stored = variants.variants("stored", "tiny-llama", spec, names=FOUR, **TOY)
    pd.testing.assert_frame_equal(stored, found, check_dtype=False)
    assert (results_folder / "variants.csv").exists()


@needs_harness
def test_the_batch_variant_reads_one_item_at_a_time(results_folder, monkeypatch):
    sizes = []
    plain = Scorer.__init__
    monkeypatch.setattr(
        Scorer,
        "__init__",
        lambda self, model, batch_size=8: (sizes.append(batch_size), plain(self, model, batch_size))[1],
    )
    variants.variants("smoke", "tiny-llama", SWA(16, 2), names=["batch"], **TOY)
    assert set(sizes) == {1}


@needs_harness
@pytest.mark.parametrize(
    ("name", "told"), [("bos", "has no BOS token"), ("template", "has no chat template")]
)
def test_a_setting_that_a_model_cannot_have_raises(name, told, results_folder):
    with pytest.raises(ValueError, match=told):
        variants.variants("smoke", "tiny-llama", SWA(16, 2), names=[name], **TOY)


def test_nothing_stored_is_said_as_nothing(results_folder):
    found = variants.variants("stored", "tiny-llama", SWA(16, 2), **TOY)
    assert found.empty
    table = variants.effects(found, SWA(16, 2))
    assert (table["n"] == 0).all()
    assert len(table) == 2 * len(VARIANTS)
    assert all(math.isnan(value) for value in table["difference"])
