"""Functions that get their learned numbers: other people's code passes, and what is declared decides."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import posenc
import programs
from posenc import positions
from posenc.verify import check, family_of, remote
from posenc.verify.remote import messages

pytest.importorskip("transformers")
from transformers.models.beit import modeling_beit as beit
from transformers.models.deberta import modeling_deberta as deberta
from transformers.models.deberta_v2 import modeling_deberta_v2 as deberta_v2
from transformers.models.swinv2 import modeling_swinv2 as swinv2
from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert as wav2vec2_bert
from transformers.models.xlnet import modeling_xlnet as xlnet

HEADS, WIDTH = 2, 8
SIZES = {"heads": HEADS, "head_dim": WIDTH}


def flat(table):
    """(heads, rows, head_dim) as the projections of DeBERTa return it."""
    return table.transpose(0, 1).reshape(1, table.shape[1], -1)


def deberta_v1_term(q, k, rel_k, rel_q):
    both = torch.cat((flat(rel_k), flat(rel_q)), -1)[0]
    own = SimpleNamespace(
        max_relative_positions=12,
        pos_att_type=["c2p", "p2c"],
        pos_proj=lambda e: e[..., : HEADS * WIDTH],
        pos_q_proj=lambda e: e[..., HEADS * WIDTH :],
        transpose_for_scores=lambda x: x.view(*x.shape[:2], HEADS, -1).permute(0, 2, 1, 3),
    )
    scaled = q / (3 * WIDTH) ** 0.5
    places = deberta.build_relative_position(q, k)
    attention = deberta.DisentangledSelfAttention
    return scaled @ k.mT + attention.disentangled_att_bias(own, scaled, k, places, both, 3)


def deberta_v2_term(q, k, rel_k, rel_q):
    attention = deberta_v2.DisentangledSelfAttention
    own = SimpleNamespace(
        position_buckets=16,
        max_relative_positions=40,
        pos_ebd_size=16,
        pos_att_type=["c2p", "p2c"],
        share_att_key=False,
        num_attention_heads=HEADS,
        pos_key_proj=lambda e: flat(rel_k),
        pos_query_proj=lambda e: flat(rel_q),
        transpose_for_scores=lambda x, heads: attention.transpose_for_scores(None, x, heads),
    )
    return attention.disentangled_attention_bias(own, q.flatten(0, 1), k.flatten(0, 1), None, torch.zeros(32, 1), 3)


def wav2vec2_bert_term(q, k, rel_k):
    own = SimpleNamespace(
        left_max_position_embeddings=6,
        right_max_position_embeddings=2,
        distance_embedding=lambda rows: rel_k[rows],
        scaling=WIDTH**-0.5,
    )
    return wav2vec2_bert._apply_relative_key_position_encoding(own, q, k)[1]


def xlnet_scores(q, k, u, v, w_r):
    m, n = q.shape[2], k.shape[2]
    model = SimpleNamespace(d_model=w_r.shape[1], attn_type="bi", bi_data=False, clamp_len=-1)
    model.positional_embedding = xlnet.XLNetModel.positional_embedding
    r = xlnet.XLNetModel.relative_positional_encoding(model, m, n, bsz=len(q)) @ w_r.T
    seen = []
    own = SimpleNamespace(
        r_w_bias=u,
        r_r_bias=v,
        scale=WIDTH**-0.5,
        rel_shift_bnij=xlnet.XLNetRelativeAttention.rel_shift_bnij,
        dropout=lambda weights: seen.append(weights) or weights,
    )
    q, k = (t.permute(2, 0, 1, 3) for t in (q, k))
    xlnet.XLNetRelativeAttention.rel_attn_core(own, q, k, k, r.unflatten(-1, (HEADS, WIDTH)))
    return seen[0].log()  # scores minus a constant in each row


def swinv2_bias(window, pretrained):
    def bias(h, w, w1, b1, w2):
        if (h, w) != window:
            raise ValueError
        own = SimpleNamespace(qkv_bias=True, attention_probs_dropout_prob=0.0)
        module = swinv2.Swinv2SelfAttention(own, HEADS * WIDTH, HEADS, window, pretrained)
        first, last = module.continuous_position_bias_mlp[0], module.continuous_position_bias_mlp[2]
        first.weight, first.bias, last.weight = (nn.Parameter(t) for t in (w1, b1, w2))
        nn.init.zeros_(module.query.weight)
        nn.init.zeros_(module.query.bias)  # so the scores are the bias
        return module(torch.randn(1, h * w, HEADS * WIDTH), output_attentions=True)[1][0].log()

    return bias


def beit_bias(h, w, table):
    if h != w:
        raise ValueError  # transformers reads the table as (columns, rows)
    own = SimpleNamespace(image_size=4 * h, patch_size=4, num_attention_heads=HEADS)
    module = beit.BeitRelativePositionBias(own)
    module.relative_position_bias_table.data = table
    return module((h, w))


def posenc_term(make, **names):
    """Return a function that puts what it gets into an encoding of posenc."""

    def term(q, k, **given):
        encoding = make()
        with torch.no_grad():
            for name, value in given.items():
                own = getattr(encoding, names.get(name, name))
                own.copy_(value.reshape(own.shape))
        pos = positions.continued(k.shape[2] - q.shape[2], q.shape[2])
        return encoding.bias(q, k, encoding.place(pos), encoding.place(positions.arange(k.shape[2])))

    return term


def fire(q_len, kv_len, w1, b1, w2, b2, c, threshold):
    encoding = posenc.FIRE(n_heads=HEADS, width=8, init_c=float(c), init_threshold=float(threshold))
    with torch.no_grad():
        for own, value in zip((encoding.w1, encoding.b1, encoding.w2, encoding.b2), (w1, b1, w2, b2), strict=True):
            own.copy_(value.reshape(own.shape))
    return encoding.dense(positions.continued(kv_len - q_len, q_len), positions.arange(kv_len))[0]


def swin_v2(h, w, w1, b1, w2):
    encoding = posenc.SwinV2(n_heads=HEADS, window=(h, w), width=8)
    with torch.no_grad():
        for own, value in zip((encoding.w1, encoding.b1, encoding.w2), (w1, b1, w2), strict=True):
            own.copy_(value)
    return encoding.dense(positions.grid(h, w))[0]


def deberta_of(**sizes):
    return lambda: posenc.DeBERTa(n_heads=HEADS, head_dim=WIDTH, **sizes)


BUCKETS = {"encoding": "deberta", "num_buckets": 16, "max_distance": 40, **SIZES}
XL = {"encoding": "transformer_xl", **SIZES}
PEERS = {
    "transformers deberta": (
        deberta_v1_term,
        "scores_fn",
        {"encoding": "deberta", "max_distance": 12, **SIZES},
        "pass",
    ),
    "transformers deberta_v2": (deberta_v2_term, "scores_fn", BUCKETS, "pass"),
    "transformers wav2vec2_bert": (
        wav2vec2_bert_term,
        "scores_fn",
        {"encoding": "shaw", "max_distance": 6, "table_rows": 9, "causal": False, **SIZES},
        "pass",
    ),
    "transformers xlnet": (xlnet_scores, "scores_fn", XL | {"causal": False}, "equivalent"),
    "transformers swinv2": (
        swinv2_bias((4, 6), [0, 0]),
        "learned_bias_fn",
        {"encoding": "swin_v2", "heads": HEADS, "window": [4, 6]},
        "equivalent",
    ),
    "transformers swinv2 in another window": (
        swinv2_bias((4, 6), [3, 5]),
        "learned_bias_fn",
        {"encoding": "swin_v2", "heads": HEADS, "window": [4, 6], "pretrained_window": [3, 5]},
        "equivalent",
    ),
    "transformers beit": (
        beit_bias,
        "learned_bias_fn",
        {"encoding": "beit", "heads": HEADS, "window": [4, 4]},
        "pass",
    ),
    "posenc shaw": (
        posenc_term(lambda: posenc.Shaw(head_dim=WIDTH, max_distance=4), rel_k="weight"),
        "scores_fn",
        {"encoding": "shaw", "max_distance": 4, "direction": "query-key", **SIZES},
        "pass",
    ),
    "posenc transformer_xl": (
        posenc_term(lambda: posenc.TransformerXL(d_model=16, n_heads=HEADS, head_dim=WIDTH), w_r="weight"),
        "scores_fn",
        XL | {"causal": False},
        "pass",
    ),
    "posenc deberta": (
        posenc_term(deberta_of(n_buckets=16, max_distance=40), rel_k="key_table", rel_q="query_table"),
        "scores_fn",
        BUCKETS,
        "pass",
    ),
    "posenc fire": (fire, "learned_bias_fn", {"encoding": "fire", "heads": HEADS}, "pass"),
    "posenc swin_v2": (swin_v2, "learned_bias_fn", {"encoding": "swin_v2", "heads": HEADS}, "pass"),
}


@pytest.mark.parametrize("name", PEERS)
def test_other_peoples_code_is_right(name):
    subject, convention, spec, status = PEERS[name]
    report = check(subject, convention=convention, spec=spec)
    assert report.status == status, report


@pytest.mark.parametrize("name", ["shaw_gathered", "shift_view", "fire_listing", "swin2_table", "beit_rows"])
def test_recorded_answers_are_judged_as_the_program_is(name, tmp_path):
    module = programs.cases()[f"programs/{name}"].load()
    family = family_of(module.STYLE, module.SPEC)
    remote.write_questions(family, tmp_path)
    answers = []
    for line in (tmp_path / "questions.jsonl").read_text().splitlines():
        call = json.loads(line)
        args = {key: messages.decode(t) if isinstance(t, dict) else t for key, t in call["args"].items()}
        answers.append(json.dumps({"call": call["call"], "result": messages.encode(module.build()(**args))}))
    (tmp_path / "answers.jsonl").write_text("\n".join(answers))
    report = check(remote.subject(module.STYLE, remote.Recording(tmp_path)), convention=module.STYLE, spec=module.SPEC)
    assert report.status == "pass", report
    assert not any("recording" in line for line in report.not_judged)


NOTHING = {"encoding": "shaw", **SIZES}


@pytest.mark.parametrize(
    ("convention", "spec", "why"),
    [
        ("scores_fn", {"encoding": "rope"}, "scores_fn has no check for encoding 'rope'"),
        ("learned_bias_fn", {}, "declare encoding: one of fire, swin_v2, beit"),
        ("shift_fn", {"encoding": "shaw"}, "shift_fn has no check for encoding 'shaw'"),
    ],
)
def test_an_encoding_without_a_check_is_open(convention, spec, why):
    report = check(lambda x: x, convention=convention, spec=spec)
    assert report.status == "cannot_tell"
    assert report.because.startswith(why)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"encoding": "shaw", "max_distance": 8, "table_rows": 8}, "table_rows must be above max_distance"),
        ({"encoding": "shaw", "direction": "left"}, "direction must be one of 'any', 'key-query', 'query-key'"),
        ({"encoding": "deberta", "num_buckets": 64, "max_distance": 32}, "max_distance above num_buckets / 2"),
        ({"encoding": "deberta", "variant": "p2p"}, "variant of deberta must be"),
        ({"encoding": "transformer_xl", "d_model": 7}, "d_model of transformer_xl must be even"),
    ],
)
def test_impossible_words_are_refused(spec, why):
    with pytest.raises(ValueError, match=why):
        check(lambda q, k, **_: q @ k.mT, convention="scores_fn", spec=spec)


def shaw(q, k, rel_k, scale=WIDTH**-0.5, rows=lambda r: r):
    m, n = q.shape[2], k.shape[2]
    places = torch.arange(n)
    at = (places - places[n - m :, None]).clamp(-16, 16) + 16
    return (q @ k.mT + torch.einsum("bhid,ijd->bhij", q, rel_k[rows(at)])) * scale


@pytest.mark.parametrize(
    ("subject", "spec", "found"),
    [
        (shaw, {}, "pass"),
        (lambda q, k, a: shaw(q, k, a, 1.0), {}, "shaw.scale"),
        (lambda q, k, a: shaw(q, k, a, 1.0), {"scale": 1.0}, "pass"),
        (lambda q, k, a: shaw(q, k, a, rows=lambda r: 32 - r), {}, "shaw.distance.sign"),
        (lambda q, k, a: shaw(q, k, a, rows=lambda r: 32 - r), {"direction": "any"}, "equivalent"),
        (lambda q, k, a: shaw(q, k, a, rows=lambda r: 32 - r), {"direction": "query-key"}, "pass"),
        (lambda q, k, a: shaw(q, k, a) + 3 * q.sum(-1, keepdim=True), {}, "equivalent"),
        (lambda q, k, a: shaw(q, k, a).bfloat16(), {}, "pass"),
        (lambda q, k, a: shaw(q, k, a).flatten(0, 1), {}, "pass"),
        (lambda q, k, a: 0 * shaw(q, k, a), {}, "shaw.term.missing"),
        (lambda q, k, a: shaw(q, k, a).sin(), {}, "shaw.mismatch"),
        (lambda q, k, a: shaw(q, k, a).to(torch.complex64), {}, "subject.not_finite"),
        (lambda q, k, a: None, {}, "subject.shape"),
    ],
)
def test_what_is_declared_decides(subject, spec, found):
    report = check(subject, convention="scores_fn", spec=NOTHING | spec)
    assert found in (report.status, *(cause.code for cause in report.causes[:1])), report
