"""Tables, chosen sinks, reaches and sink logits as values: to JSON and back, or refused in one sentence."""

import json
import math

import numpy as np
import oracle
import pytest
import torch
from oracle import error, ids, model

from swalib import SWA, Full, PerLayer, applied, layer_specs, under
from swalib.attention import attend
from swalib.spec import PerHead, from_dict

KINDS = {
    "by head": SWA([11, 7, 5, 9], [3, 0, 1, 2]),
    "one entry varies": SWA([11, 7, 5, 8], [3, 0, 1, 2]),
    "another order": SWA([7, 11, 5, 9], [0, 3, 1, 2]),
    "windows alone": SWA([11, 7, 5, 9], 3),
    "sinks alone": SWA(11, [3, 0, 1, 2]),
    "in cache": SWA([11, 7, 5, 9], [3, 0, 1, 2], positions="cache"),
    "beside full": PerHead((SWA(11, 3), Full(), SWA(7, 0), SWA(5, 2))),
    "by layer": SWA([[11], [5, 7, 9, 11], [13]], 2),
    "by layer, sinks": SWA([[11], [5, 7, 9, 11], [13]], [[3], [1, 1, 2, 0], [5]]),
    "layer of heads": PerLayer((PerHead((SWA(5, 2), Full())), Full(), SWA(9, 1))),
    "chosen": SWA(11, 3, sink_positions=(0, 4, 9)),
    "others chosen": SWA(11, 3, sink_positions=(0, 4, 8)),
    "the first chosen": SWA(11, 3, sink_positions=(0, 1, 2)),
    "reach": SWA(11, 3, reach=8),
    "intersect": SWA(11, 3, local="intersect"),
    "zero sink": SWA(11, 3, sink_logit=0),
    "constant": SWA(11, 3, sink_logit=-1.5),
    "learned": SWA(11, 3, sink_logit="learned"),
    "learned by head": SWA([11, 7, 5, 9], 2, sink_logit="learned"),
    "everything": SWA(11, 3, local="intersect", reach=8, sink_positions=(1, 2, 3), sink_logit=1e-9),
    "heads of many kinds": PerHead(
        (SWA(11, 3, "cache"), Full(), SWA(7, 1, sink_logit=0.5), SWA(9, 2, reach=8, local="intersect"))
    ),
}


@pytest.mark.parametrize("spec", KINDS.values(), ids=KINDS)
def test_a_spec_comes_back_from_json_and_from_its_own_text(spec):
    assert from_dict(json.loads(json.dumps(spec.to_dict(), allow_nan=False))) == spec
    assert hash(from_dict(spec.to_dict())) == hash(spec)
    names = {"SWA": SWA, "Full": Full, "PerHead": lambda *s: PerHead(s), "PerLayer": lambda *s: PerLayer(s)}
    assert eval(str(spec), names) == spec


def test_specs_that_differ_in_anything_differ_in_their_json():
    texts = {json.dumps(spec.to_dict(), sort_keys=True) for spec in [*KINDS.values(), SWA(11, 3), Full()]}
    assert len(texts) == len(KINDS) + 2


def test_what_is_not_given_is_not_in_the_json():
    """Results stored before these options existed still name the same spec."""
    assert SWA(11, 3).to_dict() == {"method": "swa", "window": 11, "sinks": 3, "positions": "text"}
    assert from_dict({"method": "swa", "window": 11, "sinks": 3}) == SWA(11, 3)


def test_a_table_is_what_its_entries_say():
    a, b = SWA(11, 3), SWA(7, 0)
    assert SWA([11, 7], [3, 0]) == PerHead((a, b)) == PerHead([a, b])
    assert SWA((11, 7), (3, 0)) == PerHead((a, b))
    assert SWA([[11, 7], [7]], [[3, 0], [0]]) == PerLayer((PerHead((a, b)), b))
    assert SWA([[11], [7]], [[3, 0], 0]) == PerLayer((PerHead((a, SWA(11, 0))), b))
    assert SWA([11, 7], 0, "cache") == PerHead((SWA(11, 0, "cache"), SWA(7, 0, "cache")))
    assert SWA(window=[11], sinks=[3]) == PerHead((a,))


