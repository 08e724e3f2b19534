"""Block-sparse attention against dense softmax, over real packed documents.

    python -m benchmarks.attention
    python -m benchmarks.attention --mask="causal() & sliding_window(256)" --seq_len=8192

Packs the running Python's own standard-library sources, as byte tokens, into a batch, projects them
with fixed seeds to queries, keys and values, and runs `block_sparse_attention` and a dense softmax
on them. Both are checked against float64 before they are timed; the exit status is 1 where either
is wrong.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags

import blockattn
import masks
from benchmarks import _attention_case, _corpus, _flags, _mask_expression, _measure

_MASK = _flags.define_mask("causal() & document()")
_SEQ_LEN = flags.DEFINE_integer("seq_len", 4096, "Tokens per row of the batch.", lower_bound=1)
_BATCH = flags.DEFINE_integer("batch", 1, "Rows of the batch.", lower_bound=1)
_NUM_HEADS = flags.DEFINE_integer("num_heads", 8, "Query heads.", lower_bound=1)
_NUM_KV_HEADS = flags.DEFINE_integer("num_kv_heads", 4, "Key and value heads.", lower_bound=1)
_HEAD_DIM = flags.DEFINE_integer("head_dim", 64, "Width of a head.", lower_bound=1)
_MAX_DOCUMENT_LEN = flags.DEFINE_integer(
  "max_document_len",
  None,
  "Longer documents are left out; by default those over half a row, so that rows hold several.",
  lower_bound=1,
)
_IMPLEMENTATION = flags.DEFINE_string(
  "implementation", None, "As in `block_sparse_attention`; by default what suits the device."
)
_BLOCK_Q = flags.DEFINE_integer(
  "block_q", None, "Queries per tile; by default the package chooses.", lower_bound=1
)
_BLOCK_KV = flags.DEFINE_integer(
  "block_kv", None, "Keys per tile; by default the package chooses.", lower_bound=1
)
_MAX_DENSE_GIB = flags.DEFINE_float(
  "max_dense_gib", 4.0, "Dense softmax is left out where its scores alone need more.", lower_bound=0
)

flags.adopt_module_key_flags(_flags)  # so that --help lists them

_DENSE = "dense softmax"


def main(argv: list[str]) -> int:
  """Runs the benchmark; returns the exit status."""
  del argv
  seq_len = _SEQ_LEN.value
  corpus = _corpus.pack_standard_library(
    _BATCH.value, seq_len, max_document_len=_MAX_DOCUMENT_LEN.value or max(seq_len // 2, 1)
  )
  dtype = _flags.dtype_for(jax.default_backend())
  heads = (_NUM_HEADS.value, _NUM_KV_HEADS.value, _HEAD_DIM.value)
  q, k, v = _attention_case.project_tokens(corpus.tokens, *heads, dtype)
  options = {
    "block_sizes": blockattn.BlockSizes(block_q=_BLOCK_Q.value, block_kv=_BLOCK_KV.value),
    "implementation": _IMPLEMENTATION.value,
  }
  try:
    mask = _mask_expression.parse(_MASK.value, {"document": corpus.segment_ids})
    plan = blockattn.explain(q, k, v, mask, **options)
  except (ValueError, TypeError, NotImplementedError) as error:
    sys.exit(f"Can't run with these flags: {error}")

  oracle = _attention_case.float64_oracle(q, k, v, mask)
  notes = [f"corpus: {corpus}", f"mask: {mask}", str(plan)]
  if plan.interpreted:
    notes.append("INTERPRETED: the time below says nothing about the kernel on a TPU")
  if len(oracle.rows) < seq_len:
    notes.append(f"errors: of {len(oracle.rows):,} of {seq_len:,} rows, evenly spread")
  sparse = jax.jit(functools.partial(blockattn.block_sparse_attention, mask=mask, **options))
  candidates = {
    f"block_sparse_attention ({plan.implementation})": functools.partial(sparse, q, k, v),
    **_dense(q, k, v, mask, notes),
  }
  comparison = _measure.Comparison(
    title="attention",
    candidates=candidates,
    baseline=_DENSE if _DENSE in candidates else None,
    error_of=oracle.relative_rms,
    dtype=dtype,
    flops=plan.dense_flops * plan.stats.num_active / max(plan.stats.num_tiles, 1),
    details=_settings(dtype) | dataclasses.asdict(plan.stats) | dataclasses.asdict(plan.block_sizes),
  )
  return comparison.run(notes, num_runs=_flags.NUM_RUNS.value, json_path=_flags.JSON.value)


def _dense(q, k, v, mask: masks.Mask, notes: list[str]) -> dict[str, Callable[[], jax.Array]]:
  """The dense softmax as a candidate, or none and a note where it would need too much memory."""
  gib = _attention_case.dense_scores_bytes(q) / 2**30
  if gib > _MAX_DENSE_GIB.value:
    notes.append(f"{_DENSE} left out: its scores need {gib:,.1f} GiB, over --max_dense_gib")
    return {}
  allowed = _attention_case.dense_mask(mask, q.shape[1])
  return {_DENSE: functools.partial(_attention_case.dense_softmax, q, k, v, allowed)}


def _settings(dtype: jnp.dtype) -> dict[str, Any]:
  holders = (_MASK, _BATCH, _SEQ_LEN, _NUM_HEADS, _NUM_KV_HEADS, _HEAD_DIM)
  return {"dtype": dtype.name, **{holder.name: holder.value for holder in holders}}


if __name__ == "__main__":
  _flags.run(main)
