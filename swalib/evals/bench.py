"""What measurements share: one model in memory at a time, and no student measured before its canary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

import swalib
from swalib import models
from swalib.models import Loaded
from swalib.spec import Spec

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Of one core, for a model of about 135M parameters; only for estimates.
SECONDS_PER_TOKEN = 0.006
SECONDS_PER_NEW_TOKEN = 0.05

_resident: list[Loaded] = []
_proven: set[tuple[str, torch.dtype, Spec, str]] = set()


def resident(name: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Loaded:
    """The model on `device` ("cpu", "cuda", ...), kept in memory until another one is asked for."""
    if not _resident or _resident[0].name != name or _resident[0].model.dtype != dtype:
        _resident.clear()
        _resident.append(models.load(name, dtype))
    _resident[0].model.to(device)
    return _resident[0]


@contextmanager
def proven(loaded: Loaded, spec: Spec, impl: str = "sdpa") -> Iterator[PreTrainedModel]:
    """As `applied`, after `assert_applied` passed: once per process for the same weights, spec and impl."""
    with swalib.applied(loaded.model, spec, impl) as student:
        key = (loaded.weights, loaded.model.dtype, spec, impl)
        if key not in _proven:
            swalib.assert_applied(student, spec)
            _proven.add(key)
        yield student
