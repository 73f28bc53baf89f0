"""Reference of pooled regions and of boxes that don't overlap."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dataflow.errors import InputError

from .arrays import Array, Attributes, Code, upcast

MOST_SAMPLES = 1 << 15  # of a bin along an axis, so that no region takes forever

# ---- regions ------------------------------------------------------------------------------------------


def _samples(batch: Array, count: int, name: str) -> Array:
    wrong = (batch < 0) | (batch >= count)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise InputError(f"{name}: region {at} is of sample {int(batch[at])}; there are {count}")
    return batch


def _axis(start: Array, length: Array, bins: int, count: int, size: int) -> tuple[Array, Array, Array, Array]:
    """Of the samples of an axis: the elements below and above, the weight of the latter, whether it is inside."""
    width = length / bins
    at = start + np.arange(bins)[:, None] * width + (np.arange(count)[None] + 0.5) * width / max(count, 1)
    inside = (at >= -1) & (at <= size)
    at = np.clip(np.where(inside, at, 0), 0, size - 1)
    below = np.minimum(np.floor(at).astype(np.int64), size - 1)
    return below, np.minimum(below + 1, size - 1), at - below, inside


def _count(samples: float) -> int:
    """Samples of a bin along an axis; NaN counts as 0.

    Raises:
        InputError: they are too many.
    """
    if samples > MOST_SAMPLES:
        raise InputError(f"roi_align: a bin has {samples:.0f} samples along an axis; expected at most {MOST_SAMPLES}")
    return int(samples) if samples > 0 else 0


def _bins(
    attributes: Attributes, roi: Array, height: int, width: int
) -> Iterator[tuple[tuple[int, int], Array, Array]]:
    """Per bin its index, and flat elements and weights of its samples: (samples, 4)."""
    shift = 0.5 if attributes["half_pixel"] else 0.0
    corners = roi * roi.dtype.type(attributes["spatial_scale"]) - roi.dtype.type(shift)
    lengths = corners[2:] - corners[:2]
    if not attributes["half_pixel"]:
        lengths = np.maximum(lengths, 1)
    rows, columns = attributes["size"]
    ratio = attributes["sampling_ratio"]
    counts = [ratio or _count(float(np.ceil(n / bins))) for n, bins in zip(lengths, (columns, rows), strict=True)]
    x = _axis(corners[0], lengths[0], columns, counts[0], width)
    y = _axis(corners[1], lengths[1], rows, counts[1], height)
    for row in range(rows):
        for column in range(columns):
            (top, bottom, down, in_y), (left, right, along, in_x) = (
                [a[i] for a in t] for t, i in ((y, row), (x, column))
            )
            elements = [np.add.outer(v * width, h) for v in (top, bottom) for h in (left, right)]
            weights = [np.multiply.outer(v, h) for v in (1 - down, down) for h in (1 - along, along)]
            inside = np.logical_and.outer(in_y, in_x)
            stacked = np.stack([np.where(inside, w, 0) for w in weights], axis=-1)
            chosen = np.stack([np.where(inside, e, 0) for e in elements], axis=-1)
            yield (row, column), chosen.reshape(-1, 4), stacked.reshape(-1, 4)


def _roi_align(attributes: Attributes, x: Array, rois: Array, batch: Array, read: Array | None = None) -> Array:
    planes, others = (
        None if a is None else upcast(a).reshape(*x.shape[:2], x.shape[2] * x.shape[3]) for a in (x, read)
    )
    assert planes is not None
    y = np.zeros((len(rois), x.shape[1], *attributes["size"]), planes.dtype)
    for number, sample in enumerate(_samples(batch, len(x), "roi_align") if planes.size else ()):
        for (row, column), elements, weights in _bins(attributes, upcast(rois)[number], *x.shape[2:]):
            samples = planes[sample][:, elements] * weights
            if samples.size and attributes["mode"] == "avg":
                y[number, :, row, column] = samples.sum(axis=(1, 2)) / len(elements)
            elif samples.size:
                first = samples.reshape(len(samples), -1).argmax(axis=1)
                of = samples if others is None else others[sample][:, elements] * weights
                y[number, :, row, column] = of.reshape(len(of), -1)[np.arange(len(of)), first]
    return y.astype(x.dtype)


def _roi_align_grad(attributes: Attributes, dy: Array, rois: Array, batch: Array, x: Array | None = None) -> Array:
    N, C, height, width = attributes["input_shape"]
    dx = np.zeros((N, C, height * width), upcast(dy).dtype)
    channels = np.arange(C)
    for number, sample in enumerate(_samples(batch, N, "roi_align_grad")):
        for (row, column), elements, weights in _bins(attributes, upcast(rois)[number], height, width):
            given = upcast(dy)[number, :, row, column]
            if not elements.size:
                continue
            if attributes["mode"] == "avg":
                rows = given[:, None] * (weights / len(elements)).reshape(-1)
                np.add.at(dx[sample], (channels[:, None], elements.reshape(-1)[None]), rows)
            else:
                assert x is not None
                read = upcast(x)[sample].reshape(C, -1)[:, elements] * weights
                first = read.reshape(C, -1).argmax(axis=1)
                np.add.at(dx[sample], (channels, elements.reshape(-1)[first]), given * weights.reshape(-1)[first])
    return dx.reshape(N, C, height, width).astype(dy.dtype)


def _rounded(numbers: Array) -> Array:
    """To the nearest whole number, halves away from zero."""
    return np.where(numbers < 0, np.ceil(numbers - 0.5), np.floor(numbers + 0.5))


def _windows(attributes: Attributes, roi: Array, height: int, width: int) -> Iterator[tuple[int, int, slice, slice]]:
    """Per bin its index and the elements of the map."""
    if not np.isfinite(roi).all():
        raise InputError(f"max_roi_pool: a region is {roi.tolist()}; expected finite numbers")
    left, top, right, bottom = _rounded(roi * roi.dtype.type(attributes["spatial_scale"]))
    rows, columns = attributes["size"]
    spans = []
    for start, end, bins, size in ((top, bottom, rows, height), (left, right, columns, width)):
        step = np.maximum(end - start + 1, 1) / roi.dtype.type(bins)
        numbers = np.arange(bins, dtype=roi.dtype)
        begin, stop = np.floor(numbers * step) + start, np.ceil((numbers + 1) * step) + start
        edges = zip(np.clip(begin, 0, size), np.clip(stop, 0, size), strict=True)
        spans.append([slice(int(a), int(b)) for a, b in edges])
    for row, down in enumerate(spans[0]):
        for column, along in enumerate(spans[1]):
            yield row, column, down, along


def _max_roi_pool(attributes: Attributes, x: Array, rois: Array, batch: Array, read: Array | None = None) -> Array:
    y = np.zeros((len(rois), x.shape[1], *attributes["size"]), x.dtype)
    for number, sample in enumerate(_samples(batch, len(x), "max_roi_pool")):
        for row, column, down, along in _windows(attributes, upcast(rois)[number], *x.shape[2:]):
            window = x[sample, :, down, along]
            if window.size:
                first = window.reshape(len(window), -1).argmax(axis=1)
                of = window if read is None else read[sample, :, down, along]
                y[number, :, row, column] = of.reshape(len(of), -1)[np.arange(len(of)), first]
    return y


def _max_roi_pool_grad(attributes: Attributes, dy: Array, x: Array, rois: Array, batch: Array) -> Array:
    dx = np.zeros(x.shape, upcast(dy).dtype)
    channels = np.arange(x.shape[1])
    for number, sample in enumerate(_samples(batch, len(x), "max_roi_pool_grad")):
        for row, column, down, along in _windows(attributes, upcast(rois)[number], *x.shape[2:]):
            window = x[sample, :, down, along]
            if window.size:
                at = np.unravel_index(window.reshape(len(window), -1).argmax(axis=1), window.shape[1:])
                np.add.at(
                    dx[sample], (channels, at[0] + down.start, at[1] + along.start), upcast(dy)[number, :, row, column]
                )
    return dx.astype(dy.dtype)


# ---- boxes that don't overlap -------------------------------------------------------------------------


def _corners(boxes: Array, center: bool) -> tuple[Array, Array, Array, Array]:
    """Least and largest coordinates of both axes."""
    a, b, c, d = (boxes[..., i] for i in range(4))
    if center:
        half = boxes.dtype.type(2)
        return a - c / half, a + c / half, b - d / half, b + d / half
    return np.minimum(a, c), np.maximum(a, c), np.minimum(b, d), np.maximum(b, d)


def _overlaps(corners: tuple[Array, ...], one: int, others: Array, limit: float) -> Array:
    """Whether the intersection of a box with each of the others is above ``limit`` of their union."""
    low, high, near, far = corners
    across = np.minimum(high[one], high[others]) - np.maximum(low[one], low[others])
    along = np.minimum(far[one], far[others]) - np.maximum(near[one], near[others])
    area = (high - low) * (far - near)
    common = across * along
    union = area[one] + area[others] - common
    valid = (across > 0) & (along > 0) & (area[one] > 0) & (area[others] > 0) & (union > 0)
    return valid & (common / np.where(valid, union, 1) > limit)


def _non_max_suppression(
    attributes: Attributes, boxes: Array, scores: Array, most: Array, overlap: Array, least: Array | None = None
) -> tuple[Array, Array]:
    found = []
    for sample, of in enumerate(upcast(boxes)):
        corners = _corners(of, bool(attributes["center"]))
        for number, row in enumerate(upcast(scores)[sample]):
            kept: list[int] = []
            order = np.argsort(-row, kind="stable")
            for box in order if least is None else order[row[order] > upcast(least)]:
                if len(kept) >= int(most):
                    break
                if not _overlaps(corners, int(box), np.array(kept, np.int64), float(overlap)).any():
                    kept.append(int(box))
            found += [(sample, number, box) for box in kept]
    if len(found) > attributes["rows"]:
        raise InputError(f"non_max_suppression: {len(found)} boxes stay; there are {attributes['rows']} rows for them")
    selected = np.full((attributes["rows"], 3), -1, np.int64)
    selected[: len(found)] = np.array(found, np.int64).reshape(-1, 3)
    return selected, np.array([len(found)], np.int64)


KERNELS: dict[str, Code] = {
    "roi_align": _roi_align,
    "roi_align_grad": _roi_align_grad,
    "max_roi_pool": _max_roi_pool,
    "max_roi_pool_grad": _max_roi_pool_grad,
    "non_max_suppression": _non_max_suppression,
}
