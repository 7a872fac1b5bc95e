"""Feature maps against numpy, written out head by head and token by token."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch

from swalib.linear import METHODS, mixer_class
from swalib.linear.feature_maps import FEATURE_MAPS, FeatureMap, feature_map
from swalib.linear.mixer import Mixer
from swalib.linear.rwkv6 import Rwkv

B, H, T, D = 2, 3, 5, 8
SIZED = {"hedgehog", "dijiang", "supra"}


def x(dtype=torch.float64, spread=2.0):
    generator = torch.Generator().manual_seed(0)
    return (spread * torch.randn(B, H, T, D, generator=generator, dtype=torch.float64)).to(dtype)


def made(name, **options):
    torch.manual_seed(1)
    return feature_map(name, H, D, **options).double()


def literal(phi, by_head):
    """by_head(head, one token's vector [d]) -> [features], for every token of `x()`."""
    rows = [by_head(h, token.numpy()) for b in x() for h, head in enumerate(b) for token in head]
    return torch.from_numpy(np.array(rows)).reshape(B, H, T, phi.features)


def near(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-13)


def softmax(y):
    return np.exp(y) / np.exp(y).sum()


def cosines(size):
    """Row k, column n of the orthonormal DCT-II, from its definition."""
    rows = np.zeros((size, size))
    for k in range(size):
        for n in range(size):
            norm = math.sqrt((1 if k == 0 else 2) / size)
            rows[k, n] = norm * math.cos(math.pi * k * (n + 0.5) / size)
    return rows


PLAIN = {
    "identity": lambda y: y,
    "relu": lambda y: np.maximum(y, 0),
    "elu_plus_one": lambda y: np.where(y > 0, y, np.expm1(y)) + 1,
    "softmax": softmax,
}


@pytest.mark.parametrize("name", PLAIN)
def test_maps_without_parameters(name):
    phi = made(name)
    near(phi(x()), literal(phi, lambda _, y: PLAIN[name](y)))
    assert not list(phi.parameters())
    assert phi.features == D


def test_elu_plus_one_keeps_small_values_apart():
    """In fp32 elu(-20) + 1 is 0; the map is exp(-20)."""
    far = torch.full((1, 1, 1, 1), -20.0, requires_grad=True)
    mapped = feature_map("elu_plus_one", 1, 1)(far)
    assert mapped.item() == pytest.approx(math.exp(-20), rel=1e-6, abs=0)
    assert torch.autograd.grad(mapped.sum(), far)[0].item() == pytest.approx(math.exp(-20), rel=1e-6, abs=0)


def hedgehog_softmax(y):
    return np.maximum(np.concatenate([softmax(y), softmax(-y)]), 1e-12)


def hedgehog_exp(y):
    return np.maximum(np.concatenate([np.exp(y - y.max()), np.exp(y.min() - y)]), 1e-12)


@pytest.mark.parametrize("width", [None, 3, 11])
@pytest.mark.parametrize("activation", ["softmax", "exp"])
def test_hedgehog(activation, width):
    phi = made("hedgehog", width=width, activation=activation)
    weight = phi.weight.detach().numpy()
    assert weight.shape == (H, D, width or D // 2)
    assert phi.features == 2 * (width or D // 2)
    rows = {"softmax": hedgehog_softmax, "exp": hedgehog_exp}[activation]
    near(phi(x()), literal(phi, lambda h, y: rows(y @ weight[h])))


@pytest.mark.parametrize("activation", ["softmax", "exp"])
def test_hedgehog_never_falls_below_its_clamp_nor_overflows(activation):
    phi = feature_map("hedgehog", H, D, activation=activation)
    with torch.no_grad():
        phi.weight.mul_(1000)
    mapped = phi(x(torch.float32, spread=100.0)).detach()
    assert mapped.min() == pytest.approx(1e-12, rel=1e-6, abs=0)
    assert mapped.max() <= 1


@pytest.mark.parametrize(("head_dim", "width"), [(128, 64), (64, 32), (8, 3)])
def test_hedgehog_starts_as_released(head_dim, width):
    """kaiming_uniform_ of [h, d, f], whose fan-in torch takes to be d·f: 0.027 for 128 × 64."""
    torch.manual_seed(3)
    weight = feature_map("hedgehog", 4, head_dim, width=width).weight
    torch.manual_seed(3)
    released = torch.nn.init.kaiming_uniform_(torch.zeros(4, head_dim, width))
    torch.testing.assert_close(weight.detach(), released)
    assert weight.abs().max() <= math.sqrt(6 / (head_dim * width))
    assert weight.abs().max() > 0.8 * math.sqrt(6 / (head_dim * width))


def quantiles(phi):
    """t of a DiJiang map, by undoing its transform; each the normal quantile of some number in (0, 1)."""
    projection = phi.projection.double().numpy()
    return (cosines(D) @ projection if phi.version == "paper" else cosines(D).T @ projection).diagonal()


@pytest.mark.parametrize("version", ["released", "paper"])
def test_dijiang(version):
    phi = made("dijiang", version=version)
    t, c = quantiles(phi), cosines(D)
    if version == "paper":
        with torch.no_grad():
            phi.weight.copy_(torch.arange(1, D + 1) / D)
        weight = phi.weight.detach().numpy()
        wanted = literal(phi, lambda _, y: weight * np.exp(np.diag(t) @ c @ y))
    else:
        wanted = literal(phi, lambda _, y: softmax(y @ c @ np.diag(t)))
    torch.testing.assert_close(phi(x()), wanted, rtol=1e-5, atol=1e-6)  # the projection is kept in fp32
    assert "projection" in phi.state_dict()
    assert [name for name, _ in phi.named_parameters()] == (["weight"] if version == "paper" else [])


@pytest.mark.parametrize("version", ["released", "paper"])
def test_dijiang_draws_normal_quantiles_of_uniform_numbers(version, monkeypatch):
    drawn = torch.tensor([0.0, 0.1, 0.25, 0.5, 0.6, 0.75, 0.9, 0.99], dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *_, **__: drawn.clone())
    wanted = [0.0] + [NormalDist().inv_cdf(float(u)) for u in drawn[1:]]
    np.testing.assert_allclose(quantiles(made("dijiang", version=version)), wanted, atol=1e-6)


def test_supra_maps_the_heads_together_and_turns_last():
    phi = made("supra")
    weight, bias = phi.linear.weight.detach().numpy(), phi.linear.bias.detach().numpy()
    angle = 0.1 * np.arange(T)

    def rotation(mapped):
        assert mapped.shape == (B, H, T, D)
        assert bool((mapped >= 0).all())
        return mapped * torch.from_numpy(angle)[:, None]

    rows = x().numpy()
    wanted = np.zeros((B, H, T, D))
    for b in range(B):
        for i in range(T):
            together = np.concatenate([rows[b, h, i] for h in range(H)])
            mapped = np.maximum(weight @ together + bias, 0)
            for h in range(H):
                wanted[b, h, i] = angle[i] * mapped[h * D : (h + 1) * D]
    near(phi(x(), rotation), torch.from_numpy(wanted))


@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_gradients_reach_the_input_and_every_parameter(name):
    phi, given = made(name), x().requires_grad_()
    mapped = phi(given, lambda y: y) if name == "supra" else phi(given)
    assert mapped.shape == (B, H, T, phi.features)
    weights = torch.randn(mapped.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for grad in torch.autograd.grad((mapped * weights).sum(), [given, *phi.parameters()]):
        assert bool(torch.isfinite(grad).all())
        assert bool(grad.any())


@pytest.mark.parametrize("name", FEATURE_MAPS)
@pytest.mark.parametrize("shape", [(B, H, T, D + 2), (B, T, H, D), (H, T, D)], ids=str)
def test_another_head_size_or_layout_is_refused(name, shape):
    rotation = [lambda y: y] if name == "supra" else []
    with pytest.raises(ValueError, match=rf"was made for x \[b, {H}, t, {D}\], got \("):
        made(name)(torch.zeros(shape, dtype=torch.float64), *rotation)


def test_sizes_and_names_that_make_no_map_are_refused():
    with pytest.raises(ValueError, match="half of head_dim 7 is no width: pass width="):
        feature_map("hedgehog", H, 7)
    with pytest.raises(ValueError, match="sizes must be positive: 3 heads of 8, 0 features"):
        feature_map("hedgehog", H, D, width=0)
    with pytest.raises(ValueError, match="sizes must be positive: 3 heads of 0"):
        feature_map("relu", H, 0)
    with pytest.raises(ValueError, match="feature map must be one of"):
        feature_map("performer", H, D)
    with pytest.raises(ValueError, match='activation must be "softmax" or "exp", got \'relu\''):
        feature_map("hedgehog", H, D, activation="relu")
    with pytest.raises(ValueError, match='version must be "released" or "paper", got \'new\''):
        feature_map("dijiang", H, D, version="new")


def test_a_map_without_phi_can_not_be_made():
    class Unfinished(FeatureMap):
        pass

    with pytest.raises(TypeError, match=r"abstract method '?phi"):
        Unfinished(H, D)


@pytest.mark.parametrize(("base", "method"), [(Mixer, "mix"), (Rwkv, "start")])
def test_a_mixer_that_lacks_its_own_part_can_not_be_made(base, method):
    assert base.__abstractmethods__ >= {method}
    unfinished = type("Unfinished", (base,), {})
    with pytest.raises(TypeError, match=f"abstract methods? .*{method}"):
        unfinished(None)


def test_every_mixer_of_the_library_is_whole():
    for method in METHODS:
        assert not mixer_class(method).__abstractmethods__, method
