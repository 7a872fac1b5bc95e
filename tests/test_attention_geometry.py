"""Which tiles a kernel visits: spans against the predicate, tiles against the mask, work against length."""

import pytest
import torch
from attention_cases import covering

from swalib import masks
from swalib.attention.geometry import by_key, by_query, spans, table, tile_pairs
from swalib.spec import SWA, Full

SPECS = [
    SWA(7, 2), SWA(7, 0), SWA(1, 0), SWA(23, 22), Full(), SWA(9, 3, reach=11), SWA(9, 2, reach=2),
    SWA(9, 3, sink_positions=(1, 6, 13)),
]  # fmt: skip


def scattered(rows, length, seed):
    """Positions -6 .. in any order, without two the same in a row."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(61, generator=generator)[:length] - 6 for _ in range(rows)])


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_spans_are_the_predicate(spec):
    q_pos, k_pos = scattered(2, 53, 0), scattered(2, 59, 1)
    seen = spans(k_pos, spec)
    got = (seen.first[:, None] <= q_pos[:, :, None]) & (q_pos[:, :, None] <= seen.last[:, None])
    assert torch.equal(got, masks.visible(q_pos[:, :, None], k_pos[:, None], spec))


def test_spans_of_huge_windows_do_not_overflow():
    at = torch.tensor([0, 5, 2**31 - 3])
    seen = spans(at, SWA(2**31 - 1, 1))
    assert bool(((seen.first <= at[-1]) & (at[-1] <= seen.last)).all())


def tiles_of(dense, q_tile, k_tile, value):
    """bool [rows, t_q, t_k] as [rows, query tiles, key tiles, q_tile, k_tile], filled up with `value`."""
    t_q, t_k = dense.shape[1:]
    padded = torch.nn.functional.pad(dense, (0, -t_k % k_tile, 0, -t_q % q_tile), value=value)
    return padded.unflatten(2, (-1, k_tile)).unflatten(1, (-1, q_tile)).transpose(2, 3)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(("q_tile", "k_tile"), [(8, 4), (4, 16), (64, 64)])
def test_no_visible_pair_is_left_out_and_no_invisible_one_called_whole(spec, ordered, q_tile, k_tile):
    q_pos, k_pos = scattered(2, 53, 2), scattered(2, 59, 3)
    if ordered:
        k_pos = torch.arange(59) - torch.tensor([[0], [6]])
        q_pos = k_pos[:, -53:]
    pairs = tile_pairs(spans(k_pos, spec), q_pos, q_tile, k_tile)
    seen = masks.visible(q_pos[:, :, None], k_pos[:, None], spec)
    visited = torch.zeros(pairs.shape, dtype=torch.long)
    visited.index_put_((pairs.row, pairs.query, pairs.key), torch.ones_like(pairs.row), accumulate=True)
    assert int(visited.max()) == 1
    wanted = tiles_of(seen, q_tile, k_tile, False).any(-1).any(-1)
    assert bool((visited.bool() | ~wanted).all())
    inside = tiles_of(torch.ones_like(seen), q_tile, k_tile, False).any(-1)  # rows of queries that exist
    full = (tiles_of(seen, q_tile, k_tile, False).all(-1) | ~inside).all(-1)
    assert torch.equal(full[pairs.row, pairs.query, pairs.key], pairs.whole.bool())
    if ordered and spec == SWA(7, 0):
        assert torch.equal(visited.bool(), wanted)


def test_lists_and_tables_hold_the_same_pairs():
    at = torch.arange(40)
    pairs = tile_pairs(spans(at, SWA(9, 2)), at, 8, 4)
    expected = {(q, k) for q, k in zip(pairs.query.tolist(), pairs.key.tolist(), strict=True)}
    rows, columns = by_query(pairs), by_key(pairs)
    for lists, n, turn in ((rows, 2 * pairs.shape[1], False), (columns, pairs.shape[2], True)):
        found = []
        for group in range(n):
            mine = lists.tiles[lists.offsets[group] : lists.offsets[group + 1]].tolist()
            found += [(tile, group) if turn else (group // 2, tile) for tile in mine]
        assert sorted(found) == sorted(expected)
    found = []
    for whole in (0, 1):
        count, index = table(pairs, whole)
        found += [(q, int(k)) for q in range(count.shape[1]) for k in index[0, q, : count[0, q]]]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("length", [4096, 65536])
def test_work_is_linear_in_the_text(length):
    at = torch.arange(length)
    pairs = tile_pairs(spans(at, SWA(256, 4)), at, 128, 64)
    assert len(pairs.key) <= length // 128 * (1 + (256 + 128) // 64 + 1)


def test_a_tile_of_pads_alone_is_not_visited():
    k_pos = torch.tensor([[-1] * 8 + list(range(8))])
    pairs = tile_pairs(spans(k_pos, SWA(5, 1)), k_pos, 8, 8)
    assert list(zip(pairs.query.tolist(), pairs.key.tolist(), strict=True)) == [(1, 1)]


def test_the_cases_cover_every_pair_of_values_and_stay_few():
    cases = covering()
    assert len(cases) <= 150
    assert {(case.dtype, case.length) for case in cases} >= {
        (dtype, length) for dtype in {c.dtype for c in cases} for length in {c.length for c in cases}
    }
    assert len({(case.window, case.sinks, 0) for case in cases}) == 12
