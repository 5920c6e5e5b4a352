"""The options of a run over many machines."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reelscribe._web_addresses import without_login
from reelscribe.cli.parser.help import Heading
from reelscribe.errors import UsageError, missing_package
from reelscribe.server.start_options import MODEL_STORE, SERVER_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reelscribe._track_specs import TrackSpec
    from reelscribe.cli.options.servers import ServerOptions
    from reelscribe.client.openai_forms import OpenAISettings
    from reelscribe.cluster.serving import Archives
    from reelscribe.run.node import Nodes
    from reelscribe.server.server_discovery import FoundServer

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
    ray_nodes: Annotated[
        int | None,
        cluster_option(
            min=1,
            metavar="N",
            help="Ask Ray's autoscaler for N nodes. By default the run uses those that there are, and those that join.",
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
    serve: Annotated[
        bool,
        cluster_option(
            "--serve",
            help="Start a TorchServe on each node with GPUs, for what that node decodes. No --server is used then.",
        ),
    ] = False
    serve_nodes: Annotated[
        int | None,
        cluster_option(min=1, metavar="N", help="Do the same on up to N nodes, whether or not they have GPUs."),
    ] = None
    model_store: Annotated[
        Path,
        cluster_option(metavar="FOLDER", help="Folder of the model archives that nodes serve. They are sent once."),
    ] = MODEL_STORE
    insecure: Annotated[
        bool,
        cluster_option(
            "--insecure",
            help="Use a Ray cluster without token authentication, where whoever reaches it can run programs.",
        ),
    ] = False

    def check(self) -> None:
        """Raise UsageError if an option needs another one that is not given."""
        given = {
            "--ray-nodes": self.ray_nodes,
            "--ray-runtime-env": self.runtime_env,
            "--serve": self.serve,
            "--serve-nodes": self.serve_nodes,
            "--insecure": self.insecure,
        }
        for name, value in given.items():
            if value and self.ray is None:
                raise UsageError(f"{name}: expected --ray with it, as it is about the cluster")

    @property
    def serves(self) -> bool:
        """Return `True` if nodes serve the models by themselves."""
        return self.serve or self.serve_nodes is not None

    def servers(
        self,
        options: ServerOptions,
        speech_servers: Sequence[str] | None = None,
        openai: OpenAISettings | None = None,
    ) -> list[FoundServer]:
        """Return the servers of the models; none if nodes serve the models by themselves.

        Args:
            options: Which servers.
            speech_servers: Addresses of those that only transcribe.
            openai: How servers with OpenAI's API are asked; None for the defaults.

        Raises:
            UsageError: A server is named although nodes use their own, or one of the options cannot be used.
        """
        if not self.serves:
            return options.find(openai)
        if named := [*(options.servers or ()), *(speech_servers or ())]:
            raise UsageError(
                f"--serve, --serve-nodes: expected no address of a server, got {without_login(named[0])};"
                f" leave out --server, --speech-server and {SERVER_VARIABLE}, as nodes use servers of their own"
            )
        return []

    def archives(self) -> Archives | None:
        """Return the model archives that nodes serve; None if other servers serve the models.

        Raises:
            StartupError: There is no archive, or one is damaged.
        """
        if not self.serves:
            return None
        from reelscribe.cluster.serving import Archives

        return Archives(self.model_store)

    def nodes(self, specs: Sequence[TrackSpec], archives: Archives | None) -> Nodes:
        """Return the nodes of the cluster that --ray names.

        Args:
            specs: The specifications of the tracks of each node.
            archives: The model archives that nodes serve; None if other servers serve the models.

        Raises:
            UsageError: The file of the runtime environment cannot be used.
        """
        from reelscribe.cluster.session import RemoteNodes

        try:
            from reelscribe.cluster.ray_cluster import RayCluster
        except ModuleNotFoundError as error:
            raise UsageError(f"--ray: {missing_package(error.name or 'ray', 'ray')}") from None

        chosen = [processes for spec in specs if (processes := spec.decode_processes) is not None]
        processes = sum(chosen) if len(chosen) == len(specs) else None
        environment = _read_runtime_env(self.runtime_env) if self.runtime_env else None
        cluster = RayCluster(
            self.ray or "",
            processes=processes,
            runtime_env=environment,
            insecure=self.insecure,
            serve=self.serves,
            most_nodes=self.serve_nodes,
            wanted_nodes=self.ray_nodes,
        )
        return RemoteNodes(specs, cluster, archives)


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
