"""A student of every family, used in every way, gives what an independent oracle gives for its spec."""

import oracle
import pytest
import torch
from oracle import error, ids, in_chunks, model, truth

from swalib import SWA, Full, PerLayer, SinkCache, applied, layer_specs, prefill

L = 37
A, NO_SINKS, ALL_SINKS, IN_CACHE = SWA(11, 3), SWA(11, 0), SWA(7, 6), SWA(11, 3, positions="cache")
MIX = PerLayer((SWA(5, 1), Full(), SWA(13, 4)))
MIX_IN_CACHE = PerLayer((Full(), SWA(11, 3, "cache"), SWA(5, 1)))
GEMMA_MIX = PerLayer((SWA(9, 4), SWA(13, 2), Full()))


def check(got, exact, rows=slice(None)):
    assert error(got, exact.logits[:, rows]) <= exact.bound


# ---------------------------------------------------------------------------------------------- one forward

FORWARD = [
    ("llama", A, "sdpa"),
    ("llama", IN_CACHE, "reference"),
    ("llama", SWA(1, 0), "sdpa"),
    ("llama", MIX, "reference"),
    ("llama", MIX_IN_CACHE, "sdpa"),
    ("qwen2", A, "reference"),
    ("qwen2", IN_CACHE, "sdpa"),
    ("qwen2", ALL_SINKS, "sdpa"),
    ("mistral", NO_SINKS, "sdpa"),
    ("mistral", Full(), "sdpa"),
    ("mistral-local", A, "sdpa"),
    ("mistral-local", Full(), "reference"),
    ("gemma3", A, "sdpa"),
    ("gemma3", IN_CACHE, "sdpa"),
    ("gemma3", GEMMA_MIX, "sdpa"),
    ("gemma3", Full(), "sdpa"),
]


@pytest.mark.parametrize(("name", "spec", "impl"), FORWARD, ids=str)
def test_one_forward(name, spec, impl):
    with applied(model(name), spec, impl) as student, torch.no_grad():
        check(student(ids(1, L), use_cache=False).logits, truth(name, spec, 1, L))


@pytest.mark.parametrize("name", oracle.MODELS)
@pytest.mark.parametrize(
    "wrong", [SWA(12, 3), SWA(10, 3), SWA(11, 2), SWA(11, 4), SWA(12, 4), SWA(10, 2)], ids=str
)
def test_a_window_or_sinks_off_by_one_would_be_seen(name, wrong):
    exact = truth(name, A, 1, L)
    with applied(model(name), wrong) as student, torch.no_grad():
        assert error(student(ids(1, L)).logits, exact.logits) > 1000 * exact.bound


def test_the_two_oracles_agree_to_rounding():
    for name in oracle.MODELS:
        exact = truth(name, A, 1, L)
        assert exact.bound < 1e-4 * float(exact.logits.abs().max())


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_text_and_cache_positions_are_different_functions_once_a_token_is_evicted(name):
    apart = (truth(name, A, 1, L).logits - truth(name, IN_CACHE, 1, L).logits).abs().amax(-1)[0]
    assert apart[:11].max() < 1e-9
    assert apart[11:].max() > 1e-2


@pytest.mark.parametrize("spec", [SWA(L, 3), SWA(1000, 0), SWA(L, L - 1, "cache")], ids=str)
def test_a_window_as_long_as_the_text_is_the_teacher(spec):
    exact = truth("llama", Full(), 1, L)
    with applied(model("llama"), spec) as student, torch.no_grad():
        check(student(ids(1, L)).logits, exact)
        check(in_chunks(student, ids(1, L), [5, 1]), exact)
        check(model("llama")(ids(1, L)).logits, exact)


# ------------------------------------------------------------------------------------ in pieces, on a cache

CHUNKS = [
    ("llama", A, [1]),
    ("llama", IN_CACHE, [1]),
    ("gemma3", A, [1]),
    ("gemma3", IN_CACHE, [3]),
    ("mistral-local", A, [3]),
    ("qwen2", A, [10]),
    ("qwen2", IN_CACHE, [11]),
    ("llama", A, [11]),
    ("llama", IN_CACHE, [12]),
    ("mistral", NO_SINKS, [12]),
    ("llama", A, [10, 1]),
    ("llama", IN_CACHE, [11, 1]),
    ("gemma3", A, [12, 1]),
    ("llama", A, [11, 3]),
    ("qwen2", ALL_SINKS, [7, 1, 2]),
    ("llama", MIX, [13, 1, 5, 1, 2]),
    ("llama", MIX_IN_CACHE, [13, 1, 5, 1, 2]),
    ("gemma3", GEMMA_MIX, [13, 1, 5, 1, 2]),
    ("mistral-local", Full(), [24, 1, 5]),
    ("llama", SWA(1, 0), [3, 1]),
    ("llama", A, [L]),
]


