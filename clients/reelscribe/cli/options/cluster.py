"""The options of a run over many machines."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reelscribe.cli.parser.help import Heading
from reelscribe.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reelscribe._track_specs import TrackSpec
    from reelscribe.cluster.driver import Cluster

cluster_option = partial(typer.Option, rich_help_panel=Heading.CLUSTER)


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """The options of a run over many machines."""

    ray: Annotated[
        str | None,
        cluster_option(
            "--ray",
            metavar="ADDRESS|auto",
            help="Run on all nodes of the Ray cluster with this address, or of the one that this machine is part of.",
        ),
    ] = None
    runtime_env: Annotated[
        Path | None,
        cluster_option(
            "--ray-runtime-env",
            metavar="FILE",
            help="YAML or JSON file of Ray's runtime environment for the nodes. By default they use what is installed.",
        ),
    ] = None
    insecure: Annotated[
        bool,
        cluster_option(
            "--insecure",
            help="Use a Ray cluster without token authentication, where whoever reaches it can run programs.",
        ),
    ] = False

    def check(self) -> None:
        """Raise UsageError if an option needs another one that is not given."""
        for name, value in (("--ray-runtime-env", self.runtime_env), ("--insecure", self.insecure)):
            if value and self.ray is None:
                raise UsageError(f"{name}: expected --ray with it, as it is about the cluster")

    def cluster(self, tracks: Sequence[TrackSpec]) -> Cluster:
        """Return the cluster that --ray names.

        Raises:
            UsageError: The file of the runtime environment cannot be used.
        """
        from reelscribe.cluster.ray_cluster import RayCluster

        processes = sum(track.decode_processes for track in tracks)
        environment = _read_runtime_env(self.runtime_env) if self.runtime_env else None
        return RayCluster(self.ray or "", processes=processes, runtime_env=environment, insecure=self.insecure)


def _read_runtime_env(path: Path) -> dict[str, Any]:
    import yaml

    try:
        value = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"--ray-runtime-env {path}: cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(
            f"--ray-runtime-env {path}: expected a mapping such as 'env_vars: {{A: b}}', got {value!r:.60}"
        )
    return value
