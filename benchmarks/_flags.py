"""Flags that more than one benchmark takes. absl allows a flag to be defined once per process."""

from collections.abc import Callable

import jax.numpy as jnp
from absl import app, flags, logging

from benchmarks import _mask_expression

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}

DTYPE = flags.DEFINE_enum(
  "dtype",
  None,
  sorted(DTYPES),
  "Type of the inputs; by default bfloat16 on TPU, float32 elsewhere.",
)
NUM_RUNS = flags.DEFINE_integer("num_runs", 5, "Timed runs of each; the median counts.", lower_bound=1)
JSON = flags.DEFINE_string(
  "json", None, "File to append JSON lines to; - is stdout (and the table goes to stderr)."
)


def run(main: Callable[[list[str]], int]) -> None:
  """Parses the flags, calls `main` and exits with the status that it returns.

  absl shows messages of every library from INFO on, among them jax's on each backend that it does
  not find. Here they start at warnings, unless --verbosity says otherwise.
  """

  def quiet_main(argv: list[str]) -> int:
    if not flags.FLAGS["verbosity"].present:
      logging.set_verbosity(logging.WARNING)
    if len(argv) > 1:
      raise app.UsageError(f"Benchmarks take flags only, got {argv[1:]}. Write --name=value.")
    return main(argv)

  app.run(quiet_main)


def dtype_for(backend: str) -> jnp.dtype:
  """The type that --dtype asks for, or the one that suits `backend`."""
  return jnp.dtype(DTYPE.value or ("bfloat16" if backend == "tpu" else "float32"))


def define_mask(default: str) -> flags.FlagHolder[str]:
  """Defines --mask, which is checked when flags are parsed."""
  holder = flags.DEFINE_string("mask", default, "Mask expression; document() means the corpus's documents.")
  flags.register_validator(holder, _is_mask_expression)
  return holder


def _is_mask_expression(text: str) -> bool:
  try:
    _mask_expression.check(text)
  except ValueError as error:
    raise flags.ValidationError(str(error)) from None
  return True
