import json

import pytest

from posenc.study import callbacks

RESULT = {"encoding": "rope", "task": "text", "size": "64x2x4", "seed": 0, "bits_by_length": {"8": 2.5, "16": 2.75}}


@pytest.fixture
def cell(tmp_path):
    made = tmp_path / "s/cells/rope-text-64x2x4-s0"
    made.mkdir(parents=True)
    lines = [json.dumps({"step": step, "bits": 3.0 - step / 100}) for step in (10, 20)]
    (made / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 30, "bi']))  # the last line is cut off
    return made


def test_a_callback_gets_result_and_metrics_and_one_that_raises_is_named(cell):
    heard, said = [], []

    def listen(*given):
        heard.append(given)

    def break_down(*given):
        raise ConnectionError("away")

    callbacks.call({"a": break_down, "b": listen}, cell, RESULT, said.append)
    assert heard == [(cell, RESULT, [{"step": 10, "bits": 2.9}, {"step": 20, "bits": 2.8}])]
    assert said == ["callback a: ConnectionError: away"]


def test_a_function_of_ones_own_is_found_and_others_are_refused():
    assert callbacks.find("json:dumps") is json.dumps
    for name in ("no.such:function", "json:no_such", "jsonn", ""):
        with pytest.raises(ValueError, match="Known: tensorboard, mlflow, wandb, or package.module:function"):
            callbacks.find(name)


def test_tensorboard_reads_back_what_was_written(cell):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    callbacks.call({"tensorboard": callbacks.find("tensorboard")}, cell, RESULT, pytest.fail)
    read = EventAccumulator(str(cell.parents[1] / "tensorboard" / cell.name)).Reload()
    assert [(e.step, round(e.value, 3)) for e in read.Scalars("train/bits")] == [(10, 2.9), (20, 2.8)]
    assert [(e.step, e.value) for e in read.Scalars("test/bits_by_length")] == [(8, 2.5), (16, 2.75)]


def test_mlflow_reads_back_what_was_written(cell, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    callbacks.call({"mlflow": callbacks.find("mlflow")}, cell, RESULT, pytest.fail)
    (run,) = mlflow.search_runs(output_format="list")
    assert (run.data.params["encoding"], run.info.run_name) == ("rope", cell.name)
    assert run.data.metrics == {"train_bits": 2.8, "bits_by_length": 2.75}


def test_wandb_writes_without_a_network(cell, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    callbacks.call({"wandb": callbacks.find("wandb")}, cell, RESULT, pytest.fail)
    assert list(cell.parents[1].glob("wandb/offline-run-*/run-*.wandb"))
