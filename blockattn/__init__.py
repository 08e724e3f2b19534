"""Block-sparse attention for JAX: Pallas kernels on TPU and XLA elsewhere, which skip the tiles a mask leaves empty.

Masks come from the package `masks`; `block_sparse_attention` is the call, `explain` says what it would do.
"""

from importlib.metadata import version as _version

from blockattn._api import block_sparse_attention
from blockattn._attention_weights import attention_weights
from blockattn._block_matmul import dsd_matmul, masked_matmul, sdd_matmul
from blockattn._block_sizes import BlockSizes
from blockattn._dynamic_slice import block_dynamic_slice
from blockattn._explain import Explanation, explain
from blockattn.block_coo import BlockCOO

__version__ = _version("blockattn")

__all__ = [
  "BlockCOO",
  "BlockSizes",
  "Explanation",
  "attention_weights",
  "block_dynamic_slice",
  "block_sparse_attention",
  "dsd_matmul",
  "explain",
  "masked_matmul",
  "sdd_matmul",
]
