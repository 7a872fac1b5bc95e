"""flash-linear-attention's recurrent kernels, run on the CPU by Triton's interpreter, against our own.
A script, not a test: the interpreter must be asked for before triton is imported. The chunked kernels don't
run in it."""

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
from recurrence_oracle import NAMES, call, inputs
from triton.runtime.autotuner import Autotuner

from swalib.linear import _fla


def first_config(self, *args, **kwargs):
    """Without timing, for which there is no device."""
    return self.fn.run(*args, **kwargs, **self.configs[0].all_kwargs())


def main() -> None:
    """One line a recurrence, or an AssertionError."""
    Autotuner.run = first_config
    _fla._check_device = lambda v: None
    x = {name: tensor.float() for name, tensor in inputs(11).items()}
    for name in NAMES:
        wanted, last = call(name, x, scale=0.3)
        with torch.no_grad():
            o, state = call(name, x, scale=0.3, form="recurrent", impl="fla")
        for got, exact in ((o, wanted), (state.S, last.S)):
            apart = float((got - exact).abs().max() / exact.abs().max())
            assert apart < 1e-5, f"{name}: {apart}"
        print(name, "agrees")


if __name__ == "__main__":
    main()
