"""One reading of a prompt gives the slow way's text and log-likelihood, whatever the batch and the chunks."""

from dataclasses import replace

import pytest
import torch

from swalib import SWA, Full, applied, models
from swalib.evals.likelihood import Item, Scorer
from swalib.evals.replies import Question, Reader


@pytest.fixture(scope="module")
def loaded():
    return models.load("tiny-llama")


ASKED = [Question("abc de" * k + "?", " 42" + "7" * k) for k in (6, 2, 4, 4, 9)]


@pytest.mark.parametrize("spec", [Full(), SWA(16, 4), SWA(16, 4, "cache")], ids=str)
def test_replies_are_those_of_the_slow_way(loaded, spec):
    """Greedy by a whole forward for each token; log-likelihoods from one forward, and from Scorer."""
    with applied(loaded.model, spec) as student, torch.inference_mode():
        replies = Reader(loaded, student, 6).read(ASKED)
        for question, reply in zip(ASKED, replies, strict=True):
            ids = models.encode(loaded, question.prompt)
            for _ in range(6):
                ids = torch.cat([ids, student(ids, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
            start = len(question.prompt)
            assert reply.text == loaded.tokenizer.decode(ids[0, start:])
            whole = models.encode(loaded, question.prompt + question.answer)
            logs = student(whole, use_cache=False).logits.double().log_softmax(-1)[0]
            slow = sum(logs[n - 1, whole[0, n]].item() for n in range(start, whole.shape[1]))
            assert reply.loglikelihood == pytest.approx(slow, abs=1e-4)
            assert reply.answer_tokens == len(question.answer)
            item = Item((tuple(whole[0].tolist()),), (start,))
            assert Scorer(student).score([item])[0][0].loglikelihood == pytest.approx(slow, abs=1e-4)


@pytest.mark.parametrize("spec", [Full(), SWA(12, 4), SWA(12, 4, "cache")], ids=str)
def test_replies_do_not_depend_on_batch_or_chunks(loaded, spec):
    with applied(loaded.model, spec) as student:
        one = Reader(loaded, student, 8, 1, 4096).read(ASKED)
        for batch_size, chunk_tokens in ((8, 4096), (8, 64), (1, 7), (1, 1), (8, 1)):
            other = Reader(loaded, student, 8, batch_size, chunk_tokens).read(ASKED)
            for a, b in zip(one, other, strict=True):
                assert (a.text, a.tokens, a.answer_tokens) == (b.text, b.tokens, b.answer_tokens)
                assert a.loglikelihood == pytest.approx(b.loglikelihood, abs=2e-4)


class _Counter:
    """Counts the tokens that pass through a model, pads included."""

    def __init__(self):
        self.tokens = 0

    def __call__(self, module, args, kwargs):
        self.tokens += kwargs["input_ids"].numel()


@pytest.mark.parametrize("spec", [Full(), SWA(12, 4), SWA(12, 4, "cache")], ids=str)
def test_what_prompts_begin_with_is_read_once(loaded, spec):
    """Prompts that leave a common text one after another, as needles do; one twice, one a beginning of it."""
    text = "".join(chr(97 + n * n % 23) for n in range(60))
    prompts = [text[:n] + "!?" + text[n:50] for n in (10, 40, 25)] + [text, text[:30], text[:30]]
    asked = [Question(prompt, " 42") for prompt in prompts]
    alone = [one for q in asked for one in _read(loaded, spec, [q])[0]]
    together, read = _read(loaded, spec, asked)
    for a, b in zip(alone, together, strict=True):
        assert (a.text, a.tokens) == (b.text, b.tokens)
        assert a.loglikelihood == pytest.approx(b.loglikelihood, abs=2e-4)
    heads = {prompt[:n] for prompt in prompts for n in range(1, len(prompt))}
    answered = len(asked) * (1 + len(" 42") - 1 + 4)  # scores, then tokens one by one
    assert read == len(heads) + answered


def _read(loaded, spec, asked):
    """(replies, tokens read)."""
    counter = _Counter()
    with applied(loaded.model, spec) as student:
        student.model.register_forward_pre_hook(counter, with_kwargs=True)
        return Reader(loaded, student, 4, batch_size=4, chunk_tokens=7).read(asked), counter.tokens


def test_a_token_that_spans_prompt_and_answer_belongs_to_the_answer(loaded):
    """As with a tokenizer that merges the last letter of the prompt with the answer's first."""

    class Merging:
        pad_token_id = 0

        def __call__(self, text, add_special_tokens=False):
            return {"input_ids": [ord(c) % 90 for c in text.replace("?!", "#")]}

        def decode(self, ids, **_):
            return "".join(map(chr, ids))

    merging = replace(loaded, tokenizer=Merging())
    with applied(loaded.model, SWA(8, 2)) as student, torch.inference_mode():
        together = Reader(merging, student, 3, batch_size=2).read(
            [Question("abcd?", "!x"), Question("abc", "d")]
        )
        ids = torch.tensor([[ord(c) % 90 for c in "abcd#x"]])
        logs = student(ids, use_cache=False).logits.log_softmax(-1)[0]
        assert together[0].loglikelihood == pytest.approx(
            (logs[3, ids[0, 4]] + logs[4, ids[0, 5]]).item(), abs=1e-4
        )
        assert together[0].answer_tokens == 2


def test_generation_ends_at_the_end_of_text_or_once_it_is_decided(loaded):
    with applied(loaded.model, SWA(16, 4)) as student:
        whole = [reply.text for reply in Reader(loaded, student, 12, batch_size=3).read(ASKED[:3])]
        decided = Reader(loaded, student, 12, 3, decided=lambda question, text: whole[0][2] in text)
        for text, reply in zip(whole, decided.read(ASKED[:3]), strict=True):
            end = text.index(whole[0][2]) + 1 if whole[0][2] in text else 12
            assert (reply.text, reply.tokens) == (text[:end], end)
        end_of_text = loaded.tokenizer(whole[0][3])["input_ids"][0]
        student.generation_config.eos_token_id = [end_of_text]
        for text, reply in zip(whole, Reader(loaded, student, 12, 3).read(ASKED[:3]), strict=True):
            end = text.index(whole[0][3]) if whole[0][3] in text else 12
            assert (reply.text, reply.tokens) == (text[:end], end)


def test_a_model_without_room_for_its_answer(loaded):
    long = [Question("a" * 4090, " 1")]
    with applied(loaded.model, SWA(16, 4)) as student:
        with pytest.raises(ValueError, match="4098 positions, and tiny-llama was made for 4096"):
            Reader(loaded, student, 8).read(long)
        assert Reader(loaded, student, 8, beyond=True).read(long)[0].tokens == 8
    with applied(loaded.model, SWA(16, 4, "cache")) as student:
        assert Reader(loaded, student, 8).read(long)[0].tokens == 8
    table = models.load("tiny-gpt2")
    with applied(table.model, SWA(16, 4)) as student, pytest.raises(ValueError, match="made for 96"):
        Reader(table, student, 8, beyond=True).read([Question("a" * 90, " 1")])


def test_what_a_reader_refuses(loaded):
    with pytest.raises(TypeError, match="reads through a student"):
        Reader(loaded, loaded.model, 8)
    with applied(loaded.model, SWA(16, 4)) as student:
        with pytest.raises(ValueError, match="at least 1, got 0"):
            Reader(loaded, student, 0)
        with pytest.raises(ValueError, match="each needs one of its own"):
            Reader(loaded, student, 1).read([Question("abc", "")])
