"""Biases of images and graphs: windows, class tokens, other sizes, grids of two resolutions, distances of nodes."""

import copy

import pytest
import torch

import posenc
from posenc import positions
from strategies import normal, randomise, refuses

WINDOWED = [
    (posenc.Swin(n_heads=2, window=(3, 5)), "Swin"),
    (posenc.BEiT(n_heads=2, window=(3, 5)), "BEiT"),
    (posenc.Decomposed2D(head_dim=2, size=(3, 5)), "Decomposed2D"),
]


def bias_of(encoding, pos, k_pos=None):
    """The bias in float64, of a query of ones."""
    placed = encoding.place(pos, dtype=torch.float64)
    k_placed = placed if k_pos is None else encoding.place(k_pos, dtype=torch.float64)
    q = torch.ones(1, getattr(encoding, "n_heads", 1), pos.shape[-2 if encoding.n_axes > 1 else -1], 2).double()
    return encoding.bias(q, q, placed, k_placed)


@pytest.mark.parametrize(("encoding", "name"), WINDOWED)
@pytest.mark.parametrize("far", [[3, 0], [0, 5], [100, 2]])
def test_a_pair_further_apart_than_the_table_is_an_error(encoding, name, far):
    pos = torch.tensor([[0, 0], far])
    with refuses(ValueError, f"{name}: positions of queries and keys must be less than 3 rows and 5 columns apart"):
        bias_of(encoding, pos)
    assert bias_of(encoding, torch.tensor([[100, 50], [98, 46]])).isfinite().all()  # where they stand is all the same


def test_where_nobody_looks_a_whole_window_has_few_differences(monkeypatch):
    """Of 225 pairs; other sizes run the network for each pair, so that any positions are right."""
    encoding, window, wide = posenc.SwinV2(n_heads=2, window=(3, 5)), positions.grid(3, 5), 3 * positions.grid(2, 6)
    wanted, network, ran = [encoding.dense(pos) for pos in (window, wide)], posenc.SwinV2._network, []

    def counted(self, h, along):
        ran.append(torch.broadcast_shapes(*(d.shape for d in along)).numel())
        return network(self, h, along)

    monkeypatch.setattr(posenc.SwinV2, "_network", counted)
    monkeypatch.setattr(positions, "may_look", lambda _: False)
    for pos, exact, n in zip((window, wide), wanted, (5 * 9, 12 * 12), strict=True):
        torch.testing.assert_close(encoding.dense(pos), exact)
        assert ran.pop() == n
    for axis in range(2):
        with pytest.raises(IndexError, match="out of bounds"):
            encoding.dense(window + (window == window[-1])[:, [axis]] * torch.eye(2).long()[axis])


@pytest.mark.parametrize(("encoding", "name"), WINDOWED)
def test_where_nobody_looks_a_wrong_pair_meets_the_look_ups_own_check(encoding, name, monkeypatch):
    """Row 0, column 5 would be another pair's cell of the flat table."""
    monkeypatch.setattr(positions, "may_look", lambda _: False)
    with pytest.raises((IndexError, RuntimeError), match="out of (bounds|range)"):
        bias_of(encoding, torch.tensor([[0, 0], [0, 5]]))


@pytest.mark.parametrize(("encoding", "name"), WINDOWED)
def test_each_difference_has_a_row_of_its_own(encoding, name):
    """Every learned row is some pair's, and no two differences share one: the gradient counts the pairs."""
    grid = positions.grid(3, 5)
    encoding = randomise(copy.deepcopy(encoding), 0)
    bias_of(encoding, grid).sum().backward()
    pairs = torch.zeros(5, 9)
    for q in grid.tolist():
        for k in grid.tolist():
            pairs[q[0] - k[0] + 2, q[1] - k[1] + 4] += 1
    if name == "Decomposed2D":
        assert torch.equal(encoding.rel_h.grad[:, 0].float(), pairs.sum(1))
        assert torch.equal(encoding.rel_w.grad[:, 0].float(), pairs.sum(0))
    else:
        assert torch.equal(encoding.weight.grad[:45, 0].float().view(5, 9), pairs)