@pytest.mark.parametrize("number", [np.int64(4), torch.tensor(4)], ids=repr)
def test_any_number_becomes_a_plain_one(number):
    spec = SWA(11, 3, reach=number, sink_positions=(number - 4, number, number + 5), sink_logit=float(number))
    assert spec == SWA(11, 3, reach=4, sink_positions=(0, 4, 9), sink_logit=4.0)
    assert type(spec.reach) is type(spec.sink_positions[1]) is int
    assert json.dumps(spec.to_dict())


CHOSEN = "sink_positions must be 3 ascending text positions, as many as sinks"
LOGIT = r'sink_logit must be a number, "learned" or None, got'
QKV = [torch.zeros(1, 4, 5, 6)] * 3
WRONG = {
    "fewer sinks than windows": (lambda: SWA([11, 7, 5], [3, 0]), "tables .* differ in length: sinks has 2"),
    "fewer windows than sinks": (lambda: SWA([[11, 7], [5]], [[3, 0], [1], [2]]), "differ in length"),
    "rows of other lengths": (lambda: SWA([[11, 7], [5]], [[3, 0, 1], [1]]), "differ in length"),
    "no entry": (lambda: SWA([], 3), "needs an entry for each head or each layer, got none"),
    "no entry in a row": (lambda: SWA([[11], []], 3), "needs an entry for each head or each layer, got none"),
    "deeper": (lambda: SWA([[[11]]], 3), "one entry for each head, or one row for each layer; got deeper"),
    "a fraction": (lambda: SWA([11, 7.5], 3), "window must be a whole number of tokens, got 7.5"),
    "None": (lambda: SWA([11, 7], [3, None]), "sinks must be a whole number of tokens, got None"),
    "sinks in one head": (lambda: SWA([11, 7], [3, 7]), "sinks must be below window.*window=7, sinks=7"),
    "an array": (lambda: SWA(np.array([11, 7]), 3), "window must be a whole number of tokens"),
    "no head": (lambda: PerHead(()), r"PerHead needs one Full\(\) or SWA.* for each query head, got none"),
    "heads in heads": (lambda: PerHead((PerHead((Full(),)),)), r"takes Full\(\) and SWA.*got PerHead"),
    "numbers as heads": (lambda: PerHead((SWA(11, 3), 11)), r"PerHead takes Full\(\) and SWA.*got 11"),
    "chosen by head": (
        lambda: SWA([11, 7], 3, sink_positions=(0, 4, 9)),
        "sink_positions can't be combined with a spec for each head"),
    "unsorted": (lambda: SWA(11, 3, sink_positions=(4, 0, 9)), CHOSEN),
    "twice": (lambda: SWA(11, 3, sink_positions=(0, 0, 9)), CHOSEN),
    "negative": (lambda: SWA(11, 3, sink_positions=(-1, 0, 9)), CHOSEN),
    "too few": (lambda: SWA(11, 3, sink_positions=(0, 9)), CHOSEN),
    "too many": (lambda: SWA(11, 3, sink_positions=(0, 4, 9, 10)), CHOSEN),
    "half a position": (
        lambda: SWA(11, 3, sink_positions=(0, 1.5, 9)), "a sink position must be a whole number.*got 1.5"),
    "chosen in cache": (
        lambda: SWA(11, 3, "cache", sink_positions=(0, 4, 9)), 'go with positions="text" only'),
    "zero": (lambda: SWA(11, 3, sink_logit="zero"), f"{LOGIT} 'zero'"),
    "true": (lambda: SWA(11, 3, sink_logit=True), f"{LOGIT} True"),
    "infinite": (lambda: SWA(11, 3, sink_logit=math.inf), f"{LOGIT} inf"),
    "nan": (lambda: SWA(11, 3, sink_logit=math.nan), f"{LOGIT} nan"),
    "logits": (lambda: SWA(11, 3, sink_logit=[0.0, 1.0]), LOGIT),
    "reach 0": (lambda: SWA(11, 3, reach=0), "reach must be at least 1 .*got 0"),
    "reach 2.5": (lambda: SWA(11, 3, reach=2.5), "reach must be a whole number of tokens, got 2.5"),
    "local": (lambda: SWA(11, 3, local="drop"), r"local must be one of \('keep', 'intersect'\), got 'drop'"),
    "json of no heads": (lambda: from_dict({"method": "per_head", "heads": []}), "PerHead needs one"),
    "json of layers as heads": (
        lambda: from_dict({"method": "per_head", "heads": [PerLayer((Full(),)).to_dict()]}),
        r"PerHead takes Full\(\) and SWA"),
    "json of another kind": (lambda: from_dict({"method": "full", "window": 3}), "fields .*window"),
    "json without sinks": (lambda: from_dict({"method": "swa", "window": 3}), "fields"),
    "json of no field heads": (lambda: from_dict({"method": "per_head"}), "fields"),
    "heads of another model": (
        lambda: under(model("llama"), SWA([11, 7, 5], 3)), "has 3 specs, but a layer has 4 heads"),
    "heads of one layer": (
        lambda: under(model("llama"), SWA([[11], [7, 5], [9]], 3)), "has 2 specs, but a layer has 4 heads"),
    "layers of another model": (
        lambda: under(model("llama"), SWA([[11], [7]], 3)), "has 2 specs, but the model has 3"),
    "one head wider than trained": (
        lambda: under(model("mistral-local"), SWA([11, 7, 30, 9], 3)),
        r"27 recents to a layer trained with a local window of 23: narrow it, or use local=.intersect."),
    "learned positions": (
        lambda: under(oracle.tiny("gpt2"), SWA([11] * 4, 3, "cache")), 'use positions="text"'),
    "heads in attend": (
        lambda: attend(*QKV, SWA([3, 2, 4], 1)), "3 specs, but the layer has 4 heads"),
    "no logits in attend": (
        lambda: attend(*QKV, SWA(3, 1, sink_logit="learned")), r"needs sink_logits \[h\]"),
    "two logits in attend": (
        lambda: attend(*QKV, SWA(3, 1, sink_logit=0), sink_logits=torch.zeros(4)),
        "has a constant sink logit, but the model has its own"),
    "in cache in attend": (
        lambda: attend(*QKV, SWA([3] * 4, 1, "cache")), "pass unrotated q, k and rope="),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_means_nothing_is_refused_in_one_sentence(case):
    call, message = WRONG[case]
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------- what a table becomes on a model's layers


def test_local_layers_keep_their_window_unless_heads_intersect():
    table, native = SWA([11, 7, 5, 9], [3, 0, 1, 2]), SWA(7, 0)
    assert layer_specs(model("gemma3"), table) == (native, table, native)
    both = SWA([11, 7, 5, 9], [3, 0, 1, 2], local="intersect")
    reached = SWA([11, 7, 5, 9], [3, 0, 1, 2], local="intersect", reach=7)
    assert layer_specs(model("gemma3"), both) == (reached, both, reached)
    beside = PerHead((SWA(11, 3), Full(), SWA(7, 0), SWA(5, 2)))
    own = PerHead((SWA(11, 3), SWA(23, 0), SWA(7, 0), SWA(5, 2)))
    assert layer_specs(model("mistral-local"), beside) == (own,) * 3


def test_a_reach_beyond_the_native_window_is_cut_to_it_and_a_shorter_one_stays():
    for reach, got in ((None, 23), (40, 23), (8, 8)):
        spec = SWA(11, 3, local="intersect", reach=reach)
        assert {layer.reach for layer in layer_specs(model("mistral-local"), spec)} == {got}


@pytest.mark.parametrize(
    ("spec", "same"),
    [(SWA([11] * 4, 3), SWA(11, 3)), (PerHead((Full(),) * 4), Full()), (SWA([[11]] * 3, 3), SWA(11, 3)),
     (SWA(11, 3, sink_positions=(0, 1, 2)), SWA(11, 3)), (SWA(11, 3, reach=100), SWA(11, 3)),
     (SWA(11, 3, reach=8), SWA(8, 0)), (SWA([11] * 4, 3, "cache"), SWA(11, 3, "cache")),
     (SWA(11, 3, sink_logit=-1e4), SWA(11, 3)), (SWA([[11, 7, 5, 9]] * 3, 2), SWA([11, 7, 5, 9], 2))],
    ids=str,
)  # fmt: skip
def test_two_ways_to_say_one_thing_are_one_function(spec, same):
    """To rounding: 4 times what two independent fp32 computations of SWA(11, 3) lie apart."""
    with applied(model("llama"), spec) as one, applied(model("llama"), same) as other, torch.no_grad():
        apart = error(one(ids(1, 37)).logits, other(ids(1, 37)).logits)
    assert apart <= oracle.truth("llama", SWA(11, 3), 1, 37).bound
