"""LoLCATs against a double loop, the released code's numbers, and the two attentions it is made of."""

import pytest
import torch
from lolcats_oracle import attended, literal, projected, weights, windowed
from mixer_contract import (
    SIZES,
    check_constant_memory,
    check_forms_and_splits,
    check_gradients,
    check_half_precision,
    check_padding,
    check_pads_between,
    made,
    near,
    noise,
    released,
    run,
    same_state,
    tokens,
)

from swalib import masks
from swalib.linear import _window
from swalib.linear.hedgehog import Hedgehog, HedgehogConfig
from swalib.linear.lolcats import LoLCATs, LoLCATsConfig
from swalib.linear.mixer import Tokens
from swalib.linear.projections import Sizes, projections
from swalib.models import tiny
from swalib.positions import rotate
from swalib.spec import SWA

PLAIN, SINKS = LoLCATsConfig(window=4), LoLCATsConfig(window=7, sinks=3, activation="exp", affine=True)
TERRACED = LoLCATsConfig(window=4, terraced=True)


@pytest.mark.parametrize(
    "config", [PLAIN, SINKS, TERRACED, LoLCATsConfig(window=1), LoLCATsConfig(window=5, width=2)], ids=repr
)
@torch.no_grad()
def test_as_its_formula_written_out(config):
    mixer, x = made(LoLCATs, config), noise(2, 14, SIZES.hidden_size)
    q, k, v = projected(mixer, x)
    y, _ = run(mixer, x)
    for row in range(2):
        o = literal(mixer, q[row], k[row], v[row], prompt=14)
        near(y[row], o.transpose(0, 1).flatten(1) @ mixer.o_proj.weight.T)
    near(mixer.heads(x, tokens(2, 0, 14))[0][1], o)


@pytest.mark.parametrize("config", [PLAIN, SINKS, TERRACED], ids=repr)
def test_gradients_are_the_formulas(config):
    mixer, x, found = made(LoLCATs, config), noise(1, 11, SIZES.hidden_size), []
    for formula in (False, True):
        mixer.zero_grad()
        q, k, v = (z[0] for z in projected(mixer, x))
        o = literal(mixer, q, k, v, prompt=11) if formula else mixer.heads(x, tokens(1, 0, 11))[0][0]
        mixer.o_proj(o.transpose(0, 1).flatten(1)).square().sum().backward()
        found.append([p.grad for p in mixer.parameters()])
    for got, expected in zip(*found, strict=True):
        near(got, expected)


@pytest.mark.parametrize("config", [PLAIN, SINKS, TERRACED], ids=repr)
@torch.no_grad()
def test_a_prior_linear_state_is_read_by_every_row(config):
    mixer, x = made(LoLCATs, config), noise(1, 14, SIZES.hidden_size)
    q, k, v = projected(mixer, x)
    before = {"S": noise(1, 4, 6, 6, seed=1), "z": noise(1, 4, 6, seed=2).abs()}
    for form in ("parallel", "recurrent"):
        o, after = mixer.heads(x, tokens(1, 0, 14), before, form)
        near(o[0], literal(mixer, q[0], k[0], v[0], 14, before["S"][0], before["z"][0]))
    near(after["S"], before["S"] + run(mixer, x)[1]["S"])


@pytest.mark.parametrize("config", [PLAIN, SINKS], ids=repr)
def test_contract(config):
    mixer = made(LoLCATs, config)
    check_forms_and_splits(mixer)
    check_padding(mixer)
    check_pads_between(mixer)
    check_constant_memory(mixer)
    check_gradients(mixer)
    check_half_precision(mixer)


@torch.no_grad()
def test_pads_leave_nothing_in_the_state():
    mixer, x = made(LoLCATs, SINKS), noise(1, 9, SIZES.hidden_size)
    padded, alone = run(mixer, x, left=torch.tensor([5]))[1], run(mixer, x[:, 5:])[1]
    same_state(padded, alone)
    assert alone["position"].tolist() == [[-1, -1, 3, 0, 1, 2]]


def test_past_a_chunk_and_the_default_window():
    mixer = made(LoLCATs)
    check_gradients(mixer, t=70)
    check_half_precision(mixer, t=150)


