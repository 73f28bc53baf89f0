"""Runs one small sample per op on ``cuda``: for compute-sanitizer, under which the whole table takes too long."""

from __future__ import annotations

from dataflow.testing import SAMPLES, check_device

LARGEST = 5_000  # elements of an operand


def main() -> None:
    chosen = {}
    for sample in SAMPLES:
        sizes = [array.size for array in sample.arrays() if array is not None]
        if not sizes or (min(sizes) > 0 and max(sizes) <= LARGEST):
            known = chosen.get(sample.op.name)
            if known is None or sum(sizes) > known[0]:
                chosen[sample.op.name] = (sum(sizes), sample)
    failed = 0
    for _, sample in chosen.values():
        for outcome in check_device("cuda", samples=[sample], complete=False):
            if outcome.status == "failed":
                failed += 1
                print(outcome)
    print(f"{len(chosen)} samples, {failed} failures")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
