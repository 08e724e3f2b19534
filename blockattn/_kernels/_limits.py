"""What a TPU core holds, and how kernels fit into it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# 1 MiB on every generation, of which the compiled program takes up to 5 KiB (measured on v4 to
# v7x).
SMEM_BYTES = (1024 - 16) * 1024

# Of the 16 MiB of VMEM that v4 has, what a kernel plans for: the rest is for spilled registers. The
# other generations have 64 to 128 MiB.
VMEM_BYTES = 13 * 2**20

LANES = 128
SUBLANES = 8


def round_up(n: int, multiple: int) -> int:
  """The smallest multiple of `multiple` that is at least `n`."""
  return -(-n // multiple) * multiple


def div(n: jax.Array, divisor: int) -> jax.Array:
  """Quotient n // divisor of a scalar n >= 0 in a kernel.

  The operator looks at the sign, for which jax 0.12 asks what chip it lowers for, and under x64 the
  divisor would be int64.
  """
  return lax.div(n, np.int32(divisor))


def rem(n: jax.Array, divisor: int) -> jax.Array:
  """Remainder n % divisor; see `div`."""
  return lax.rem(n, np.int32(divisor))


def check_smem(what: str, num_words: int, remedy: str) -> None:
  """Checks that the scalars of a kernel fit into SMEM.

  Args:
    what: What the words count, for the message.
    num_words: 32-bit words to be prefetched.
    remedy: What to do instead, a sentence.

  Raises:
    ValueError: They do not fit.
  """
  if num_words * 4 > SMEM_BYTES:
    raise ValueError(
      f"The prefetched scalars of a kernel must fit into {SMEM_BYTES} bytes of SMEM, got {what} "
      f"that need {num_words * 4} bytes. {remedy}"
    )


def check_float(name: str, dtype: Any) -> None:
  """Checks a dtype that the matrix unit multiplies.

  Raises:
    TypeError: It is neither float32 nor bfloat16.
  """
  if dtype not in (jnp.float32, jnp.bfloat16):
    raise TypeError(
      f"`{name}` must be float32 or bfloat16, got {np.dtype(dtype).name}. Convert it with astype."
    )


def check_multiple(name: str, value: int, multiple: int, whole: int) -> None:
  """Checks a block size along a dimension of `whole` elements that TPUs tile by `multiple`.

  Raises:
    ValueError: `value` is neither a multiple nor the whole dimension.
  """
  if value < 1 or (value % multiple and value != whole):
    nearest = round_up(max(value, 1), multiple)
    raise ValueError(
      f"`{name}` must be a multiple of {multiple} on TPU, or the whole dimension of {whole}, "
      f"got {name}={value}. Use {nearest}."
    )


def wide_dtype(dtype: Any) -> Any:
  """The 32-bit dtype that holds all values of `dtype`: vectors are shifted by 32-bit elements."""
  return jnp.float32 if jnp.issubdtype(dtype, jnp.floating) else jnp.int32


def pack(rows, cols):
  """Two lists of 16-bit integers as one of int32, which halves what they take of SMEM."""
  return (rows.astype(np.int32) << 16) | cols.astype(np.int32)


def unpack(word: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The (row, column) of `pack`."""
  return lax.shift_right_logical(word, np.int32(16)), word & 0xFFFF


def vmem_limit(num_bytes: int) -> int:
  """The `vmem_limit_bytes` of a kernel that plans for `num_bytes`.

  The default of v5e and v5p, 16 MiB, leaves too little for spills. v4 takes a limit above what it
  has as no limit.
  """
  return max(24 * 2**20, num_bytes + num_bytes // 4)
