import pytest
from absl import flags
from absl.testing import flagsaver

from benchmarks import matmul

SMALL = ("--size=256", "--block=128", "--num_runs=1")


@pytest.mark.parametrize(("dtype", "density"), [("float32", "0.5"), ("bfloat16", "0")])
def test_sparse_matmuls_are_right_and_say_that_they_are_interpreted(capsys, dtype, density):
  flags.FLAGS(["matmul", *SMALL])
  with flagsaver.as_parsed(dtype=dtype, density=density):
    assert matmul.main(["matmul"]) == 0
  out = capsys.readouterr().out
  assert out.count("INTERPRETED") == 2
  assert "of 4 blocks stored" in out
  assert "3 of 4 tiles active" in out
