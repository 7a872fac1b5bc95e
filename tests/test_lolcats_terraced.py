"""LoLCATs's terraces: the prompt can't be split, since they align to its end; what follows it can."""

import pytest
import torch
from lolcats_oracle import literal, projected
from mixer_contract import (
    SIZES,
    check_constant_memory,
    check_gradients,
    check_half_precision,
    made,
    near,
    noise,
    rope,
    run,
    same_state,
    tokens,
)

from swalib.linear.lolcats import LoLCATs, LoLCATsConfig
from swalib.linear.mixer import Tokens

TERRACED = LoLCATsConfig(window=4, terraced=True)


@pytest.mark.parametrize("prompt", [1, 4, 11])
@torch.no_grad()
def test_after_a_terraced_prompt_the_window_is_plain(prompt):
    mixer, x = made(LoLCATs, TERRACED), noise(1, 18, SIZES.hidden_size)
    q, k, v = projected(mixer, x)
    o = literal(mixer, q[0], k[0], v[0], prompt)
    for rest in ([18 - prompt], [2, 1, 5]):
        y, last = run(mixer, x, [prompt, *rest])
        near(y[0], o.transpose(0, 1).flatten(1) @ mixer.o_proj.weight.T)
        same_state(last, run(mixer, x)[1])
    twin = LoLCATs(LoLCATsConfig(window=4), SIZES).double()
    twin.load_state_dict(mixer.state_dict())
    same_state(last, run(twin, x)[1])
    assert float((run(mixer, x)[0] - run(twin, x)[0]).abs().max()) > 1e-3


@torch.no_grad()
def test_terraces_align_to_the_end_of_each_row():
    mixer, x = made(LoLCATs, TERRACED), noise(3, 17, SIZES.hidden_size)
    left, right = torch.tensor([3, 0, 2]), torch.tensor([17, 12, 15])
    y, state = run(mixer, x, left=left, right=right)
    for row in range(3):
        real = slice(int(left[row]), int(right[row]))
        alone, last = run(mixer, x[row : row + 1, real])
        near(y[row, real], alone[0])
        same_state({n: s[row : row + 1] for n, s in state.items()}, last)


@torch.no_grad()
def test_a_row_that_begins_beside_one_that_goes_on():
    mixer, x = made(LoLCATs, TERRACED), noise(2, 20, SIZES.hidden_size)
    column = torch.stack([torch.arange(20), torch.arange(20) - 9]).clamp(min=-1)
    outputs, state = [], None
    for piece in (slice(0, 9), slice(9, 20)):
        position = column[:, piece]
        y, state = mixer.mix(x[:, piece], Tokens(position, rope(position)), state)
        outputs.append(y)
    y = torch.cat(outputs, dim=1)
    near(y[:1], run(mixer, x[:1], [9, 11])[0])
    near(y[1:, 9:], run(mixer, x[1:, 9:])[0])


def test_a_terraced_prompt_in_every_form():
    mixer, x = made(LoLCATs, TERRACED), noise(2, 37, SIZES.hidden_size)
    whole, last = run(mixer, x, form="recurrent")
    for form in ("parallel", "chunked"):
        y, state = run(mixer, x, form=form)
        near(y, whole)
        same_state(state, last)
    check_constant_memory(mixer)
    check_gradients(mixer)
    check_half_precision(mixer)


@torch.no_grad()
def test_a_short_terraced_text_is_counted_once():
    """As released, a text no longer than its window is weighed by softmax and linearly, every pair twice."""
    mixer, x = made(LoLCATs, TERRACED), noise(1, 4, SIZES.hidden_size)
    q, k, v = projected(mixer, x)
    k, v = mixer.per_query_head(k), mixer.per_query_head(v)
    score = (q @ k.mT / 6**0.5).masked_fill(torch.ones(4, 4).triu(1).bool(), -1e8)
    softmax = mixer.window_logit.sigmoid()[:, None, None] * (score - score.amax(-1, keepdim=True)).exp()
    linear = (mixer.phi_q(q) @ mixer.phi_k(k).mT).tril()
    once, twice = ((w @ v) / w.sum(-1, keepdim=True) for w in (softmax, softmax + linear))
    o = mixer.heads(x, tokens(1, 0, 4))[0]
    near(o, once)
    assert float((o - twice).abs().max()) > 1e-2
