"""Plans: the planner's must pass its checker and compute what its program says; wrong ones must not pass."""

from __future__ import annotations

import random as standard

import numpy as np

from dataflow.ir.lowered import Loop
from dataflow.ir.plan import Lifetime, Segment
from dataflow.planning.offsets import plan_memory
from dataflow.planning.verify import PlanViolation, check_plan

from .findings import Finding, Outcome, finding_of
from .plan_mutations import moved, reordered
from .programs import plan_of, random_program, size_of
from .simulating import apart, simulate

WRONG = 2  # corrupted plans per program


def target(seed: int, case: int) -> Outcome:
    """A program's plan and corrupted ones, or offsets alone; see ``campaign.Target``."""
    random = standard.Random(f"{seed}:{case}")
    return _offsets(random) if case % 4 == 0 else _program(random)


def _program(random: standard.Random) -> Outcome:
    lowered, program = random_program(random)
    try:
        plan = plan_of(lowered, program)
        check_plan(plan)
    except Exception as error:
        return Outcome("refused", (finding_of(error, "the planner's plan"),))
    right = simulate(plan, late=False)
    if right is None or (plan.asynchronous and simulate(plan, late=True) != right):
        return Outcome("wrong", (Finding("different", "late", "a device that is late changes the result"),))
    if simulate(apart(lowered, plan), late=False) != right:
        return Outcome("wrong", (Finding("different", "sharing", "sharing memory changes the result"),))
    if not plan.lower_bound_bytes <= plan.peak_bytes <= max(size_of(lowered) * 4, 1 << 16):
        return Outcome("wrong", (Finding("plan", "peak", f"{plan.peak_bytes} bytes"),))
    if not any(isinstance(item, Segment) for item in plan.items):
        return Outcome("planned")
    arrays = np.random.default_rng(random.getrandbits(32))
    loops = any(isinstance(item, Loop) for item in lowered.items)  # the checker doesn't tell iterations apart
    for _ in range(WRONG):
        wrong = (moved if loops or random.random() < 0.7 else reordered)(plan, arrays)
        try:
            check_plan(wrong)
        except PlanViolation:
            continue
        except Exception as error:
            return Outcome("wrong", (finding_of(error, "the checker of a corrupted plan"),))
        for late in (False, True) if plan.asynchronous else (False,):
            if simulate(wrong, late) != right:
                text = f"a plan that computes something else passes (late={late})\n{plan}\n{wrong}"
                return Outcome("wrong", (Finding("plan", "accepted", text),))
    return Outcome("planned")


def _offsets(random: standard.Random) -> Outcome:
    """Bare lifetimes: no two that live at one time share a byte, and the peak is what it should be."""
    lives = []
    for _ in range(random.randint(0, 40)):
        start = random.randint(0, 30)
        size = random.choice((0, 1, 63, 64, 65, random.randint(1, 5000)))
        lives.append(Lifetime(start, start + random.randint(0, 12), size, random.choice((1, 8, 64, 64, 256))))
    found = plan_memory(lives, 10_000)
    sizes = [-(-life.bytes // life.alignment) * life.alignment for life in lives]
    assigned = [(life, size, offset) for life, size, offset in zip(lives, sizes, found.offsets, strict=True)]
    for index, (a, size, at) in enumerate(assigned):
        if at % a.alignment or (a.bytes and a.stop > a.start and at + size > found.peak) or at < 0:
            return Outcome("wrong", (Finding("plan", "offset", f"{a} at {at} of {found.peak}"),))
        for b, other, there in assigned[:index]:
            alive = max(a.start, b.start) < min(a.stop, b.stop)
            if alive and size and other and at < there + b.bytes and there < at + a.bytes:
                return Outcome("wrong", (Finding("plan", "overlap", f"{a} at {at} and {b} at {there}: {lives}"),))
    bound = max((sum(s for x, s, _ in assigned if x.start <= t < x.stop) for t in range(45)), default=0)
    if found.lower_bound > bound or found.peak < found.lower_bound:
        return Outcome("wrong", (Finding("plan", "bound", f"{found.lower_bound}, not {bound}: {lives}"),))
    return Outcome("placed")
