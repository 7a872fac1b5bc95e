"""A check of mixers beside `mixer_contract`: pads that lie between a row's tokens."""

from itertools import pairwise

import torch
from mixer_contract import near, noise, rope, run, same_state

from swalib.linear.mixer import Mixer, Tokens


@torch.no_grad()
def check_pads_between(mixer: Mixer) -> None:
    """Two turns of a talk, each padded at both ends, equal the talk without pads, however it is cut."""
    x = noise(1, 20, mixer.sizes.hidden_size)
    whole, last = run(mixer, x)
    column = torch.full((1, 29), -1)
    column[0, 2:11], column[0, 15:26] = torch.arange(9), torch.arange(9, 20)
    real = column[0] >= 0
    padded = torch.full((1, 29, mixer.sizes.hidden_size), 50.0, dtype=torch.float64)
    padded[:, real] = x
    for cuts in ((0, 29), (0, 14, 29), range(30)):
        state, outputs = None, []
        for start, stop in pairwise(cuts):
            position = column[:, start:stop]
            y, state = mixer.mix(padded[:, start:stop], Tokens(position, rope(position)), state)
            outputs.append(y)
        near(torch.cat(outputs, dim=1)[:, real], whole)
        same_state(state, last)
