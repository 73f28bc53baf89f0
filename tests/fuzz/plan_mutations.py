"""Wrong plans, made from right ones: operands that lie elsewhere, steps in another order, events left out."""

from __future__ import annotations

import dataclasses

import numpy as np

from dataflow.ir.plan import Plan, Segment, Transfer, Wait


def moved(plan: Plan, random: np.random.Generator) -> Plan:
    """The plan with one operand of one step at another offset, or an output in the place of an operand."""
    segments = [i for i, item in enumerate(plan.items) if isinstance(item, Segment)]
    at = int(random.choice(segments))
    segment = plan.items[at]
    index = int(random.integers(len(segment.steps)))
    step = segment.steps[index]
    inputs, outputs = list(step.inputs), list(step.outputs)
    kind = random.integers(3)
    if kind == 0:  # an in-place pair that nobody declared, or of other values
        sources = [o for o in inputs if o is not None and o.type.elements]
        made = [i for i, o in enumerate(outputs) if o is not None]
        if sources and made:
            source = sources[int(random.integers(len(sources)))]
            out = int(random.choice(made))
            outputs[out] = dataclasses.replace(outputs[out], arena=source.arena, offset=source.offset)
    else:
        side = inputs if kind == 1 and any(o is not None for o in inputs) else outputs
        present = [i for i, o in enumerate(side) if o is not None]
        if present:
            chosen = int(random.choice(present))
            by = int(random.choice([-256, -64, -4, 4, 64, 128, 1024, 4096]))
            side[chosen] = dataclasses.replace(side[chosen], offset=side[chosen].offset + by)
    steps = list(segment.steps)
    steps[index] = dataclasses.replace(step, inputs=tuple(inputs), outputs=tuple(outputs))
    items = list(plan.items)
    items[at] = dataclasses.replace(segment, steps=tuple(steps))
    return dataclasses.replace(plan, items=tuple(items))


def reordered(plan: Plan, random: np.random.Generator) -> Plan:
    """The plan with two neighbouring steps or items exchanged, or an event left out."""
    items = list(plan.items)
    events = [i for i, item in enumerate(items) if isinstance(item, (Wait, Transfer))]
    if events and random.integers(2):
        at = int(random.choice(events))
        if isinstance(items[at], Wait) or random.integers(2):
            del items[at]
        elif at + 1 < len(items):
            items[at], items[at + 1] = items[at + 1], items[at]
        return dataclasses.replace(plan, items=tuple(items))
    at = int(random.choice([i for i, item in enumerate(items) if isinstance(item, Segment)]))
    steps = list(items[at].steps)
    if len(steps) > 1:
        index = int(random.integers(len(steps) - 1))
        steps[index], steps[index + 1] = steps[index + 1], steps[index]
    items[at] = dataclasses.replace(items[at], steps=tuple(steps))
    return dataclasses.replace(plan, items=tuple(items))