@pytest.mark.parametrize("first", [(-1, -1), (-1, 0)])
def test_the_class_token_has_three_numbers(first):
    beit = randomise(posenc.BEiT(n_heads=2, window=(2, 3)), 0)
    pos = torch.cat((torch.tensor([first]), positions.grid(2, 3)))
    bias = bias_of(beit, pos)[0]
    last = beit.weight[-3:].T
    assert torch.equal(bias[:, 0, 1:], last[:, :1].expand(-1, 6))
    assert torch.equal(bias[:, 1:, 0], last[:, 1:2].expand(-1, 6))
    assert torch.equal(bias[:, 0, 0], last[:, 2])
    swin = posenc.Swin(n_heads=2, window=(2, 3)).double()
    swin.weight.data = beit.weight.data[:-3]
    assert torch.equal(bias[:, 1:, 1:], bias_of(swin, positions.grid(2, 3))[0])


@pytest.mark.parametrize("bad", [(-2, 0), (-1, 1), (-1, -2)])
def test_other_tokens_in_negative_rows_are_refused(bad):
    with refuses(ValueError, "BEiT: a token in a negative row is the class token", f"got {bad}"):
        posenc.BEiT(n_heads=1).place(torch.tensor([[0, 0], bad]))


@pytest.mark.parametrize("bad", [(-2, 0), (-1, 1), (-1, -2)])
def test_where_nobody_looks_they_are_no_class_token(bad, monkeypatch):
    monkeypatch.setattr(positions, "may_look", lambda _: False)
    with pytest.raises(IndexError, match="out of bounds"):
        bias_of(posenc.BEiT(n_heads=2, window=(3, 5)), torch.tensor([[0, 0], bad]))


def test_swin_v2_by_a_table_is_swin_v2_pair_by_pair():
    """float32 positions of an image go through a table of their differences, float64 ones through the network."""
    swin = randomise(posenc.SwinV2(n_heads=3, window=(5, 4), width=7), 0)
    grid = positions.grid(5, 4)
    scattered = torch.tensor([[900, -3], [0, 0], [17, 400]])
    for q_pos, k_pos in ((grid, grid), (grid[3:9], grid), (scattered, scattered), (grid[None].repeat(2, 1, 1), grid)):
        table = swin.at(torch.arange(3)[:, None, None], *unbound(q_pos, k_pos))
        exact = swin.at(torch.arange(3)[:, None, None], *unbound(q_pos.double(), k_pos.double()))
        one = torch.stack([swin.at(torch.tensor(h), *unbound(q_pos, k_pos)) for h in range(3)], -4).squeeze(-3)
        torch.testing.assert_close(table, exact, rtol=0, atol=1e-5)  # logarithms in float32
        torch.testing.assert_close(table, one, rtol=0, atol=1e-12)


def unbound(q_pos, k_pos):
    q, k = q_pos.unbind(-1), k_pos.unbind(-1)
    return tuple(t[..., None, :, None] for t in q), tuple(t[..., None, None, :] for t in k)


def test_swin_v2_tabulates_images_alone(monkeypatch):
    swin, sizes = posenc.SwinV2(n_heads=2, width=3), []
    network = swin._network
    monkeypatch.setattr(swin, "_network", lambda h, along: sizes.append(along[0].numel()) or network(h, along))
    swin.dense(positions.grid(6, 6))
    swin.dense(torch.tensor([[0, 0], [10, 10]]))
    assert sizes == [11 * 11, 4]


@pytest.mark.parametrize("make", [posenc.Swin, posenc.BEiT])
def test_resizing_keeps_constants_kind_and_what_is_frozen(make):
    table = make(n_heads=2, window=(3, 5)).half().requires_grad_(False)
    table.weight.fill_(0.5)
    before = table.weight.clone()
    larger = table.resized((6, 4))
    assert larger.window == (6, 4)
    assert larger.weight.shape[0] == 11 * 7 + (3 if make is posenc.BEiT else 0)
    assert larger.weight.dtype == torch.float16
    assert not larger.weight.requires_grad
    assert larger.weight.is_contiguous()  # safetensors saves nothing else
    torch.testing.assert_close(larger.weight, torch.full_like(larger.weight, 0.5), atol=1e-3, rtol=0)
    larger.weight.zero_()
    assert torch.equal(table.weight, before)
    assert table.window == (3, 5)


