"""``dataflow plugin``: tools for authors of plugins."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING

import click

from .options import FAILED, json_option, print_json

if TYPE_CHECKING:
    from ..testing.outcome import Outcome  # with all samples
    from .plugin_times import SampleTime

BAD = ("failed", "untested")
_QUIET_SECONDS = {True: 10.0, False: 60.0}  # between lines that say how far a test is; True: in a terminal


@click.group()
def plugin() -> None:
    """Tools for plugin authors."""


@plugin.command("test")
@click.argument("name")
@click.option("--sample", metavar="NAME", help="Only samples of the op NAME, or whose name begins so.")
@click.option("--timeout", type=float, default=60.0, show_default=True, help="Seconds that one trial may take.")
@click.option("--here", is_flag=True, help="No child processes: for debuggers; a kernel that crashes ends the command.")
@click.option("-v", "--verbose", is_flag=True, help="Print every outcome.")
@click.option("--perf", is_flag=True, help="Time the samples instead, with the share of what the device can do.")
@click.option("--against", metavar="DEVICE", help="With --perf: time them on this device too.")
@click.option("--rounds", type=click.IntRange(min=1), default=20, show_default=True, help="With --perf: for medians.")
@json_option
def plugin_test(
    name: str,
    sample: str | None,
    timeout: float,
    here: bool,
    verbose: bool,
    perf: bool,
    against: str | None,
    rounds: int,
    as_json: bool,
) -> None:
    """Runs the conformance kit on the device, the plugin or the op NAME.

    Of a device: every sample that it claims, against the reference. Of a plugin: all that it offers. Of an op: its
    samples on every device.
    """
    from ..testing.plugins import check_named

    if perf:
        _time(name, sample, against, rounds, as_json)
        return
    if against is not None:
        raise click.UsageError("--against is for --perf")
    found: list[Outcome] = []
    for outcome in _followed(check_named(name, select=sample, limit=None if here else timeout)):
        found.append(outcome)
        if not as_json and (verbose or outcome.status in BAD):
            click.echo(str(outcome))
    if as_json:
        print_json(
            {
                "name": name,
                "outcomes": dict(Counter(outcome.status for outcome in found)),
                "bad": [str(outcome) for outcome in found if outcome.status in BAD],
                "failures": [_row(outcome) for outcome in found if outcome.status in BAD],
                "not_claimed": _not_claimed(found),
            }
        )
    else:
        _print(name, found)
    if any(outcome.status in BAD for outcome in found):
        raise click.exceptions.Exit(FAILED)


def _followed(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """The same outcomes; says now and then on stderr how many there are and which is the last."""
    quiet = _QUIET_SECONDS[sys.stderr.isatty()]
    begun = said = monotonic()
    for count, outcome in enumerate(outcomes, 1):
        yield outcome
        now = monotonic()
        if now - said >= quiet:
            said = now
            click.echo(f"{count} outcomes in {now - begun:.0f} s, the last of {outcome.sample}", err=True)


def _time(name: str, select: str | None, against: str | None, rounds: int, as_json: bool) -> None:
    """Times samples, and prints or writes a line each."""
    from ..plugin.registry import default_registry
    from .plugin_times import devices_and_ops, sample_times
    from .roofline import described, measure_roofline

    registry = default_registry()
    devices, op = devices_and_ops(name, registry)
    if against is not None:
        registry.device(against)
    rooflines = {device: measure_roofline(device) for device in devices}
    found = [
        time
        for device in devices
        for time in sample_times(
            device, select=select or op, against=against, rooflines=rooflines, rounds=rounds, registry=registry
        )
    ]
    if as_json:
        limits = {device: {"flops": most.flops, "bandwidth": most.bandwidth} for device, most in rooflines.items()}
        print_json({"name": name, "against": against, "rooflines": limits, "times": [time.row() for time in found]})
        return
    _print_times(found, against)
    for device, most in rooflines.items():
        click.echo(f"roofline of {device}: {described(most)}")


def _print_times(found: Sequence[SampleTime], against: str | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from .roofline import percent

    compared = [] if against is None else [f"us on {against}", "times"]
    table = Table("sample", "kernel", "us", "of roofline", *compared, box=None)
    for time in found:
        other = [] if time.against is None else [f"{time.against * 1e6:.2f}", f"{time.against / time.seconds:.2f}"]
        table.add_row(time.sample, time.kernel, f"{time.seconds * 1e6:.2f}", percent(time.share), *other)
    Console(highlight=False, width=150).print(table)


def _row(outcome: Outcome) -> dict[str, str]:
    return {name: getattr(outcome, name) for name in ("device", "op", "sample", "variant", "status", "text")}


def _not_claimed(found: Iterable[Outcome]) -> list[str]:
    """Ops of which no sample is claimed."""
    claimed = {outcome.op for outcome in found if outcome.status != "not claimed"}
    return sorted({outcome.op for outcome in found} - claimed)


def _print(name: str, found: Sequence[Outcome]) -> None:
    """A table of outcomes by variant, and the sums."""
    from rich.console import Console
    from rich.table import Table

    statuses = [s for s in ("passed", "failed", "untested") if any(outcome.status == s for outcome in found)]
    table = Table("trials", *statuses, box=None)
    for variant in dict.fromkeys(outcome.variant for outcome in found if outcome.status != "not claimed"):
        counts = Counter(outcome.status for outcome in found if outcome.variant == variant)
        table.add_row(variant, *(str(counts[status] or "") for status in statuses))  # type: ignore[index]
    if table.row_count:
        Console(highlight=False).print(table)
    sums = Counter(outcome.status for outcome in found)
    click.echo(f"{name}: " + ", ".join(f"{count} {status}" for status, count in sums.items()))
    if missing := _not_claimed(found):
        click.echo("ops that it does not claim: " + ", ".join(missing))


@plugin.command("new")
@click.argument("name")
@click.option("--kind", required=True, metavar="op|kernel|device|converter|pass", help="What it offers.")
@click.option("--language", default="python", metavar="python|c|cuda", show_default=True, help="Of its kernels.")
@click.option("-o", "--output", "folder", metavar="FOLDER", help="Where; by default dataflow-NAME here.")
@json_option
def plugin_new(name: str, kind: str, language: str, folder: str | None, as_json: bool) -> None:
    """Writes the package of a plugin NAME, which builds and passes the conformance kit as it is."""
    from ..testing.new_plugin import new_plugin

    target = folder or f"dataflow-{name}"
    written = [str(path) for path in new_plugin(target, name, kind, language)]
    if as_json:
        print_json({"folder": target, "files": written})
        return
    for path in written:
        click.echo(path)
    install = "pip install 'setuptools>=77' && pip install --no-build-isolation -e '.[test]'"
    click.echo(f"now: cd {target} && {install} && dataflow plugin test {name}")
