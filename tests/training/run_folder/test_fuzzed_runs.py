"""Run folders that were changed at random: the short form of `fuzzed_runs`, in a process that has not trained."""

import subprocess
import sys


def test_a_run_folder_from_a_stranger_is_loaded_or_refused_in_words():
    command = [sys.executable, "-m", "tests.training.run_folder.fuzzed_runs", "--cases", "200", "--jobs", "1"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    counts = ended.stdout.splitlines()[-1].split()
    assert counts[0] == "200"
    # Both happen, or the cases say nothing.
    assert min(int(counts[2]), int(counts[4])) > 40
