"""Sparse matmuls against dense ones: block-sparse times dense (DSD), and under a causal mask.

    python -m benchmarks.matmul
    python -m benchmarks.matmul --size=1024 --block=256 --density=0.05

On a TPU the defaults are those of the Pallas tutorial on block sparsity: 16384, blocks of 512,
bfloat16, 10% of the blocks. Elsewhere the kernels run in Pallas's interpreter, on a small size:
that checks their numbers, and their times mean nothing. The exit status is 1 where a result is
wrong.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

import blockattn
import masks
from benchmarks import _flags, _measure

_SIZE = flags.DEFINE_integer(
  "size",
  None,
  "Rows and columns of all matrices; by default 16384 on TPU, 1024 elsewhere.",
  lower_bound=1,
)
_BLOCK = flags.DEFINE_integer(
  "block", None, "Rows and columns of a block; by default 512 on TPU, 128 elsewhere.", lower_bound=1
)
_DENSITY = flags.DEFINE_float(
  "density",
  0.1,
  "Probability that a block of the sparse matrix is stored.",
  lower_bound=0,
  upper_bound=1,
)

flags.adopt_module_key_flags(_flags)  # so that --help lists them

_DENSE = "dense matmul"

# Rows and columns of the product that are checked: eight of each block of the tutorial's size.
_CHECKED = 256


def main(argv: list[str]) -> int:
  """Runs both benchmarks; returns the exit status."""
  del argv
  on_tpu = jax.default_backend() == "tpu"
  size = _SIZE.value or (16384 if on_tpu else 1024)
  block = _BLOCK.value or (512 if on_tpu else 128)
  notes = [f"{size}x{size} matrices, blocks of {block}x{block}"]
  if not on_tpu:
    notes.append("INTERPRETED: there is no TPU here, so the times below say nothing about the kernels on one")
  dtype = _flags.dtype_for(jax.default_backend())
  status = 0
  for compare in (_dsd, _masked):
    comparison, note = compare(size, block, dtype)
    status |= comparison.run([*notes, note], num_runs=_flags.NUM_RUNS.value, json_path=_flags.JSON.value)
  return status


def _dsd(size: int, block: int, dtype: jnp.dtype) -> tuple[_measure.Comparison, str]:
  a = blockattn.BlockCOO.random(jax.random.key(0), (size, size), (block, block), _DENSITY.value, dtype)
  b = jax.random.uniform(jax.random.key(1), (size, size), dtype)
  dense = a.to_dense()
  num_blocks = int(np.asarray(a.num_blocks))
  comparison = _measure.Comparison(
    title="dsd_matmul",
    candidates={
      "dsd_matmul": functools.partial(jax.jit(blockattn.dsd_matmul), a, b),
      _DENSE: functools.partial(_dense_matmul, dense, b),
    },
    baseline=_DENSE,
    error_of=_error_in_sample(dense, b, None),
    dtype=dtype,
    flops=2 * num_blocks * block**2 * size,
    details={"size": size, "block": block, "dtype": dtype.name, "num_blocks": num_blocks},
  )
  return comparison, f"{num_blocks} of {math.prod(a.grid_shape)} blocks stored"


def _masked(size: int, block: int, dtype: jnp.dtype) -> tuple[_measure.Comparison, str]:
  x = jax.random.normal(jax.random.key(0), (size, size), dtype)
  y = jax.random.normal(jax.random.key(1), (size, size), dtype)
  block_mask = masks.causal().block_mask(size, size, block, block)
  stats = block_mask.stats()
  allowed = jnp.tri(size, dtype=bool)
  sparse = jax.jit(functools.partial(blockattn.masked_matmul, mask=block_mask))
  comparison = _measure.Comparison(
    title="masked_matmul",
    candidates={
      "masked_matmul": functools.partial(sparse, x, y),
      _DENSE: functools.partial(_dense_matmul, x, y, allowed),
    },
    baseline=_DENSE,
    error_of=_error_in_sample(x, y, allowed),
    dtype=dtype,
    flops=2 * stats.num_active * block**2 * size,
    details={"size": size, "block": block, "dtype": dtype.name, "num_active": stats.num_active},
  )
  return comparison, f"causal mask: {stats}"


@jax.jit
def _dense_matmul(x: jax.Array, y: jax.Array, allowed: jax.Array | None = None) -> jax.Array:
  # float32 matmuls on a TPU round their operands to bfloat16 unless told not to.
  precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
  product = jnp.dot(x, y, precision=precision)
  return product if allowed is None else jnp.where(allowed, product, 0)


def _error_in_sample(x: jax.Array, y: jax.Array, allowed: jax.Array | None) -> Callable[[jax.Array], float]:
  """Measures products [M, N] against float64, in rows and columns that are spread evenly."""
  rows, cols = (np.linspace(0, n - 1, min(n, _CHECKED)).astype(int) for n in (len(x), y.shape[1]))
  reference = np.asarray(x[rows]).astype(np.float64) @ np.asarray(y[:, cols]).astype(np.float64)
  if allowed is not None:
    reference = np.where(allowed[rows][:, cols], reference, 0)

  def error_of(product: jax.Array) -> float:
    return _measure.relative_rms(np.asarray(product[rows][:, cols]), reference)

  return error_of


if __name__ == "__main__":
  _flags.run(main)
