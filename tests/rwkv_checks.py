"""What the tests of the RWKV mixers share: weights by their released names, and how parameters start."""

import torch
from mixer_contract import near

RENAMED = {"receptance": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
POSITION = torch.arange(13).expand(2, -1)  # of the vectors' texts


@torch.no_grad()
def load(mixer, arrays):
    """Fill every parameter from the array of its name; returns the arrays that no parameter took."""
    given = {}
    for name, array in arrays.items():
        part, _, rest = name.partition("_")
        given[f"{RENAMED[part]}_{rest}" if part in RENAMED and rest in ("weight", "bias") else name] = array
    for name, parameter in mixer.named_parameters():
        array = given.pop(name.replace(".", "_"))
        assert array.shape == parameter.shape, name
        parameter.copy_(array)
    return set(given)


def vary(parameter, low, high, seed=0):
    """Uniform values in place of a parameter's, so that bounds that it is under are reached."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        parameter.copy_(low + (high - low) * torch.rand(parameter.shape, generator=generator).double())


def parameters(mixer):
    """By name, without the released code's leading axes of size 1."""
    return {
        name: p.detach()[0, 0] if p.shape[:2] == (1, 1) else p.detach()
        for name, p in mixer.named_parameters()
    }


def check_start(parameter, formula):
    """Every channel n starts at formula(n)."""
    got = parameter.detach().flatten().double()
    near(got, torch.tensor([formula(n) for n in range(len(got))], dtype=torch.float64), atol=1e-5)
