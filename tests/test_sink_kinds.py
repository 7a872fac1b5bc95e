"""Every kind of sink is fed and kept as its name says, and all are scored on the same tokens."""

import copy

import numpy as np
import pytest
import torch

from swalib import SWA, applied, models, results
from swalib.evals import perplexity, sink_kinds
from swalib.evals.sink_kinds import KINDS
from swalib.tiny import tiny

TEXT = "It was the best of tokens, it was the worst of tokens, it was the first of tokens that they all saw. "
CHOSEN = (2, 5, 11, 13)


@pytest.fixture(scope="module")
def loaded():
    """The tiny Llama, whose tokenizer calls "~" its BOS."""
    found = models.load("tiny-llama")
    found.tokenizer.bos_token = "~"
    return found


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 5)
    return str(path)


def fed_by_hand(kind: str, loaded, ids):
    code = loaded.tokenizer.convert_tokens_to_ids
    if kind == "bos":
        return torch.cat([torch.full((len(ids), 1), code("~")), ids], dim=1)
    if kind == "newlines":
        ids = ids.clone()
        ids[:, :4] = code("\n")
    return ids


def test_what_each_kind_keeps():
    assert {name: kind.spec(64, CHOSEN) for name, kind in KINDS.items()} == {
        "none": SWA(64, 0),
        "random": SWA(64, 4, sink_positions=CHOSEN),
        "next_four": SWA(64, 4, sink_positions=(4, 5, 6, 7)),
        "zero_sink": SWA(64, 0, sink_logit=0.0),
        "first_four": SWA(64, 4),
        "newlines": SWA(64, 4),
        "first_one": SWA(64, 1),
        "bos": SWA(64, 1),
        "no_value": SWA(64, 1),
    }


@pytest.mark.parametrize("kind", [name for name in KINDS if name != "no_value"])
def test_every_kind_scores_the_pieces_own_tokens_given_what_it_feeds(loaded, kind):
    ids = perplexity.pieces(loaded, TEXT * 2, 60, 2)
    with applied(loaded.model, KINDS[kind].spec(16, CHOSEN)) as student:
        losses = sink_kinds.losses_of(student, loaded, ids, KINDS[kind])
        fed = fed_by_hand(kind, loaded, ids)
        with torch.no_grad():
            logits = torch.cat([student(row[None]).logits for row in fed]).double()
    extra = fed.shape[1] - ids.shape[1]
    expected = torch.nn.functional.cross_entropy(logits[:, extra:-1].mT, ids[:, 1:], reduction="none")
    assert losses.shape == (2, 59)
    # The token that predicts position 4 is the last one replaced; from there on targets are the text's own.
    assert np.allclose(losses[:, 3:], expected[:, 3:], atol=1e-4)


@pytest.mark.parametrize("kind", ["bos", "newlines", "first_four"])
def test_the_model_is_really_fed_that(loaded, kind):
    ids, seen = perplexity.pieces(loaded, TEXT, 40, 2), []
    with applied(loaded.model, KINDS[kind].spec(16, CHOSEN)) as student:
        embeddings = student.get_input_embeddings()
        hook = embeddings.register_forward_pre_hook(lambda module, args: seen.append(args[0].clone()))
        sink_kinds.losses_of(student, loaded, ids, KINDS[kind])
        hook.remove()
    assert torch.equal(torch.cat(seen), fed_by_hand(kind, loaded, ids))


def test_pieces_that_begin_with_a_bos_get_no_second_one(loaded):
    headed = models.Loaded(loaded.model, loaded.tokenizer, "x", "local", "0", bos=1)
    ids = perplexity.pieces(headed, TEXT, 40, 2)
    assert torch.equal(sink_kinds.with_bos(headed, ids), ids)


def heads_and_weights(student, ids, zeroed: bool):
    """Per layer: what enters the output projection [t, h·d], and the weights [h, t, t]."""
    entered = []
    with sink_kinds.first_value_zeroed(student) if zeroed else sink_kinds._nothing():
        hooks = [
            layer.self_attn.o_proj.register_forward_pre_hook(lambda _, args: entered.append(args[0][0]))
            for layer in student.model.layers
        ]
        with torch.no_grad():
            weights = student(ids, output_attentions=True, use_cache=False).attentions
        [hook.remove() for hook in hooks]
    return entered, [layer[0] for layer in weights]


