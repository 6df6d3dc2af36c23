from posenc.cli.drawing import Page, draw
from posenc.cli.picture import Picture, Series

PLAIN = Page(width=80, blocks=True, colour=False)
ASCII = Page(width=80, blocks=False, colour=False)
COLOUR = Page(width=80, blocks=True, colour=True)


def curves(*values):
    series = [Series(f"head {i}", list(v)) for i, v in enumerate(values)]
    return Picture("bias", "bias against distance", list(range(len(values[0]))), series, "Mine()")


def vectors(*rows):
    series = [Series(str(p), list(row)) for p, row in enumerate(rows)]
    return Picture("vectors", "the vector", list(range(len(rows[0]))), series, "Mine()")


def lines(picture, page=PLAIN):
    return [line.plain.rstrip() for line in draw(picture, page)]


def test_a_heat_map_is_readable_without_colour():
    drawn = lines(vectors((-1, 0, 1), (1, 1, -1)))
    assert "position dimensions 0 to 2" in drawn[2]
    assert drawn[3] == "        0   ▒▒██"
    assert drawn[4] == "        1 ████"
    assert drawn[-1] == "       -1   ░░▒▒▓▓██ 1"


def test_a_heat_map_without_unicode():
    assert lines(vectors((-1, 0, 1)), ASCII)[3] == "        0   ++@@"


def test_zero_is_the_middle_of_the_scale():
    """A value range of -1 to 3 must not make 1 the middle."""
    assert lines(vectors((-1, 0, 3)))[3] == "        0 ░░▒▒██"


def test_colour_paints_cells_blue_to_red():
    row = draw(vectors((-1, 0, 1)), COLOUR)[3]
    painted = [span.style.bgcolor.triplet for span in row.spans]
    assert painted[0].blue > painted[0].red
    assert painted[1].blue == painted[1].red
    assert painted[2].red > painted[2].blue


def test_too_many_lanes_are_cut_and_it_says_so():
    drawn = lines(vectors([0.0] * 512))
    assert "dimensions 0 to 69 of 512" in drawn[2]
    assert max(map(len, drawn)) <= 80


def test_one_curve_is_a_bar_chart_over_zero():
    picture = Picture("scores", "score", [0, 1, 2], [Series("", [8.0, 4.0, 0.0])], "Mine()")
    drawn = lines(picture)
    assert drawn[2] == "       8 │█"
    assert drawn[6] == "         │██"
    assert drawn[9] == "       0 │██"


def test_a_curve_below_zero_shows_where_zero_is():
    picture = Picture("scores", "score", [0, 1], [Series("", [4.0, -4.0])], "Mine()")
    labels = [line[:9].strip() for line in lines(picture)[2:10]]
    assert labels == ["4", "", "", "0", "", "", "", "-4"]


def test_heads_share_one_scale():
    drawn = lines(curves([0, -8], [0, -4]))
    assert drawn[2:6] == ["  head 0 │█", "         │█", "  head 1 │█", "         │██"]
    assert "A full bar is 0, an empty one -8." in drawn
    assert "At distance 1, head by head: -8, -4." in drawn


def test_a_narrow_terminal_gets_fewer_distances():
    narrow = lines(curves(range(64), range(64)), Page(width=40, blocks=True, colour=False))
    assert max(map(len, narrow[2:9])) <= 40
    assert "At distance 29, head by head: 29, 29." in narrow


def test_learned_numbers_get_a_caption():
    picture = Picture("bias", "bias", [0], [Series("", [0.0])], "Mine()", learned=True)
    assert "freshly initialised" in lines(picture)[1]
    assert "freshly initialised" not in "".join(lines(curves([0.0])))


def test_nothing_to_draw_is_its_sentence():
    assert lines(Picture("none", "Why not.", [], [])) == ["Why not."]
