import jax.numpy as jnp
import pytest

from benchmarks import _progress
from benchmarks._timing import Timing, compare


def test_compare_calls_each_candidate_once_more_than_it_times_and_in_turns():
  calls = []
  candidates = {name: lambda name=name: calls.append(name) for name in ("a", "b", "c")}
  timings = compare(candidates, num_runs=2)
  assert "".join(calls) == "abc" + "abc" + "cba"
  assert {name: len(timing.seconds) for name, timing in timings.items()} == {"a": 2, "b": 2, "c": 2}


def test_compare_waits_for_arrays():
  timings = compare({"sum": lambda: (jnp.arange(4).sum(), {"two": jnp.ones(2)})}, num_runs=1)
  assert timings["sum"].first_call > 0


def test_timing_reports_the_median_and_the_ratio_of_medians():
  fast, slow = Timing((1.0, 2.0, 9.0), first_call=50.0), Timing((8.0, 8.0, 1.0), first_call=0.0)
  assert fast.median == 2.0
  assert fast.speedup_over(slow) == 4.0


@pytest.mark.parametrize("num_runs", [0, -1])
def test_compare_refuses_less_than_one_run(num_runs):
  with pytest.raises(ValueError, match=f"`num_runs` must be at least 1, got num_runs={num_runs}"):
    compare({"a": lambda: None}, num_runs=num_runs)


def test_track_prints_plain_lines_where_stderr_is_no_terminal(capsys):
  assert list(_progress.track("abc", "Working", patience=0)) == ["a", "b", "c"]
  captured = capsys.readouterr()
  assert captured.out == ""
  assert captured.err.splitlines() == [f"Working: {i} of 3 after 0 s" for i in range(3)]


def test_track_is_silent_while_the_work_is_short(capsys):
  assert list(_progress.track("abc", "Working")) == ["a", "b", "c"]
  assert capsys.readouterr().err == ""
