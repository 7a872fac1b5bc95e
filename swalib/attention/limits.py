"""What an implementation takes, and the one sentence that says what it does not."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from swalib.attention.scoring import Scoring
from swalib.spec import SWA, Full

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Limits:
    """Limits of the implementation `impl`.

    Args:
        dtypes: those of q, k and v, which must agree.
        head_dim: the largest size of a head.
        sink_logits: whether it can join one to the softmax.
    """

    impl: str
    dtypes: tuple[torch.dtype, ...]
    head_dim: int = 256
    sink_logits: bool = True

    def check(self, q: Tensor, k: Tensor, v: Tensor, spec: SWA | Full, scoring: Scoring) -> None:
        """Raise ValueError unless q, k, v [b, h, t, d], under `spec` and `scoring`, lie within the limits."""
        if isinstance(spec, SWA) and spec.positions == "cache" and scoring.rope is not None:
            self.refuse('turns no keys anew for each query, as positions="cache" needs')
        if scoring.dropout:
            self.refuse("has no attention dropout", "call eval(), or ")
        if scoring.sink_logits is not None and not self.sink_logits:
            self.refuse("has no sink logits")
        if not q.dtype == k.dtype == v.dtype or q.dtype not in self.dtypes:
            taken, got = (", ".join(str(d).removeprefix("torch.") for d in x) for x in self._dtypes(q, k, v))
            self.refuse(f"takes q, k and v of one dtype of {taken}, not {got}")
        if max(q.shape[-1], v.shape[-1]) > self.head_dim:
            size = max(q.shape[-1], v.shape[-1])
            self.refuse(f"takes heads of at most {self.head_dim} dimensions, not {size}")

    def _dtypes(self, *tensors: Tensor) -> tuple[tuple[torch.dtype, ...], list[torch.dtype]]:
        return self.dtypes, list(dict.fromkeys(x.dtype for x in tensors))

    def refuse(self, what: str, otherwise: str = "") -> None:
        """Raise ValueError: this implementation `what`, so use another (or do `otherwise`)."""
        raise ValueError(f'impl="{self.impl}" {what}: {otherwise}use impl="sdpa"')


def needs_grad(*tensors: Tensor | None) -> bool:
    """Whether autograd would record what is done with these tensors."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
