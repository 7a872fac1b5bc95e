"""Log-likelihoods through shared caches are those of whole rows, read one by one without any cache."""

import random

import pytest
import torch

from swalib import SWA, Full, applied, convert, models
from swalib.evals.likelihood import SHORTEST_HEADER, Item, Scorer, common
from swalib.linear.lolcats import LoLCATsConfig

SPECS = [Full(), SWA(16, 4), SWA(8, 0), SWA(8, 2, "cache"), SWA(200, 4)]


@pytest.fixture(scope="module")
def loaded():
    return models.load("tiny-llama")


def drawn(rng: random.Random, size: int) -> tuple[int, ...]:
    return tuple(rng.randrange(90) for _ in range(size))


def some_items() -> list[Item]:
    """A long common header, equal and unequal lengths, one-token continuations, and nothing in common."""
    rng = random.Random(0)
    header = drawn(rng, SHORTEST_HEADER + 8)
    items = []
    for size, tails in ((3, (1, 1, 1)), (5, (1, 2, 4)), (5, (3, 3)), (5, (2, 7, 1)), (1, (1, 5))):
        question = header + drawn(rng, size)
        rows = tuple(question + drawn(rng, tail) for tail in tails)
        items.append(Item(rows, (len(question),) * len(rows), len(header)))
    one, other = drawn(rng, 20), drawn(rng, 22)
    items.append(Item((one, other), (15, 17)))  # another first token: nothing is shared
    items.append(Item((header + one, header + other), (50, 52), len(header)))
    items.append(Item((header,), (1,)))  # all but the first token is scored
    same = header + drawn(rng, 4)
    items.append(
        Item((same, same), (len(header), len(header) + 2), len(header))
    )  # scores begin in what is shared
    return items


@torch.inference_mode()
def row_by_row(student, item: Item) -> list[tuple[float, bool]]:
    found = []
    for row, start in zip(item.rows, item.starts, strict=True):
        logs = student(input_ids=torch.tensor([row[:-1]]), use_cache=False).logits[0].log_softmax(-1)
        targets = torch.tensor(row[start:])
        picked = logs[start - 1 :]
        total = picked.gather(-1, targets[:, None]).sum().item()
        found.append((total, bool((picked.argmax(-1) == targets).all())))
    return found


def check(student, items: list[Item], batch_size: int, atol: float = 1e-4) -> None:
    got = Scorer(student, batch_size).score(items)
    for item, scores in zip(items, got, strict=True):
        for score, (total, greedy) in zip(scores, row_by_row(student, item), strict=True):
            assert score.loglikelihood == pytest.approx(total, abs=atol)
            assert score.greedy == greedy


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_shared_caches_change_no_score(loaded, spec, batch_size):
    with applied(loaded.model, spec) as student:
        check(student, some_items(), batch_size)


def test_a_bos_shared_by_all_makes_no_difference(loaded):
    items = [Item(tuple((7, *row) for row in i.rows), tuple(s + 1 for s in i.starts)) for i in some_items()]
    with applied(loaded.model, SWA(16, 4)) as student:
        check(student, items, 8)


def test_linear_students_are_scored_by_their_states(loaded):
    check(convert(loaded.model, LoLCATsConfig()), some_items(), 4)


def test_headers_are_read_once_and_forgotten_when_memory_is_short(loaded, monkeypatch):
    read = []
    plain = Scorer._read

    def counted(self, ids, *args, **kwargs):
        read.append(ids.numel())
        return plain(self, ids, *args, **kwargs)

    monkeypatch.setattr(Scorer, "_read", counted)
    rng = random.Random(1)
    headers = [drawn(rng, 40), drawn(rng, 41)]
    items = [Item((header + drawn(rng, 6),), (len(header) + 3,), len(header)) for header in headers * 5]
    with applied(loaded.model, Full()) as student:
        generous = Scorer(student)
        want = generous.score(items)
        assert sum(read) == 40 + 41 + 10 * 5  # each header once, then five tokens an item
        read.clear()
        assert generous.score(items) == want
        assert sum(read) == 10 * 5
        read.clear()
        poor = Scorer(student, header_bytes=1)
        assert poor.score(items) == want
        assert len(poor._headers) == 1
        assert sum(read) == 40 + 41 + 10 * 5


def test_common_counts_leading_tokens():
    assert common((1, 2, 3), (1, 2, 4, 5), (1, 2)) == 2
    assert common((1, 2), (1, 2)) == 2
    assert common((3,), (4,)) == 0
    assert common((), (4,)) == 0


def test_items_that_cannot_be_scored_are_refused():
    with pytest.raises(ValueError, match="begins at 3"):
        Item(((1, 2, 3),), (3,))
    with pytest.raises(ValueError, match="begins at 0"):
        Item(((1, 2, 3),), (0,))
    with pytest.raises(ValueError, match="one for each row"):
        Item(((1, 2, 3),), ())


def test_a_scorer_needs_a_student(loaded):
    with pytest.raises(TypeError, match="student"):
        Scorer(loaded.model)
    with applied(loaded.model, Full()) as student, pytest.raises(ValueError, match="batch_size"):
        Scorer(student, 0)


def test_items_longer_than_the_model_are_refused_before_anything_runs(loaded, monkeypatch):
    most = loaded.model.config.max_position_embeddings
    with applied(loaded.model, Full()) as student:
        monkeypatch.setattr(student, "forward", None)
        with pytest.raises(ValueError, match=f"item 1 has {most + 2} tokens"):
            Scorer(student).score([Item(((1, 2),), (1,)), Item(((1,) * (most + 2),), (most,))])


def test_scores_that_are_no_numbers_are_refused(loaded):
    import copy

    broken = copy.deepcopy(loaded.model)
    broken.lm_head.weight.data[5] = torch.nan
    with applied(broken, Full()) as student, pytest.raises(ValueError, match="not a number"):
        Scorer(student).score([Item(((1, 2, 3),), (1,))])
