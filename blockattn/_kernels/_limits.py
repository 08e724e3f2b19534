"""What a TPU core holds, and how kernels fit into it."""

from __future__ import annotations

import jax.numpy as jnp

# 1 MiB on every generation, of which the compiled program takes up to 5 KiB (measured on v4 to v7x).
SMEM_BYTES = (1024 - 16) * 1024

# VMEM is 16 MiB on v4, and elsewhere a kernel gets 16 MiB (v5e, v5p) to 64 MiB unless it asks for more. The rest of the
# 16 is for what the compiler spills.
VMEM_BYTES = 14 * 2**20

LANES = 128
SUBLANES = 8


def round_up(n: int, multiple: int) -> int:
  """The smallest multiple of `multiple` that is at least `n`."""
  return -(-n // multiple) * multiple


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


def pack(rows, cols):
  """Two lists of 16-bit integers as one of int32, which halves what they take of SMEM."""
  return (rows.astype(jnp.int32) << 16) | cols.astype(jnp.int32)


def vmem_limit(num_bytes: int) -> int | None:
  """The `vmem_limit_bytes` of a kernel that takes `num_bytes`: None, the default, where that is enough."""
  return None if num_bytes <= VMEM_BYTES else num_bytes + num_bytes // 4
