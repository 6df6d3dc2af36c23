"""Cards, names, and constructing encodings by name."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import posenc
import strategies
from posenc import registry
from posenc.cli.listing import NEEDS
from strategies import check, refuses


class Own(posenc.Encoding):
    """A user's own class."""

    def __init__(self, *, width: int, d_model: int = 3) -> None:
        super().__init__()
        self.width, self.d_model = width, d_model


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_CARDS", dict(registry._CARDS))


FACTS = {
    "paper": "p",
    "year": 2000,
    "formula": "f",
    "parameters": "0",
    "cost": "none",
    "example": {},
    "traits": {},
}


CLASSICS = {
    "none": "nope",
    "additive": "integer normalised binary sine sinusoidal time2vec learned learnable_fourier gaussian_fourier "
    "nerf_fourier tape cape sinusoidal_nd learned_2d hierarchical",
    "embedded": "complex_order cpvt",
    "rotary": "rope xpos axial_rope mrope query_temperature dynamic_ntk longrope stretched_rope mixed_rope "
    "retnet fope pope grape_m liere p_rope mhrope rope_pp selective_rope prope gta",
    "piecewise": "rerope leaky_rerope self_extend dual_chunk",
    "bias": "alibi t5 kerple kerple_power relative_bias sandwich fire dynamic_position_bias tupe fox inkling "
    "swin swin_v2 beit graphormer",
    "content_bias": "shaw transformer_xl deberta decomposed_2d grape_a",
    "score_map": "cope dape grape_ap",
    "values": "vo_rope",
}


@pytest.mark.parametrize("family", CLASSICS)
def test_the_classics_are_complete(family: str) -> None:
    assert {name for name in posenc.names() if posenc.card(name).family == family} == set(CLASSICS[family].split())


def test_names_are_sorted() -> None:
    assert posenc.names() == sorted(posenc.names())


def test_names_match_a_shell_pattern() -> None:
    assert posenc.names("*bias") == ["dynamic_position_bias", "relative_bias"]
    assert posenc.names("t5") == ["t5"]
    assert posenc.names("T5") == []


@pytest.mark.parametrize(
    ("alias", "name"), [("rotary", "rope"), ("none", "nope"), ("RoPE", "rope"), ("bits", "binary"), ("T5", "t5")]
)
def test_aliases_and_class_names_find_the_card(alias: str, name: str) -> None:
    assert posenc.card(alias) is posenc.card(name)


def test_an_unknown_name_gets_the_nearest() -> None:
    with refuses(ValueError, "unknown encoding 'learnd': did you mean 'learned'?", "Known: alibi, ", "Class."):
        posenc.create("learnd", d_model=4)
    with refuses(ValueError, "unknown encoding 'qqqq'.", "Known: alibi"):
        posenc.card("qqqq")


@given(strategies.dims(), st.sampled_from(["alibi", "kerple", "rope", "sinusoidal", "transformer_xl", "nope"]))
@check(60)
def test_dims_offer_what_the_constructor_takes(dims: posenc.Dims, name: str) -> None:
    encoding = posenc.create(name, dims=dims)
    taken = [fact for fact in ("d_model", "n_heads", "head_dim") if hasattr(encoding, fact)]
    assert all(getattr(encoding, fact) == getattr(dims, fact) for fact in taken)
    assert type(encoding) is posenc.card(name).cls


def test_an_option_wins_over_dims() -> None:
    dims = posenc.Dims(d_model=8, n_heads=2, head_dim=64, max_len=5)
    assert posenc.create("learned", dims=dims, max_len=7).weight.shape == (7, 8)
    assert posenc.create("alibi", dims=dims, n_heads=3).n_heads == 3


def test_options_are_strict() -> None:
    with refuses(TypeError, "ALiBi: unknown option 'n_head'; did you mean 'n_heads'?", "n_heads, slopes"):
        posenc.create("alibi", n_head=3)
    with refuses(TypeError, "NoPE: unknown option 'theta'. Options: n_axes."):
        posenc.create("nope", theta=1)


