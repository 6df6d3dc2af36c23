"""Vectors that transformers' own modules add to the tokens, forwards and backwards."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

import posenc
from peers.agreement import assert_same, leaf
from posenc import positions

pytest.importorskip("transformers")

from transformers import BertConfig, GPT2Config, RobertaConfig, ViTConfig, ViTMAEConfig
from transformers.models.bert.modeling_bert import BertEmbeddings
from transformers.models.detr.modeling_detr import DetrSinePositionEmbedding
from transformers.models.fsmt.modeling_fsmt import SinusoidalPositionalEmbedding
from transformers.models.gpt2.modeling_gpt2 import GPT2Model
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.opt.modeling_opt import OPTLearnedPositionalEmbedding
from transformers.models.roberta.modeling_roberta import RobertaEmbeddings
from transformers.models.sam.configuration_sam import SamVisionConfig
from transformers.models.sam.modeling_sam import SamPositionalEmbedding
from transformers.models.speecht5.modeling_speecht5 import SpeechT5ScaledPositionalEncoding
from transformers.models.vit.modeling_vit import ViTEmbeddings
from transformers.models.vit_mae.modeling_vit_mae import ViTMAEEmbeddings
from transformers.models.whisper.modeling_whisper import sinusoids

PADDED = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 1, 0]])


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_learned_is_bert():
    config = BertConfig(vocab_size=30, hidden_size=16, num_attention_heads=2, max_position_embeddings=40)
    peer = BertEmbeddings(config).eval()
    ours = posenc.Learned(d_model=16, max_len=40)
    peer.position_embeddings.weight = ours.weight
    x, kind = leaf(2, 11, 16), peer.token_type_embeddings.weight[0]
    theirs = peer(inputs_embeds=x)
    assert_same(peer.LayerNorm(ours(x + kind, positions.arange(11))), theirs, [x, ours.weight])
    later = peer(None, None, None, x, 5)  # the length of the cache has another name since transformers 5.24
    assert_same(peer.LayerNorm(ours(x + kind, positions.continued(5, 11))), later, [x, ours.weight])


def test_learned_is_gpt2():
    config = GPT2Config(vocab_size=30, n_positions=40, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    peer = GPT2Model(config).eval()
    ours = posenc.Learned(d_model=16, max_len=40)
    peer.wpe.weight = ours.weight
    x = leaf(2, 11, 16)
    for pos in (None, torch.randint(40, (2, 11))):
        theirs = peer(inputs_embeds=x, position_ids=pos, output_hidden_states=True).hidden_states[0]
        assert_same(ours(x, positions.arange(11) if pos is None else pos), theirs, [x, ours.weight])


def test_learned_with_an_offset_is_opt_padded_on_any_side():
    """OPT's row of padding is one like the others: it is looked up, and it learns."""
    peer = OPTLearnedPositionalEmbedding(20, 8)
    ours = posenc.Learned(d_model=8, max_len=20, offset=2)
    peer.weight = ours.weight
    x = leaf(4, 6, 8)
    assert_same(ours(x, positions.padded(PADDED)), x + peer(PADDED), [x, ours.weight])
    # two tokens after a cache of four
    theirs = x[:, 4:] + peer(PADDED, 4)
    assert_same(ours(x[:, 4:], positions.padded(PADDED)[:, 4:]), theirs, [x, ours.weight])


def test_learned_with_a_row_for_padding_is_roberta():
    """RoBERTa's row of padding is zero and gets no gradient."""
    config = RobertaConfig(
        vocab_size=30, hidden_size=16, num_attention_heads=2, max_position_embeddings=22, type_vocab_size=1
    )
    peer = RobertaEmbeddings(config).eval()
    ours = posenc.Learned(d_model=16, max_len=20, offset=2, padding_idx=1)
    assert torch.equal(ours.weight[1], peer.position_embeddings.weight[1])
    peer.position_embeddings.weight = ours.weight
    tokens = torch.where(PADDED.bool(), torch.randint(2, 30, PADDED.shape), 1)
    pos = positions.padded(tokens != 1)
    assert torch.equal(pos + 2, peer.create_position_ids_from_input_ids(tokens, 1))
    x = peer.word_embeddings(tokens) + peer.token_type_embeddings.weight[0]
    mine, theirs = peer.LayerNorm(ours(x, pos)), peer(tokens)
    assert_same(mine, theirs, [ours.weight, peer.word_embeddings.weight])
    gradients = [torch.autograd.grad((out**3).sum(), ours.weight)[0].any(-1) for out in (mine, theirs)]
    for gradient in gradients:
        assert gradient.nonzero().flatten().tolist() == [2, 3, 4, 5, 6, 7]


