import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

from blockattn import block_dynamic_slice
from blockattn._compat import interpret_mode
from tests import aot

# Unaligned starts, slices larger than the block, blocks that do not divide the array; ranks 1 to 4.
CASES = [
  ((5000,), (3000,), (1999,), (1024,)),
  ((100,), (7,), (93,), None),
  ((100, 700), (50, 300), (33, 271), (16, 128)),
  ((3, 100, 60), (2, 10, 20), (1, 90, 40), None),
  ((64, 256), (64, 256), (0, 0), (8, 128)),
  ((7, 200), (3, 150), (4, 50), (7, 128)),
  ((2, 3, 9, 130), (1, 2, 5, 129), (1, 1, 4, 1), (8, 128)),
]


def some(shape, dtype="float32"):
  return np.random.default_rng(0).integers(-99, 100, shape).astype(jnp.dtype(dtype))


def window(x, starts, sizes):
  return x[tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))]


@pytest.mark.parametrize(("shape", "sizes", "starts", "block_shape"), CASES)
def test_slice_starts_anywhere(interpret, shape, sizes, starts, block_shape):
  x = some(shape)
  got = block_dynamic_slice(x, starts, sizes, block_shape=block_shape)
  np.testing.assert_array_equal(got, window(x, starts, sizes))


@pytest.mark.parametrize("dtype", ["bfloat16", "int32", "int8"])
@pytest.mark.parametrize("case", [CASES[0], CASES[2]], ids=["vector", "matrix"])
def test_all_dtypes_are_copied_exactly(case, dtype):
  shape, sizes, starts, block_shape = case
  x = some(shape, dtype)
  got = block_dynamic_slice(x, starts, sizes, block_shape=block_shape)
  assert got.dtype == x.dtype
  np.testing.assert_array_equal(got, window(x, starts, sizes))


def test_traced_starts_are_clamped_as_in_lax(interpret):
  x = some((100, 300))
  f = jax.jit(lambda x, *starts: block_dynamic_slice(x, starts, (20, 140)))
  for starts in [(0, 0), (80, 160), (81, 1), (-1, -300), (-101, 299), (10**6, -(10**6))]:
    want = jax.lax.dynamic_slice(x, starts, (20, 140))
    np.testing.assert_array_equal(f(x, *starts), want)
  assert f._cache_size() == 1


def test_traced_starts_of_a_small_dtype_do_not_overflow():
  x = some((1000,))
  f = jax.jit(lambda s: block_dynamic_slice(x, s, (5,)))
  np.testing.assert_array_equal(f(np.array([-100], np.int8)), x[900:905])


def test_checks_turn_out_of_range_starts_into_an_error():
  x = some((100, 300))
  f = checkify.checkify(jax.jit(lambda s: block_dynamic_slice(x, s, (20, 140), checks=True)))
  error, got = f(jnp.array([80, 160]))
  error.throw()
  np.testing.assert_array_equal(got, x[80:, 160:])
  for starts, message in (
    ([81, 0], r"`starts\[0\]` .* 0 and 80, got 81"),
    ([0, -1], r"`starts\[1\]` .*got -1"),
  ):
    with pytest.raises(checkify.JaxRuntimeError, match=message):
      f(jnp.array(starts))[0].throw()


def test_starts_may_be_mapped(interpret):
  x, starts = some((40, 300)), np.array([[0, 0], [7, 131], [20, 160]])
  got = jax.jit(jax.vmap(lambda s: block_dynamic_slice(x, s, (20, 140))))(starts)
  np.testing.assert_array_equal(got, [window(x, s, (20, 140)) for s in starts])


def test_l01_arrays_of_many_sizes_share_a_process():
  for n in (256, 640, 384):
    x = some((n, n))
    got = block_dynamic_slice(x, (n - 129, 77), (129, 150), block_shape=(32, 128))
    np.testing.assert_array_equal(got, window(x, (n - 129, 77), (129, 150)))


def test_l08_x64_changes_nothing():
  x = some((100, 300))
  starts = np.array([33, 71], np.int64)
  with jax.enable_x64(True):
    got = jax.jit(lambda s: block_dynamic_slice(x, s, (20, 140)))(starts)
    export(x, starts, (20, 140))
  np.testing.assert_array_equal(got, window(x, starts, (20, 140)))


def export(x, starts, sizes):
  with interpret_mode(False), jax.sharding.use_abstract_mesh(aot.mesh("v6e")):
    f = jax.jit(lambda x, s: block_dynamic_slice(x, s, sizes))
    return jax.export.export(f, platforms=["tpu"])(x, starts)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "int8"])
@pytest.mark.parametrize("shape", [(5000,), (64, 500), (2, 3, 64, 500)])
def test_l06_lowers_for_tpu(shape, dtype):
  sizes = tuple(size // 2 + 1 for size in shape)
  lowered = export(some(shape, dtype), np.zeros(len(shape), np.int32), sizes)
  assert lowered.out_avals[0].shape == sizes


@pytest.mark.parametrize(
  ("starts", "message"),
  [
    ((81, 0), r"between 0 and \(80, 160\) for sizes=\(20, 140\) .*got starts=\(81, 0\)"),
    ((0, -1), r"got starts=\(0, -1\)"),
    ((0,), "got 1 starts"),
    (np.zeros((2, 1), int), "one integer for each dimension"),
  ],
)
def test_wrong_concrete_starts_are_rejected(starts, message):
  with pytest.raises(ValueError, match=message):
    block_dynamic_slice(some((100, 300)), starts, (20, 140))


@pytest.mark.parametrize(
  ("kwargs", "error", "message"),
  [
    ({"starts": (0.0, 0)}, TypeError, "`starts` must be integers, got .'float64', 'int64'."),
    ({"x": some((100, 300), "float16")}, TypeError, "`x` must be one of float32, bfloat16, .*got float16"),
    ({"sizes": (20,)}, ValueError, r"got 1 sizes and x.shape=\(100, 300\)"),
    ({"sizes": (0, 140)}, ValueError, r"at least 1 and at most the shape of `x`, got sizes=\(0, 140\)"),
    ({"sizes": (101, 140)}, ValueError, r"got sizes=\(101, 140\)"),
    ({"block_shape": (128,)}, ValueError, r"`block_shape` must have 2 sizes.*got block_shape=\(128,\)"),
    ({"block_shape": (8, 100)}, ValueError, r"`block_shape\[1\]` must be a multiple of 128 .* Use 128"),
    ({"block_shape": (4, 128)}, ValueError, r"`block_shape\[0\]` must be a multiple of 8 .* Use 8"),
  ],
)
def test_wrong_operands_are_rejected(kwargs, error, message):
  arguments = {"x": some((100, 300)), "starts": (0, 0), "sizes": (20, 140)} | kwargs
  with pytest.raises(error, match=message):
    block_dynamic_slice(**arguments)


def test_block_of_a_vector_must_be_a_multiple_of_1024():
  with pytest.raises(ValueError, match=r"must be a multiple of 1024 .* got block_shape\[0\]=128"):
    block_dynamic_slice(some((5000,)), (0,), (10,), block_shape=(128,))
