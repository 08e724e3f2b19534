"""Every rejection of an attention call: the rule and the value received, before anything is traced."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import masks
from blockattn._compat import interpret_mode
from tests.support import BlockSizes, block_sparse_attention, explain


def _array(*shape, dtype=jnp.float32):
  return jax.ShapeDtypeStruct(shape, dtype)


Q, KV = _array(2, 16, 4, 8), _array(2, 16, 2, 8)
CAUSAL = masks.causal()


def _case(error, message, q=Q, k=KV, v=KV, mask=CAUSAL, **kwargs):
  return pytest.param(error, message, (q, k, v, mask), kwargs, id=message[:50])


def _all(dtype):
  return {name: _array(2, 16, 4, 8, dtype=dtype) for name in "qkv"}


ARRAYS = [
  _case(TypeError, "`q` must be an array, got list. Convert it with jnp.asarray.", q=[[1.0]]),
  _case(TypeError, "`v` must be an array, got float.", v=1.0),
  _case(
    ValueError,
    "or all without B, got q (16, 8), k (16, 8), v (16, 8). Add or remove axes so that the ranks agree.",
    **{name: _array(16, 8) for name in "qkv"},
  ),
  _case(ValueError, "got q (2, 16, 4, 8), k (16, 2, 8), v (2, 16, 2, 8)", k=_array(16, 2, 8)),
  _case(TypeError, "must be float32, bfloat16 or float16, got int32. Cast", **_all(jnp.int32)),
  _case(TypeError, "got complex64", **_all(jnp.complex64)),
  _case(TypeError, "got float8_e4m3fn", **_all(jnp.float8_e4m3fn)),
  _case(
    TypeError,
    "`q`, `k` and `v` must have the same dtype (dtypes must match), got float32, bfloat16, bfloat16.",
    k=_array(2, 16, 2, 8, dtype=jnp.bfloat16),
    v=_array(2, 16, 2, 8, dtype=jnp.bfloat16),
  ),
  _case(
    TypeError,
    "(dtypes must match), got bfloat16, float32, float32.",
    q=_array(2, 16, 4, 8, dtype=jnp.bfloat16),
  ),
  _case(
    ValueError,
    "`q` and `k` must agree in D, got 8 and 4 (q (2, 16, 4, 8), k (2, 16, 2, 4), v (2, 16, 2, 8)).",
    k=_array(2, 16, 2, 4),
  ),
  _case(ValueError, "`q` and `k` must agree in B, got 2 and 3", k=_array(3, 16, 2, 8)),
  _case(ValueError, "`q` and `v` must agree in B, got 2 and 1", v=_array(1, 16, 2, 8)),
  _case(
    ValueError,
    "`k` and `v` must agree in all but the last axis, got k (2, 16, 2, 8) and v (2, 8, 2, 8).",
    v=_array(2, 8, 2, 8),
  ),
  _case(
    ValueError,
    "got 6 query heads and 4 key/value heads.",
    q=_array(2, 16, 6, 8),
    k=_array(2, 16, 4, 8),
    v=_array(2, 16, 4, 8),
  ),
  _case(
    ValueError,
    "The number of query heads must be a multiple of the number of key/value heads, got 2 query heads "
    "and 4 key/value heads.",
    q=_array(2, 16, 2, 8),
    k=_array(2, 16, 4, 8),
    v=_array(2, 16, 4, 8),
  ),
  _case(
    ValueError,
    "got 4 query heads and 0 key/value heads.",
    k=_array(2, 16, 0, 8),
    v=_array(2, 16, 0, 8),
  ),
  _case(
    ValueError,
    "The head dimensions must be at least 1, got D=0 and Dv=8.",
    q=_array(2, 16, 4, 0),
    k=_array(2, 16, 2, 0),
  ),
  _case(ValueError, "got D=8 and Dv=0.", v=_array(2, 16, 2, 0)),
]

OPTIONS = [
  _case(TypeError, "`scale` must be a Python number or None, got str.", scale="0.1"),
  _case(TypeError, "`scale` must be a Python number or None, got bool.", scale=True),
  _case(TypeError, "`scale` must be a Python number or None, got complex.", scale=1j),
  _case(TypeError, "`logits_soft_cap` must be a Python number or None, got str.", logits_soft_cap="2"),
  _case(ValueError, "`scale` must be finite, got scale=nan.", scale=float("nan")),
  _case(ValueError, "`scale` must be finite, got scale=-inf.", scale=-np.inf),
  _case(ValueError, "`logits_soft_cap` must be finite, got logits_soft_cap=inf.", logits_soft_cap=np.inf),
  _case(
    ValueError,
    "`logits_soft_cap` must be positive, got logits_soft_cap=0. Use None for no cap.",
    logits_soft_cap=0,
  ),
  _case(ValueError, "must be positive, got logits_soft_cap=-15.0.", logits_soft_cap=-15.0),
  _case(ValueError, "`sinks` must be [N] = [4], one logit per query head, got (2,).", sinks=_array(2)),
  _case(ValueError, "`sinks` must be [N] = [4], one logit per query head, got (1, 4).", sinks=_array(1, 4)),
  _case(ValueError, "`sinks` must be [N] = [4], one logit per query head, got list.", sinks=[0.0] * 4),
  _case(TypeError, "`sinks` must be floating, got int32.", sinks=_array(4, dtype=jnp.int32)),
]

MASKS = [
  _case(TypeError, "got NoneType. Use masks.full() for no mask.", mask=None),
  _case(TypeError, "got str. Use masks.full() for no mask.", mask="causal"),
  _case(TypeError, "got function.", mask=masks.causal),
  _case(
    ValueError,
    "A BlockMask fits only its own lengths (queries, keys) = (2048, 2048), got (16, 16). Build it for",
    mask=CAUSAL.block_mask(2048, 2048, 128, 128),
  ),
  _case(ValueError, "(queries, keys) = (16, 12), got (16, 16)", mask=CAUSAL.block_mask(16, 12, 8, 8)),
  _case(
    ValueError,
    "The mask's batch must be 1 or that of q, 2, got 3. Build the mask for the batch of q.",
    mask=masks.padding([1, 2, 3]),
  ),
  _case(
    ValueError,
    "The mask's heads must be 1 or that of q, 4, got 2. Build the mask for the heads of q.",
    mask=masks.from_array(np.ones((1, 2, 16, 16), bool)),
  ),
  _case(
    ValueError,
    "The mask's batch must be 1 or that of q, 1, got 2.",
    mask=masks.padding([1, 2]),
    **{name: _array(16, 4, 8) for name in "qkv"},
  ),
]

BLOCKS = [
  _case(TypeError, "`block_sizes` must be a BlockSizes or None, got int.", block_sizes=128),
  _case(
    ValueError,
    "`block_q` must be that of the BlockMask, 4, got block_q=8. Leave it None, or build the BlockMask",
    mask=CAUSAL.block_mask(16, 16, 4, 4),
    block_sizes=BlockSizes(block_q=8),
  ),
  _case(
    ValueError,
    "`block_kv` must be that of the BlockMask, 4, got block_kv=16.",
    mask=CAUSAL.block_mask(16, 16, 4, 4),
    block_sizes=BlockSizes(block_kv=16),
  ),
  _case(
    ValueError,
    "`sub_q` must divide `block_q`, got sub_q=3 and block_q=8. Leave sub_q None.",
    block_sizes=BlockSizes(8, 8, sub_q=3),
    implementation="pallas_tpu",
  ),
  _case(
    ValueError,
    "`sub_kv` must divide `block_kv`, got sub_kv=16 and block_kv=8. Leave sub_kv None.",
    block_sizes=BlockSizes(8, 8, sub_kv=16),
    implementation="pallas_tpu",
  ),
  _case(
    ValueError,
    "must be one of 'pallas_tpu', 'xla', 'reference' or None, got 'XLA'.",
    implementation="XLA",
  ),
  _case(ValueError, "'reference' or None, got ['xla'].", implementation=["xla"]),
]


@pytest.mark.parametrize("call", [block_sparse_attention, explain])
@pytest.mark.parametrize(("error", "message", "args", "kwargs"), ARRAYS + OPTIONS + MASKS + BLOCKS)
def test_rejection_says_the_rule_and_the_value(call, error, message, args, kwargs):
  """M01 (block mask of another length), G04 (head counts) and R07 (mixed dtypes) are among them."""
  with pytest.raises(error, match=re.escape(message)):
    call(*args, **kwargs)


COMPILED = [
  _case(
    ValueError,
    "`block_q` must be a multiple of 128 on TPU, got block_q=100. Use 128, or leave it None.",
    block_sizes=BlockSizes(block_q=100),
  ),
  _case(
    ValueError,
    "`block_kv` must be a multiple of 128 on TPU, got block_kv=130. Use 256, or leave it None.",
    block_sizes=BlockSizes(block_kv=130),
  ),
  _case(
    ValueError,
    "`sub_q` must be a multiple of 128 on TPU, got sub_q=64. Use 128, or leave it None.",
    block_sizes=BlockSizes(128, 128, sub_q=64),
  ),
  _case(
    ValueError,
    "`sub_kv` must be a multiple of 128 on TPU, got sub_kv=8. Use 128, or leave it None.",
    block_sizes=BlockSizes(128, 128, sub_kv=8),
  ),
  _case(
    ValueError,
    "`block_q` must be a multiple of 128 on TPU, got block_q=16.",
    mask=CAUSAL.block_mask(16, 16, 16, 16),
  ),
  _case(
    NotImplementedError,
    "'pallas_tpu' takes float32 and bfloat16 on TPU, which has no float16, got float16. Cast to "
    "bfloat16, or use implementation='xla'.",
    **_all(jnp.float16),
  ),
]


@pytest.mark.parametrize(("error", "message", "args", "kwargs"), COMPILED)
def test_what_a_tpu_refuses_is_refused_when_compiled_for_one(error, message, args, kwargs):
  explain(*args, **kwargs, implementation="pallas_tpu")  # the interpreter takes it
  with interpret_mode(False), pytest.raises(error, match=re.escape(message)):
    block_sparse_attention(*args, **kwargs, implementation="pallas_tpu")


class TestBlockSizes:
  @pytest.mark.parametrize("name", ["block_q", "block_kv", "sub_q", "sub_kv"])
  @pytest.mark.parametrize("value", [0, -128])
  def test_sizes_are_positive(self, name, value):
    message = f"`{name}` must be at least 1, got {name}={value}. Use None to let the package choose."
    with pytest.raises(ValueError, match=re.escape(message)):
      BlockSizes(**{name: value})

  @pytest.mark.parametrize("value", [128.0, True, "128", (128,)], ids=repr)
  def test_sizes_are_ints(self, value):
    with pytest.raises(TypeError, match=re.escape(f"`block_kv` must be an int or None, got {value!r}.")):
      BlockSizes(block_kv=value)


class TestCapacity:
  def test_work_beyond_scalar_memory_names_the_bytes(self):
    mask = masks.from_blocks(np.indices((1024, 1024)).sum(axis=0) % 2 == 0, (128, 128))
    message = (
      "The prefetched scalars of a kernel must fit into 1032192 bytes of SMEM, got 2048 grid steps and 524289 "
      "items that need 4210700 bytes. Use larger block_q and block_kv."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
      _trace(_attend(mask, BlockSizes(128, 128)), 2**17)

  def test_step_beyond_a_word_names_the_fields(self):
    message = (
      "A step of the schedule must fit into 32 bits, got 34 for (examples, heads, output tiles, other tiles) = "
      "(1, 1, 32768, 32768). Use larger block_q and block_kv."
    )
    gradient = jax.grad(lambda q: _attend(masks.sliding_window(2), BlockSizes(4, 4))(q).sum())
    with pytest.raises(ValueError, match=re.escape(message)):
      _trace(gradient, 2**17)


def _attend(mask, block_sizes):
  return lambda q: block_sparse_attention(q, q, q, mask, implementation="pallas_tpu", block_sizes=block_sizes)


def _trace(fn, length):
  jax.eval_shape(fn, _array(1, length, 1, 8))


def test_rejections_hold_under_jit_at_trace_time():
  with pytest.raises(ValueError, match="got 4 query heads and 3 key/value heads"):
    jax.jit(lambda q, kv: block_sparse_attention(q, kv, kv, CAUSAL))(
      jnp.ones((1, 16, 4, 8)), jnp.ones((1, 16, 3, 8))
    )
