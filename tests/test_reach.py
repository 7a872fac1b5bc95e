"""Reach: matrix powers against paths followed one by one, closed forms, models that agree to the bit."""

from itertools import product

import numpy as np
import pytest
import torch

from swalib import SWA, Full, PerLayer, applied, layer_specs, results
from swalib.evals import reach
from swalib.evals.reachability import layers_to_see, reachable, window_reach
from swalib.masks import visible
from swalib.spec import PerHead
from swalib.tiny import tiny

L = 37
SPECS = [
    SWA(6, 2),
    SWA(5, 0),
    SWA(4, 3),
    SWA(1, 0),
    SWA(7, 2, sink_positions=(3, 11)),
    SWA(8, 2, reach=4),
    Full(),
]


def paths(length, specs, relays=True):
    """Brute force: follow every key that a query sees, layer by layer, down to the tokens."""

    def sees(i, j, spec):
        return bool(visible(torch.tensor(i), torch.tensor(j), spec))

    def is_sink(j, spec):
        if isinstance(spec, Full):
            return False
        return j in spec.sink_positions if spec.sink_positions else j < spec.sinks

    found = torch.zeros(length, length, dtype=torch.bool)
    for i in range(length):
        here = {i}
        for layer in reversed(range(len(specs))):
            spec, below = specs[layer], set()
            for m in here:
                for j in range(m + 1):
                    passes = relays or layer == 0 or j == m or not is_sink(j, spec)
                    if j == m or (sees(m, j, spec) and passes):
                        below.add(j)
            here = below
        found[i, list(here)] = True
    return found


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("relays", [True, False])
def test_matrix_powers_are_the_paths(spec, layers, relays):
    assert torch.equal(reachable(20, [spec] * layers, relays), paths(20, [spec] * layers, relays))


def test_mixed_layers_and_heads():
    mixed = [SWA(5, 1), Full(), SWA(3, 0)]
    assert torch.equal(reachable(20, mixed), paths(20, mixed))
    assert not torch.equal(reachable(20, mixed[:1] + mixed[2:]), reachable(20, mixed))
    ordered = [SWA(3, 1, sink_positions=(9,)), SWA(6, 0)]  # a far sink, read before or after a window
    assert torch.equal(reachable(20, ordered), paths(20, ordered))
    assert torch.equal(reachable(20, ordered[::-1]), paths(20, ordered[::-1]))
    assert not torch.equal(reachable(20, ordered[::-1]), reachable(20, ordered))
    heads = PerHead((SWA(4, 0), SWA(9, 5)))  # together they see 5 sinks and 4 recents
    assert torch.equal(reachable(20, [heads] * 2), paths(20, [SWA(9, 5)] * 2))


@pytest.mark.parametrize(("w", "s", "layers"), [*product((4, 9), (0, 3), (1, 2, 5))])
def test_the_closed_form_of_the_window_path(w, s, layers):
    spec, place = SWA(w, s), torch.arange(L)
    distance = place[:, None] - place[None, :]
    within = (distance >= 0) & (distance <= layers * (w - s - 1))
    assert window_reach(layers, spec) == layers * (w - s - 1)
    assert torch.equal(reachable(L, [spec] * layers, window_path=True), within)
    with_sinks = within | ((place[None, :] < s) & (distance >= 0))
    assert torch.equal(reachable(L, [spec] * layers), with_sinks), "and nothing passes through the sinks"
    assert torch.equal(reachable(L, [spec] * layers, relays=False), with_sinks)


def test_sinks_amid_the_text_are_relays():
    spec = SWA(5, 1, sink_positions=(20,))
    with_relays, without = (reachable(L, [spec] * 2, relays)[36] for relays in (True, False))
    assert with_relays[17:20].all(), "what the sink saw reaches the end in two layers"
    assert not without[17:20].any()
    assert without[20]


def test_layers_to_see_a_distance():
    spec = SWA(8, 3)
    for distance in range(30):
        seen = [n for n in range(31) if distance <= window_reach(n, spec)]
        assert layers_to_see(distance, spec) == seen[0]
    assert layers_to_see(1, SWA(4, 3)) is None
    assert layers_to_see(0, SWA(4, 3)) == 0


# ---- on models: exactly 0 beyond, something within.

MEASURED = [
    SWA(6, 2),
    SWA(5, 0),
    SWA(6, 2, "cache"),
    SWA(7, 2, sink_positions=(3, 11)),
    PerLayer((SWA(4, 1), SWA(9, 2), SWA(3, 0))),
    Full(),
]
IDS = torch.randint(0, 97, (1, L), generator=torch.Generator().manual_seed(4))


@pytest.fixture(scope="module")
def teacher():
    return tiny("llama").double()


@pytest.mark.parametrize("spec", MEASURED, ids=str)
@pytest.mark.parametrize("kind", ["shift", "ablate"])
@pytest.mark.parametrize("source", [0, 4, 11])
def test_a_changed_token_changes_what_it_reaches_and_nothing_else(teacher, spec, kind, source):
    with applied(teacher, spec) as student:
        can = reachable(L, layer_specs(student, spec))[:, source]
        found = reach.changes(student, IDS, source, kind)
    assert found["logits"].dtype == torch.float64
    for measure in found.values():
        assert (measure[~can] == 0).all()
    assert (found["logits"][can] > 0).all()
    assert can.sum() > 3
    if not isinstance(spec, Full):
        assert source == 0 or (~can[source:]).any() or spec == MEASURED[3]