def test_missing_options_are_named() -> None:
    with refuses(TypeError, "Learned2D needs height, width; pass height=..., width=..., or dims=Dims(grid=...)."):
        posenc.create("learned_2d", d_model=4)
    with refuses(TypeError, "pass d_model=..., height=..., width=..., or dims=Dims(d_model=..., grid=...)."):
        posenc.create("learned_2d")
    with refuses(TypeError, "Learned needs d_model, max_len; pass d_model=..., max_len=..., or dims=Dims("):
        posenc.create("learned")
    with refuses(TypeError, "Learned needs max_len; pass max_len=..."):
        posenc.create("learned", dims=posenc.Dims(d_model=4))

    with refuses(TypeError, "Own needs width; pass width=...."):
        posenc.create(f"{Own.__module__}:Own")


TEXT = posenc.Dims(d_model=512, n_heads=8, head_dim=64, max_len=2048)  # the first example of README


@pytest.mark.parametrize("name", posenc.names())
def test_any_name_is_constructed_of_what_a_host_knows_or_the_error_has_an_example(name: str) -> None:
    card, dims = posenc.card(name), replace(TEXT, grid=(14, 16))
    if name != "longrope":  # whose lists come from a search
        assert type(posenc.create(name, dims=dims)) is card.cls
        return
    start = "posenc.LongRoPE(head_dim=4, short_factors=(1.0, 1.5), long_factors=(1.0, 8.0), original_max_len=2048)"
    with refuses(TypeError, "needs short_factors, long_factors; pass", f"Example: {start}"):
        posenc.create(name, dims=dims)


def test_a_grid_is_offered_to_what_cannot_do_without_and_to_no_other_width() -> None:
    dims = replace(TEXT, grid=(14, 16))
    table, decomposed = posenc.create("learned_2d", dims=dims), posenc.create("decomposed_2d", dims=dims)
    assert (table.height, table.width, decomposed.size) == (14, 16, (14, 16))
    assert posenc.create("fire", dims=dims).width == posenc.create("fire", dims=TEXT).width
    for name in ("learned_2d", "decomposed_2d"):
        with refuses(TypeError, "or dims=Dims(grid=...)", f"Example: {posenc.card(name).call}"):
            posenc.create(name, dims=TEXT)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("videorope", posenc.MRoPE(head_dim=64, layout="time_last")),
        ("hope_video", posenc.MRoPE(head_dim=64, layout="time_unrotated")),
        ("mmrope", posenc.MRoPE(head_dim=64, layout=(0, 0, 1, 2, 1, 2, 1, 2))),
        ("ilrope", posenc.MRoPE(head_dim=64, layout="interleaved")),
        ("omnirope", posenc.MRoPE(head_dim=64)),
        ("circle_rope", posenc.MRoPE(head_dim=64)),
        ("v2pe", posenc.RoPE(head_dim=64)),
    ],
)
def test_a_plan_is_a_class_with_the_options_of_a_paper(name: str, wanted: posenc.Encoding) -> None:
    assert repr(posenc.create(name, dims=TEXT)) == repr(wanted)
    assert name in posenc.card(name).plans
    assert name not in posenc.names()
    assert posenc.create(name, dims=TEXT, base=500.0).base == 500.0


@pytest.mark.parametrize("name", ["mrope", "rope"])
def test_the_line_of_a_plan_creates_it_and_its_positions(name: str) -> None:
    card = posenc.card(name)
    for plan, line in card.plan_calls.items():
        created, wanted, made = re.fullmatch(r"(.*), which is (.*), at (.*)", line).groups()
        names = {"posenc": posenc, "parts": [2, (2, 2, 3), 1]}
        encoding, pos = eval(created, names), eval(made, names)
        assert repr(encoding) == repr(eval(wanted, names)) == repr(posenc.create(plan, head_dim=64))
        assert pos.shape == ((15,) if encoding.n_axes == 1 else (15, encoding.n_axes))


def test_an_option_wins_over_a_plan() -> None:
    assert posenc.create("videorope", head_dim=64, layout="blocks").layout == "blocks"


