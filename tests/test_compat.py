import jax
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from blockattn._compat import compiler_params, interpret_mode, resolve_interpret


def test_off_tpu_kernels_run_in_the_plain_interpreter():
  assert resolve_interpret() is True


@pytest.mark.parametrize("mode", [True, False, pltpu.InterpretParams()])
def test_interpret_mode_sets_the_mode_and_restores_it(mode):
  with interpret_mode(mode):
    assert resolve_interpret() == mode
    with interpret_mode(None):
      assert resolve_interpret() is True
  assert resolve_interpret() is True


def test_interpret_mode_is_part_of_the_key_of_the_callers_jit():
  seen = []

  @jax.jit
  def f(x):
    seen.append(resolve_interpret())
    return x

  for mode in (True, pltpu.InterpretParams(), False, True, pltpu.InterpretParams()):
    with interpret_mode(mode):
      f(np.float32(0))
  assert seen == [True, pltpu.InterpretParams(), False]


def test_interpret_mode_rejects_other_values():
  with pytest.raises(
    TypeError, match=r"must be True, False, None or a pltpu.InterpretParams, got mode='tpu'"
  ):
    with interpret_mode("tpu"):
      pass


def test_dimension_semantics_are_for_compiled_kernels():
  semantics = ("parallel", "arbitrary")
  assert compiler_params(False, semantics).dimension_semantics == semantics
  assert compiler_params(True, semantics, vmem_limit_bytes=5).vmem_limit_bytes == 5
  assert compiler_params(pltpu.InterpretParams(), semantics).dimension_semantics is None
