"""Plans for the paper's teachers add up, name what they run, and download nothing."""

import socket

import pytest
import torch
from typer.testing import CliRunner

from swalib import SWA, applied, items, models
from swalib.cli import app
from swalib.reported import printed
from swalib.teachers import ITEM_TOKENS, ITEMS, TEACHERS, plan, tokens_of_a_pass


def test_every_teacher_of_tables_2_and_5_is_there():
    for table in (2, 5):
        rows = printed()
        named = set(rows.loc[rows["table"] == table, "base_model"]) - {"all"}
        assert {name for name, teacher in TEACHERS.items() if teacher.table == table} == named
    assert [sum(t.table == table for t in TEACHERS.values()) for table in (2, 5)] == [11, 3]


def test_the_tasks_are_the_papers_six():
    assert set(ITEM_TOKENS) == set(ITEMS) == set(items.TASKS)


def test_memory_is_weights_and_keys_and_values():
    teacher = TEACHERS["Llama-3.1-8B"]
    assert teacher.weight_bytes == 16_060_000_000
    assert teacher.cache_bytes(tokens=1, batch=1) == 32 * 2 * 8 * 128 * 2  # 128 KiB a token
    assert plan("Llama-3.1-8B").memory_bytes == teacher.weight_bytes + teacher.cache_bytes()


def test_hours_are_operations_over_speed():
    found = plan("Qwen3-8B", windows=(64, 128), gpus=1, tflops=1e-6)
    assert found.tokens == 3 * tokens_of_a_pass()
    assert found.hours == pytest.approx(2 * 8.19e9 * found.tokens / 1e6 / 3600)
    assert plan("Qwen3-8B", gpus=8).hours == pytest.approx(plan("Qwen3-8B", gpus=1).hours / 8)


def test_models_too_large_for_a_gpu_are_spread_and_small_ones_copied():
    large, small = plan("Llama-3.1-70B"), plan("Phi-1.5-1.3B")
    assert (large.gpus, large.copies) == (3, 2)
    assert large.command.count("parallelize=True") == 4
    assert "accelerate launch --num_processes 2 " in large.command
    assert (small.gpus, small.copies) == (1, 8)
    assert "parallelize" not in small.command
    assert small.command.count("window=64,sinks=4") == 2
    assert "--tasks mmlu --num_fewshot 5" in small.command


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "GPT-2"}, "no teacher is called"),
        ({"name": "QwQ-32B", "windows": ()}, "needs windows"),
        ({"name": "QwQ-32B", "windows": (4,)}, "needs windows"),
        ({"name": "QwQ-32B", "gpus": 1}, "2 GPUs of 80 GB; the box has 1"),
    ],
)
def test_impossible_plans_are_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        plan(**arguments)


def test_the_command_prints_every_plan_and_opens_no_connection(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a dry run opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    done = CliRunner().invoke(app, ["plan"])
    assert done.exit_code == 0, done.output
    for name, teacher in TEACHERS.items():
        assert f"{name}: {teacher.hub_id}" in done.output
    assert done.output.count("needs an account") == sum(teacher.gated for teacher in TEACHERS.values())


def test_a_model_spread_by_accelerate_runs_as_a_student():
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    model, ids = models.load("tiny-llama").model, torch.arange(30)[None]
    with applied(model, SWA(8, 2)) as student, torch.inference_mode():
        want = student(ids).logits
    for module in (model.model.embed_tokens, *model.model.layers, model.model.norm, model.lm_head):
        add_hook_to_module(module, AlignDevicesHook(execution_device="cpu", io_same_device=True))
    with applied(model, SWA(8, 2)) as student, torch.inference_mode():
        assert torch.equal(student(ids).logits, want)
