"""Which voices are of the same speaker: embeddings of a recording are joined to clusters, one for each speaker.

Embeddings are joined in blocks by agglomerative clustering with average linkage (scipy), so that the memory that hours
take is bounded. Where the model tells the speakers of each chunk apart, these are the blocks and their clusters. What
the blocks leave are clusters with a weight, of which the most alike are joined until no two are alike enough. Clusters
of little time are of nobody: they are overlapping speech, laughter or noise. At the end, each embedding belongs to the
speaker whose mean it is most alike. Two speakers of a chunk may become one, as a model may take one for two.

Alike is the cosine of two vectors: 1 for the same direction. Parameters were chosen on one half of the readers of
`scripts/bench diarization`, whose other half gives the figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from reelscribe.contract.voices import SpeakerBounds

VERSION = "1"
"""Changes when the same embeddings get other speakers."""

BLOCK = 600
"""Number of embeddings that are compared with each other: 1.4 MB of distances."""

BLOCK_DISTANCE = 0.41
"""Mean cosine distance of the embeddings of two clusters up to which they are joined within a block."""

SAFE_SIMILARITY = 0.93
"""Cosine of the means of two clusters from which on they are joined, whatever the number of speakers."""

SAME_SIMILARITY = 0.84
"""Cosine of the means of two clusters from which on they are of one speaker, if the number of speakers allows it."""

MOST_CLUSTERS = 256
"""Largest number of clusters that are kept from blocks."""

MIN_SHARE = 0.15
"""Least time for which a speaker speaks, as a share of that of the largest cluster, where MIN_SECONDS are shorter."""

MIN_SECONDS, MIN_SHORT_SHARE = 4.0, 0.1
"""Least time for which a speaker speaks, or the least part of all speech in recordings so short that it is less."""

_ROUNDS = 3

Vectors = NDArray[np.float32]
"""Embeddings or means, (N, D)."""

Labels = NDArray[np.intp]
"""Numbers of clusters, or of the speakers of a chunk, from 0: (N,)."""


def speakers_of(
    embeddings: Vectors, seconds: NDArray[np.float64], bounds: SpeakerBounds, told: Sequence[Labels] | None = None
) -> list[int]:
    """Return the number of the speaker of each embedding, from 0 in the order in which they first appear.

    Args:
        embeddings: (N, D), in the order of time, of any length but 0.
        seconds: (N,): how long each speaks.
        bounds: How many speakers there may be.
        told: For each chunk, the speakers of its embeddings as the model has numbered them; N in all. None if the model
            does not tell speakers apart.
    """
    if not len(embeddings):
        return []
    unit = _unit(embeddings.astype(np.float32))
    sums, weights = np.empty((0, unit.shape[1]), np.float32), np.empty(0)
    stop = 0
    for labels in _blocks(unit, bounds.least) if told is None else told:
        start, stop = stop, stop + len(labels)
        block, long = unit[start:stop], seconds[start:stop]
        count = labels.max() + 1
        of_block = np.zeros((count, unit.shape[1]), np.float32)
        np.add.at(of_block, labels, block * long[:, None].astype(np.float32))
        sums = np.concatenate([sums, of_block])
        weights = np.concatenate([weights, np.bincount(labels, long, count)])
        sums, weights = _joined(sums, weights, SAFE_SIMILARITY, bounds.least, MOST_CLUSTERS)
    heavy = np.argsort(-weights, kind="stable")
    short = min(MIN_SECONDS, MIN_SHORT_SHARE * float(weights.sum()))
    least_seconds = max(MIN_SHARE * float(weights.max()), short)
    enough = max(bounds.least, int((weights >= least_seconds).sum()))
    kept = np.sort(heavy[:enough])
    means = _unit(_joined(sums[kept], weights[kept], SAME_SIMILARITY, bounds.least, bounds.most)[0])
    for _ in range(_ROUNDS):
        labels = (unit @ means.T).argmax(1)
        used = np.unique(labels)
        means = _unit(np.stack([(unit[labels == k] * seconds[labels == k, None]).sum(0) for k in used]))
    labels = (unit @ means.T).argmax(1)
    numbers: dict[int, int] = {}
    return [numbers.setdefault(label, len(numbers)) for label in labels.tolist()]


def _blocks(vectors: Vectors, least: int) -> Iterator[Labels]:
    """Yield the numbers of the clusters of the embeddings of each block."""
    for first in range(0, len(vectors), BLOCK):
        yield _block_labels(vectors[first : first + BLOCK], least)


def _block_labels(vectors: Vectors, least: int) -> Labels:
    """Return the number of the cluster of each embedding of a block, from 0; there are at least so many clusters."""
    from scipy.cluster.hierarchy import fcluster, linkage

    if len(vectors) < 2:
        return np.zeros(len(vectors), np.intp)
    tree = linkage(vectors.astype(np.float64), "average", metric="cosine")
    labels = fcluster(tree, BLOCK_DISTANCE, "distance")
    if labels.max() < least:
        labels = fcluster(tree, least, "maxclust")
    return np.asarray(labels, np.intp) - 1


def _joined(
    sums: Vectors, weights: NDArray[np.float64], similarity: float, least: int, most: int | None
) -> tuple[Vectors, NDArray[np.float64]]:
    """Join the most alike clusters while they are alike enough or too many, but not to fewer than `least`."""
    sums, weights = sums.copy(), weights.copy()
    while len(sums) > max(1, least):
        means = _unit(sums)
        alike = means @ means.T
        np.fill_diagonal(alike, -1.0)
        one, other = sorted(divmod(int(alike.argmax()), len(alike)))
        if alike[one, other] < similarity and (most is None or len(sums) <= most):
            break
        sums[one] += sums[other]
        weights[one] += weights[other]
        sums, weights = np.delete(sums, other, 0), np.delete(weights, other)
    return sums, weights


def _unit(vectors: Vectors) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Vectors = (vectors / np.maximum(lengths, 1e-9)).astype(np.float32)
    return unit
