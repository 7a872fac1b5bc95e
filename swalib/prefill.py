"""Reading a prompt of any length in constant memory."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from swalib.cache import SinkCache
from swalib.families import is_student


@torch.no_grad()
def prefill(
    student: PreTrainedModel, input_ids: Tensor, cache: SinkCache | None = None, chunk_tokens: int = 1024
) -> tuple[Tensor, SinkCache]:
    """Run a text through a student chunk by chunk: the same result as one forward, time linear in its length,
    and no more memory for a long text than for a short one. `student.generate(..., prefill_chunk_size=1024)`
    does the same.

    Args:
        input_ids: integers [b, t], without padding.
        cache: what came before, or None.
        chunk_tokens: tokens a forward takes at once; at least 1.

    Returns:
        (logits of the last token [b, vocabulary], the cache after it).

    Raises:
        TypeError: a model that is no student.
        ValueError: no tokens, or chunks of none.
    """
    if not is_student(student):
        raise TypeError(
            "prefill reads through a student: applied(model, spec) or under(model, spec) makes one"
        )
    if input_ids.shape[1] < 1 or chunk_tokens < 1:
        raise ValueError(
            "prefill needs tokens and a chunk_tokens of at least 1, got "
            f"{input_ids.shape[1]} tokens in chunks of {chunk_tokens}"
        )
    for chunk in input_ids.split(chunk_tokens, dim=1):
        output = student(input_ids=chunk, cache=cache, use_cache=True, logits_to_keep=1)
        cache = output.cache
    return output.logits[:, -1], cache
