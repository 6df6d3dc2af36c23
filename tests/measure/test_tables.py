"""Spectra, norms and covariances of tables, against other routes to the same numbers."""

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import posenc
import strategies
from posenc import measure

TABLE = strategies.normal(40, 6, seed=1).numpy() @ np.diag([5.0, 3.0, 1.0, 1.0, 0.5, 0.0])


def test_spectrum_is_that_of_the_covariance() -> None:
    found = measure.spectrum(TABLE)
    eigenvalues = np.linalg.eigvalsh(np.cov(TABLE.T, bias=True))[::-1]
    np.testing.assert_allclose(found.values**2 / 40, eigenvalues, atol=1e-12)
    np.testing.assert_allclose(found.share, eigenvalues / eigenvalues.sum(), atol=1e-12)
    assert math.isclose(found.share.sum(), 1.0)
    np.testing.assert_allclose(measure.spectrum(TABLE + 100.0).values, found.values, atol=1e-10)  # without the mean
    assert not measure.spectrum(np.ones((3, 2))).share.any()


def test_covariance_and_norms_are_numpy_s() -> None:
    np.testing.assert_allclose(measure.covariance(TABLE + 7.0), np.cov(TABLE.T, bias=True), atol=1e-12)
    np.testing.assert_allclose(measure.norms(TABLE), np.sqrt(np.einsum("nl,nl->n", TABLE, TABLE)), atol=1e-12)
    learned = posenc.Learned(d_model=6, max_len=40)
    with torch.no_grad():
        learned.weight.copy_(torch.from_numpy(TABLE))
    np.testing.assert_allclose(measure.norms(learned.weight), measure.norms(TABLE), rtol=1e-6)


def test_large_tables_are_measured_part_by_part_in_little_memory() -> None:
    table = strategies.normal(20_000, 24, seed=2).numpy() + 3.0
    positions = np.ascontiguousarray(table[:50])
    np.testing.assert_allclose(measure.covariance(table), np.cov(table.T, bias=True), atol=1e-12)
    np.testing.assert_allclose(measure.norms(table), np.linalg.norm(table, axis=1), rtol=1e-14)
    tracemalloc.start()
    try:
        measure.embedding_tables(table, positions)
        assert tracemalloc.get_traced_memory()[1] < 0.8 * table.nbytes
    finally:
        tracemalloc.stop()


def test_share_of_the_diagonal() -> None:
    assert measure.diagonal_share(np.diag([1.0, -2.0, 0.0])) == 1.0
    assert measure.diagonal_share([[0.0, 1.0], [1.0, 0.0]]) == 0.0
    assert measure.diagonal_share([[2.0, 1.0], [1.0, 0.0]]) == pytest.approx(4 / 6)
    assert measure.diagonal_share(np.zeros((2, 2))) == 0.0


def test_embedding_tables_of_known_covariance_and_length() -> None:
    random = np.random.default_rng(0)
    mix = np.array([[2.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 3.0]])
    wanted = mix.T @ mix
    tokens = random.standard_normal((200_000, 3)) @ mix + 5
    ball = random.standard_normal((50, 3))
    pos = 0.5 * ball / np.linalg.norm(ball, axis=1, keepdims=True)
    found = measure.embedding_tables(tokens, torch.tensor(pos), token_scale=2.0)
    assert found.token_diagonal == pytest.approx((wanted.diagonal() ** 2).sum() / (wanted**2).sum(), abs=0.01)
    assert found.position_norm == pytest.approx(0.5, rel=1e-12)
    assert found.ratio == pytest.approx(0.5 / np.sqrt((tokens**2).sum(1)).mean() / 2, rel=1e-12)


def test_a_table_is_read_by_name_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    table = torch.arange(6.0).view(3, 2)
    save_file({"wte.weight": table.bfloat16(), "wpe.weight": table, "head.bias": table[0].clone()}, path)
    assert measure.read_table(path, "wte.weight").tolist() == table.tolist()
    with strategies.refuses(ValueError, "has no tensor", "wpe.weight, wte.weight, head.bias"):
        measure.read_table(path, "wqe.weight")
    with strategies.refuses(ValueError, "two dimensions", ""):
        measure.read_table(path, "head.bias")
    for name in ("model.bin", "none.safetensors"):
        with strategies.refuses(ValueError, "must be a file in safetensors", "save_pretrained"):
            measure.read_table(tmp_path / name, "wte.weight")
    path.write_bytes(path.read_bytes()[:40])
    with strategies.refuses(ValueError, "cannot be read", "Restore it."):
        measure.read_table(path, "wte.weight")
