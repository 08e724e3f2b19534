"""What differs between jax versions, and how Pallas TPU kernels run where there is no TPU.

How a kernel launcher uses it: the public function resolves the mode before it enters any `jax.jit`
and hands it on as a static argument, which ends in `pl.pallas_call(..., interpret=mode)`:

    def public(x):
      return _launch(x, interpret=resolve_interpret())

    @functools.partial(jax.jit, static_argnames="interpret")
    def _launch(x, *, interpret): ...

How a test chooses the mode; every `jax.jit` cache, also the caller's own, sees the choice:

    with interpret_mode(True): ...                     # plain interpreter
    with interpret_mode(pltpu.InterpretParams()): ...  # emulated TPU memory, NaN where unwritten
    with interpret_mode(False): ...                    # really compile, for an ahead-of-time lowering
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import jax
from jax.experimental.pallas import tpu as pltpu

# Both ends of the supported range, jax 0.10.2 and 0.12, spell these the same; kernels take them
# from here all the same, so that the next rename is met in one place.
CompilerParams = pltpu.CompilerParams
InterpretParams = pltpu.InterpretParams

InterpretMode: TypeAlias = "bool | pltpu.InterpretParams"

# A context of jax's own, and not a plain context variable: its value is part of the key of every
# jit cache.
_mode = jax.make_user_context(None)


@contextlib.contextmanager
def interpret_mode(mode: InterpretMode | None) -> Iterator[None]:
  """Runs the kernels traced inside the `with` block in `mode`.

  Args:
    mode: True for the plain Pallas interpreter, a `pltpu.InterpretParams` for the one that emulates
      TPU memory, False to compile for a TPU, None for the policy of `resolve_interpret`.

  Yields:
    Nothing.

  Raises:
    TypeError: `mode` is none of these.

  Examples:
    >>> with interpret_mode(False):
    ...   resolve_interpret()
    False
  """
  if not isinstance(mode, bool | InterpretParams | None):
    raise TypeError(
      "`mode` must be True, False, None or a pltpu.InterpretParams, "
      f"got mode={mode!r}. Use True for the plain interpreter."
    )
  with _mode(mode):
    yield


def resolve_interpret() -> InterpretMode:
  """The `interpret` argument of `pl.pallas_call` for a call made here and now.

  The mode that `interpret_mode` set; else False where the default device is a TPU, and True
  elsewhere.

  Returns:
    A hashable value, to be passed as a static argument.
  """
  if _mode.value is not None:
    return _mode.value
  return default_platform() != "tpu"


def compiler_params(
  interpret: InterpretMode, dimension_semantics: tuple[Literal["parallel", "arbitrary"], ...], **options: Any
) -> CompilerParams:
  """The `compiler_params` argument of `pl.pallas_call`, for a kernel that may be under `jax.vmap`.

  `jax.vmap` puts a dimension in front of the grid. The TPU lowering adds the semantics that are
  then missing; `pltpu.InterpretParams` fails on the different lengths (jax 0.10.2 and 0.12), so
  they are not passed on in interpret mode.

  Args:
    interpret: The mode of the call.
    dimension_semantics: "parallel" or "arbitrary" for each dimension of the grid.
    **options: Other fields of `pltpu.CompilerParams`.

  Returns:
    A `pltpu.CompilerParams`.
  """
  semantics = None if interpret else dimension_semantics
  return CompilerParams(dimension_semantics=semantics, **options)


def default_platform() -> str:
  """Platform of the device that an operation without committed arguments runs on."""
  device: Any = getattr(jax.config, "jax_default_device", None)
  if device is None:
    return jax.default_backend()
  return device if isinstance(device, str) else device.platform
