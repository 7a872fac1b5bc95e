"""A text read in chunks through one cache is the text read at once, and what is noted on the way is true."""

import math
import sys
from itertools import combinations

import numpy as np
import pytest
import torch
from tables import stream_rows

from swalib import SWA, Full, applied, models, results
from swalib.evals import perplexity, stream

TEXT = (
    "Call me a mask. Some tokens ago, never mind how many precisely, I thought I would slide about a little. "
)
SPECS = [SWA(11, 3), SWA(11, 3, "cache"), SWA(7, 0), Full()]


@pytest.fixture(scope="module")
def loaded():
    return models.load("tiny-llama")


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 5)
    return str(path)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("chunk_tokens", [1, 5, 15, 30, 90])
def test_chunks_do_not_change_the_losses(loaded, spec, chunk_tokens):
    ids = torch.arange(1, 92).remainder(89)[None]
    with applied(loaded.model, spec) as student:
        whole = perplexity.token_losses(student, ids)[0]
        found = stream.read(student, ids, chunk_tokens, 90)
    assert found.losses.shape == (90,)
    assert np.allclose(found.losses, whole, atol=2e-5)


def test_the_cache_of_a_window_takes_the_same_bytes_at_every_bin_and_a_full_one_grows(loaded):
    ids = torch.arange(1, 92).remainder(89)[None]
    a_token = 3 * 2 * 2 * 10 * 4  # layers × (keys, values) × key heads × d × bytes of fp32
    for spec, tokens in (
        (SWA(11, 3), [11] * 6),
        (SWA(11, 3, "cache"), [11] * 6),
        (Full(), range(15, 91, 15)),
    ):
        with applied(loaded.model, spec) as student:
            found = stream.read(student, ids, 5, 15)
        assert found.cache_bytes.tolist() == [a_token * count for count in tokens]
        assert len(found.seconds) == len(found.peak_bytes) == 6
        assert (found.seconds > 0).all()


def test_the_bins_sum_to_the_whole(text_file):
    measured = stream.Cell("tiny-llama", text_file, SWA(16, 4), 384, 64, 128).compute()
    values = {value.metric: value for value in measured.values}
    assert len(values) == len(measured.values)
    bins = [values[f"perplexity_{end}"] for end in (128, 256, 384)]
    assert [found.n for found in bins] == [128] * 3
    mean = np.mean([math.log(found.value) for found in bins])
    assert values["loss"].value == pytest.approx(mean, rel=1e-9)
    assert values["loss"].n == 384
    assert values["perplexity"].value == pytest.approx(math.exp(mean), rel=1e-9)
    losses = measured.arrays["losses"].astype(np.float64)
    assert np.log(bins[1].value) == pytest.approx(losses[128:256].mean(), rel=1e-3)
    assert bins[0].value != pytest.approx(bins[1].value, rel=1e-3)
    assert values["trained_tokens"].value == 4096
    assert values["speed"].value == pytest.approx(384 / measured.arrays["seconds"].sum())


@pytest.mark.parametrize(
    ("tokens", "chunk", "size"), [(96, 5, 32), (90, 16, 32), (0, 16, 32), (96, 0, 32), (96, 64, 32)]
)
def test_a_stream_that_bins_do_not_divide_is_refused(text_file, tokens, chunk, size):
    with pytest.raises(ValueError, match=f"{tokens} tokens, bins of {size} and chunks of {chunk} do not fit"):
        stream.Cell("tiny-llama", text_file, SWA(16, 4), tokens, chunk, size).compute()


def test_a_text_too_short_for_the_stream_says_how_long_it_is(text_file):
    length = len(TEXT) * 5
    with pytest.raises(ValueError, match=f"the text has {length} tokens, too few to stream {length}"):
        stream.Cell("tiny-llama", text_file, SWA(16, 4), length, length, length).compute()


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of the resident set is Linux's VmHWM")
def test_the_peak_is_that_since_the_last_reset():
    peak, big = stream.Peak(torch.device("cpu")), 200 * 2**20
    peak.reset()
    before = peak.bytes()
    block = np.ones(big, dtype=np.uint8)
    del block
    assert peak.bytes() >= before + 0.9 * big
    peak.reset()
    assert peak.bytes() <= before + 0.5 * big


def test_every_bin_has_a_peak_of_its_own(loaded, monkeypatch):
    resets = []
    monkeypatch.setattr(stream.Peak, "reset", lambda self: resets.append(self))
    monkeypatch.setattr(stream.Peak, "bytes", lambda self: len(resets))
    with applied(loaded.model, SWA(11, 3)) as student:
        found = stream.read(student, torch.arange(1, 92).remainder(89)[None], 5, 15)
    assert found.peak_bytes.tolist() == [1, 2, 3, 4, 5, 6]