def test_a_value_of_zeros_takes_away_the_first_token_s_share_and_nothing_else():
    """By hand in the first layer, where the inputs are the same: o_t loses w_t0 · v_0, for t > 0."""
    model, ids = tiny("llama"), torch.arange(3, 28)[None]
    with applied(model, SWA(9, 1), "reference") as student:
        plain, weights = heads_and_weights(student, ids, zeroed=False)
        zeroed, _ = heads_and_weights(student, ids, zeroed=True)
        again, _ = heads_and_weights(student, ids, zeroed=False)
    v0 = plain[0][0].view(4, 10)  # the first token sees itself alone
    share = weights[0][:, :, 0].T[:, :, None] * v0
    expected = plain[0].view(-1, 4, 10) - share
    expected[0] = v0
    assert torch.allclose(zeroed[0].view(-1, 4, 10), expected, atol=1e-5)
    assert not torch.allclose(zeroed[0], plain[0], atol=1e-3)
    for layer in range(3):  # the first token's own path, and so its keys, stay as they were
        assert torch.allclose(zeroed[layer][0], plain[layer][0], atol=1e-5)
        assert torch.equal(again[layer], plain[layer])


def test_values_without_a_projection_are_refused():
    model = tiny("gpt2")
    refused = pytest.raises(ValueError, match="values of gpt2 have no projection of their own: leave out the")
    with refused, sink_kinds.first_value_zeroed(model):
        pass


def test_random_positions_come_again_and_leave_out_the_first_token():
    drawn = [sink_kinds.random_positions(seed, 4, 64) for seed in range(200)]
    assert drawn == [sink_kinds.random_positions(seed, 4, 64) for seed in range(200)]
    assert {position for chosen in drawn for position in chosen} == set(range(1, 64))
    assert all(sorted(set(chosen)) == list(chosen) and len(chosen) == 4 for chosen in drawn)
    assert drawn[:3] == [(25, 49, 55, 57), (9, 37, 52, 55), (55, 56, 61, 62)]


def test_a_kind_that_can_not_be_is_refused_in_one_sentence(loaded, text_file):
    with pytest.raises(ValueError, match="no kind of sink is called 'last': choose from none, random"):
        sink_kinds.measure("smoke", ["tiny-llama"], [text_file], [8], ["last"])
    bare = models.load("tiny-llama")
    ids = torch.ones(1, 9, dtype=torch.long)
    with pytest.raises(
        ValueError, match='tokenizer of tiny-llama has no BOS token: leave out the kind "bos"'
    ):
        sink_kinds.with_bos(bare, ids)
    wordy = copy.copy(bare)
    object.__setattr__(wordy, "tokenizer", lambda text, **_: {"input_ids": [3, 4]})
    with pytest.raises(ValueError, match="a newline is not one token for tiny-llama, but 2"):
        sink_kinds.newlines_first(wordy, ids)


def test_rows_of_all_kinds_are_scored_alike_and_plain_ones_are_those_of_sinks(
    text_file, results_folder, capsys
):
    kinds = [name for name in KINDS if name != "bos"]
    asked = ["tiny-llama"], [text_file], [8, 16], kinds
    sizes = {"context_tokens": 128, "n": 2, "seeds": 3}
    perplexity.grid("run", ["tiny-llama"], [text_file], [8, 16], [0, 1, 4], context_tokens=128)
    capsys.readouterr()
    rows = sink_kinds.measure("run", *asked, **sizes)
    assert "core-hours for 14 missing runs" in capsys.readouterr().err
    stored = sink_kinds.measure("stored", *asked, **sizes)
    assert stored.equals(rows)
    assert set(results.read("sink_kinds")["run_key"]).isdisjoint(results.read("sinks")["run_key"])
    assert rows["n"].unique().tolist() == [2 * 64]
    assert rows["kind"].tolist() == ["full", *2 * ["none", *3 * ["random"], *kinds[2:]]]
    drawn = rows[rows["kind"] == "random"]["positions"]
    assert drawn.tolist() == 2 * ["25, 49, 55, 57", "9, 37, 52, 55", "55, 56, 61, 62"]
    grid = perplexity.grid("stored", ["tiny-llama"], [text_file], [8, 16], [0, 1, 4], context_tokens=128)
    by = rows.set_index(["kind", "window"])["ppl"]
    for kind, sinks in (("none", 0), ("first_one", 1), ("first_four", 4)):
        assert by[kind, 8] == grid.ppl("tiny-llama", text_file, 8, sinks)
    different = by.drop("full").round(6)
    assert different.nunique() == len(different)


def test_every_setting_has_a_key_of_its_own(text_file):
    cells = [
        sink_kinds._cell("tiny-llama", text_file, 16, kind, seed, {"context_tokens": 128})
        for kind in KINDS
        for seed in ((0, 1) if KINDS[kind].drawn else (None,))
    ]
    assert len({results.run_key(cell.config()) for cell in cells}) == len(KINDS) + 1