def test_resizing_keeps_each_axis_apart():
    """What depends on the row alone still does, also in windows that are no squares."""
    swin = posenc.Swin(n_heads=1, window=(3, 5))
    with torch.no_grad():
        swin.weight.copy_(torch.arange(5.0)[:, None].expand(5, 9).reshape(-1, 1))
    larger = swin.resized((4, 2)).weight.detach().view(7, 3)
    assert torch.equal(larger, larger[:, :1].expand(7, 3))
    assert bool((larger[1:, 0] > larger[:-1, 0]).all())


BAD = {
    "one number": (lambda: posenc.Swin(n_heads=1, window=7), TypeError, "Swin: window must be (rows, columns)"),
    "a side of 0": (lambda: posenc.BEiT(n_heads=1, window=(7, 0)), ValueError, "BEiT: window[1] must be at least 1"),
    "half a row": (
        lambda: posenc.SwinV2(n_heads=1, window=(7.5, 7)), TypeError, "SwinV2: window[0] must be a whole number",
    ),
    "another pretrained window": (
        lambda: posenc.SwinV2(n_heads=1, pretrained_window=(0, 7)), ValueError, "SwinV2: pretrained_window[0]",
    ),
    "no size": (lambda: posenc.Decomposed2D(head_dim=2, size=(1, 2, 3)), TypeError, "Decomposed2D: size must be"),
    "resized to nothing": (
        lambda: posenc.Swin(n_heads=1).resized((0, 1)), ValueError, "Swin: window[0] must be at least 1; got",
    ),
    "no distance": (lambda: posenc.Graphormer(n_heads=1, max_distance=0), ValueError, "Graphormer: max_distance"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_sizes_are_refused(case):
    make, kind, said = BAD[case]
    with refuses(kind, said):
        make()


def test_decomposed_of_queries_under_vmap():
    bias, pos = randomise(posenc.Decomposed2D(head_dim=4, size=(2, 3)), 1), positions.grid(2, 3)
    q, keys = normal(1, 2, 6, 4), bias.place(pos, dtype=torch.float64)
    several = torch.stack((pos, pos.flip(0)))
    found = torch.vmap(lambda here: bias.bias(q, q, bias.place(here, dtype=torch.float64), keys))(several)
    for here, got in zip(several, found, strict=True):
        far, (rel_h, rel_w) = here[:, None] - pos, (table[None] for table in (bias.rel_h, bias.rel_w))
        wanted = (q[..., None, :] * (rel_h[0][far[..., 0] + 1] + rel_w[0][far[..., 1] + 2])).sum(-1)
        torch.testing.assert_close(got, wanted)


def test_decomposed_refuses_queries_of_another_width():
    bias, q = posenc.Decomposed2D(head_dim=4, size=(2, 2)), normal(1, 1, 4, 6)
    placed = bias.place(positions.grid(2, 2))
    with refuses(ValueError, "Decomposed2D: made for head_dim=4; got q of shape (1, 1, 4, 6)"):
        bias.bias(q, q, placed, placed)


# a ring of four, and a line of three beside a node that nothing joins
RING = [[0, 1, 2, 1], [1, 0, 1, 2], [2, 1, 0, 1], [1, 2, 1, 0]]
LINE = [[0, 1, 2, -1], [1, 0, 1, -1], [2, 1, 0, -1], [-1, -1, -1, 0]]


def graphormer():
    graph = posenc.Graphormer(n_heads=2, max_distance=3)
    with torch.no_grad():
        graph.weight.copy_(torch.tensor([[0.0, 1.0, 2.0, 3.0, 9.0], [0.0, 10.0, 20.0, 30.0, 90.0]]))
    return graph


def test_graphormer_reads_distances():
    bias = graphormer().on(LINE).dense(torch.arange(4))[0]
    assert bias[0].tolist() == [[0, 1, 2, 9], [1, 0, 1, 9], [2, 1, 0, 9], [9, 9, 9, 0]]
    assert torch.equal(bias[1], 10 * bias[0])


def test_graphormer_of_several_graphs():
    graphs = graphormer().on(torch.tensor([RING, LINE], dtype=torch.int16))
    assert graphs.n_axes == 2
    batch = torch.stack((torch.zeros(2, 4, dtype=torch.int64), torch.arange(4).expand(2, 4)), -1)
    batch[1, :, 0] = 1
    bias = graphs.dense(batch)
    for row, one in zip(bias, (RING, LINE), strict=True):
        assert torch.equal(row, graphormer().on(one).dense(torch.arange(4))[0])
    across = graphs.dense(batch.flatten(0, 1)[None])[0, 0]
    assert torch.equal(across[:4, :4], bias[0, 0])
    assert torch.equal(across[:4, 4:], torch.full((4, 4), 9.0))  # no path leads to another graph


def test_graphormers_of_two_graphs_share_the_table():
    graph = graphormer()
    ring, line = graph.on(RING), graph.on(LINE)
    assert ring.weight is line.weight is graph.weight
    assert graph.distances is None
    (ring.dense(torch.arange(4)).sum() + line.dense(torch.arange(3)).sum()).backward()
    assert graph.weight.grad[0].tolist() == [4 + 3, 8 + 4, 4 + 2, 0, 0]
    assert list(ring.state_dict()) == ["weight"]


def test_a_moved_and_emptied_graphormer_still_knows_its_graph():
    ring = graphormer().on(RING)
    emptied = copy.deepcopy(ring).to("meta").to_empty(device="cpu")
    emptied.load_state_dict(ring.state_dict())
    assert torch.equal(emptied.half().dense(torch.arange(4)), ring.dense(torch.arange(4)))


def test_attention_over_a_graph_does_not_ask_how_its_nodes_are_numbered():
    order, tree = torch.randperm(9, generator=torch.Generator().manual_seed(1)), posenc.Graphormer.tree(9).table
    graph = randomise(posenc.Graphormer(n_heads=2, max_distance=8), 0)
    q, k, v = (normal(1, 2, 9, 4, seed=i) for i in range(3))
    pos = torch.arange(9)
    out = posenc.attend(q, k, v, graph.on(tree), pos, causal=False)
    renamed = graph.on(tree[order][:, order])
    got = posenc.attend(q[:, :, order], k[:, :, order], v[:, :, order], renamed, pos, causal=False)
    torch.testing.assert_close(got, out[:, :, order], rtol=0, atol=1e-13)


def test_a_tree_is_what_floyd_and_warshall_find():
    n = 20
    wanted = torch.full((n, n), 99).fill_diagonal_(0)
    for child in range(1, n):
        wanted[child, (child - 1) // 2] = wanted[(child - 1) // 2, child] = 1
    for middle in range(n):
        wanted = wanted.minimum(wanted[:, middle : middle + 1] + wanted[middle])
    assert torch.equal(posenc.Graphormer.tree(n).table, wanted)
    assert torch.equal(posenc.Graphormer(n_heads=1, max_distance=n, distances=("tree", n)).distances.table, wanted)


GRAPHS = {
    "not square": ([[0, 1]], ValueError, "Graphormer: distances must be a square table", "got (1, 2)"),
    "real": ([[0.0]], TypeError, "Graphormer: distances must be whole numbers; got torch.float32"),
    "words": ("near", TypeError, "Graphormer: distances must be whole numbers (n, n)", "got 'near'"),
    "too far": ([[0, 4], [4, 0]], ValueError, "from -1 (no path) to max_distance=3; got 4"),
    "negative": ([[0, -2], [-2, 0]], ValueError, "from -1 (no path) to max_distance=3; got -2"),
    "another graph": (
        ("ring", 4),
        TypeError,
        "Graphormer: distances must be whole numbers (n, n)",
        "got tuple of 2 entries",
    ),
    "empty": ([], ValueError, "Graphormer: distances must be"),
}


@pytest.mark.parametrize("case", GRAPHS)
def test_distances_that_are_none_are_refused(case):
    given, kind, *said = GRAPHS[case]
    with refuses(kind, *said):
        graphormer().on(given)


def test_placing_without_distances_is_refused():
    with refuses(
        ValueError, "Graphormer: needs the distances of a graph before it can place nodes", "Call on(distances)"
    ):
        graphormer().place(torch.arange(3))


@pytest.mark.parametrize("pos", [[0, 4], [-1, 0]])
def test_a_node_that_is_not_there_is_refused(pos):
    with refuses(ValueError, "Graphormer: positions must lie in 0..3, because it has max_len=4"):
        graphormer().on(RING).place(torch.tensor(pos))


def test_a_graph_that_is_not_there_is_refused():
    with refuses(ValueError, "Graphormer: positions must lie in 0..1, because the distances are (2, 4, 4)"):
        graphormer().on([RING, LINE]).place(torch.tensor([[2, 0]]))