@pytest.mark.parametrize("config", [PLAIN, SINKS, TERRACED], ids=repr)
@torch.no_grad()
def test_chunks_are_not_seen(config, monkeypatch):
    mixer, x = made(LoLCATs, config), noise(2, 31, SIZES.hidden_size)
    left, right = torch.tensor([0, 4]), torch.tensor([29, 31])
    whole, last = run(mixer, x, form="parallel", left=left, right=right)
    for chunk in (1, 3, 4, 10):
        monkeypatch.setattr(_window, "CHUNK", chunk)
        y, state = run(mixer, x, left=left, right=right)
        near(y[0, :29], whole[0, :29])
        near(y[1, 4:], whole[1, 4:])
        same_state(state, last)


@pytest.mark.parametrize("window", [1, 3, 5, 16])
@pytest.mark.parametrize("kind", ["plain", "sinks", "terraced"])
@torch.no_grad()
def test_the_mask_drawn(kind, window):
    """Equal keys and features that are all 1/f: softmax pairs weigh a, linear ones 2/f."""
    options = {"plain": {}, "sinks": {"sinks": window // 2}, "terraced": {"terraced": True}}[kind]
    config, t = LoLCATsConfig(window=window, window_factor=0.9, **options), 16
    mixer = made(LoLCATs, config)
    mixer.phi_q.weight.zero_()
    mixer.phi_k.weight.zero_()
    mixer.window_logit.fill_(2.0)
    q, k = torch.zeros(1, 4, t, 6, dtype=torch.float64), torch.zeros(1, 2, t, 6, dtype=torch.float64)
    drawn = weights(mixer, q, k, torch.arange(t)[None])[0, 0]
    drawn = drawn / drawn.diagonal()[:, None]
    expected = torch.zeros(t, t, dtype=torch.float64)
    for i in range(t):
        for j in range(i + 1):
            expected[i, j] = 1 if windowed(config, i, j, t) else (2 / 3) * (1 + torch.tensor(-2.0).exp())
    near(drawn, expected, 1e-6)
    spec = masks.terraced(t, window) if config.terraced else masks.mask(t, SWA(window, config.sinks))
    assert torch.equal((drawn - 1).abs() < 1e-6, spec)


@pytest.mark.parametrize("config", [PLAIN, SINKS, TERRACED], ids=repr)
@torch.no_grad()
def test_a_window_as_long_as_the_text_is_softmax_attention(config):
    t = 13
    long = LoLCATsConfig(window=t, sinks=config.sinks, terraced=config.terraced, affine=config.affine)
    mixer, x = made(LoLCATs, long), noise(2, t, SIZES.hidden_size)
    q, k, v = projected(mixer, x)
    k, v = mixer.per_query_head(k), mixer.per_query_head(v)
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    near(mixer.heads(x, tokens(2, 0, t))[0], exact)
    near(run(mixer, x, [t - 1, 1])[0], mixer.o_proj(mixer.merged(exact)))


@torch.no_grad()
def test_without_its_softmax_it_is_hedgehog():
    """a = 0 and a window of 1: a query reads the state that Hedgehog has before it."""
    mixer, x = made(LoLCATs, LoLCATsConfig(window=1)), noise(1, 12, SIZES.hidden_size)
    mixer.window_logit.fill_(-1e4)
    twin = made(Hedgehog, HedgehogConfig())
    left = twin.load_state_dict({n: p for n, p in mixer.state_dict().items() if n != "window_logit"})
    assert not left.missing_keys
    o = mixer.heads(x, tokens(1, 0, 12))[0]
    near(o[:, :, 0], torch.zeros_like(o[:, :, 0]))
    for i in range(1, 12):
        before = twin.heads(x[:, :i], tokens(1, 0, i))[1]
        phi_q = twin.phi_q(projected(twin, x)[0])[:, :, i : i + 1]
        near(
            o[:, :, i : i + 1], phi_q @ before["S"] / (phi_q * before["z"][:, :, None]).sum(-1, keepdim=True)
        )
    hedgehog, lolcats = run(twin, x)[1], run(mixer, x)[1]
    same_state(hedgehog, {name: lolcats[name] for name in hedgehog})


@pytest.mark.parametrize(
    ("name", "terraced"), [("lolcats_sw_core_t13", False), ("lolcats_tk_core_t13", True)]
)
@pytest.mark.parametrize("activation", ["softmax", "exp"])
@torch.no_grad()
def test_released_numbers(name, terraced, activation):
    z, index = released(name)
    (b, heads, t, d), width = z["q"].shape, z["Wq"].shape[-1]
    config = LoLCATsConfig(int(z["window_size"]), terraced=terraced, width=width, activation=activation)
    mixer = LoLCATs(config, Sizes(heads * d, heads, z["k"].shape[1], d))
    mixer.phi_q.weight.copy_(z["Wq"])
    mixer.phi_k.weight.copy_(z["Wk"])
    mixer.window_logit.copy_(z["window_logit"].flatten())
    q, k, v, position = z["q"], z["k"], z["v"], torch.arange(t).expand(b, -1)
    near(mixer.phi_q(q), z[f"phi_q_{activation}"], 1e-6)
    near(mixer.phi_k(k), z[f"phi_k_{activation}"], 1e-6)
    near(mixer.attend(q, k, v, position)[0], z[f"y_{activation}"], 1e-5)
    near(weights(mixer, q, k, position), z[f"attn_{activation}"], 1e-5)
    before = {"S": z["kv_state0"], "z": z["k_state0"][:, :, 0]}
    for form in ("parallel", "recurrent"):
        near(mixer.attend(q, k, v, position, before, form)[0], z[f"y_{activation}_state"], 1e-5)
    assert index["tolerance"].startswith("1e-5")


@torch.no_grad()
def test_the_window_is_kept_in_the_models_dtype_and_the_sums_in_fp32():
    mixer, x = made(LoLCATs, PLAIN), noise(1, 9, SIZES.hidden_size)
    state = run(mixer.to(torch.bfloat16), x.to(torch.bfloat16))[1]
    kinds = {name: value.dtype for name, value in state.items()}
    assert kinds["S"] == kinds["z"] == torch.float32
    assert kinds["k"] == kinds["v"] == torch.bfloat16
    assert state["k"].shape == (1, 2, 3, 6)  # kv heads, window - 1
    assert all(s.untyped_storage().nbytes() == s.numel() * s.element_size() for s in state.values())
    assert state["position"].tolist() == [[6, 7, 8]]
    mixer = mixer.float()
    exact, _ = run(mixer, x.float())
    with torch.autocast("cpu", torch.bfloat16):
        y, state = run(mixer, x.float(), [4, 5])
    assert state["S"].dtype == torch.float32
    near(y.float(), exact, 0.05 * float(exact.abs().max()))


FAMILIES = [(name, 0) for name in ("llama", "qwen2", "qwen3", "phi", "phi3", "gemma", "granite")]


@pytest.mark.parametrize(("family", "layer"), [*FAMILIES, ("gemma3", 1)])
@torch.no_grad()
def test_starts_as_the_teacher_where_the_window_holds_the_text(family, layer):
    attention, x, pair, y = attended(family, layer)
    mixer = LoLCATs.init_from(attention, LoLCATsConfig(window=11), layer)
    cos, sin = (table[:, None] for table in mixer.rotation.tables(pair))
    position = torch.arange(11).expand(2, -1)
    mine, _ = mixer.mix(x, Tokens(position, lambda z: rotate(z, cos, sin)))
    near(mine, y, 1e-6)  # RoPE's tables are fp32


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3"])
def test_what_is_the_teachers_and_what_is_new(family):
    attention = tiny(family).model.layers[0].self_attn
    source, mixer = projections(attention), LoLCATs.init_from(attention)
    for name in "qkvo":
        assert getattr(mixer, f"{name}_proj") is getattr(source, name)
    assert getattr(mixer, "q_norm", None) is source.q_norm
    new = {
        n for n, p in mixer.named_parameters() if not any(p is theirs for theirs in attention.parameters())
    }
    assert new == {"phi_q.weight", "phi_k.weight", "window_logit"}
    assert torch.equal(mixer.phi_q.weight, mixer.phi_k.weight)
    assert float(mixer.phi_q.weight.detach().abs().max()) <= (6 / (10 * 5)) ** 0.5
    torch.testing.assert_close(mixer.window_logit.detach(), torch.full((4,), -2.1972245773362196))


def test_settings_that_mean_nothing_are_refused():
    for options, message in (
        ({"window": 0}, "window must be at least 1"),
        ({"window": 4, "sinks": 4}, "sinks must be below window"),
        ({"sinks": 1, "terraced": True}, "a terraced window has no sinks"),
        ({"window_factor": 1.0}, r"window_factor must lie in \(0, 1\)"),
    ):
        with pytest.raises(ValueError, match=message):
            LoLCATsConfig(**options)
    with pytest.raises(ValueError, match="form must be one of"):
        run(made(LoLCATs), noise(1, 3, SIZES.hidden_size), form="fast")
