"""The chapter on linear attention: small examples by hand, figures true to them, cards true to the code."""

import ast
import importlib
import json
import math
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pandas as pd
import pytest
import torch

from swalib import figures
from swalib.evals import anatomy, recall
from swalib.figures import cards, methods, theme
from swalib.linear.mixer import Tokens
from swalib.linear.projections import Sizes
from swalib.notebooks import load
from swalib.provenance import ROOT

SMALL = {"head_dims": [8, 16], "pairs": [4, 16], "factors": [1, 4], "sinks": 1, "draws": 2}


@pytest.fixture(scope="module")
def measured():
    return recall.measure("smoke", **SMALL)


# ---- The state, token by token.


def written(rule: str, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """S and z after the last of the tokens, as the formulas are written."""
    decay = {"scalar": np.full(8, 0.8), "diagonal": np.linspace(0.5, 0.99, 8)}.get(rule, np.ones(8))
    S, z = np.zeros((8, 8)), np.zeros(8)  # noqa: N806
    for key, value in zip(k, v, strict=True):
        new = value - key @ S if rule == "delta" else value
        S, z = decay[:, None] * S + np.outer(key, new), z + key  # noqa: N806
    return S, z


@pytest.mark.parametrize("rule", anatomy.RULES)
def test_states_are_the_recurrences_written_out(rule):
    states = anatomy.states()
    k, v, found = np.array(states["k"]), np.array(states["v"]), states["rules"][rule]
    assert np.allclose((k**2).sum(1), 1, atol=5e-3)
    for t in range(len(states["tokens"])):
        S, z = written(rule, k[: t + 1], v[: t + 1])  # noqa: N806
        assert np.allclose(found["S"][t], S, atol=1e-2)
        assert (found["z"][t] is None) == (rule != "plain")
        for letter, read, cosine in zip(states["letters"], found["read"][t], found["cosine"][t], strict=True):
            places = [place for place in range(t + 1) if states["tokens"][place] == letter]
            assert (cosine is None) == (not places)
            key = k[states["tokens"].index(letter)]
            o = key @ S / (key @ z if rule == "plain" else 1)
            assert np.allclose(read, o, atol=2e-2)
            if places:
                wanted = v[places[-1]]
                assert cosine == pytest.approx(
                    o @ wanted / np.linalg.norm(o) / np.linalg.norm(wanted), abs=0.02
                )


def test_only_the_delta_rule_reads_exactly_what_was_written_last():
    states = anatomy.states()
    first = {name: rule["cosine"][5][0] for name, rule in states["rules"].items()}  # A, just written again
    assert states["tokens"][0] == states["tokens"][5] == "A"
    assert first["delta"] == 1
    assert first["plain"] < first["scalar"] < 0.95


def test_a_state_figure_ships_the_states_and_says_how_it_ends():
    states = anatomy.states()
    figure = figures.linear_state(states, caption="c")
    assert figure.data["rules"]["delta"]["S"] == states["rules"]["delta"]["S"]
    assert f"delta rule, β = 1 {states['rules']['delta']['cosine'][-1][0]:.2f}" in figure.alt
    assert len(figure.payload()) < 80_000
    with pytest.raises(ValueError, match="no rule is called 'last': choose from plain, scalar"):
        figures.linear_state(states, caption="c", rule="last")


# ---- Feature maps.


def test_a_kernel_is_1_for_the_query_itself_and_the_identity_s_is_the_cosine():
    kernels = anatomy.kernels(head_dim=16, draws=8, points=5)
    at_query = kernels[kernels["cosine"] == 1]
    assert np.allclose(at_query[["low", "middle", "high"]], 1)
    identity = kernels[kernels["map"] == "identity"]
    assert np.allclose(identity["middle"], identity["cosine"])
    assert (kernels[kernels["map"] != "identity"]["low"] >= 0).all()
    assert kernels.groupby("map").size().unique().tolist() == [5 * len(anatomy.LOGITS)]


def test_relu_s_kernel_is_the_arc_cosine_one():
    """Over random queries E relu(q)·relu(k) is proportional to sin a + (pi - a) cos a (Cho and Saul 2009)."""
    kernels = anatomy.kernels(head_dim=256, draws=200, points=9)
    found = kernels[(kernels["map"] == "relu") & (kernels["logit"] == 8)]
    angle = np.arccos(found["cosine"])
    expected = (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / np.pi
    assert np.allclose(found["middle"], expected, atol=0.03)


def test_softmax_s_kernel_by_hand_and_no_logit_but_the_asked_one():
    kernels = anatomy.kernels(head_dim=16, draws=1, points=3, seed=4)
    generator = torch.Generator().manual_seed(4)
    q, other = torch.randn(2, 1, 16, generator=generator, dtype=torch.float64)
    q = q / q.norm()
    across = other - (other @ q.T) * q
    norm = math.sqrt(8 * 4)  # |q||k|/sqrt(16) = 8
    phi_q, phi_k = ((norm * x).softmax(-1) for x in (q, across / across.norm()))
    expected = float((phi_q * phi_k).sum() / (phi_q**2).sum())
    found = anatomy.at_right_angle(kernels, 8)
    assert found["softmax"] == pytest.approx(expected)
    assert found["exp"] == pytest.approx(math.exp(-8))
    assert anatomy.at_right_angle(kernels, 32)["softmax"] != pytest.approx(expected)


def test_the_figure_of_maps_ships_medians_and_bands():
    kernels = anatomy.kernels(head_dim=8, draws=4, points=5)
    figure = figures.feature_maps(kernels, caption="c", logit=4)
    panel = next(one for one in figure.data["panels"] if one["name"] == "softmax")
    rows = kernels[(kernels["map"] == "softmax") & (kernels["logit"] == 4)]
    assert np.allclose(panel["by_logit"]["4"]["high"], rows["high"], rtol=1e-4)
    assert figure.data["initial"] == {"logit": 4}
    assert figure.data["cosine"] == [-1, -0.5, 0, 0.5, 1]
    with pytest.raises(ValueError, match="lacks the column"):
        figures.feature_maps(kernels.drop(columns="low"), caption="c")


# ---- Recall and masks.


def test_the_recall_figure_ships_every_cell(measured):
    rows, ages = measured
    figure = figures.recall(rows, ages, caption="c", head_dim=16, factor=4, pairs=16)
    assert figure.data["initial"] == {"head_dim": 16, "factor": 4, "pairs": 16}
    for _, row in rows.iterrows():
        factor = "" if pd.isna(row["factor"]) else int(row["factor"])
        curve = figure.data["curves"][f"{row['mechanism']}{factor}|{row['head_dim']}|{row['keys']}"]
        place = SMALL["pairs"].index(row["pairs"])
        assert curve["recall"][place] == pytest.approx(row["recall"], rel=1e-4)
        assert curve["half"][place] == pytest.approx(1.96 * row["stderr"], rel=1e-3, abs=1e-9)
        by_place = curve["by_place"][str(row["pairs"])]
        assert np.mean(by_place) == pytest.approx(row["recall"], abs=1e-4)
    assert len(figure.data["curves"]) == 26 * 2
    assert "With alike keys: " in figure.alt
    names = {one["name"] for one in figure.data["mechanisms"]}
    assert names == set(rows["mechanism"]) - {"full", "swa"}


def test_recall_without_a_colour_or_a_column_is_refused(measured):
    rows, ages = measured
    with pytest.raises(ValueError, match="no colour is known for the mechanism 'magic'"):
        figures.recall(rows.replace({"mechanism": {"rwkv7": "magic"}}), ages, caption="c")
    with pytest.raises(ValueError, match="lacks the column"):
        figures.recall(rows, ages.drop(columns="age"), caption="c")


def test_a_start_that_was_not_measured_gives_way_to_one_that_was(measured):
    figure = figures.recall(*measured, caption="c", head_dim=64, factor=8, pairs=128)
    assert figure.data["initial"] == {"head_dim": 8, "factor": 1, "pairs": 4}


@pytest.mark.parametrize(("length", "largest"), [(2, 2), (32, 32), (33, 64)])
def test_mask_windows_double_until_one_covers_the_text(length, largest):
    data = figures.effective_masks(length).data
    assert (data["windows"][0], data["windows"][-1]) == (1, largest)
    assert data["initial"]["window"] in data["windows"]
    with pytest.raises(ValueError, match="length must be at least 2, got 1"):
        figures.effective_masks(1)


def test_every_figure_asks_a_question_in_words_enough(measured):
    made = [
        figures.linear_state(anatomy.states(), caption="c"),
        figures.recall(*measured, caption="c"),
        figures.feature_maps(anatomy.kernels(8, 4, 5), caption="c"),
        figures.effective_masks(),
    ]
    assert len({figure.id for figure in made}) == 4
    for figure in made:
        assert figure.title.endswith("?")
        assert len(figure.alt) > 200
    assert len(made[3].caption) > 80


# ---- The cards.

LINEAR = [card for card in methods.CARDS if card.key != "swa"]
# Table 1's column of post-training tokens, and appendix A.2's, as printed in the paper (transcribed).
PRINTED = {
    **{"swa": "0 tokens", "supra": "100B", "hedgehog": "40M", "lolcats": "40M", "liger": "20M"},
    **{"mohawk": "3–5B", "mamba_in_llama": "20B", "dijiang": "40B", "arwkv": "60M/830M", "llamba": "8–12B"},
    **{"qlinatt": "350–700M", "qrwkv6": "350–700M", "qrwkv7": "350–700M"},
    **{"gla": "about 0.1B", "gated_deltanet": "about 0.1B"},
}


def test_fifteen_methods_with_their_printed_cost():
    assert {card.key for card in methods.CARDS} == set(PRINTED)
    assert len(methods.CARDS) == 15
    for card in methods.CARDS:
        assert card.cost.startswith(PRINTED[card.key])
        assert (card.source == methods.APPENDIX) == (card.key in ("gla", "gated_deltanet"))


@pytest.mark.parametrize("card", methods.CARDS, ids=lambda card: card.key)
def test_a_card_names_code_that_is_there_and_what_a_card_shows(card):
    tree = ast.parse((ROOT / card.code).read_text(encoding="utf-8"))
    assert card.object in {node.name for node in tree.body if hasattr(node, "name")}
    assert card.colour in theme.METHODS
    assert card.picture in cards.PICTURES
    for line in cards.FORMULAS[card.key]:
        assert line.count("{") == line.count("}")
        assert "\\(" not in line
    assert min(len(card.trained), len(card.differs)) > 6


@pytest.mark.parametrize("card", LINEAR, ids=lambda card: card.key)
def test_the_memory_of_a_card_is_its_mixers_state(card):
    module = importlib.import_module(card.code.removesuffix(".py").replace("/", "."))
    mixer_class = getattr(module, card.object)
    assert mixer_class.Config.method == card.key
    sizes = Sizes(hidden_size=24, heads=4, kv_heads=2, head_dim=6)
    mixer = mixer_class(mixer_class.Config(), sizes)
    with torch.no_grad():
        _, state = mixer.mix(torch.randn(1, 5, 24), Tokens(torch.arange(5)[None]))
    held = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    assert card.memory.bytes(methods.Model("tiny", 1, 24, 4, 2, 6), narrow=4) == held


def test_the_memory_of_swa_and_of_llama():
    swa = next(card for card in methods.CARDS if card.key == "swa")
    assert swa.memory.bytes() == 32 * 2 * 8 * 64 * 128 * 2
    assert cards.memory(swa) == "8.4 MB, as much as the keys and values of 64 tokens"
    plain = next(card for card in methods.CARDS if card.key == "qlinatt")
    assert cards.memory(plain) == "67.1 MB, as much as the keys and values of 512 tokens"


@pytest.mark.parametrize("name", cards.PICTURES)
def test_a_picture_has_a_cell_for_every_query_and_key_up_to_it(name):
    svg = cards.picture(name)
    assert ElementTree.fromstring(svg).attrib["aria-label"] == cards.PICTURES[name]
    places = re.findall(r"M(\d+) (\d+)h", svg)
    assert len(places) == len(set(places)) == 12 * 13 // 2
    seen = {kind: 0 for kind in ("exact", "sink", "unseen", "linear", "both")}
    for kind, path in re.findall(r'class="swa-(\w+)"[^>]* d="([^"]*)"', svg):
        seen[kind] += path.count("M")
    band = sum(min(i + 1, cards.WINDOW) for i in range(12))
    expected = {
        "window": {"sink": 12, "exact": band - 12, "unseen": 78 - band},
        "hybrid": {"exact": band, "linear": 78 - band},
        "half": {"both": band, "linear": 78 - band},
    }.get(name, {"linear": 78})
    assert {kind: count for kind, count in seen.items() if count} == expected


def test_mixing_is_linear_attention_s_weights():
    generator = torch.Generator().manual_seed(2)
    q, k = torch.randn(2, 12, 8, generator=generator, dtype=torch.float64).softmax(-1).numpy()
    q, k = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (q, k))
    for rule, decay in (("plain", 1.0), ("scalar", 0.8)):
        back = np.subtract.outer(np.arange(12), np.arange(12))
        weights = np.where(back >= 0, (q @ k.T) * decay ** np.maximum(back, 0), 0)
        assert np.allclose(anatomy.mixing(rule), weights / weights.max(1, keepdims=True), atol=1e-3)
    assert np.allclose(np.triu(anatomy.mixing("delta"), 1), 0)


def test_the_grid_shows_every_card_with_a_way_to_its_code():
    page, chapter = cards.grid()._repr_html_(), load("03_linear_attention")
    source = "\n".join("".join(cell["source"]) for cell in chapter["cells"])
    for card in methods.CARDS:
        assert card.title in page
        anchor = f"code-{card.key.replace('_', '-')}"
        assert f'href="#{anchor}"' in page
        block = f"../{card.code}\n:pyobject: {card.object}\n:language: python\n:name: {anchor}\n"
        assert block in source
    assert page.count('class="swa-card"') == 15
    assert "LINE" not in page
    assert "PAPER" not in page


def test_a_chosen_grid_and_an_unknown_card():
    assert cards.grid(["liger", "swa"])._repr_html_().count('class="swa-card"') == 2
    assert repr(cards.grid(["liger"])).startswith("Liger-GLA: 20M tokens, 1 stage; 75.4 MB")
    with pytest.raises(ValueError, match="no card is called 'mamba'"):
        cards.grid(["mamba"])


def test_the_states_are_small_enough_to_ship():
    assert len(json.dumps(anatomy.states())) < 60_000