def test_a_class_of_ones_own() -> None:
    own = posenc.create(f"{Own.__module__}:Own", dims=posenc.Dims(d_model=5, n_heads=2), width=4)
    assert type(own).__name__ == "Own"
    assert (own.width, own.d_model) == (4, 5)
    assert registry.find_class("posenc.encodings.rope:RoPE") is posenc.RoPE


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("no_such_package.pe:MyPE", ValueError, ["cannot load", "No module named", "package.module:Class"]),
        ("posenc:Missing", ValueError, ["cannot load", "Missing"]),
        ("posenc:names", TypeError, ["not a class derived from posenc.Encoding", "Derive it"]),
        ("posenc:Dims", TypeError, ["not a class derived from posenc.Encoding"]),
        (":RoPE", ValueError, ["cannot load"]),
    ],
)
def test_what_is_no_class_of_ones_own(name: str, kind: type[Exception], words: list[str]) -> None:
    with refuses(kind, *words):
        posenc.create(name)


@pytest.mark.usefixtures("own_registry")
@pytest.mark.parametrize("facts", [{"name": "rope"}, {"name": "rotary"}, {"name": "own", "aliases": ("bits",)}])
def test_a_name_is_given_once(facts: dict[str, object]) -> None:
    with refuses(ValueError, "already the name of another encoding", "Own", "Choose another name"):
        posenc.register(**{**FACTS, **facts})(Own)


@pytest.mark.usefixtures("own_registry")
def test_registering_the_same_class_again_is_a_reload() -> None:
    for year in (2000, 2001):
        posenc.register("own", **FACTS | {"year": year, "example": {"width": 2}})(Own)
    assert posenc.card("own").year == 2001
    assert posenc.create("own", width=3).width == 3
    assert [type(e) for e in posenc.card("own").examples()] == [Own]


@pytest.mark.parametrize("name", posenc.names())
def test_cards_are_complete(name: str) -> None:
    card = posenc.card(name)
    assert card.family in CLASSICS
    assert list(card.traits) == list(registry.TRAITS)
    assert card.traits["real_positions"] == card.cls.accepts_real
    assert card.summary.endswith(".")
    assert card.serves
    assert set(card.serves) <= set(NEEDS)
    assert 1700 < card.year < 2100
    assert card.arxiv is None or (len(card.arxiv) == 10 and card.arxiv[4] == ".")
    assert [option.partition("=")[0] for option in card.options] == list(card.examples()[0].options())


def test_the_toys_of_the_textbooks_serve_nothing_else() -> None:
    toys = [name for name in posenc.names() if "textbook" in posenc.card(name).serves]
    assert toys == ["binary", "integer", "normalised", "sine"]
    assert {posenc.card(name).serves for name in toys} == {("textbook",)}


@pytest.mark.parametrize("name", posenc.names())
def test_cards_are_plain_json(name: str) -> None:
    plain = posenc.card(name).as_dict()
    assert json.loads(json.dumps(plain))["name"] == name
    built = eval(plain["example"], {"posenc": posenc})
    assert type(built) is posenc.card(name).cls


SYMBOLS = {"n_heads": "H", "d_model": "D", "head_dim": "d", "max_distance": "K", "n_axes": "n", "kernel_size": "k"}
SYMBOLS |= {"n_features": "F", "hidden": "h"}


@pytest.mark.parametrize("name", posenc.names())
def test_the_formula_for_parameters_counts_them(name: str) -> None:
    (encoding, *_), formula = posenc.card(name).examples(), posenc.card(name).parameters
    formula, _, _ = formula.partition(", or ")  # of the example; other options may learn more
    formula = formula.replace("·", "*").replace("²", "**2").replace("those of its members", "0")
    values = encoding.options() | {SYMBOLS[k]: v for k, v in encoding.options().items() if k in SYMBOLS}
    values |= {
        "n_turning": getattr(encoding, "n_turning", None)
    }  # of the pairs of FoPE, those that turn fully in training
    assert sum(p.numel() for p in encoding.parameters()) == eval(formula, {}, values)


@pytest.mark.parametrize("name", posenc.names())
@given(data=st.data())
@check(15)
def test_options_rebuild_the_encoding(name: str, data: st.DataObject) -> None:
    options = data.draw(strategies.options(name))
    encoding = posenc.create(name, **options)
    for option, value in options.items():
        kept = encoding.options().get(option)
        if option in ("inv_freq", "matrix"):
            assert value is None or np.array_equal(kept, value)
        else:
            assert value is None or kept == value
    twin = type(encoding)(**encoding.options())
    assert repr(twin) == repr(encoding)
    assert twin.options() == encoding.options()
