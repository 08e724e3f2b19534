"""What a new user tries first, and what they are told."""

import jax.numpy as jnp
import numpy as np
import pytest

import masks
from tests.support import block_sparse_attention

CAUSAL = masks.causal()
Q_ARRAY = jnp.ones((1, 16, 4, 8))
KV_ARRAY = jnp.ones((1, 16, 2, 8))
_TWELVE = np.tri(12, dtype=bool)

FIRST_TRIES = {
  "axes in the order of PyTorch": (
    ValueError,
    r"Document ids fit only their own lengths \(queries, keys\) = \(16, 16\), got \(4, 4\)",
    lambda: block_sparse_attention(
      *[x.swapaxes(1, 2) for x in (Q_ARRAY, Q_ARRAY, Q_ARRAY)], masks.document([0] * 16)
    ),
  ),
  "a boolean array as mask": (
    TypeError,
    r"`mask` must be a masks.Mask or masks.BlockMask, got ndarray. Use masks.from_array\(mask\)",
    lambda: block_sparse_attention(Q_ARRAY, KV_ARRAY, KV_ARRAY, np.tri(16, dtype=bool)),
  ),
  "an additive mask": (
    TypeError,
    "For an additive mask pass array == 0",
    lambda: block_sparse_attention(
      Q_ARRAY, KV_ARRAY, KV_ARRAY, masks.from_array(np.zeros((16, 16), np.float32))
    ),
  ),
  "lists": (
    TypeError,
    "`q` must be an array, got list. Convert it with jnp.asarray",
    lambda: block_sparse_attention(Q_ARRAY.tolist(), KV_ARRAY, KV_ARRAY, CAUSAL),
  ),
  "NumPy's float64": (
    TypeError,
    "must be float32, bfloat16 or float16, got float64. Cast them, for example to float32",
    lambda: block_sparse_attention(*[np.ones((1, 16, 4, 8))] * 3, CAUSAL),
  ),
  "integers": (
    TypeError,
    "must be float32, bfloat16 or float16, got int32",
    lambda: block_sparse_attention(*[jnp.ones((1, 16, 4, 8), jnp.int32)] * 3, CAUSAL),
  ),
  "a mask of another length": (
    ValueError,
    r"An array mask fits only its own lengths .* = \(12, 12\), got \(16, 16\)",
    lambda: block_sparse_attention(Q_ARRAY, KV_ARRAY, KV_ARRAY, masks.from_array(_TWELVE)),
  ),
  "a block mask of another length": (
    ValueError,
    r"A BlockMask fits only its own lengths .* or pass the mask itself",
    lambda: block_sparse_attention(Q_ARRAY, KV_ARRAY, KV_ARRAY, CAUSAL.block_mask(12, 12, 4, 4)),
  ),
  "the name of an implementation of jax.nn": (
    ValueError,
    "`implementation` must be one of 'pallas_tpu', 'xla', 'reference' or None, got 'cudnn'",
    lambda: block_sparse_attention(Q_ARRAY, KV_ARRAY, KV_ARRAY, CAUSAL, implementation="cudnn"),
  ),
  "a pair of block sizes": (
    TypeError,
    r"`block_sizes` must be a BlockSizes or None, got tuple. Use BlockSizes\(block_q=",
    lambda: block_sparse_attention(Q_ARRAY, KV_ARRAY, KV_ARRAY, CAUSAL, block_sizes=(128, 128)),
  ),
  "an array as scale": (
    TypeError,
    "`scale` must be a Python number or None, got ArrayImpl. It is compiled into the kernel",
    lambda: block_sparse_attention(Q_ARRAY, KV_ARRAY, KV_ARRAY, CAUSAL, scale=jnp.float32(0.1)),
  ),
  "heads that do not divide": (
    ValueError,
    "got 4 query heads and 3 key/value heads",
    lambda: block_sparse_attention(Q_ARRAY, *[jnp.ones((1, 16, 3, 8))] * 2, CAUSAL),
  ),
  "and instead of &": (
    TypeError,
    "A mask has no truth value, .* Combine masks with &",
    lambda: block_sparse_attention(Q_ARRAY, KV_ARRAY, KV_ARRAY, CAUSAL and masks.prefix(2)),
  ),
}


@pytest.mark.parametrize("name", FIRST_TRIES)
def test_first_tries_of_a_new_user(name):
  error, message, call = FIRST_TRIES[name]
  with pytest.raises(error, match=message):
    call()
