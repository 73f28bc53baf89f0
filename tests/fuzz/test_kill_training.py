"""The short form of the campaign that kills a training process."""

from __future__ import annotations

from pathlib import Path

from .kill_training import campaign


def test_a_killed_training_resumes_bit_for_bit(tmp_path: Path) -> None:
    report = campaign(5, 2, tmp_path)
    assert report.differences == []
    assert report.kills == 5
    assert report.runs >= 1, "a run that ends before its kill makes room for another"
    assert 0 < report.resumes <= 5
