"""The kit as tests of pytest: ``pytest -p dataflow.testing.pytest_kit --pyargs dataflow.testing --device NAME``."""

from __future__ import annotations

from pathlib import Path

import pytest

from .isolation import run_isolated
from .outcome import Task, selected
from .plugins import named_tasks


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which device, plugin or op is tested, by which samples, and for how long."""
    group = parser.getgroup("dataflow")
    group.addoption("--device", metavar="NAME", help="The device, plugin or op that the conformance kit tests.")
    group.addoption("--sample", metavar="NAME", help="Only samples of the op NAME, or whose name begins so.")
    group.addoption("--trial-timeout", type=float, default=60.0, help="Seconds that one trial may take.")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> KitFile | None:
    """The tasks of the kit are those of the file ``conformance.py``."""
    name = parent.config.getoption("--device")
    return KitFile.from_parent(parent, path=file_path) if name and file_path.name == "conformance.py" else None


class KitFile(pytest.File):
    """All tasks of a device, plugin or op."""

    def collect(self) -> list[KitItem]:
        """An item for each task, one after the other of equal names."""
        name = self.config.getoption("--device")
        seen: dict[str, int] = {}
        found = []
        for task in selected(named_tasks(name), self.config.getoption("--sample")):
            number = seen[task.name] = seen.get(task.name, 0) + 1
            label = f"{name}: {task.name}" + (f" #{number}" if number > 1 else "")
            found.append(KitItem.from_parent(self, name=label, task=task))
        return found


class KitItem(pytest.Item):
    """One task, in a child process."""

    def __init__(self, *, task: Task, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.task = task

    def runtest(self) -> None:
        """Fails with what is wrong; skips what isn't claimed."""
        device, limit = self.config.getoption("--device"), self.config.getoption("--trial-timeout")
        found = list(run_isolated(device, lambda: [self.task], limit))
        bad = [str(outcome) for outcome in found if outcome.status in ("failed", "untested")]
        if bad:
            pytest.fail("\n".join(bad), pytrace=False)
        if found and all(outcome.status == "not claimed" for outcome in found):
            pytest.skip("not claimed")
