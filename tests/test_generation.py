"""Generation: programs that cannot leave, answers judged by hand, continuations as the slow way writes."""

import math

import numpy as np
import pytest
import torch

from swalib import SWA, Full, applied, models, results
from swalib.evals import generation, written
from swalib.evals.perplexity import token_losses
from swalib.evals.replies import Reply
from swalib.evals.sandbox import Limits, Verdict, run

QUICK = Limits(seconds=2)

# ---- the sandbox.


@pytest.mark.parametrize(
    "code",
    [
        "import math, re, collections, typing, heapq, random, datetime, hashlib\nassert math.sqrt(4) == 2",
        "open('a.txt', 'w').write('x')\nassert open('a.txt').read() == 'x'",
        "import os\nassert not [name for name in os.environ if name != 'LC_CTYPE']",
        "import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()",
        "print('x' * 10**6)",
    ],
)
def test_what_passes(code):
    assert run(code) == Verdict(True)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("assert 1 == 2, 'no'", "AssertionError: no"),
        ("def f(:", "SyntaxError"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("import os; os._exit(0)", "it ended before its test did"),
        ("open('verdict', 'w').write('[\"\", true, \"\"]'); import os; os._exit(0)", "it ended before"),
        ("while True: pass", "it ran for more than 2 s"),
        ("import time; time.sleep(60)", "it ran for more than 2 s"),
        ("x = bytearray(3 << 30)", "MemoryError"),
        ("open('a', 'wb').write(b'x' * (5 << 20))", "File too large"),
        ("def f(): return f()\nf()", "RecursionError"),
    ],
)
def test_what_fails_says_why(code, reason):
    verdict = run(code, QUICK)
    assert not verdict.passed
    assert reason in verdict.reason


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("import socket\ntry:\n  socket.socket()\nexcept BaseException: pass", "socket.__new__"),
        ("import urllib.request; urllib.request.urlopen('http://example.com')", "urllib.Request"),
        ("import subprocess; subprocess.run(['ls'])", "subprocess.Popen"),
        ("import os; os.system('ls')", "os.system"),
        ("import os; os.fork()", "os.fork"),
        ("import ctypes", "ctypes.dlopen"),
        ("print(open('/etc/passwd').read())", "open '/etc/passwd'"),
        ("open('../x', 'w')", "open '../x'"),
        ("import os; os.symlink('/etc', 'e')", "os.symlink"),
        ("import os; os.listdir('/')", "os.listdir '/'"),
        ("import os; os.rename('verdict', '/tmp/verdict')", "os.rename"),
        (
            "import threading\nt = threading.Thread(target=open, args=('/etc/passwd',))\nt.start()\nt.join()",
            "open",
        ),
    ],
)
def test_code_that_tries_to_leave_is_stopped_though_it_catches_all(code, what):
    caught = f"try:\n  exec({code!r})\nexcept BaseException:\n  pass\n"
    verdict = run(caught, QUICK)
    assert not verdict.passed
    assert verdict.reason.startswith(f"it tried to leave its sandbox ({what}")


def test_an_open_file_cannot_be_written_outside(tmp_path):
    target = tmp_path / "target"
    assert "tried to leave" in run(f"open({str(target)!r}, 'w').write('x')", QUICK).reason
    assert not target.exists()


# ---- tasks with an answer.


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("She has 3 and 4, so 7 eggs.", 7),
        ("It costs $1,250.50.", 1250.5),
        ("-3", -3),
        (" 18\n\nQuestion: What is 5?", 18),
        ("none", None),
        ("", None),
    ],
)
def test_the_last_number_of_an_answer(text, number):
    assert written.last_number(text) == number


def test_a_function_ends_where_something_else_begins():
    assert written.body("    return 1\n\nprint(f())") == "    return 1\n"
    assert (
        written.body("    x = 1\n    if x:\n        return x\n") == "    x = 1\n    if x:\n        return x\n"
    )
    assert written.body("    return 1\ndef g():\n    pass\nclass A:") == "    return 1"


SUMS = [{"question": f"What is {n} + 2?", "answer": f"{n + 2:,}"} for n in (1, 40, 1998)]
PROGRAMS = [
    {
        "prompt": f"def add{n}(x):\n    '''x + {n}'''\n",
        "canonical_solution": f"    return x + {n}\n",
        "test": f"def check(candidate):\n    assert candidate(2) == {n + 2}\n",
        "entry_point": f"add{n}",
    }
    for n in (1, 5)
]


class Copyist:
    """Reads like a `Reader`, and answers rightly."""

    def __init__(self, *_, **__):
        pass

    def read(self, asked):
        return [Reply(f"{question.answer}\n# {question.answer}", 3, -1.0, 1) for question in asked]


class Blind(Copyist):
    def read(self, asked):
        return [Reply("    return None # or 0", 3, -1.0, 1) for _ in asked]


@pytest.mark.parametrize(("task", "asked"), [("gsm8k", SUMS), ("humaneval", PROGRAMS)])
@pytest.mark.parametrize(("reader", "score"), [(Copyist, 1), (Blind, 0)])
def test_a_right_model_scores_1_and_a_blind_one_0(monkeypatch, results_folder, task, asked, reader, score):
    monkeypatch.setattr(generation, "Reader", reader)
    monkeypatch.setattr(generation, "items", lambda task: asked)
    rows = generation.measure("run", "tiny-llama", [SWA(64, 4)], task, limit=len(asked))
    assert rows["right"].tolist() == [bool(score)] * len(asked)
    assert results.read("generation").set_index("metric")["value"]["right"] == score


