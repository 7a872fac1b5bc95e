"""The page on models and uses: its code runs, and it names every family."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from oracle import ids

from swalib.families import FAMILIES
from swalib.models import tiny

PAGE = (Path(__file__).parent.parent / "book" / "use.md").read_text()


def test_every_family_is_named():
    table = PAGE[PAGE.index("| family |") : PAGE.index("Any other family")]
    assert set(re.findall(r"`(\w+)`", table)) == set(FAMILIES)


@pytest.mark.filterwarnings("ignore:.*attention_mask.*")
def test_its_code_runs(tmp_path):
    def noise(*shape):
        return torch.randn(*shape, generator=torch.Generator().manual_seed(0))

    names = {"model": tiny("llama"), "document": ids(1, 150), "question": ids(1, 9, 1), "torch": torch}
    names |= {"x": noise(2, 130, 256), "q": noise(2, 4, 9, 8), "k": noise(2, 2, 9, 8), "v": noise(2, 2, 9, 8)}
    names["folder"] = tmp_path
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 6
    for block in blocks:
        exec(block, names)
    assert names["answer"].shape == (1, 164)
    assert torch.allclose(torch.cat(names["pieces"], 1), names["y"], atol=1e-5)
    assert names["o"].shape == (2, 4, 9, 8)
    assert [str(spec) for spec in names["layer_specs"](names["student"], names["SWA"](64, 4))] == [
        "SWA(64, 4)"
    ] * 3


def test_functions_named_as_their_modules_stay_functions():
    command = (
        "import swalib.published, swalib.prefill; from swalib import convert, prefill; "
        "from swalib.convert import convert as same; assert convert is same and callable(prefill)"
    )
    subprocess.run([sys.executable, "-c", command], check=True)
