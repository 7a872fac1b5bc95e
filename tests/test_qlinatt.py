"""QLinAtt against a double loop, and the vectors that follow the paper's formula."""

import torch
import torch.nn.functional as F
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
    rope,
    run,
)

from swalib.linear.mixer import Tokens
from swalib.linear.projections import Sizes
from swalib.linear.qlinatt import QLinAtt


def test_as_its_formula_written_out():
    mixer, x = made(QLinAtt), noise(1, 11, SIZES.hidden_size)
    position = torch.arange(11)[None]
    q, k, v = ((x @ p.weight.T).unflatten(-1, (-1, 6)) for p in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
    q, k = (rope(position)(z.transpose(1, 2)).transpose(1, 2) for z in (q, k))
    rows = []
    for i in range(11):
        heads = []
        for head in range(4):
            o = sum((q[0, i, head] @ k[0, j, head // 2]) * v[0, j, head // 2] for j in range(i + 1))
            heads.append(F.layer_norm(o, (6,), mixer.norm.weight, mixer.norm.bias, 1e-5))
        rows.append(torch.cat(heads) @ mixer.o_proj.weight.T)
    near(run(mixer, x)[0][0], torch.stack(rows))


def test_contract():
    mixer = made(QLinAtt)
    check_forms_and_splits(mixer)
    check_padding(mixer)
    check_pads_between(mixer)
    check_constant_memory(mixer)
    check_gradients(mixer)
    check_half_precision(mixer, factor=16)  # the norm amplifies the first rows, where few keys are summed


@torch.no_grad()
def test_composed_vectors():
    z, index = released("qlinatt_composed")
    mixer = QLinAtt(QLinAtt.Config(), Sizes(16, 4, 2, 4))
    for name, array in (("q_proj", "Wq"), ("k_proj", "Wk"), ("v_proj", "Wv"), ("o_proj", "Wo")):
        getattr(mixer, name).weight.copy_(z[array])
    mixer.norm.weight.copy_(z["ln_w"])
    mixer.norm.bias.copy_(z["ln_b"])
    position = torch.arange(13).expand(2, -1)
    y, state = mixer.mix(z["x"], Tokens(position, rope(position, 10_000.0)))
    near(y, z["y"], atol=2e-5)
    near(state["S"], z["S"], atol=2e-5)
    assert index["tolerance"].startswith("2e-5")
