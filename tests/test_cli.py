"""The command line answers in sentences and exit codes."""

from pathlib import Path

import pytest

from swalib import results
from swalib.cli import app


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "99_none"], "swa: no notebook is called '99_none': choose from "),
        (
            ["run", "01_sinks", "--preset", "huge"],
            "swa: no preset is called 'huge': choose from cpu, gpu, paper, smoke.",
        ),
        (["run", "01_sinks", "-p", "mode"], "swa: parameters are given as `-p NAME VALUE`, not '-p mode'."),
        (
            ["run", "01_sinks", "-q", "mode", "run"],
            "swa: parameters are given as `-p NAME VALUE`, not '-q mode run'.",
        ),
        (["measure", "nothing_like_it"], "swa: no notebook measures 'nothing_like_it': choose from "),
    ],
)
def test_the_command_line_answers_bad_input_with_one_sentence(words: list[str], says: str, capsys):
    with pytest.raises(SystemExit) as stopped:
        app(words)
    assert stopped.value.code == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(says)
    assert err.count("\n") == 1


def test_status_and_check_tell_what_is_there(results_folder: Path, capsys):
    results.load_or_run(
        {"experiment": "toy", "version": 1}, lambda: results.Measured([results.Value("x", 1, "")]), "run"
    )
    for command, says in (
        ("status", "toy: 1 runs, 1 rows, last measured 20"),
        ("check", "notebooks are fit to be read"),
    ):
        with pytest.raises(SystemExit) as stopped:
            app([command])
        assert stopped.value.code == 0
        assert says in capsys.readouterr().out