@pytest.mark.parametrize(("name", "spec", "sizes"), CHUNKS, ids=str)
def test_any_pieces_give_what_token_by_token_gives(name, spec, sizes):
    with applied(model(name), spec) as student, torch.no_grad():
        check(in_chunks(student, ids(1, L), sizes), truth(name, spec, 1, L))


@pytest.mark.parametrize("wrong", [SWA(12, 3), SWA(10, 3), SWA(11, 2), SWA(11, 4)], ids=str)
@pytest.mark.parametrize("sizes", [[1], [11, 3]], ids=str)
def test_off_by_one_would_be_seen_on_the_cache_too(wrong, sizes):
    exact = truth("llama", A, 1, L)
    with applied(model("llama"), wrong) as student, torch.no_grad():
        assert error(in_chunks(student, ids(1, L), sizes), exact.logits) > 1000 * exact.bound


def test_a_long_text_token_by_token():
    exact = truth("llama", A, 1, 101)
    with applied(model("llama"), A, "reference") as student, torch.no_grad():
        check(in_chunks(student, ids(1, 101), [1]), exact)


def test_a_cache_of_ones_own_and_inputs_as_embeddings():
    with applied(model("llama"), A) as student, torch.no_grad():
        cache = SinkCache(layer_specs(student, A))
        embedded = student.get_input_embeddings()(ids(1, L))
        first = student(inputs_embeds=embedded[:, :20], cache=cache).logits
        second = student.model(None, None, None, cache, embedded[:, 20:]).last_hidden_state
        check(torch.cat([first, student.lm_head(second)], 1), truth("llama", A, 1, L))
        assert cache.get_seq_length() == L


# ----------------------------------------------------------------------------------------------- generation


def choices(name, spec, sequence, prompt):
    """For each generated token: how far its exact logit lies below the best one."""
    logits = oracle.literal(model(name), sequence[None, :-1], spec)[0, prompt - 1 :]
    return logits.amax(-1) - logits.gather(1, sequence[prompt:, None])[:, 0]


@pytest.mark.parametrize(
    ("name", "spec", "prompt"),
    [
        ("llama", A, 3),
        ("llama", IN_CACHE, 23),
        ("qwen2", NO_SINKS, 23),
        ("mistral-local", A, 11),
        ("gemma3", A, 23),
    ],
    ids=str,
)
def test_generate_needs_no_extra_argument_and_makes_a_cache_of_w_slots(name, spec, prompt):
    with applied(model(name), spec) as student:
        out = student.generate(
            ids(1, prompt), max_new_tokens=17, do_sample=False, return_dict_in_generate=True
        )
    assert out.sequences.shape == (1, prompt + 17)
    assert choices(name, spec, out.sequences[0], prompt).max() <= truth(name, A, 1, L).bound
    assert type(out.cache) is SinkCache
    windows = [layer.window for layer in oracle.layers(model(name), spec)]
    config = model(name).config
    slot_bytes = 2 * config.num_key_value_heads * config.head_dim * 4
    assert out.cache.allocated_bytes == sum(windows) * slot_bytes
    if name != "gemma3":
        assert out.cache.allocated_bytes == config.num_hidden_layers * spec.window * slot_bytes


