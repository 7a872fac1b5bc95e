"""Our scores are lm-eval's own, to the item; and neither batches, shared caches nor parts change them."""

import os

import numpy as np
import pytest

from swalib import Full, applied, models
from swalib.evals import prompts
from swalib.evals.likelihood import Scorer

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install -e '.[eval]'")
TASKS = ("mmlu", "arc_challenge", "arc_easy", "hellaswag", "piqa", "winogrande")


def plain_harness(loaded: models.Loaded, asked: list[prompts.Prompt]) -> list[list[tuple[float, bool]]]:
    """lm-eval's own `hf` model on the same texts: whole rows, no sharing, the unchanged teacher."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    loaded.tokenizer.eos_token = loaded.tokenizer.eos_token or "\ufffd"  # which this class can't do without
    plain = HFLM(
        pretrained=loaded.model,
        tokenizer=loaded.tokenizer,
        batch_size=4,
        add_bos_token=loaded.bos is not None,
    )
    requests = [
        Instance("loglikelihood", {}, pair, n)
        for n, prompt in enumerate(asked)
        for pair in zip(prompt.contexts, prompt.continuations, strict=True)
    ]
    found = iter(plain.loglikelihood(requests, disable_tqdm=True))
    return [[next(found) for _ in prompt.contexts] for prompt in asked]


def ours(loaded: models.Loaded, asked: list[prompts.Prompt], spec=None, batch_size: int = 8):
    with applied(loaded.model, spec or Full()) as student:
        return Scorer(student, batch_size).score([prompts.tokens(loaded, prompt) for prompt in asked])


def check_equal(loaded: models.Loaded, asked: list[prompts.Prompt]) -> None:
    want, got = plain_harness(loaded, asked), ours(loaded, asked)
    for one, other in zip(want, got, strict=True):
        np.testing.assert_allclose([s[0] for s in other], [s[0] for s in one], rtol=0, atol=1e-4)
        assert [s[1] for s in other] == [s[1] for s in one]


@pytest.mark.filterwarnings("ignore")  # lm-eval's and datasets' own
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("shots", [0, 5])
def test_full_attention_scores_as_lm_evals_own_model(task, shots):
    loaded = models.load("tiny-llama")
    check_equal(loaded, prompts.prompts(task, shots, 0, 12, source="toy"))


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("task", TASKS)
def test_smollm_scores_as_lm_evals_own_model(task):
    if task == "arc_easy" and not os.environ.get("SWALIB_DATA"):
        pytest.skip("ARC-Easy lies in no wheel: set SWALIB_DATA")
    check_equal(models.load("smollm2-135m"), prompts.prompts(task, 5, 0, 50))
