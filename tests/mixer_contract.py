"""What every mixer must keep, whatever its method; each method's tests call these with their own mixers."""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from swalib.linear.mixer import Mixer, MixerConfig, Tokens
from swalib.linear.projections import Sizes
from swalib.positions import rotate

VECTORS = Path(__file__).parent / "vectors"
SIZES = Sizes(hidden_size=20, heads=4, kv_heads=2, head_dim=6)
THETA = 100.0


def released(name: str) -> tuple[dict[str, Tensor], dict]:
    """Arrays of tests/vectors/<name>.npz and their INDEX entry."""
    index = json.loads((VECTORS / "INDEX.json").read_text())[f"{name}.npz"]
    arrays = {key: torch.from_numpy(array) for key, array in np.load(VECTORS / f"{name}.npz").items()}
    assert set(arrays) == set(index["arrays"])
    return arrays, index


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def made(cls: type[Mixer], config: MixerConfig | None = None, sizes: Sizes = SIZES, seed: int = 0) -> Mixer:
    """A mixer in fp64 whose every parameter is random, so that none can be ignored unseen."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        mixer = cls(cls.Config() if config is None else config, sizes).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return mixer.eval()


def rope(position: Tensor, theta: float = THETA):
    """Half-split RoPE in fp64 at positions [b, t], as a model would hand it to its layers."""

    def turn(x: Tensor) -> Tensor:
        frequencies = theta ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
        angle = (position.clamp(min=0)[:, None, :, None].double() * frequencies).to(x.device)
        return rotate(x.double(), angle.cos(), angle.sin()).to(x.dtype)

    return turn


def tokens(batch: int, start: int, stop: int, left=None, right=None, shared=None) -> Tokens:
    """Columns start..stop of a text with pads: `left`, `right` [b], columns lost at either end of `total`."""
    column = torch.arange(start, stop).expand(batch, -1)
    first = torch.zeros(batch, dtype=torch.long) if left is None else left
    position = column - first[:, None]
    if right is not None:
        position = position.masked_fill(column >= right[:, None], -1)
    position = position.masked_fill(position < 0, -1)
    return Tokens(position, rope(column - first[:, None]), {} if shared is None else shared)


def run(mixer: Mixer, x: Tensor, sizes=None, form="chunked", left=None, right=None, shared=None):
    """(y, last state) of x [b, t, hidden], in calls of these sizes, the last of which repeats.

    `shared` is what earlier layers hand over, each [b, t, ...] or [b, h, t, d] along axis -2.
    """
    sizes, start, outputs, state = list(sizes or [x.shape[1]]), 0, [], None
    while start < x.shape[1]:
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        stop = min(start + size, x.shape[1])
        handed = {name: value[..., start:stop, :] for name, value in (shared or {}).items()}
        told = tokens(x.shape[0], start, stop, left, right, handed)
        y, state = mixer.mix(x[:, start:stop], told, state, form)
        outputs.append(y)
        start = stop
    return torch.cat(outputs, dim=1), state


def near(got: Tensor, expected: Tensor, atol: float = 1e-9) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


def same_state(one: dict[str, Tensor], other: dict[str, Tensor], atol: float = 1e-9) -> None:
    assert one.keys() == other.keys()
    for name in one:
        near(one[name].double(), other[name].double(), atol)


@torch.no_grad()
def check_forms_and_splits(mixer: Mixer, t: int = 37, atol: float = 1e-9, shared=None) -> None:
    """Three forms, and any split into calls, give the same outputs and the same last state."""
    x = noise(2, t, mixer.sizes.hidden_size)
    whole, last = run(mixer, x, form="recurrent", shared=shared)
    assert float(whole.abs().max()) > 1e-3
    for form in ("parallel", "chunked"):
        y, state = run(mixer, x, form=form, shared=shared)
        near(y, whole, atol)
        same_state(state, last, atol)
    for split in ([1], [t - 1, 1], [1, t - 1], [5], [13, 1, 9, 2]):
        y, state = run(mixer, x, split, shared=shared)
        near(y, whole, atol)
        same_state(state, last, atol)


@torch.no_grad()
def check_padding(mixer: Mixer, t: int = 23, atol: float = 1e-9, shared=None) -> None:
    """Rows padded left or right, and the states they leave, equal those of the rows alone, in one call and in
    several; pads may hold anything."""
    x = noise(3, t, mixer.sizes.hidden_size)
    left, right = torch.tensor([5, 0, 3]), torch.tensor([t, t - 6, t - 2])
    junk = x.clone()
    for row in range(3):
        junk[row, : left[row]], junk[row, right[row] :] = 1e3, -1e3
    for split in ([t], [4], [1], [2, 7]):
        y, state = run(mixer, junk, split, left=left, right=right, shared=shared)
        assert bool(torch.isfinite(y).all())
        for row in range(3):
            real = slice(int(left[row]), int(right[row]))
            handed = {n: v[row : row + 1, ..., real, :] for n, v in (shared or {}).items()}
            alone, last = run(mixer, x[row : row + 1, real], shared=handed)
            near(y[row, real], alone[0], atol)
            same_state({name: s[row : row + 1] for name, s in state.items()}, last, atol)


@torch.no_grad()
def check_pads_between(mixer: Mixer, atol: float = 1e-9, shared=None) -> None:
    """Two turns of a talk, each padded at both ends, equal the talk without pads, however it is cut; a state
    keeps nothing alive but itself."""
    place = torch.full((1, 29), -1)
    place[0, 2:11], place[0, 15:26] = torch.arange(9), torch.arange(9, 20)
    real = place[0] >= 0
    x = torch.where(real[None, :, None], noise(1, 29, mixer.sizes.hidden_size), 50.0)
    shared = {n: v[:1, ..., :29, :] for n, v in (shared or {}).items()}
    alone = {n: v[..., real, :] for n, v in shared.items()}
    whole, last = mixer.mix(x[:, real], Tokens(place[:, real], rope(place[:, real]), alone))
    for cuts in ((0, 29), (0, 14, 29), range(30)):
        state, outputs = None, []
        for start, stop in pairwise(cuts):
            now = slice(start, stop)
            handed = {n: v[..., now, :] for n, v in shared.items()}
            y, state = mixer.mix(x[:, now], Tokens(place[:, now], rope(place[:, now]), handed), state)
            outputs.append(y)
        near(torch.cat(outputs, dim=1)[:, real], whole, atol)
        same_state(state, last, atol)
        assert all(s.untyped_storage().nbytes() == s.numel() * s.element_size() for s in state.values())


@torch.no_grad()
def check_constant_memory(mixer: Mixer, shared=None) -> None:
    """The state has one size, whatever the length of the text."""

    def bytes_after(t: int) -> int:
        handed = {n: v[..., :1, :].expand(*v.shape[:-2], t, -1) for n, v in (shared or {}).items()}
        state = run(mixer, noise(2, t, mixer.sizes.hidden_size), [7], shared=handed)[1]
        return sum(x.numel() * x.element_size() for x in state.values())

    assert bytes_after(200) == bytes_after(400) > 0


def check_gradients(mixer: Mixer, t: int = 19, atol: float = 1e-8, shared=None, frozen=()) -> None:
    """The chunked form's gradients are the recurrent one's, and reach every parameter but the `frozen`."""
    x, found = noise(1, t, mixer.sizes.hidden_size), []
    handed = {n: v[:1, ..., :t, :] for n, v in (shared or {}).items()}
    for form in ("recurrent", "chunked"):
        mixer.zero_grad()
        run(mixer, x, form=form, shared=handed)[0].square().sum().backward()
        found.append({name: p.grad for name, p in mixer.named_parameters() if p.requires_grad})
    for name, gradient in found[0].items():
        if name in frozen:
            continue
        assert gradient is not None, name
        assert bool(gradient.abs().max() > 0), name
        scale = max(1.0, float(gradient.abs().max()))
        near(found[1][name] / scale, gradient / scale, atol)


@torch.no_grad()
def check_half_precision(mixer: Mixer, t: int = 60, shared=None, factor: float = 4.0) -> None:
    """In bf16 the recurrent state stays fp32, and the error is of the size that rounding the weights and
    inputs to bf16 makes in an exact computation."""
    x = noise(1, t, mixer.sizes.hidden_size)
    handed = {n: v[:1, ..., :t, :] for n, v in (shared or {}).items()}
    low = copy.deepcopy(mixer).to(torch.bfloat16)
    half = {n: v.to(torch.bfloat16) for n, v in handed.items()}
    y, state = run(low, x.to(torch.bfloat16), shared=half)
    assert y.dtype == torch.bfloat16
    assert all(value.dtype != torch.float16 for value in state.values())
    assert any(value.dtype == torch.float32 for value in state.values())
    rounded = copy.deepcopy(low).double()
    exact, _ = run(mixer, x, shared=handed)
    about, _ = run(rounded, x.to(torch.bfloat16).double(), shared={n: v.double() for n, v in half.items()})
    allowed = factor * (float((about - exact).abs().max()) + 2**-8 * float(exact.abs().max()))
    assert float((y.double() - about).abs().max()) <= allowed
