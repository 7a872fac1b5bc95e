"""lm-eval's own command line runs students, with the scores of its `hf` model where attention is full."""

import json
import sys
from functools import partialmethod

import pytest
import torch

from swalib import SWA, applied, models

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install -e '.[eval]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # lm-eval's and datasets' own

TASK = """
task: letters
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
fewshot_split: test
output_type: multiple_choice
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: gold
num_fewshot: 2
metric_list: [{{metric: acc}}]
"""


@pytest.fixture
def folder(tmp_path):
    """A task of our own, and a tiny model in a folder."""
    rows = [{"question": f"{n} abc {n * 7}", "choices": ["a b", "c", "dd"], "gold": n % 3} for n in range(8)]
    file = tmp_path / "letters.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "letters.yaml").write_text(TASK.format(file=file))
    return tmp_path


def test_the_command_line_scores_a_student(folder, monkeypatch):
    import datasets
    from lm_eval.tasks import TaskManager

    from swalib import lm_eval as ours

    loaded = models.load("tiny-llama")
    loaded.tokenizer.eos_token = "\ufffd"
    for part in (loaded.model, loaded.tokenizer):
        part.save_pretrained(folder / "model")
    command = ["swalib.lm_eval", "run", "--tasks", "letters", "--device", "cpu"]
    command += ["--include_path", str(folder), "--log_samples", "--output_path", str(folder / "out")]
    command += ["--model", "swa", "--model_args", f"pretrained={folder / 'model'},window=8,sinks=2"]
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "hf")
    only_ours = partialmethod(TaskManager.__init__, include_defaults=False)  # it has 14,000 files of its own
    monkeypatch.setattr(TaskManager, "__init__", only_ours)
    monkeypatch.setattr(sys, "argv", command)
    ours.main()
    (samples,) = (folder / "out").rglob("samples_letters*.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(rows) == 8
    with applied(loaded.model, SWA(8, 2)) as student, torch.inference_mode():
        for row in rows:
            pairs = [(asked["arg_0"], asked["arg_1"]) for asked in row["arguments"].values()]
            want = [whole_row(student, loaded.tokenizer, *pair) for pair in pairs]
            assert [float(answer[0][0]) for answer in row["resps"]] == pytest.approx(want, abs=1e-4)


def whole_row(student, tokenizer, context: str, continuation: str) -> float:
    """Log-likelihood from one masked forward over context and continuation."""
    ids = tokenizer(context + continuation, return_tensors="pt")["input_ids"]
    logs = student(input_ids=ids[:, :-1], use_cache=False).logits[0].log_softmax(-1)
    start = len(tokenizer(context)["input_ids"])
    return float(logs[start - 1 :].gather(-1, ids[0, start:, None]).sum())


def test_without_a_window_it_is_lm_evals_own_model():
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from swalib.lm_eval import SWALM

    loaded = models.load("tiny-llama")
    loaded.tokenizer.eos_token = "\ufffd"
    header = "a worked example, long enough to be read once\n\n" * 2
    pairs = [(f"{header}{n}?", f" {answer}") for n in (1, 22, 333) for answer in ("yes", "no", "x")]
    requests = [Instance("loglikelihood", {}, pair, n) for n, pair in enumerate([*pairs, ("", "alone")])]
    plain = HFLM(loaded.model, tokenizer=loaded.tokenizer, device="cpu")
    want = plain.loglikelihood(requests, disable_tqdm=True)
    for options in ({}, {"window": 500, "sinks": 4}):
        ours = SWALM(loaded.model, tokenizer=loaded.tokenizer, device="cpu", **options)
        got = ours.loglikelihood(requests, disable_tqdm=True)
        assert [one[0] for one in got] == pytest.approx([one[0] for one in want], abs=1e-4)
        assert [one[1] for one in got] == [one[1] for one in want]


def test_generation_goes_through_the_student():
    from lm_eval.api.instance import Instance

    from swalib.lm_eval import SWALM

    loaded = models.load("tiny-llama")
    loaded.tokenizer.eos_token = "\ufffd"
    lm = SWALM(loaded.model, window=8, sinks=2, tokenizer=loaded.tokenizer, device="cpu")
    prompt = "a question that is longer than the window"
    request = Instance("generate_until", {}, (prompt, {"until": ["\n\n"], "max_gen_toks": 6}), 0)
    (text,) = lm.generate_until([request], disable_tqdm=True)
    ids = torch.tensor([loaded.tokenizer(prompt)["input_ids"]])
    with applied(loaded.model, SWA(8, 2)) as student:
        want = student.generate(ids, max_new_tokens=6, do_sample=False)[0, ids.shape[1] :]
    assert text == loaded.tokenizer.decode(want, skip_special_tokens=True)


def test_sinks_without_a_window_are_refused():
    from swalib.lm_eval import SWALM

    with pytest.raises(ValueError, match="give window="):
        SWALM("tiny-llama", sinks=4)
