"""A spec is a frozen value: it says what it means, refuses what means nothing, and survives JSON."""

import json

import numpy as np
import pytest
import torch

import swalib
from swalib.spec import SWA, Full, PerLayer, from_dict

MIX = PerLayer((Full(), SWA(64, 4), SWA(17, 0, positions="cache")))


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (SWA(64, 4), "SWA(64, 4)"),
        (SWA(64, 4, positions="cache"), 'SWA(64, 4, positions="cache")'),
        (Full(), "Full()"),
        (MIX, 'PerLayer(Full(), SWA(64, 4), SWA(17, 0, positions="cache"))'),
    ],
    ids=str,
)
def test_a_spec_reads_as_in_the_paper_and_survives_json(spec, text):
    assert str(spec) == text
    assert from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_specs_that_differ_in_anything_differ_in_their_json():
    specs = [Full(), SWA(5, 2), SWA(5, 1), SWA(7, 2), SWA(5, 2, "cache"), PerLayer((SWA(5, 2),)), MIX]
    assert len({json.dumps(spec.to_dict(), sort_keys=True) for spec in specs}) == len(specs)
    assert len(set(specs)) == len(specs)


def test_a_spec_is_frozen_and_equal_by_value():
    assert SWA(5, 2) == SWA(window=5, sinks=2, positions="text")
    assert hash(SWA(5, 2)) == hash(SWA(np.int64(5), torch.tensor(2)))
    with pytest.raises(AttributeError):
        SWA(5, 2).window = 6


@pytest.mark.parametrize("number", [np.int64(11), np.uint8(11), torch.tensor(11)], ids=repr)
def test_any_whole_number_becomes_a_plain_int(number):
    assert type(SWA(number, 2).window) is int
    assert json.dumps(SWA(number, 2).to_dict())


@pytest.mark.parametrize(("window", "sinks", "recents"), [(1, 0, 1), (2, 1, 1), (64, 4, 60), (5, 0, 5)])
def test_the_window_counts_the_sinks_and_the_query_itself(window, sinks, recents):
    assert SWA(window, sinks).recents == recents


@pytest.mark.parametrize(
    ("window", "sinks", "error", "message"),
    [
        (0, 0, ValueError, "window must be at least 1.*got 0"),
        (-3, 0, ValueError, "window must be at least 1.*got -3"),
        (4, -1, ValueError, "sinks must be at least 0, got -1"),
        (4, 4, ValueError, "sinks must be below window.*window=4, sinks=4"),
        (4, 7, ValueError, "sinks must be below window.*window=4, sinks=7"),
        (4.0, 1, TypeError, "window must be a whole number of tokens, got 4.0"),
        (4, 1.5, TypeError, "sinks must be a whole number of tokens, got 1.5"),
        ("4", 1, TypeError, "window must be a whole number of tokens, got '4'"),
        (None, 1, TypeError, "window must be a whole number of tokens, got None"),
        (4, True, TypeError, "sinks must be a whole number of tokens, got True"),
        (torch.tensor(4.0), 1, TypeError, "window must be a whole number"),
    ],
)
def test_a_window_that_means_nothing_is_refused_in_one_sentence(window, sinks, error, message):
    with pytest.raises(error, match=message) as caught:
        SWA(window, sinks)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("positions", ["Text", "slots", None, 0])
def test_unknown_positions_are_refused(positions):
    with pytest.raises(ValueError, match=r"positions must be one of \('text', 'cache'\)"):
        SWA(4, 1, positions)


def test_per_layer_takes_any_sequence_of_plain_specs_and_nothing_else():
    assert PerLayer([Full(), SWA(5, 2)]) == PerLayer((Full(), SWA(5, 2)))
    with pytest.raises(ValueError, match=r"one Full\(\) or SWA.* for each decoder layer, got none"):
        PerLayer(())
    for wrong in (None, 64, SWA, PerLayer((Full(),))):
        with pytest.raises(TypeError, match=r"PerLayer takes Full\(\) and SWA\(window, sinks\), got"):
            PerLayer((Full(), wrong))


@pytest.mark.parametrize("data", [{}, {"method": "flash"}, {"method": None, "window": 5}])
def test_json_of_no_known_method_is_refused(data):
    with pytest.raises(ValueError, match=r"method is one of full, swa, per_head, per_layer, .* got"):
        from_dict(data)


def test_json_is_validated_like_a_call():
    with pytest.raises(ValueError, match="sinks must be below window"):
        from_dict({"method": "swa", "window": 4, "sinks": 4})


def test_the_package_gives_its_public_names():
    for name in swalib.__all__:
        assert getattr(swalib, name).__doc__