def test_beams():
    with applied(model("llama"), A) as student:
        out = student.generate(
            ids(1, 13), max_new_tokens=9, num_beams=3, num_return_sequences=3, do_sample=False,
            length_penalty=0.0, return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
    for sequence, score in zip(out.sequences, out.sequences_scores, strict=True):
        log_p = oracle.literal(model("llama"), sequence[None, :-1], A)[0, 12:].log_softmax(-1)
        exact = float(log_p.gather(1, sequence[13:, None]).sum())
        assert abs(float(score) - exact) <= 9 * truth("llama", A, 1, L).bound
    assert len(out.sequences.unique(dim=0)) == 3


@pytest.mark.parametrize("spec", [A, IN_CACHE], ids=str)
def test_several_turns_on_one_cache(spec):
    with applied(model("llama"), spec) as student:
        cache, history = SinkCache(layer_specs(student, spec)), ids(1, 5, seed=1)
        for turn, size in enumerate([1, 14, 2]):
            history = torch.cat([history, ids(1, size, seed=turn + 2)], 1)
            prompt = history.shape[1]
            history = student.generate(history, cache=cache, max_new_tokens=6, do_sample=False)
            assert choices("llama", spec, history[0], prompt).max() <= truth("llama", A, 1, L).bound
    assert cache.get_seq_length() == history.shape[1] - 1


@pytest.mark.parametrize("chunk_tokens", [7, 1000])
def test_prefill_gives_the_last_logits_and_a_cache_to_go_on_with(chunk_tokens):
    exact = truth("llama", A, 1, L)
    with applied(model("llama"), A) as student, torch.no_grad():
        logits, cache = prefill(student, ids(1, L)[:, :31], chunk_tokens=chunk_tokens)
        assert error(logits, exact.logits[:, 30]) <= exact.bound
        check(in_chunks(student, ids(1, L)[:, 31:], [3, 1], cache), exact, slice(31, None))
        with pytest.raises(ValueError, match="prefill needs tokens and a chunk_tokens of at least 1"):
            prefill(student, ids(1, 0))


def test_prefill_in_chunks_by_generate_itself():
    with applied(model("llama"), A) as student:
        whole = student.generate(ids(1, 31), max_new_tokens=5, do_sample=False)
        assert torch.equal(
            whole, student.generate(ids(1, 31), max_new_tokens=5, do_sample=False, prefill_chunk_size=7)
        )
        assert torch.equal(
            whole, student.generate(ids(1, 31), max_new_tokens=5, do_sample=False, use_cache=False)
        )


# -------------------------------------------------------------------------------------------------- padding

PADS = [0, 3, 13]


def left_padded(tokens, pads=PADS):
    """Row r: pads[r] pads, then that row's first tokens; and its mask."""
    length = tokens.shape[1]
    rows = [torch.cat([torch.full((p,), 7), row[: length - p]]) for row, p in zip(tokens, pads, strict=True)]
    return torch.stack(rows), (torch.arange(length) >= torch.tensor(pads)[:, None]).long()


PADDED = [
    ("llama", A, [L], "sdpa"),
    ("llama", A, [14, 1], "sdpa"),
    ("llama", IN_CACHE, [14, 5], "sdpa"),
    ("llama", SWA(23, 3), [14, 1], "sdpa"),  # the shorter rows' slots fill later than the longest row's
    ("llama", SWA(23, 3, "cache"), [14, 5], "reference"),
    ("qwen2", IN_CACHE, [L], "reference"),
    ("qwen2", SWA(97, 3), [17, 3, 1], "sdpa"),
    ("gemma3", A, [14, 1, 3], "sdpa"),
    ("mistral-local", NO_SINKS, [15, 1], "reference"),
    ("llama", MIX, [14, 1, 3], "sdpa"),
]


@pytest.mark.parametrize(("name", "spec", "sizes", "impl"), PADDED, ids=str)
def test_left_padding_each_row_is_that_row_alone(name, spec, sizes, impl):
    tokens, mask = left_padded(ids(3, L))
    exact = truth(name, spec, 3, L)
    with applied(model(name), spec, impl) as student, torch.no_grad():
        got = in_chunks(student, tokens, sizes, mask=mask)
        whole = student(tokens, attention_mask=mask, use_cache=False).logits
    for row, pad in enumerate(PADS):
        for logits in (got, whole):
            assert error(logits[row, pad:], exact.logits[row, : L - pad]) <= exact.bound
    assert bool(torch.isfinite(got).all())
    assert bool(torch.isfinite(whole).all())


@pytest.mark.parametrize(
    ("name", "spec"), [("llama", A), ("gemma3", IN_CACHE), ("qwen2", SWA(5, 4))], ids=str
)
def test_right_padding_in_one_forward(name, spec):
    exact, lengths = truth(name, spec, 3, L), [L, L - 3, 5]
    mask = (torch.arange(L) < torch.tensor(lengths)[:, None]).long()
    with applied(model(name), spec) as student, torch.no_grad():
        got = student(ids(3, L).where(mask == 1, 7), attention_mask=mask).logits
    assert bool(torch.isfinite(got).all())
    for row, length in enumerate(lengths):
        assert error(got[row, :length], exact.logits[row, :length]) <= exact.bound


@pytest.mark.parametrize("spec", [A, IN_CACHE, SWA(64, 4)], ids=str)
@pytest.mark.parametrize("beams", [1, 3])
def test_a_padded_batch_generates_what_its_rows_generate_alone(spec, beams):
    tokens, mask = left_padded(ids(3, 17))
    arguments = {"max_new_tokens": 9, "do_sample": False, "num_beams": beams}
    with applied(model("llama"), spec) as student:
        batch = student.generate(tokens, attention_mask=mask, **arguments)
        for row, pad in enumerate(PADS):
            alone = student.generate(tokens[row : row + 1, pad:], **arguments)
            assert torch.equal(batch[row, pad:], alone[0])
