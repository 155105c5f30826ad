"""Embeddings on two axes (floor 4): rows in; points, names of the axes and a sentence on them out.

Principal components need nothing but numpy; UMAP is an extra, imported on use.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from marius_py.errors import ConfigError

Method = Literal["pca", "umap"]
METHODS: tuple[Method, ...] = get_args(Method)
_NEIGHBORS = 15
_SPECTRAL_ROWS = 50
"""With fewer rows UMAP's spectral start has too few dimensions; a random one does."""


@dataclass(frozen=True, slots=True)
class Map:
    """Points (n, 2) float64, the names of the two axes, and what they are."""

    points: NDArray[np.float64]
    axes: tuple[str, str]
    note: str


def check_method(method: str) -> None:
    """Refuse an unknown method, or one that is not installed, with a ConfigError."""
    if method not in METHODS:
        raise ConfigError(f"map is {method!r}; allowed: {', '.join(METHODS)}")
    if method == "umap":
        _import_umap()


def map_rows(rows: NDArray[np.float32], method: Method, seed: int) -> Map:
    """Place rows (n, D) on two axes.

    Raises:
        ConfigError: umap-learn is asked for and not installed.
    """
    if method == "umap":
        return Map(
            umap_points(rows, seed),
            ("first axis", "second axis"),
            "by UMAP (cosine): near points are near in the embedding, distances between groups say little",
        )
    points, shares = principal_components(rows)
    held = " and ".join(f"{100 * share:.1f}" for share in shares)
    return Map(
        points,
        ("first principal component", "second principal component"),
        f"on the first two principal components, which hold {held} % of the variance",
    )


def principal_components(rows: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rows (n, D) on their two first principal components (n, 2), and these' shares of variance (2,)."""
    centered = rows.astype(np.float64) - rows.mean(axis=0, dtype=np.float64)
    _, values, axes = np.linalg.svd(centered, full_matrices=False)
    points = np.zeros((len(rows), 2))
    used = min(2, len(values))
    points[:, :used] = centered @ axes[:used].T
    variance = values**2
    shares = np.zeros(2)
    shares[:used] = variance[:used] / max(float(variance.sum()), 1e-300)
    return points, shares


def umap_points(rows: NDArray[np.float32], seed: int) -> NDArray[np.float64]:
    """Rows (n, D) on two axes (n, 2) by UMAP, the same for the same seed."""
    umap = _import_umap()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about threads, which a seed forbids, and about its own libraries
        reducer = umap.UMAP(
            n_components=2,
            n_neighbors=min(_NEIGHBORS, len(rows) - 1),
            metric="cosine",
            init="spectral" if len(rows) >= _SPECTRAL_ROWS else "random",
            random_state=seed % (1 << 32),
            n_jobs=1,
        )
        return np.asarray(reducer.fit_transform(rows), dtype=np.float64)


def _import_umap() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import umap
    except ImportError as error:
        raise ConfigError(
            "map=umap needs umap-learn: pip install 'marius_py[umap]', or take map=pca, which needs nothing"
        ) from error
    return umap
