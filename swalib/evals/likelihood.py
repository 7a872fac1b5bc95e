"""How likely does a student find a text after another? Shared beginnings are read once, and exactly.

The choices of a question share the question, and the questions of a task share its worked examples. Each is
a prefix of the next, so one cache holds the worked examples, copies of it read the questions, and copies of
those read the choices: the log-likelihoods of the whole texts, at a fraction of the tokens.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from swalib.cache import SinkCache
from swalib.families import decoder, is_student

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHORTEST_HEADER = 32  # tokens: a shorter one costs more to copy than to read again


class Score(NamedTuple):
    """Log-likelihood of a continuation, nats; and whether each of its tokens was the likeliest."""

    loglikelihood: float
    greedy: bool


@dataclass(frozen=True)
class Item:
    """Token sequences to score, with what they share.

    Args:
        rows: token ids of context and continuation, one row for each continuation.
        starts: index of each row's first scored token, at least 1.
        header: leading tokens that other items are likely to share, 0 where none are.
    """

    rows: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]
    header: int = 0

    def __post_init__(self) -> None:
        if not self.rows or len(self.rows) != len(self.starts):
            raise ValueError(f"{len(self.rows)} rows with {len(self.starts)} starts: give one for each row")
        for row, start in zip(self.rows, self.starts, strict=True):
            if not 1 <= start < len(row):
                raise ValueError(
                    f"the scored part of a row of {len(row)} tokens begins at {start}: it needs a token "
                    "before it and one in it"
                )

    @property
    def shared(self) -> int:
        """Leading tokens that all rows share, none of them scored."""
        return min(common(*self.rows), *self.starts)

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max(map(len, self.rows))


def common(*sequences: tuple[int, ...]) -> int:
    """How many leading tokens all sequences share."""
    first, last = min(sequences), max(sequences)
    differ = (n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return next(differ, min(len(first), len(last)))


class Scorer:
    """Scores items through one student; keeps the caches of headers between calls.

    Args:
        student: from `applied`, `under` or `convert`.
        batch_size: items at once; scores do not depend on it.
        header_bytes: how much memory the caches of headers may take; the oldest go first.

    Raises:
        TypeError: a model that is no student.
        ValueError: a batch size below 1.
    """

    def __init__(self, student: PreTrainedModel, batch_size: int = 8, header_bytes: int = 2 << 30) -> None:
        if not is_student(student):
            raise TypeError("a Scorer reads through a student: applied(model, spec) or under(model, spec)")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.student, self.batch_size, self.header_bytes = student, batch_size, header_bytes
        self._headers: OrderedDict[tuple[int, ...], SinkCache] = OrderedDict()

    @torch.inference_mode()
    def score(self, items: Sequence[Item], progress: Iterable | None = None) -> list[list[Score]]:
        """The score of every row of every item, in their order.

        Args:
            progress: something with `update(n)`, such as tqdm, told of each finished batch.

        Raises:
            ValueError: an item longer than the model's positions, before anything runs; a score that is not
                a number.
        """
        self._check_lengths(items)
        scores: list[list[Score]] = [[] for _ in items]
        for batch in self._batches(items):
            for index, found in zip(batch, self._batch([items[i] for i in batch]), strict=True):
                _check_finite(index, found)
                scores[index] = found
            if progress is not None:
                progress.update(len(batch))
        return scores

    def _check_lengths(self, items: Sequence[Item]) -> None:
        most = getattr(self.student.config.get_text_config(), "max_position_embeddings", None)
        for index, item in enumerate(items):
            if most is not None and item.longest - 1 > most:
                raise ValueError(
                    f"item {index} has {item.longest} tokens, and the model was made for {most}: leave it "
                    "out, or use fewer shots"
                )

    def _batches(self, items: Sequence[Item]) -> Iterable[list[int]]:
        """Indices of items with equal headers and equally long prefixes, headers in turn."""

        def alike(index: int) -> tuple:
            return self._header(items[index]), items[index].shared

        for _, group in groupby(sorted(range(len(items)), key=alike), key=alike):
            found = list(group)
            yield from (found[n : n + self.batch_size] for n in range(0, len(found), self.batch_size))

    @staticmethod
    def _header(item: Item) -> tuple[int, ...]:
        tokens = min(item.header, item.shared - 1)  # something is left to read: its output is wanted
        return item.rows[0][:tokens] if tokens >= SHORTEST_HEADER else ()

    def _batch(self, items: list[Item]) -> list[list[Score]]:
        header, shared = self._header(items[0]), items[0].shared
        cache, last = self._cache(header, len(items)), None
        if shared:
            ids = torch.tensor([item.rows[0][len(header) : shared] for item in items])
            last = self._read(ids, cache, logits_to_keep=1)
        rows = [(n, row, start) for n, item in enumerate(items) for row, start in _rows(item)]
        tails = [row[shared:-1] for _, row, _ in rows]
        logits = self._read_tails(cache, [n for n, *_ in rows], tails)
        scores: list[list[Score]] = [[] for _ in items]
        for (n, row, start), tail in zip(rows, logits, strict=True):
            whole = tail if last is None else torch.cat([last[n], tail])
            begin = start - max(shared, 1)
            scores[n].append(_score(whole[begin:], row[start:]))
        return scores

    def _read_tails(self, cache: SinkCache, owners: list[int], tails: list[tuple[int, ...]]) -> list[Tensor]:
        """Logits [tokens, vocabulary] of each tail, read after the row `owners` names of `cache`."""
        lengths = torch.tensor([len(tail) for tail in tails])
        running = lengths.nonzero()[:, 0]
        if not len(running):
            return [torch.empty(0)] * len(tails)
        ids = torch.zeros(len(running), int(lengths.max()), dtype=torch.long)
        for place, n in enumerate(running.tolist()):
            ids[place, : lengths[n]] = torch.tensor(tails[n])
        seen = cache.get_seq_length()
        branches = cache.fork(torch.tensor(owners)[running]) if seen else cache
        mask = torch.arange(seen + ids.shape[1]) < (seen + lengths[running])[:, None]
        logits = self._read(ids, branches, None if bool(mask.all()) else mask)
        found = [torch.empty(0, logits.shape[-1], device=logits.device)] * len(tails)
        for place, n in enumerate(running.tolist()):
            found[n] = logits[place, : lengths[n]]
        return found

    def _cache(self, header: tuple[int, ...], rows: int) -> SinkCache:
        """A cache of `rows` rows that have read `header`."""
        if not header:
            return SinkCache(decoder(self.student)._swa.layers)
        if header not in self._headers:
            cache = SinkCache(decoder(self.student)._swa.layers)
            self._read(torch.tensor([header]), cache, logits_to_keep=1)
            self._headers[header] = cache
            while len(self._headers) > 1 and self._held_bytes() > self.header_bytes:
                self._headers.popitem(last=False)
        self._headers.move_to_end(header)
        return self._headers[header].fork(torch.zeros(rows, dtype=torch.long))

    def _held_bytes(self) -> int:
        return sum(cache.allocated_bytes for cache in self._headers.values())

    def _read(
        self, ids: Tensor, cache: SinkCache, mask: Tensor | None = None, logits_to_keep: int = 0
    ) -> Tensor:
        device = self.student.device
        mask = None if mask is None else mask.long().to(device)
        return self.student(
            input_ids=ids.to(device),
            attention_mask=mask,
            cache=cache,
            use_cache=True,
            logits_to_keep=logits_to_keep,
        ).logits


def _rows(item: Item) -> Iterable[tuple[tuple[int, ...], int]]:
    return zip(item.rows, item.starts, strict=True)


def _score(logits: Tensor, targets: tuple[int, ...]) -> Score:
    """Of `targets`, predicted by the rows of `logits`."""
    wanted = torch.tensor(targets, device=logits.device)
    logs = logits.float().log_softmax(-1)
    chosen = logs.gather(-1, wanted[:, None]).sum()
    return Score(float(chosen), bool((logs.argmax(-1) == wanted).all()))


def _check_finite(index: int, scores: list[Score]) -> None:
    for number, score in enumerate(scores):
        if math.isnan(score.loglikelihood):
            raise ValueError(
                f"row {number} of item {index} has a log-likelihood that is not a number: the model's "
                "weights or its dtype are unfit (float16 overflows in some models; float32 is safe)"
            )
