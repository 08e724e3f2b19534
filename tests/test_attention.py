"""Forward attention: every case over every implementation, against the float64 oracle."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import masks
from masks import _tile_runs
from tests.attention_case import CASES, EMULATED, KERNEL_ONLY
from tests.attention_runs import RUNS, SIZES, assert_attention, attend, attend_case, expected
from tests.support import (
  block_sparse_attention,
  draw,
  oracle,
  poison_unread_keys,
  rel_rms,
  tolerance,
)


@pytest.fixture(params=["reference", "xla", "pallas"])
def run(request):
  return request.param


def _runs(name):
  if name in KERNEL_ONLY:
    return ["pallas"]
  return [run for run in RUNS if run != "pallas, emulated" or name in EMULATED]


@pytest.mark.parametrize(("name", "by"), [(name, run) for name in CASES for run in _runs(name)])
def test_forward_matches_the_oracle(name, by):
  case, want = expected(name)
  got = attend_case(by, case, return_lse=True)
  assert got[0].dtype == case.inputs[0].dtype
  assert got[1].dtype == jnp.float32
  assert_attention(got, want, tolerance(case.inputs[0].dtype, case.amplitude))


class TestRowsWithoutKey:
  def test_empty_part_is_neutral_when_parts_are_merged_e05(self, run):
    q, k, v = draw(5, 256, num_heads=2)
    parts = [
      attend(run, q, k[:, part], v[:, part], mask, return_lse=True)
      for part, mask in (
        (slice(0, 128), masks.causal()),
        (slice(128, 256), masks.causal(-128)),
      )
    ]
    assert (np.asarray(parts[1][0])[:, :128] == 0).all()
    assert (np.asarray(parts[1][1])[..., :128] == -np.inf).all()
    lse = np.logaddexp(*(np.asarray(lse, np.float64) for _, lse in parts))
    weights = (np.exp(np.asarray(part, np.float64) - lse).swapaxes(1, 2) for _, part in parts)
    out = sum(w[..., None] * np.asarray(part) for w, (part, _) in zip(weights, parts, strict=True))
    want = oracle(q, k, v, np.tri(256, dtype=bool))
    assert_attention((out, lse), want, tolerance("float32"))

  @pytest.mark.parametrize(("q_len", "kv_len"), [(0, 4), (3, 0), (0, 0)])
  def test_no_queries_or_no_keys_z01(self, run, q_len, kv_len):
    q, k, v = jnp.ones((2, q_len, 4, 8)), jnp.ones((2, kv_len, 2, 8)), jnp.ones((2, kv_len, 2, 6))
    for sinks, fill in ((None, -np.inf), (jnp.array([1.0, 2, 3, 4]), [[1], [2], [3], [4]])):
      out, lse = attend(run, q, k, v, masks.causal(), sinks=sinks, return_lse=True)
      assert out.shape == (2, q_len, 4, 6)
      assert not out.any()
      np.testing.assert_array_equal(lse, np.broadcast_to(fill, (2, 4, q_len)))

  @pytest.mark.parametrize("shape", [(0, 8, 4, 16), (2, 8, 0, 16)])
  def test_no_examples_or_no_heads_z01(self, run, shape):
    kv = jnp.ones((*shape[:2], 2, 16))
    out, lse = attend(run, jnp.ones(shape), kv, kv, masks.causal(), return_lse=True)
    assert out.shape == shape
    assert lse.shape == (shape[0], shape[2], shape[1])


class TestWindows:
  def test_window_of_the_whole_length_has_the_bits_of_causal_w02(self, run):
    q, k, v = draw(41, 512)
    causal = attend(run, q, k, v, masks.causal())
    for window in (512, 513, 10**9 + 1):
      np.testing.assert_array_equal(attend(run, q, k, v, masks.sliding_window(window)), causal)

  def test_window_of_the_token_itself_returns_v_w04(self, run):
    q, k, v = draw(43, 256)
    np.testing.assert_allclose(attend(run, q, k, v, masks.local(0, 0)), v, rtol=1e-6)

  def test_windows_differ_from_full_attention_w04(self):
    q, k, v = draw(43, 256)
    full, _ = oracle(q, k, v, True)
    for name in ("W04 window (31, 0) alone", "W04 window (0, 31) alone"):
      assert np.abs(expected(name)[1][0] - full).max() > 0.1

  @pytest.mark.parametrize("by", RUNS)
  def test_heads_do_not_depend_on_the_head_before_w08(self, by):
    case, _ = expected("W08 rows that begin at a later tile")
    out = attend_case(by, case)
    for order in ([2, 0, 1], [1, 0, 2]):
      permuted = attend_case(by, case, tuple(x[:, :, jnp.array(order)] for x in case.inputs))
      np.testing.assert_array_equal(permuted, out[:, :, jnp.array(order)])


class TestUnreadKeys:
  def test_padding_on_the_left_does_not_reach_tokens_d06(self, run):
    q, k, v = draw(66, 256)
    mask = masks.document([-1] * 37 + [1] * 219) & masks.causal()
    out = attend(run, q, k, v, mask)
    moved = attend(run, q, k.at[:, :37].add(100), v.at[:, :37].add(100), mask)
    np.testing.assert_array_equal(moved[:, 37:], out[:, 37:])
    assert not out[:, :37].any()
    assert not moved[:, :37].any()

  @pytest.mark.parametrize(
    ("by", "row"), [("xla", 0), ("xla", 7), ("pallas", 0), ("pallas", 7), ("pallas, emulated", 3)]
  )
  def test_empty_tiles_are_not_read(self, by, row):
    case, _ = expected("W08 rows that begin at a later tile")
    q, k, v = case.inputs
    kinds = case.mask.block_mask(1024, 1024, 128, 128).kinds
    poisoned = attend_case(by, case, (q, *poison_unread_keys(k, v, kinds, 128, row)))
    rows = slice(row * 128, (row + 1) * 128)
    assert np.isnan(poisoned).any()  # other rows read those keys
    np.testing.assert_array_equal(poisoned[:, rows], attend_case(by, case)[:, rows])

  def test_nan_in_a_query_stays_in_its_row_and_head(self, run):
    case, _ = expected("W08 rows that begin at a later tile")
    q, k, v = case.inputs
    out = attend_case(run, case)
    poisoned = np.asarray(attend_case(run, case, (q.at[0, 200, 1].set(jnp.nan), k, v)))
    assert np.isnan(poisoned[0, 200, 1]).all()
    poisoned = poisoned.copy()
    poisoned[0, 200, 1] = out[0, 200, 1]
    np.testing.assert_array_equal(poisoned, out)


class TestEquivalentMasks:
  def test_lazy_stored_and_demoted_masks_agree_m05(self, run):
    q, k, v = draw(75, 512)
    block_mask = masks.causal().block_mask(512, 512, 128, 128)
    none = _tile_runs.no_tiles(4, 4)
    demoted = dataclasses.replace(block_mask, full=none)
    assert demoted.stats().num_partial == 10
    lazy = attend(run, q, k, v, masks.causal())
    for mask in (masks.from_array(np.tri(512, dtype=bool)), demoted):
      np.testing.assert_allclose(attend(run, q, k, v, mask), lazy, atol=1e-6, rtol=0)

  def test_block_mask_has_the_bits_of_its_mask(self, run):
    q, k, v = draw(75, 512)
    block_mask = masks.causal().block_mask(512, 512, 128, 128)
    np.testing.assert_array_equal(
      attend(run, q, k, v, block_mask, block_sizes=None), attend(run, q, k, v, masks.causal())
    )

  def test_hole_in_a_tile_that_prints_like_another_counts_k03(self):
    case, (want, _) = expected("K03 partial tiles that print alike")
    ignored = case.dense.copy()
    ignored[128:] = ignored[:128]
    other, _ = oracle(*case.inputs, ignored)
    assert np.abs(want - other)[0, 192].max() > 1e-3  # far beyond the tolerance of the case

  def test_masks_of_equal_bytes_do_not_share_a_program_k01(self):
    for q_len, kv_len in ((128, 256), (256, 128)):
      q, k, v = draw(1, q_len, kv_len)
      out = attend("xla", q, k, v, masks.from_array(np.zeros((q_len, kv_len), bool)))
      np.testing.assert_array_equal(out, jnp.zeros_like(q))
    q, k, v = draw(1, 1)
    for dtype, weight in ((np.int8, 0), (np.uint8, 1), (np.int8, 0)):
      mask = masks.document(np.frombuffer(b"\xc8", dtype))
      np.testing.assert_array_equal(attend("xla", q, k, v, mask), weight * v)


class TestCache:
  def test_equal_masks_share_an_entry_and_others_do_not_k05(self):
    q, k, v = draw(96, 512)
    call = jax.jit(lambda q, k, v, mask: attend("xla", q, k, v, mask), static_argnames="mask")
    for _ in range(10):
      causal = call(q, k, v, masks.causal())
    assert call._cache_size() == 1
    window = call(q, k, v, masks.sliding_window(65))
    assert call._cache_size() == 2
    np.testing.assert_array_equal(call(q, k, v, masks.causal()), causal)
    assert call._cache_size() == 2
    assert np.abs(window - causal).max() > 0.1

  def test_jitted_calls_equal_eager_ones(self, run):
    case, _ = expected("L01 512 tokens")
    jitted = jax.jit(lambda q, k, v: attend_case(run, case, (q, k, v), return_lse=True))
    for a, b in zip(jitted(*case.inputs), attend_case(run, case, return_lse=True), strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


class TestHeads:
  @pytest.mark.parametrize("num_heads", [4, 6])
  def test_key_value_heads_are_repeated_not_tiled_g01(self, run, num_heads):
    q, k, _ = draw(110, 128, num_heads=num_heads, num_kv_heads=2)
    v = jnp.broadcast_to(jnp.arange(2.0)[:, None], (1, 128, 2, 64))
    out = attend(run, q, 0 * k, v, masks.full())
    group = num_heads // 2
    np.testing.assert_array_equal(out, jnp.broadcast_to(v[:, :, :1], out.shape).at[:, :, group:].set(1))


class TestModes:
  def test_interpreters_and_repeated_runs_have_the_same_bits_l04(self):
    for name in ("packed documents per example, grouped heads", "array mask per head"):
      case, _ = expected(name)
      outs = [
        attend_case(by, case, return_lse=True)
        for by in ("pallas", "pallas, emulated", "pallas, emulated", "pallas")
      ]
      for out, lse in outs[1:]:
        np.testing.assert_array_equal(out, outs[0][0])
        np.testing.assert_array_equal(lse, outs[0][1])

  def test_x64_has_the_same_bits_l08(self, run):
    q, k, v = draw(97, 49, batch=2, num_heads=8, dtype="bfloat16")
    mask = masks.causal() & masks.document(np.repeat(np.arange(2), [20, 29]).astype(np.int64))
    want = attend(run, q, k, v, mask, return_lse=True)
    with jax.enable_x64(True):
      got = attend(run, q, k, v, mask, return_lse=True)
    assert [x.dtype for x in got] == [jnp.bfloat16, jnp.float32]
    for a, b in zip(got, want, strict=True):
      np.testing.assert_array_equal(a, b)

  def test_default_matmul_precision_does_not_count_r07(self):
    q, k, v = draw(98, 256, dtype="bfloat16")
    want = attend("pallas", q, k, v, masks.causal())
    with jax.default_matmul_precision("highest"):
      np.testing.assert_array_equal(attend("pallas", q, k, v, masks.causal()), want)


class TestCall:
  def test_default_implementation_off_tpu_is_xla(self):
    q, k, v = draw(75, 512)
    out = block_sparse_attention(q, k, v, masks.causal(), block_sizes=SIZES)
    np.testing.assert_array_equal(out, attend("xla", q, k, v, masks.causal()))

  def test_takes_numpy_arrays(self, run):
    q, k, v = draw(75, 512)
    out = attend(run, *(np.asarray(x) for x in (q, k, v)), masks.causal())
    assert isinstance(out, jax.Array)
    np.testing.assert_array_equal(out, attend(run, q, k, v, masks.causal()))

  def test_sink_is_one_more_key_of_value_zero(self, run):
    q, k, v = draw(99, 512)
    options = {"return_lse": True}
    out, lse = attend(run, q, k, v, masks.causal(), **options)
    with_sink, its_lse = attend(run, q, k, v, masks.causal(), sinks=jnp.array([2.0]), **options)
    np.testing.assert_allclose(its_lse, np.logaddexp(lse, 2), rtol=1e-5, atol=1e-5)
    share = np.exp(lse - its_lse).swapaxes(1, 2)[..., None]
    assert rel_rms(with_sink, share * out) < tolerance("float32")
