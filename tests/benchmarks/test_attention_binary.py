import json
import os
import pathlib
import subprocess
import sys

import jax
import pytest
from absl import flags
from absl.testing import flagsaver

from benchmarks import _measure, attention

ROOT = pathlib.Path(attention.__file__).parents[1]
SMALL = ("--seq_len=256", "--num_heads=2", "--num_kv_heads=1", "--head_dim=8", "--num_runs=1")


def run(*args):
  # Without what conftest.py set for this process: the binary has to keep quiet by itself.
  environ = {k: v for k, v in os.environ.items() if not k.startswith(("TPU_", "JAX_", "TF_"))}
  command = [sys.executable, "-m", "benchmarks.attention", *args]
  return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


def test_default_mask_over_packed_documents(tmp_path):
  path = tmp_path / "results.jsonl"
  done = run(*SMALL, "--block_q=128", "--block_kv=128", f"--json={path}")
  assert (done.returncode, done.stderr) == (0, "")
  for text in (
    "mask: causal() & document(",
    "3 of 4 tiles active",
    "relative RMS error",
    "dense softmax",
  ):
    assert text in done.stdout
  sparse, dense = (json.loads(line) for line in path.read_text().splitlines())
  assert sparse["error"] < 5e-6
  assert sparse["flops"] == 4 * 8 * 2 * 3 * 128 * 128
  assert sparse["jax"] == jax.__version__
  assert dense["speedup"] == 1.0


def test_json_on_stdout_is_alone_there():
  done = run(
    *SMALL,
    "--mask=sliding_window(32)",
    "--implementation=reference",
    "--max_dense_gib=0",
    "--json=-",
  )
  assert done.returncode == 0
  (record,) = map(json.loads, done.stdout.splitlines())
  assert record["mask"] == "sliding_window(32)"
  assert record["speedup"] is None
  assert "dense softmax left out" in done.stderr


def test_flag_that_is_no_mask_ends_with_a_message_and_no_traceback():
  done = run(*SMALL, "--mask=eval('1')")
  assert done.returncode == 1
  assert "flag --mask=eval('1'): A mask expression must name builders of `masks`, got 'eval'" in done.stderr
  assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
  ("values", "message"),
  [
    ({"mask": "prefix(-1)"}, "Can't run with these flags: `n` must be at least 0, got -1"),
    ({"num_heads": "4", "num_kv_heads": "3"}, "Can't run with these flags: .*4.*3"),
    ({"implementation": "cuda"}, "Can't run with these flags: .*cuda"),
  ],
)
def test_settings_that_the_package_refuses_end_with_its_message(values, message):
  flags.FLAGS(["attention", *SMALL])
  with flagsaver.as_parsed(**values), pytest.raises(SystemExit, match=message):
    attention.main(["attention"])


def test_result_over_the_limit_is_an_error(capsys, monkeypatch):
  monkeypatch.setitem(_measure.ERROR_LIMITS, "float32", 0.0)
  flags.FLAGS(["attention", *SMALL])
  assert attention.main(["attention"]) == 1
  captured = capsys.readouterr()
  assert "WRONG: block_sparse_attention" in captured.err
  assert "must have a relative RMS error of at most 0, got" in captured.err