@pytest.mark.parametrize("spec", MEASURED, ids=str)
@pytest.mark.parametrize("impl", ["sdpa", "reference"])
def test_gradients_are_zero_exactly_where_nothing_arrives(teacher, spec, impl):
    with applied(teacher, spec, impl) as student:
        can = reachable(L, layer_specs(student, spec))
        for query in (10, L - 2):
            slope = reach.gradients(student, IDS, query)
            assert torch.equal(slope > 0, can[query])


def test_changes_are_what_two_forwards_say(teacher):
    with applied(teacher, SWA(9, 2)) as student, torch.no_grad():
        found = reach.changes(student, IDS, 5, "ablate")
        embedded = student.get_input_embeddings()(IDS)
        other = embedded.clone()
        other[0, 5] = embedded[0].mean(0)
        before, after = (student(inputs_embeds=x, use_cache=False).logits[0] for x in (embedded, other))
    for i in range(L):
        p, q = before[i].softmax(-1), after[i].softmax(-1)
        assert found["kl"][i].item() == pytest.approx((p * (p / q).log()).sum().item(), abs=1e-12)
        size = ((after[i] - before[i]) ** 2).sum().sqrt() / (before[i] ** 2).sum().sqrt()
        assert found["logits"][i].item() == pytest.approx(size.item(), abs=1e-12)
        if i < L - 1:
            token = IDS[0, i + 1]
            change = (p[token] / q[token]).log()
            assert found["loss"][i].item() == pytest.approx(change.item(), abs=1e-12)
    assert found["loss"][-1] == 0


def test_a_gradient_is_the_slope_of_the_loss(teacher):
    with applied(teacher, SWA(9, 2)) as student, torch.no_grad():
        embedded = student.get_input_embeddings()(IDS)

        def loss(x):
            logits = student(inputs_embeds=x, use_cache=False).logits[0, 20]
            return -logits.log_softmax(-1)[IDS[0, 21]].item()

        slopes, step = torch.zeros(36, dtype=torch.float64), 1e-3  # the model's norms compute in float32
        for d in range(36):
            nudge = torch.zeros_like(embedded)
            nudge[0, 14, d] = step
            slopes[d] = (loss(embedded + nudge) - loss(embedded - nudge)) / (2 * step)
    with applied(teacher, SWA(9, 2)) as student:
        assert reach.gradients(student, IDS, 20)[14].item() == pytest.approx(slopes.norm().item(), rel=2e-3)


# ---- rows.


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(chr(32 + (n * n * 7 + n // 3) % 95) for n in range(3000)), encoding="utf-8")
    return str(path)


def test_measured_once_and_read_back(results_folder, text, capsys, monkeypatch):
    asked = {"text": text, "context_tokens": 64, "n": 2, "dtype": "float64"}
    specs = [Full(), SWA(6, 2)]
    with pytest.raises(results.MissingResult, match="measure it with: swa measure reach"):
        reach.measure("stored", "tiny-llama", specs, **asked)
    rows = reach.measure("run", "tiny-llama", specs, **asked)
    assert "core-hours for 6 missing runs" in capsys.readouterr().err
    monkeypatch.setattr(reach.Cell, "compute", None)
    assert reach.measure("stored", "tiny-llama", specs, **asked).equals(rows)
    stored = results.read("reach")
    value = stored.set_index(["method", "task", "metric"])["value"]
    for kind in ("shift", "ablate"):
        assert value["swa", kind, "farthest"] == value["swa", kind, "exact_reach"] == 3 * 3  # l (w - s - 1)
        assert value["full", kind, "farthest"] == value["full", kind, "exact_reach"] == 64 - 16 - 1
    assert value["swa", "gradient", "exact_reach"] == 62, "a sink"
    assert (value[:, :, "largest_beyond"] == 0).all()
    beyond = rows[(rows["method"] == "swa") & (rows["kind"] == "shift") & (rows["distance"] > 12)]
    assert (beyond["mean"] == 0).all()
    assert len(beyond)


def test_bins_hold_every_distance_once(text):
    cell = reach.Cell("tiny-llama", SWA(6, 2), "shift", text, 64, 3)
    measured = cell.compute()
    found = results.load_or_run(cell.config(), lambda: measured, "smoke")
    rows = reach._frame(cell, found, 4)
    rows = rows[rows["measure"] == "logits"]
    first = measured.arrays["logits"].astype(np.float64).mean(0)
    assert rows["mean"].iloc[0] == pytest.approx(first[0])
    assert rows["distance"].iloc[:3].tolist() == [0, 1, 2]
    assert rows["distance"].is_monotonic_increasing
    assert rows["distance"].iloc[-1] < 48


def test_what_is_refused(teacher):
    with pytest.raises(ValueError, match="nothing to reach"):
        reachable(5, [])
    with applied(teacher, SWA(6, 2)) as student:
        with pytest.raises(ValueError, match="not 'push'"):
            reach.changes(student, IDS, 3, "push")
        with pytest.raises(ValueError, match="one text at a time"):
            reach.changes(student, IDS.repeat(2, 1), 3)
        with pytest.raises(ValueError, match="position 37 lies outside a text of 37 tokens"):
            reach.gradients(student, IDS, L - 1)
