"""What does a student answer to a prompt, greedily, and how likely does it find the right answer?

Prompts are read in chunks, and what several of them begin with only once: a needle's haystack up to the
needle. The caches of a batch are then joined; a copy scores the right answers, and the cache itself goes on
to generate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from swalib import models
from swalib.cache import SinkCache
from swalib.evals.likelihood import common
from swalib.families import decoder, is_student
from swalib.models import Loaded

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Question:
    """A prompt, and the text that rightly goes on from it, with the space that separates the two."""

    prompt: str
    answer: str


class Reply(NamedTuple):
    """text: what was generated, `tokens` tokens long. loglikelihood: of the right answer, nats, over its
    `answer_tokens` tokens."""

    text: str
    tokens: int
    loglikelihood: float
    answer_tokens: int


Decided = Callable[[Question, str], bool]
_ROW = torch.zeros(1, dtype=torch.long)  # the one row of a cache that has read a single text


@dataclass(frozen=True)
class _Tokens:
    """Ids of the prompt, and of prompt and answer together."""

    prompt: tuple[int, ...]
    whole: tuple[int, ...]

    @property
    def shared(self) -> int:
        """Leading tokens of both; fewer than the prompt's where a token spans its end and the answer."""
        return common(self.prompt, self.whole)

    @property
    def unread(self) -> int:
        """Last tokens of the prompt that the answer's score begins from."""
        return len(self.prompt) - self.shared + 1

    @property
    def head(self) -> tuple[int, ...]:
        """The tokens before those."""
        return self.prompt[: -self.unread]