def test_a_peak_that_can_not_be_had_is_left_out(text_file, monkeypatch):
    monkeypatch.setattr(stream.Peak, "bytes", lambda self: 0)
    measured = stream.Cell("tiny-llama", text_file, SWA(16, 4), 128, 64, 64).compute()
    assert not [value.metric for value in measured.values if value.metric.startswith("peak")]


def test_a_stream_is_one_stored_run_and_reads_back(text_file, results_folder, capsys):
    sizes = {"stream_tokens": 384, "full_tokens": 256, "chunk_tokens": 64, "bin_tokens": 128}
    asked = ["tiny-llama"], [text_file], [8, 16], 4
    with pytest.raises(results.MissingResult, match="measure it with: swa measure stream"):
        stream.measure("stored", *asked, **sizes)
    rows = stream.measure("run", *asked, **sizes)
    assert "core-hours for 7 missing runs" in capsys.readouterr().err
    again = stream.measure("stored", *asked, **sizes)
    assert rows.equals(again)
    swa = rows[rows["window"].notna()]
    by_stream = swa.groupby(["window", "sinks", "positions"])["end"].apply(list)
    assert by_stream.tolist() == [[128, 256, 384]] * 6
    assert (swa["end"] - swa["start"] == 128).all()
    assert rows[rows["window"].isna()]["end"].tolist() == [128, 256]
    assert swa.groupby("window")["cache_bytes"].unique().tolist() == [[8 * 480], [16 * 480]]
    by = rows.set_index(["window", "sinks", "positions", "end"])["ppl"]
    last = [by[8, 4, "text", 384], by[8, 4, "cache", 384], by[8, 0, "text", 384]]
    assert min(abs(a / b - 1) for a, b in combinations(last, 2)) > 1e-4
    stored = results.read("stream")
    row = stored[(stored["metric"] == "perplexity_384") & (stored["window"] == 8)]
    assert row.loc[row["positions"] == "cache", "value"].item() == by[8, 4, "cache", 384]
    assert stored["run_key"].nunique() == 7
    said = stream.numbers(rows, 16)
    assert said["cache_cache_mb"] == 16 * 480 / 1e6
    assert said["full_cache_mb"] == 256 * 480 / 1e6
    assert math.isnan(said["text_beyond"])  # 384 tokens lie within the tiny model's 4096
    assert stream.drift_starts(rows, 16, tolerance=-1) == 0  # whatever they cost


def test_the_numbers_pool_the_bins_on_either_side_of_the_trained_length():
    rows = stream_rows().assign(speed=7.0, peak_first=3e6, peak_last=5e6)
    rows.loc[rows["window"].isna(), "peak_last"] = 9e6
    rows.loc[(rows["window"] == 64) & (rows["sinks"] == 0), "peak_last"] = 6e6
    said = stream.numbers(rows, 512)
    at = rows[rows["window"] == 512]
    kinds = {
        "text": at[(at["sinks"] == 4) & (at["positions"] == "text")],
        "cache": at[at["positions"] == "cache"],
        "none": at[at["sinks"] == 0],
        "full": rows[rows["window"].isna()],
    }
    for kind, part in kinds.items():
        ppl = part.set_index("end")["ppl"]
        assert said[f"{kind}_within"] == pytest.approx(math.sqrt(ppl[2048] * ppl[4096]))
        assert said[f"{kind}_beyond"] == pytest.approx(math.exp(np.log(ppl.loc[6144:]).mean()))
    assert (said["cache_cache_mb"], said["full_cache_mb"]) == (512 * 46080 / 1e6, 3 * 2048 * 46080 / 1e6)
    assert (said["text_growth_mb"], said["full_growth_mb"], said["swa_growth_mb"]) == (2.0, 6.0, 3.0)


def test_drift_starts_with_the_first_bin_that_text_positions_make_dearer():
    rows = stream_rows()
    text = (rows["window"] == 512) & (rows["positions"] == "text") & (rows["sinks"] == 4)
    assert math.isnan(stream.drift_starts(rows, 512))
    rows.loc[text & (rows["end"] >= 6144), "ppl"] *= 1.15
    assert stream.drift_starts(rows, 512) == 4096
    assert math.isnan(stream.drift_starts(rows, 512, tolerance=0.2))
    assert math.isnan(stream.drift_starts(rows, 64))