def test_learned_2d_is_vit():
    """The class token comes first. For other sizes its bicubic does not antialias, so that timm is the peer there."""
    peer = ViTEmbeddings(ViTConfig(hidden_size=16, image_size=(20, 28), patch_size=4)).eval()
    ours = posenc.Learned2D(d_model=16, height=5, width=7, n_prefix=1)
    image = leaf(2, 3, 20, 28)
    theirs = functional_call(peer, {"position_embeddings": ours.weight[None]}, (image,))
    patches = peer.patch_embeddings(image)
    x = torch.cat((peer.cls_token.expand(2, 1, 16), patches), 1)
    assert_same(ours(x, positions.grid(5, 7, n_prefix=1)), theirs, [image, ours.weight, peer.cls_token])


@pytest.mark.parametrize("d_model", [4, 80, 384])
def test_sinusoidal_of_tensor2tensor_is_whisper(d_model):
    ours = posenc.Sinusoidal(d_model=d_model, order="concatenated", exponent="tensor2tensor")
    theirs = sinusoids(1500, d_model)
    # their angles are float32, of up to 1500 radians
    torch.testing.assert_close(ours.vectors(positions.arange(1500)).float(), theirs, atol=2e-4, rtol=0)


def test_sinusoidal_of_tensor2tensor_is_fsmt():
    """FSMT counts on from the row of padding, which is zero. An odd width it fills with a zero, we with a sine."""
    peer = SinusoidalPositionalEmbedding(20, 16, padding_idx=1)
    peer.make_weight(20, 16, 1)
    tokens = torch.where(PADDED.bool(), 7, 1)
    ours = posenc.Sinusoidal(d_model=16, order="concatenated", exponent="tensor2tensor")
    mine = ours.vectors(positions.padded(PADDED) + 2).float() * PADDED[..., None]
    torch.testing.assert_close(mine, peer(tokens), atol=2e-6, rtol=0)


@pytest.mark.parametrize("d_model", [7, 64])
def test_sinusoidal_concatenated_is_marian(d_model):
    """Marian's table is computed in float64 and is ours exactly, with an odd width too."""
    peer = MarianSinusoidalPositionalEmbedding(512, d_model)
    peer.weight = nn.Parameter(peer.create_weight(), requires_grad=False)
    ours = posenc.Sinusoidal(d_model=d_model, order="concatenated")
    x = leaf(2, 500, d_model)
    theirs = x + peer(x.shape, 12)
    assert_same(ours(x, positions.continued(12, 500)), theirs, [x], atol=2e-7)


def test_sinusoidal_with_a_learned_scale_is_speecht5():
    peer = SpeechT5ScaledPositionalEncoding(0.0, 24)
    ours = posenc.Sinusoidal(d_model=24, learned_scale=0.7)
    peer.alpha = ours.scale
    x = leaf(2, 50, 24)
    assert_same(ours(x, positions.arange(50)), peer(x), [x, ours.scale], atol=1e-5)


@pytest.mark.parametrize("normalize", [False, True])
def test_sinusoidal_2d_is_detr(normalize):
    """DETR counts from 1, or gives the last row and column the position 2 pi."""
    peer = DetrSinePositionEmbedding(num_position_features=12, normalize=normalize)
    pos = positions.grid(6, 9) + 1
    if normalize:
        pos = pos / (torch.tensor([6.0, 9.0], dtype=torch.float64) + 1e-6) * (2 * math.pi)
    x = leaf(1, 24, 6, 9)
    theirs = (x + peer(x.shape, x.device, x.dtype)).flatten(2).mT
    assert_same(posenc.SinusoidalND(d_model=24)(x.flatten(2).mT, pos), theirs, [x])


def test_sinusoidal_2d_is_mae_with_the_column_first():
    peer = ViTMAEEmbeddings(ViTMAEConfig(hidden_size=32, image_size=20, patch_size=4))
    peer.initialize_weights()
    ours = posenc.SinusoidalND(d_model=32, order="concatenated").vectors(positions.grid(5, 5).flip(-1)).float()
    torch.testing.assert_close(ours, peer.position_embeddings[0, 1:], atol=2e-7, rtol=0)


def test_gaussian_features_are_sam():
    """SAM's coordinates run from 0 to 1, from which it makes -1 to 1; its frequencies are in cycles, as ours."""
    peer = SamPositionalEmbedding(SamVisionConfig(num_pos_feats=16))
    drawn = np.random.RandomState(3).standard_normal((16, 2))
    frequencies = torch.tensor(2.0 * drawn.T, dtype=torch.float32)
    corners, x = torch.rand(2, 9, 2), leaf(2, 9, 32)
    theirs = x + functional_call(peer, {"positional_embedding": frequencies}, (corners,))
    for given in ({"sigma": 2.0, "seed": 3}, {"matrix": frequencies}):
        ours = posenc.GaussianFourier(d_model=32, n_axes=2, extent=1.0, **given)
        assert_same(ours(x, 2 * corners - 1), theirs, [x], atol=1e-5)
