"""Checkpoints on disk: converted whole or not at all, and read without trusting them."""

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

pytest.importorskip("transformers")

from interop.models import OWN, apart, build, configuration, read, weights
from posenc.interop import checkpoint, conversion, convert_checkpoint, convert_pairing

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return directories that transformers wrote: a llama in one file, one in shards, and a DeepSeek-V3."""
    root = tmp_path_factory.mktemp("saved")
    llama = build(configuration("llama", attention_bias=True))
    llama.save_pretrained(root / "whole")
    llama.bfloat16().save_pretrained(root / "shards", max_shard_size="8KB")
    build(configuration("deepseek_v3", head_dim=OWN, num_key_value_heads=4)).save_pretrained(root / "deepseek")
    for directory in root.iterdir():
        (directory / "tokenizer.json").write_text('{"a": 1}')
        (directory / "tokenizer.model").write_bytes(bytes(range(256)))
    return root


@pytest.fixture
def model(saved, tmp_path):
    """Return a copy of the llama in shards, to spoil."""
    return Path(shutil.copytree(saved / "shards", tmp_path / "model"))


def tensors(directory):
    return {
        name: tensor for path in sorted(directory.glob("*.safetensors")) for name, tensor in load_file(path).items()
    }


def pairings(directory):
    said = []
    for path in directory.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            said.append(file.metadata().get("posenc_pairing"))
    return said


def assert_same_bits(a, b):
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert tensor.dtype == b[name].dtype
        assert torch.equal(*(one.reshape(-1).view(torch.uint8) for one in (tensor, b[name])))


@pytest.mark.parametrize("name", ["whole", "shards"])
def test_there_and_back_bit_for_bit(saved, tmp_path, name):
    source = saved / name
    done = convert_checkpoint(source, tmp_path / "there", "interleaved")
    before, there = tensors(source), tensors(tmp_path / "there")
    assert_same_bits(there, convert_pairing(before, source, "interleaved"))
    assert len(done.plan.turns) == 12
    assert done.n_tensors == len(before)
    assert len(list(source.glob("*.safetensors"))) == {"whole": 1, "shards": len(pairings(source))}[name]
    assert set(pairings(tmp_path / "there")) == {"interleaved"}
    convert_checkpoint(tmp_path / "there", tmp_path / "back", "half")
    assert_same_bits(tensors(tmp_path / "back"), before)
    assert sorted(p.name for p in (tmp_path / "back").iterdir()) == sorted(p.name for p in source.iterdir())
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes()


def test_shards_are_several_and_keep_their_metadata(saved, tmp_path):
    convert_checkpoint(saved / "shards", tmp_path / "out", "interleaved")
    assert len(pairings(tmp_path / "out")) > 3
    with safe_open(next((tmp_path / "out").glob("*.safetensors")), framework="pt") as file:
        assert file.metadata() == {"format": "pt", "posenc_pairing": "interleaved"}


def test_transformers_loads_and_runs_a_converted_deepseek_v3(saved, tmp_path):
    import transformers

    done = convert_checkpoint(saved / "deepseek", tmp_path / "out", "half")
    assert done.flag is False
    assert json.loads((tmp_path / "out/config.json").read_text())["rope_interleave"] is False
    first, second = (
        transformers.AutoModelForCausalLM.from_pretrained(d) for d in (saved / "deepseek", tmp_path / "out")
    )
    assert apart(read(second), read(first)) < 1e-5
    assert not torch.equal(
        second.model.layers[0].self_attn.q_b_proj.weight, first.model.layers[0].self_attn.q_b_proj.weight
    )
    again = convert_checkpoint(tmp_path / "out", tmp_path / "back", "interleaved")
    assert again.flag is True
    assert_same_bits(tensors(tmp_path / "back"), tensors(saved / "deepseek"))


def test_the_key_is_written_where_the_text_is(saved, tmp_path):
    inner = json.loads((saved / "deepseek/config.json").read_text())
    outer = {"model_type": "kimi_k25", "vision_config": {"x": 1}, "text_config": inner, "rms": 1e-05}
    source = Path(shutil.copytree(saved / "deepseek", tmp_path / "model"))
    (source / "config.json").write_text(json.dumps(outer))
    save_file({f"language_model.{name}": t for name, t in tensors(source).items()}, source / "model.safetensors")
    convert_checkpoint(source, tmp_path / "out", "half")
    found = json.loads((tmp_path / "out/config.json").read_text())
    assert found == outer | {"text_config": inner | {"rope_interleave": False}}


def test_a_second_conversion_to_the_same_is_refused(saved, tmp_path):
    convert_checkpoint(saved / "whole", tmp_path / "out", "interleaved")
    with pytest.raises(ValueError, match="these weights are interleaved already, according to their metadata"):
        convert_checkpoint(tmp_path / "out", tmp_path / "twice", "interleaved")
    with pytest.raises(ValueError, match="the weights' metadata has interleaved, but of=half differs"):
        convert_checkpoint(tmp_path / "out", tmp_path / "twice", "half", of="half")
    assert not (tmp_path / "twice").exists()
    convert_checkpoint(saved / "deepseek", tmp_path / "deepseek", "half")
    shutil.copy(saved / "deepseek/config.json", tmp_path / "deepseek/config.json")
    with pytest.raises(ValueError, match="metadata has half, but config.json, with rope_interleave True differs"):
        convert_checkpoint(tmp_path / "deepseek", tmp_path / "twice", "interleaved")


def test_files_that_disagree_on_the_pairing_are_refused(model, tmp_path):
    path = next(model.glob("*.safetensors"))
    save_file(load_file(path), path, {"posenc_pairing": "interleaved"})
    with pytest.raises(ValueError, match="metadata of all files must agree on posenc_pairing"):
        convert_checkpoint(model, tmp_path / "out", "interleaved")


def test_dtypes_of_other_tensors_pass_and_nothing_is_rounded(saved, tmp_path):
    source = Path(shutil.copytree(saved / "whole", tmp_path / "model"))
    found = tensors(source)
    found["model.layers.0.mlp.experts.blocks"] = torch.arange(96, dtype=torch.uint8).view(torch.float8_e4m3fn)
    found["model.layers.0.mlp.empty"] = torch.zeros(0, 4)
    found["model.layers.0.mlp.one"] = torch.tensor(7, dtype=torch.int64)
    found["model.layers.0.self_attn.q_proj.weight"].view(torch.int32)[0, 0] = 0x7F800001  # a signalling NaN
    save_file(found, source / "model.safetensors")
    convert_checkpoint(source, tmp_path / "out", "interleaved")
    convert_checkpoint(tmp_path / "out", tmp_path / "back", "half")
    assert_same_bits(tensors(tmp_path / "back"), found)


def test_factors_alone_take_the_configuration_of_their_model(saved, tmp_path):
    source = tmp_path / "adapter"
    source.mkdir()
    (source / "adapter_config.json").write_text("{}")
    stem = "base_model.model.model.layers.0.self_attn.q_proj"
    factors = {f"{stem}.lora_A.weight": torch.randn(2, 32), f"{stem}.lora_B.weight": torch.randn(64, 2)}
    save_file(factors, source / "adapter_model.safetensors")
    with pytest.raises(ValueError, match="there is no config.json in .*For LoRA factors"):
        convert_checkpoint(source, tmp_path / "out", "interleaved")
    convert_checkpoint(source, tmp_path / "out", "interleaved", source=saved / "whole")
    assert_same_bits(tensors(tmp_path / "out"), convert_pairing(factors, saved / "whole", "interleaved"))


def test_pickles_and_other_formats_stay_behind(model, tmp_path):
    for name in ("pytorch_model.bin", "training_args.bin", "model.gguf", "x.pt", ".hidden", "a.pickle"):
        (model / name).write_bytes(b"\x80\x04.")
    (model / "onnx").mkdir()
    (model / "pytorch_model.bin.index.json").write_text("{}")
    done = convert_checkpoint(model, tmp_path / "out", "interleaved")
    kept = {path.name for path in (tmp_path / "out").iterdir()}
    assert {path.name for path in model.iterdir()} - kept == set(done.left_out)
    assert len(done.left_out) == 8
    for path in model.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(ValueError, match=r"weights must be in safetensors; got '\w+.\w+', which may be pickled code"):
        convert_checkpoint(model, tmp_path / "none", "interleaved")


def test_links_are_not_followed_out_of_the_directory(model, tmp_path):
    shard = next(model.glob("*.safetensors"))
    (model / "inner.txt").symlink_to("tokenizer.json")
    elsewhere = tmp_path / "elsewhere"
    shard.rename(elsewhere)
    shard.symlink_to(elsewhere)
    with pytest.raises(ValueError, match=f"{shard.name}' is a link that leads out of its directory"):
        convert_checkpoint(model, tmp_path / "out", "interleaved")
    shard.unlink()
    elsewhere.rename(shard)
    convert_checkpoint(model, tmp_path / "out", "interleaved")
    assert not (tmp_path / "out/inner.txt").is_symlink()
    (model / "secret.txt").symlink_to("/etc/hostname")
    with pytest.raises(ValueError, match="'secret.txt' is a link that leads out"):
        convert_checkpoint(model, tmp_path / "more", "interleaved")


def spoil_index(model, **changes):
    path = model / INDEX
    found = json.loads(path.read_text())
    first, second = list(found["weight_map"])[:2]
    if "shard" in changes:
        found["weight_map"][first] = changes["shard"]
    if "extra" in changes:
        found["weight_map"]["model.extra"] = found["weight_map"][first]
    if "less" in changes:
        del found["weight_map"][second]
    path.write_text(changes.get("text", json.dumps(found)))


SPOILT = {
    "a path": (lambda m: spoil_index(m, shard="../elsewhere.safetensors"), "may only name .* in its own directory"),
    "an absolute path": (lambda m: spoil_index(m, shard="/etc/x.safetensors"), "may only name"),
    "a hidden file": (lambda m: spoil_index(m, shard=".x.safetensors"), "may only name"),
    "a pickle": (lambda m: spoil_index(m, shard="model.bin"), "may only name"),
    "a number": (lambda m: spoil_index(m, shard=3), "may only name"),
    "another file": (lambda m: spoil_index(m, shard="x.safetensors"), "'x.safetensors' does not exist"),
    "a tensor too many": (lambda m: spoil_index(m, extra=True), "the index lists 'model.extra', but no file has it"),
    "a tensor too few": (lambda m: spoil_index(m, less=True), "the index does not list"),
    "a key twice": (lambda m: spoil_index(m, text='{"weight_map": {}, "weight_map": {}}'), "it has a duplicate key"),
    "no map": (lambda m: spoil_index(m, text='{"weight_map": []}'), "has no weight_map"),
    "a list": (lambda m: spoil_index(m, text="[]"), "must hold a JSON object; got list"),
    "no JSON": (lambda m: spoil_index(m, text="{"), "is not valid JSON"),
    "too deep": (lambda m: spoil_index(m, text="[" * 100_000), "is not valid JSON"),
    "two indices": (lambda m: (m / "b.safetensors.index.json").write_text("{}"), "must have one set of weights"),
    "one file too": (lambda m: (m / "model.safetensors").write_bytes(b""), "must have one set of weights"),
    "no index": (lambda m: (m / INDEX).unlink(), "the directory must have one set of weights.* add the index"),
    "a file cut short": (lambda m: os.truncate(next(m.glob("*2-of*.safetensors")), 500), "is damaged or no"),
    "no tensors at all": (lambda m: next(m.glob("*2-of*.safetensors")).write_bytes(b"junk"), "is damaged or not a"),
    "a header too long": (
        lambda m: next(m.glob("*2-of*.safetensors")).write_bytes(struct.pack("<Q", 1 << 60) + b"{}"), "is damaged"
    ),
    "a configuration twice": (lambda m: (m / "config.json").write_text('{"a": 1, "a": 2}'), "has the key 'a' twice"),
    "no configuration": (lambda m: (m / "config.json").unlink(), "there is no config.json"),
}  # fmt: skip


@pytest.mark.parametrize("case", SPOILT)
def test_bad_input_loses_nothing(model, tmp_path, case):
    spoil, said = SPOILT[case]
    spoil(model)
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    with pytest.raises(ValueError, match=said) as caught:
        convert_checkpoint(model, tmp_path / "out", "interleaved")
    assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_long_index_is_not_read(model, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "MAX_INDEX", 100)
    with pytest.raises(ValueError, match="must be at most 100 bytes; got more"):
        convert_checkpoint(model, tmp_path / "out", "interleaved")


def test_a_place_that_is_taken_stays_as_it_is(model, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "none").mkdir()
    (tmp_path / "second").symlink_to(tmp_path / "none")
    for out in (tmp_path / "file", tmp_path / "full", tmp_path / "link", tmp_path / "second", model):
        with pytest.raises(ValueError, match="exists and is not an empty directory; nothing was changed"):
            convert_checkpoint(model, out, "interleaved")
    assert (tmp_path / "full/x").read_text() == (tmp_path / "file").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    convert_checkpoint(model, tmp_path / "empty", "interleaved")
    convert_checkpoint(model, tmp_path / "deep/er/out", "interleaved")
    assert (tmp_path / "deep/er/out/config.json").exists()
    assert (tmp_path / "empty").stat().st_mode & 0o777 == (tmp_path / "full").stat().st_mode & 0o777


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), MemoryError()])
def test_a_failure_half_way_leaves_nothing(model, tmp_path, monkeypatch, error):
    done = []

    def fail(shard, out, *rest):
        if done:
            raise error
        done.append(write(shard, out, *rest))

    write = conversion.write_shard
    monkeypatch.setattr(conversion, "write_shard", fail)
    kind = ValueError if isinstance(error, OSError) else type(error)
    with pytest.raises(kind, match="No space left on device" if kind is ValueError else None):
        convert_checkpoint(model, tmp_path / "out", "interleaved")
    assert done
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_too_little_space_is_told_before_anything_is_written(model, tmp_path, monkeypatch):
    monkeypatch.setattr(conversion.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(ValueError, match="needs [0-9,]+ bytes, but 10 are free"):
        convert_checkpoint(model, tmp_path / "out", "interleaved")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_kill_half_way_leaves_nothing_that_looks_finished(model, tmp_path):
    code = f"""
import os, signal
from posenc.interop import conversion
write, done = conversion.write_shard, []
def kill(*given):
    if done: os.kill(os.getpid(), signal.SIGKILL)
    done.append(write(*given))
conversion.write_shard = kill
conversion.convert_checkpoint({str(model)!r}, {str(tmp_path / "out")!r}, "interleaved")
"""
    ended = subprocess.run([sys.executable, "-c", code], timeout=120)
    assert ended.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    (rest,) = (path for path in tmp_path.iterdir() if path != model)
    assert rest.name.startswith(".out-")
    assert rest.suffix == ".partial"
    assert not (rest / "config.json").exists()
    convert_checkpoint(model, tmp_path / "out", "interleaved")
    assert len(pairings(tmp_path / "out")) == len(pairings(model))


def test_the_weights_of_the_model_are_those_of_the_file(saved):
    # guards the fixture: had save_pretrained renamed tensors, nothing above would speak of transformers' own files
    assert tensors(saved / "whole").keys() == weights(build(configuration("llama", attention_bias=True))).keys()