def test_a_tiny_model_is_asked_for_real(monkeypatch):
    monkeypatch.setattr(generation, "items", lambda task: SUMS)
    monkeypatch.setitem(written.TASKS, "gsm8k", written.TASKS["gsm8k"]._replace(new_tokens=12))
    rows = generation.measure("smoke", "tiny-llama", [Full(), SWA(16, 4)], "gsm8k", limit=2)
    assert len(rows) == 4
    assert (rows["loglikelihood"] < 0).all()
    assert (rows["new_tokens"] == 12).all()


@pytest.mark.slow
@pytest.mark.network
def test_the_items_own_solutions_pass():
    programs = written.items("humaneval")
    assert len(programs) == 164
    assert [
        item["task_id"] for item in programs if not written.passes(item, item["canonical_solution"])
    ] == []
    sums = written.items("gsm8k")
    assert len(sums) == 1319
    assert all(written.TASKS["gsm8k"].right(item, f"So it is {item['answer']}.") for item in sums)


# ---- continuations.


def test_repetition_by_hand():
    assert generation.repetition(np.arange(10)) == 0
    assert generation.repetition(np.array([1, 2, 1, 2, 1, 2, 1]), gram=2) == pytest.approx(1 - 2 / 6)
    assert generation.repetition(np.zeros(100)) == pytest.approx(1 - 1 / 97)
    with pytest.raises(ValueError, match="3 tokens hold no 4-gram"):
        generation.repetition(np.arange(3))


def test_agreement_by_hand():
    one = np.array([5, 6, 7, 8])
    assert [
        generation.agreement(one, np.array(other)) for other in ([5, 6, 7, 8], [5, 6, 0, 8], [0, 6, 7, 8])
    ] == [
        4,
        2,
        0,
    ]


@pytest.mark.parametrize("spec", [Full(), SWA(12, 3), SWA(12, 3, "cache")], ids=str)
def test_a_continuation_is_that_of_the_slow_way(spec):
    loaded = models.load("tiny-llama")
    ids = torch.randint(0, 97, (2, 20), generator=torch.Generator().manual_seed(1))
    with applied(loaded.model, spec) as student, torch.inference_mode():
        whole = ids
        for _ in range(15):
            whole = torch.cat([whole, student(whole, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
        written_ = generation.continuation(student, ids, 15, chunk_tokens=7)
        assert torch.equal(written_, whole[:, 20:])
        student.generation_config.eos_token_id = int(whole[0, 22])
        assert generation.continuation(student, ids, 15).shape == (2, 15), "no end of text is allowed"
        with pytest.raises(ValueError, match="new_tokens must be at least 1"):
            generation.continuation(student, ids, 0)


def test_continuations_are_measured_and_compared_with_the_teachers(
    results_folder, tmp_path, monkeypatch, capsys
):
    path = tmp_path / "text.txt"
    path.write_text("".join(chr(32 + (n * n * 7 + n // 3) % 95) for n in range(3000)), encoding="utf-8")
    asked = {"text": str(path), "context_tokens": 40, "n": 3, "new_tokens": 30, "batch_size": 2}
    rows, curves = generation.continuations("run", "tiny-llama", [SWA(12, 3)], **asked)
    assert "core-hours for 2 missing runs" in capsys.readouterr().err
    monkeypatch.setattr(generation.Cell, "compute", None)
    again = generation.continuations("stored", "tiny-llama", [SWA(12, 3)], **asked)
    assert again[0].equals(rows)
    assert rows["method"].tolist() == ["full"] * 3 + ["swa"] * 3
    assert rows["shared_tokens"].tolist()[:3] == [30] * 3
    assert max(rows["shared_tokens"][3:]) < 30
    assert curves.groupby("method").size().tolist() == [30, 30]
    key = results.read("generation").set_index(["method", "metric"])["value"]
    loss = math.log(key["swa", "teacher_perplexity"])
    assert loss == pytest.approx(rows["loss"][3:].mean(), abs=2e-3)  # stored in half precision
    assert loss == pytest.approx(curves[curves["method"] == "swa"]["loss"].mean(), abs=2e-3)


def test_the_perplexity_is_the_unchanged_teachers(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(chr(32 + (n * n * 7 + n // 3) % 95) for n in range(3000)), encoding="utf-8")
    cell = generation.Cell("tiny-llama", SWA(12, 3), text=str(path), context_tokens=40, n=2, new_tokens=30)
    measured = cell.compute()
    teacher = models.load("tiny-llama")
    from swalib.evals.perplexity import pieces

    ids = pieces(teacher, path.read_text(), 40, 2)
    whole = torch.cat([ids, torch.from_numpy(measured.arrays["tokens"]).long()], dim=1)
    expected = token_losses(teacher.model, whole)[:, 39:]
    value = {found.metric: found.value for found in measured.values}
    assert value["teacher_perplexity"] == pytest.approx(math.exp(expected.mean().item()), rel=1e-4)


def test_what_is_refused():
    with pytest.raises(ValueError, match="no generated task is called 'mbpp': choose from gsm8k, humaneval"):
        generation.measure("smoke", "tiny-llama", [Full()], "mbpp")
    with pytest.raises(ValueError, match="no generated task is called 'mbpp'"):
        written.items("mbpp")
