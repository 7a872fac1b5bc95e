"""Measurements of a model under a spec: what is scored, against sums written out by hand."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from swalib import SWA, Full, applied, models, prefill, results
from swalib.canary import NotApplied
from swalib.evals import attention_mass, bench, eviction, live, perplexity, speed
from swalib.tiny import tiny

TEXT = (
    "In a hole in the ground there lived a mask that looked at the latest few tokens, and at the first ones. "
)


@pytest.fixture(scope="module")
def loaded():
    return models.load("tiny-llama")


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 8)
    return str(path)


def by_hand(model, ids):
    """Losses from a plain forward, one token at a time."""
    with torch.no_grad():
        logits = model(ids).logits.double()
    return [-float(logits[0, t].log_softmax(-1)[ids[0, t + 1]]) for t in range(ids.shape[1] - 1)]


@pytest.mark.parametrize("spec", [Full(), SWA(7, 2), SWA(7, 2, "cache")], ids=str)
def test_token_losses_are_those_of_the_masked_forward(loaded, spec):
    ids = torch.arange(1, 302).remainder(89)[None]
    with applied(loaded.model, spec) as student:
        losses = perplexity.token_losses(student, ids)[0]
        expected = by_hand(student, ids)
    assert losses.shape == (300,)
    assert np.allclose(losses, expected, atol=1e-5)


def test_final_softcapping_of_the_logits_is_kept():
    model = tiny("gemma3", final_logit_softcapping=1.5)
    ids = torch.arange(1, 20)[None]
    assert np.allclose(perplexity.token_losses(model, ids)[0], by_hand(model, ids), atol=1e-5)


# streaming-llm #77: documents of no, one and two tokens
@pytest.mark.parametrize("tokens", [0, 1])
def test_case_16_nothing_to_score_says_so(loaded, tokens):
    with pytest.raises(ValueError, match="nothing to score: a text needs at least two tokens"):
        perplexity.token_losses(loaded.model, torch.ones(1, tokens, dtype=torch.long))


def test_case_16_two_tokens_are_one_term(loaded):
    ids = torch.tensor([[3, 5]])
    assert perplexity.token_losses(loaded.model, ids).shape == (1, 1)
    with pytest.raises(ValueError, match="nothing to score"):
        perplexity.summarise(np.zeros((1, 1)), first=2)
    loss, ppl = perplexity.summarise(np.full((1, 1), 0.5), first=0)
    assert (loss.value, ppl.value, loss.n, loss.stderr) == (0.5, math.exp(0.5), 1, None)


def test_pieces_lie_evenly_and_start_with_the_models_bos(loaded):
    ids = models.encode(loaded, TEXT * 8)[0]
    found = perplexity.pieces(loaded, TEXT * 8, 100, 3)
    starts = [0, (len(ids) - 100) // 3, 2 * (len(ids) - 100) // 3]
    assert [row.tolist() for row in found] == [ids[s : s + 100].tolist() for s in starts]
    with_bos = models.Loaded(loaded.model, loaded.tokenizer, "x", "local", "0", bos=1)
    headed = perplexity.pieces(with_bos, TEXT * 8, 100, 3)
    assert headed.shape == (3, 100)
    assert headed[:, 0].tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="too short for a piece"):
        perplexity.pieces(loaded, TEXT, 10_000, 1)


def test_summary_counts_from_the_first_scored_token_with_errors_over_blocks():
    losses = np.concatenate([np.full(255, 9.0), np.repeat([1.0, 3.0], 64)])[None]
    loss, ppl = perplexity.summarise(losses)
    assert (loss.value, loss.n, loss.unit) == (2.0, 128, "nats/token")
    assert loss.stderr == pytest.approx(np.std([1, 3], ddof=1) / math.sqrt(2))
    assert ppl.stderr == pytest.approx(loss.stderr * ppl.value)


def test_a_grid_measures_every_spec_and_reads_the_same_rows_back(text_file, tmp_path, monkeypatch):
    monkeypatch.setenv("SWALIB_RESULTS", str(tmp_path / "results"))
    sizes = {"windows": [4, 8], "sinks": [0, 1, 4], "context_tokens": 64, "n": 2}
    grids = [
        perplexity.grid(mode, ["tiny-llama"], [text_file], positions=("text", "cache"), **sizes)
        for mode in ("run", "stored")
    ]
    rows, curves = grids[0]
    pd.testing.assert_frame_equal(rows, grids[1].rows)
    pd.testing.assert_frame_equal(curves, grids[1].curves)
    assert len(rows) == 1 + 2 * (2 + 3)
    assert curves.groupby(["window", "sinks", "positions"], dropna=False)["position"].first().unique() == [
        4.5
    ]
    # at s = 0 the two kinds of position are one function; at s = 4 they are not
    found = grids[0]
    ppl = {
        where: [found.ppl("tiny-llama", text_file, 8, s, where) for s in (0, 4)]
        for where in ("text", "cache")
    }
    assert ppl["text"][0] == pytest.approx(ppl["cache"][0], rel=1e-4)
    assert ppl["text"][1] != pytest.approx(ppl["cache"][1], rel=1e-3)
    assert found.ppl("tiny-llama", text_file) == rows.loc[rows["method"] == "full", "ppl"].item()


def test_a_curve_is_means_over_bins_of_equal_width_on_a_log_axis():
    losses = np.stack([np.arange(40.0), np.arange(40.0) + 2])
    found = perplexity.curve(losses, bins_per_octave=1)
    assert found["position"].tolist() == [4.5, 12.5, 24.5, 36.5]
    assert found["loss"].tolist() == [4.5, 12.5, 24.5, 36.5]
    assert perplexity.curve(losses[:, :3])["loss"].tolist() == [2.0]


def test_what_was_not_measured_is_a_row_with_the_command(text_file):
    found = perplexity.grid("smoke", ["tiny-llama"], [text_file], [4, 8], [0], context_tokens=32, n=1)
    rows = found.fill([4, 8], [0, 2, 4], "swa measure sinks").rows
    absent = rows[rows["ppl"].isna()]
    assert absent[["window", "sinks"]].to_numpy().tolist() == [[4, 2], [8, 2], [8, 4]]
    assert set(absent["command"]) == {"swa measure sinks"}
    assert len(rows) == 3 + len(absent)


def test_a_missing_row_names_the_command_and_a_wrong_window_is_another_row(text_file, tmp_path, monkeypatch):
    monkeypatch.setenv("SWALIB_RESULTS", str(tmp_path / "results"))
    cell = perplexity.Cell("tiny-llama", text_file, SWA(8, 2), 64, 1)
    wider = perplexity.Cell("tiny-llama", text_file, SWA(9, 2), 64, 1)
    assert results.run_key(cell.config()) != results.run_key(wider.config())
    with pytest.raises(results.MissingResult, match="measure it with: swa measure sinks"):
        perplexity.grid("stored", ["tiny-llama"], [text_file], [8], [2])


def test_whatever_a_spec_sets_is_part_of_the_key(text_file):
    specs = [SWA(8, 2), SWA(8, 2, "cache"), SWA(8, 2, reach=9), SWA(8, 2, local="intersect")]
    specs += [SWA(8, 2, sink_positions=(1, 3)), SWA(8, 2, sink_positions=(1, 4)), SWA(8, 2, sink_logit=0.0)]
    cells = [perplexity.Cell("tiny-llama", text_file, spec, 64, 1) for spec in specs]
    assert len({results.run_key(cell.config()) for cell in cells}) == len(specs)
    plain = cells[0].config()
    assert {"method": "swa", "window": 8, "sinks": 2, "positions": "text"}.items() <= plain.items()
    assert not {"reach", "local", "sink_positions", "sink_logit"} & plain.keys()


def test_nothing_is_measured_when_the_canary_dies(text_file, monkeypatch):
    monkeypatch.setattr(bench, "_proven", set())

    def dies(*_):
        raise NotApplied("layer 0: the mask is not applied")

    monkeypatch.setattr(bench.swalib, "assert_applied", dies)
    with pytest.raises(NotApplied):
        perplexity.Cell("tiny-llama", text_file, SWA(8, 2), 64, 1).compute()


def test_mass_on_the_first_tokens_is_the_softmax_share(loaded):
    ids = torch.arange(1, 41)[None]
    with applied(loaded.model, Full(), "reference") as student:
        mass = attention_mass.mass_on_first(student, ids, 20)
        weights = student(ids, output_attentions=True).attentions
    eager = tiny("llama")
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        oracle = eager(ids, output_attentions=True).attentions
    assert mass.shape == (5, len(weights), weights[0].shape[1])
    for count, by_layer in zip(attention_mass.COUNTED, mass, strict=True):
        expected = [layer[0, :, 20:, :count].sum(-1).mean(-1).tolist() for layer in oracle]
        assert np.allclose(by_layer, expected, atol=1e-5)


def test_dense_prefill_then_evict_is_full_attention_for_the_prompt_only(loaded):
    """The oracle is one forward: full attention up to the prompt's end, the window's mask after it."""
    spec, prompt, ids = SWA(9, 3), 20, torch.arange(1, 31)[None]
    cache = eviction.dense_prefill(loaded.model, ids[:, :prompt], spec)
    with applied(loaded.model, spec) as student:
        losses = eviction.continuation_losses(student, cache, ids, prompt)[0]
    i, j = torch.arange(30)[:, None], torch.arange(30)[None]
    seen = (j <= i) & ((i < prompt) | (j < 3) | (i - j < 6))
    mask = torch.zeros(1, 1, 30, 30).masked_fill(~seen, torch.finfo(torch.float32).min)
    eager = tiny("llama")
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        logits = eager(ids, attention_mask=mask).logits
    expected = torch.nn.functional.cross_entropy(logits[0, prompt:-1], ids[0, prompt + 1 :], reduction="none")
    assert torch.allclose(losses, expected, atol=1e-4)
    assert not np.allclose(losses, by_hand(loaded.model, ids)[prompt:], atol=1e-2)


def test_dense_prefill_refuses_cache_positions(loaded):
    with pytest.raises(ValueError, match="text"):
        eviction.dense_prefill(loaded.model, torch.ones(1, 20, dtype=torch.long), SWA(9, 3, "cache"))


def test_eviction_rows_and_curves(text_file):
    rows, curves = eviction.measure(
        "smoke", ["tiny-llama", "tiny-gemma3"], [text_file], [8], 2, prompt_tokens=48, scored_tokens=32, n=1
    )
    assert set(rows["variant"]) == {"full", "masked", "dense"}
    assert rows.groupby("model")["ppl"].nunique().tolist() == [3, 3]
    assert curves["position"].tolist() == [8.0, 24.0] * 6


@pytest.mark.parametrize("chunk_tokens", [1, 3, 15, 16, 17, 200])
def test_prefill_in_chunks_is_one_forward(loaded, chunk_tokens):
    ids = torch.arange(1, 64)[None]
    with applied(loaded.model, SWA(16, 4)) as student:
        with torch.no_grad():
            expected = student(ids).logits[:, -1]
        logits, cache = prefill(student, ids, chunk_tokens=chunk_tokens)
        assert torch.allclose(logits, expected, atol=1e-4)
        assert cache.get_seq_length() == 63
        with pytest.raises(ValueError, match="prefill needs tokens"):
            prefill(student, ids[:, :0])


def test_the_live_panel_computes_what_the_grid_would(loaded):
    compute = live.collapse("tiny-llama")
    curves = compute(TEXT * 2, 8, 2, "text")
    assert curves.groupby(["window", "sinks"], dropna=False).ngroups == 3
    ids = models.encode(loaded, TEXT * 2)
    with applied(loaded.model, SWA(8, 2)) as student:
        expected = perplexity.curve(perplexity.token_losses(student, ids).numpy())
    got = curves[(curves["window"] == 8) & (curves["sinks"] == 2)]
    assert np.allclose(got["loss"], expected["loss"])
    with pytest.raises(ValueError, match="give it at least 32"):
        compute("short", 8, 2, "text")


def test_the_speed_table_shows_the_stored_ratios():
    table = speed.table("stored")
    assert set(table.index) == {"chunked prefill", "decode, one token", "decode, s = 0"}
    timed = table[table["ratio"] != ""]
    for row in timed.itertuples(index=False):
        ours, other = (float(row[column].replace(",", "")) for column in (1, 3))
        assert other / ours == pytest.approx(float(row[4][:-1]), rel=0.01)
    assert speed.table("smoke").empty


def test_a_missing_timing_names_the_benchmark(results_folder):
    with pytest.raises(results.MissingResult, match=r"measure with: .*benchmarks/students\.py"):
        speed.table("stored")
