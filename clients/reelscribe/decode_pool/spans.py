"""Divide the spans of a source into portions, which go to one decode process after the other, or to several at once.

A portion reaches from one entry point of a source to the next. Sources without entry points have a single portion.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from reelscribe.contract.source import Span

Portion = Literal["all", "first", "later"]
"""What a process reads of a source: all that is asked for; all that is asked for up to the first entry point that it
finds; or a portion that begins at an entry point."""


def before_entry_point(spans: Sequence[Span], entry_points: Sequence[int]) -> tuple[list[Span], list[Span]]:
    """Divide spans at the first entry point that lies behind their beginning.

    Args:
        spans: The spans, in ascending order.
        entry_points: The numbers at which portions may begin, ascending: ordinals of chosen frames.

    Returns:
        What is before that entry point, and the rest; if there is none, all spans and nothing.
    """
    at = bisect_right(entry_points, spans[0].first) if spans else 0
    if at == len(entry_points):
        return list(spans), []
    point = entry_points[at]
    before = [
        replace(span, stop=point if span.stop is None else min(span.stop, point))
        for span in spans
        if span.first < point
    ]
    rest = [
        span if span.first >= point else Span(point, span.stop)
        for span in spans
        if span.stop is None or span.stop > point
    ]
    return before, rest


def after(spans: Sequence[Span], stop: int, anchor: int | None) -> list[Span]:
    """Return the rest of spans of which everything before a number has been read.

    Args:
        spans: The spans, in ascending order.
        stop: The number.
        anchor: `Span.anchor` of a span that begins there.
    """
    rest = [span for span in spans if span.stop is None or span.stop > stop]
    if rest and rest[0].first < stop:
        rest[0] = Span(stop, rest[0].stop, anchor)
    return rest


def join(some: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Return the spans of both, in ascending order; one that begins where another ends continues it."""
    joined = list[Span]()
    for span in sorted([*some, *others], key=lambda span: span.first):
        if joined and joined[-1].stop == span.first:
            joined[-1] = replace(joined[-1], stop=span.stop)
        else:
            joined.append(span)
    return joined