class Reader:
    """Lets one student answer questions.

    Args:
        loaded: the teacher, whose tokenizer is used.
        student: from `applied` or `under`.
        new_tokens: to generate for each question, at most.
        batch_size: questions answered at once, padded on the left; chunk_tokens: of a prompt read at once.
            Answers depend on neither.
        decided: told the text so far, whether more tokens can't change the score: generation ends there.
        beyond: whether texts may be longer than the model was trained for. Specs with positions="cache"
            always may; a model whose positions are a table never can.

    Raises:
        TypeError: a model that is no student.
        ValueError: a number below 1.
    """

    def __init__(
        self,
        loaded: Loaded,
        student: PreTrainedModel,
        new_tokens: int,
        batch_size: int = 1,
        chunk_tokens: int = 1024,
        decided: Decided | None = None,
        beyond: bool = False,
    ) -> None:
        if not is_student(student):
            raise TypeError("a Reader reads through a student: applied(model, spec) or under(model, spec)")
        if min(new_tokens, batch_size, chunk_tokens) < 1:
            raise ValueError(
                f"new_tokens, batch_size and chunk_tokens must be at least 1, got {new_tokens}, "
                f"{batch_size} and {chunk_tokens}"
            )
        self.loaded, self.student, self.new_tokens, self.beyond = loaded, student, new_tokens, beyond
        self.batch_size, self.chunk_tokens, self.decided = batch_size, chunk_tokens, decided

    @torch.inference_mode()
    def read(self, questions: Sequence[Question], progress: Iterable | None = None) -> list[Reply]:
        """The reply to each question, in their order.

        Args:
            progress: something with `update(n)`, such as tqdm, told of each finished batch.

        Raises:
            ValueError: a prompt with no token before its answer, or a model without room for its answer;
                before anything runs.
        """
        tokens = [self._tokens(question) for question in questions]
        self._check_room(tokens)
        replies: dict[int, Reply] = {}
        for pairs in self._batches(tokens):
            batch, cache = [n for n, _ in pairs], SinkCache.joined([cache for _, cache in pairs])
            pairs.clear()  # the joined cache is a copy of them all
            found = self._batch([questions[n] for n in batch], [tokens[n] for n in batch], cache)
            replies.update(zip(batch, found, strict=True))
            if progress is not None:
                progress.update(len(batch))
        return [replies[n] for n in range(len(questions))]

    def _tokens(self, question: Question) -> _Tokens:
        prompt, whole = (
            tuple(models.encode(self.loaded, text)[0].tolist())
            for text in (question.prompt, question.prompt + question.answer)
        )
        found = _Tokens(prompt, whole)
        if not 1 <= found.shared < len(whole):
            raise ValueError(
                f"the prompt {question.prompt[:20]!r} and its answer {question.answer[:20]!r} give "
                f"{len(prompt)} tokens and {len(whole)} together: each needs one of its own"
            )
        return found

    def _check_room(self, tokens: Sequence[_Tokens]) -> None:
        swa = decoder(self.student)._swa
        most = swa.longest_text
        if most is None and not self.beyond and getattr(swa.spec, "positions", "text") == "text":
            most = getattr(self.student.config.get_text_config(), "max_position_embeddings", None)
        longest = max((max(len(t.prompt) + self.new_tokens, len(t.whole)) for t in tokens), default=0)
        if most is not None and longest > most:
            raise ValueError(
                f"no room for the answer: prompt and {self.new_tokens} new tokens take {longest} positions, "
                f"and {self.loaded.name} was made for {most}: ask for shorter contexts"
                + ("" if swa.longest_text is not None else ', positions="cache", or beyond=True')
            )

    def _batches(self, tokens: Sequence[_Tokens]) -> Iterator[list[tuple[int, SinkCache]]]:
        """Numbers of questions with equally many unread tokens, each with its cache after its head."""

        def alike(n: int) -> tuple[int, bool]:
            return tokens[n].unread, bool(tokens[n].head)

        for _, group in groupby(sorted(range(len(tokens)), key=alike), key=alike):
            group = list(group)
            found = self._caches([tokens[n].head for n in group])
            while pairs := [(group[n], cache) for n, cache in islice(found, self.batch_size)]:
                yield pairs

    def _caches(self, heads: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, SinkCache]]:
        """The cache after each head, in an order of its own.

        Goes down the tree that the heads form, smallest branches first, so that few caches wait at a time:
        no more than the binary logarithm of the number of heads.
        """
        waiting = [(range(len(heads)), 0, SinkCache(decoder(self.student)._swa.layers), True)]
        while waiting:
            group, read, cache, is_last = waiting.pop()
            cache = cache if is_last else cache.fork(_ROW)
            shared = common(*(heads[n] for n in group))
            self._extend(cache, heads[group[0]][read:shared])
            branches = defaultdict(list)
            for n in group:
                branches[heads[n][shared : shared + 1]].append(n)
            for n in branches.pop((), []):
                yield n, cache.fork(_ROW)
            largest_first = sorted(branches.values(), key=len, reverse=True)
            waiting += [(branch, shared, cache, n == 0) for n, branch in enumerate(largest_first)]

    def _extend(self, cache: SinkCache, tokens: tuple[int, ...]) -> None:
        for start in range(0, len(tokens), self.chunk_tokens):
            ids = torch.tensor([tokens[start : start + self.chunk_tokens]], device=self.student.device)
            self.student(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)

    def _batch(self, questions: list[Question], tokens: list[_Tokens], cache: SinkCache) -> list[Reply]:
        ids, mask = self._left_padded([t.prompt for t in tokens])
        read = ids.shape[1] - tokens[0].unread
        scores = self._scores(tokens, mask[:, :read], cache.fork(torch.arange(len(tokens))))
        texts = self._generate(questions, ids, mask, cache)
        return [Reply(*text, *score) for text, score in zip(texts, scores, strict=True)]

    def _left_padded(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        length = max(map(len, rows))
        ids = torch.full((len(rows), length), self._pad)
        mask = torch.zeros(len(rows), length, dtype=torch.long)
        for n, row in enumerate(rows):
            ids[n, length - len(row) :] = torch.tensor(row)
            mask[n, length - len(row) :] = 1
        return ids.to(self.student.device), mask.to(self.student.device)

    @property
    def _pad(self) -> int:
        return self.loaded.tokenizer.pad_token_id or 0

    def _forward(self, ids: Tensor, mask: Tensor, cache: SinkCache, **options: int) -> Tensor:
        mask = None if bool(mask.all()) else mask
        return self.student(input_ids=ids, attention_mask=mask, cache=cache, use_cache=True, **options).logits

    def _scores(self, tokens: list[_Tokens], mask: Tensor, cache: SinkCache) -> list[tuple[float, int]]:
        """(log-likelihood of the answer, its tokens) of each row, read after what `cache` holds."""
        tails = [t.whole[len(t.head) :] for t in tokens]
        width = max(map(len, tails)) - 1
        ids, real = torch.full((len(tails), width), self._pad), torch.zeros(len(tails), width)
        for n, tail in enumerate(tails):
            ids[n, : len(tail) - 1], real[n, : len(tail) - 1] = torch.tensor(tail[:-1]), 1
        mask = torch.cat([mask, real.to(mask)], dim=1)
        logits = self._forward(ids.to(mask.device), mask, cache).float()
        found = []
        for t, tail, row in zip(tokens, tails, logits, strict=True):
            start = t.shared - len(t.head)
            wanted = torch.tensor(tail[start:], device=row.device)
            logs = row[start - 1 : len(tail) - 1].log_softmax(-1)
            found.append((float(logs.gather(-1, wanted[:, None]).sum()), len(wanted)))
        return found

    def _generate(
        self, questions: list[Question], ids: Tensor, mask: Tensor, cache: SinkCache
    ) -> list[tuple[str, int]]:
        """(text, its tokens) of each row, the end-of-text token and what follows it left out."""
        stop = _Stop(self, questions, ids.shape[1])
        out = self.student.generate(
            input_ids=ids,
            attention_mask=mask,
            cache=cache,
            max_new_tokens=self.new_tokens,
            do_sample=False,
            pad_token_id=self._pad,
            stopping_criteria=StoppingCriteriaList([stop]),
        )
        rows = [
            row[:end] for row, end in zip(out[:, ids.shape[1] :].tolist(), stop.ends.tolist(), strict=True)
        ]
        return [(self.decode(row), len(row)) for row in rows]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of generated tokens, special ones left out."""
        return self.loaded.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    @property
    def ends_text(self) -> set[int]:
        """Ids after which the model says nothing more."""
        found = self.student.generation_config.eos_token_id
        return set() if found is None else set(found if isinstance(found, list) else [found])


class _Stop(StoppingCriteria):
    """Ends a row at its end-of-text token or once its score is decided; `ends`: the tokens that count."""

    def __init__(self, reader: Reader, questions: list[Question], prompt: int) -> None:
        self.reader, self.questions, self.prompt = reader, questions, prompt
        self.ends = torch.full((len(questions),), reader.new_tokens)
        self.done = torch.zeros(len(questions), dtype=torch.bool)

    def __call__(self, input_ids: Tensor, scores: object, **_: object) -> Tensor:
        for n in (~self.done).nonzero()[:, 0].tolist():
            row = input_ids[n, self.prompt :].tolist()
            if row[-1] in self.reader.ends_text:
                self.done[n], self.ends[n] = True, len(row) - 1
            elif self.reader.decided and self.reader.decided(self.questions[n], self.reader.decode(row)):
                self.done[n], self.ends[n] = True, len(row)
        return self.done.to(input_ids.device)
