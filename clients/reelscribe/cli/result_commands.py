"""`reelscribe browse`, `export`, `status` and `forget`, which work with the output folder of a run."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reelscribe.cli.messages import EXIT_SOME_SOURCES_FAILED, errors_as_one_line, log_messages
from reelscribe.cli.options.run import (
    FORMAT_NAMES,
    FORMATS,
    Beside,
    DropDoubtful,
    Overwrite,
    beside_formats,
    one_of,
    output_option,
)
from reelscribe.cli.options.subtitles import Cues, SubtitleOptions
from reelscribe.cli.parser.command import flatten
from reelscribe.errors import UsageError, printable
from reelscribe.reporting.formatting import count
from reelscribe.viewer.site import MEDIA_CHOICES, SiteOptions

if TYPE_CHECKING:  # imported when needed, as errors_as_one_line explains
    from reelscribe.export import beside as export_beside


def browse(
    out: Annotated[Path, typer.Argument(help="Folder of a run, which may be going on.")],
    port: Annotated[
        int,
        typer.Option("--port", metavar="PORT", min=0, max=65535, help="Port on 127.0.0.1; 0 chooses one that is free."),
    ] = 0,
    transcode: Annotated[
        bool,
        typer.Option("--transcode", help="Make small previews of what browsers cannot play, when it is opened."),
    ] = False,
    media_hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--media-host",
            metavar="HOST",
            help="A web server of yours, such as films.example, from which sources are played although it is in a"
            " private network, or wants the name and password of ~/.netrc. May be repeated.",
        ),
    ] = None,
) -> None:
    """Show the results of a run as pages for a browser on this machine, also while it lasts, until Ctrl-C.

    The address has a secret part, so that only those can open it who know it. Only names of
    speakers can be changed through it.
    """
    with errors_as_one_line():
        from reelscribe.viewer.browse.serve import serving

        with suppress(KeyboardInterrupt):
            typer.echo(f"reading {printable(str(out))}", err=True)
            with serving(out, port, transcode=transcode, media_hosts=media_hosts or ()) as server:
                typer.echo(server.address)
                typer.echo("Open this address in a browser on this machine; Ctrl-C ends it.", err=True)
                server.run()


@flatten
def export(
    out: Annotated[Path, typer.Argument(help="Folder of a run.")],
    subtitles: SubtitleOptions,
    formats: Annotated[
        list[str] | None,
        output_option(
            "--format",
            metavar="FORMAT",
            autocompletion=lambda: FORMATS,
            help=f"A format to write: {FORMAT_NAMES}. May be repeated.",
        ),
    ] = None,
    beside: Beside = None,
    overwrite: Overwrite = False,
    drop_doubtful: DropDoubtful = False,
    cues: Cues = "auto",
    media: Annotated[
        str,
        output_option(
            "--media",
            metavar="|".join(MEDIA_CHOICES),
            autocompletion=lambda: MEDIA_CHOICES,
            help="What the players of html pages open: the sources where they are, copies of them beside the pages, or"
            " nothing.",
        ),
    ] = "link",
    to: Annotated[
        Path | None,
        output_option("--to", metavar="FOLDER", help="Folder to write to; the default is the folder of the run."),
    ] = None,
) -> None:
    """Export the results of a run as subtitles, tables, chapters or pages for a browser, also while it lasts.

    Exit status: 3 if a source could not be exported, or a file not be written beside its source.
    """
    with errors_as_one_line():
        from reelscribe.export.beside import write_beside
        from reelscribe.export.formats import export as export_annotations
        from reelscribe.results.annotations import current_annotations

        folder = to or out
        rules, site = subtitles.rules(cues), SiteOptions(out, one_of(media, MEDIA_CHOICES, "--media"))
        formats, next_to = formats or [], beside_formats(beside, formats, overwrite)
        if not formats and not next_to:
            raise UsageError("export: expected --format or --beside, got neither")
        if media != "link" and "html" not in formats:
            raise UsageError(f"--media {media}: only pages have players; add --format html, or leave it out")
        lines, failures = list[str](), list[str]()
        with log_messages(lambda text: typer.echo(printable(text), err=True)), current_annotations(out) as annotations:
            if formats:
                exported = export_annotations(
                    annotations,
                    folder,
                    formats,
                    rules,
                    site,
                    lines.append,
                    drop_doubtful=drop_doubtful,
                    overwrite=overwrite,
                )
                for line in (describe_written(exported.written, folder, exported.unchanged), *lines):
                    typer.echo(printable(line))
                failures += exported.failures
            if next_to:
                done = write_beside(annotations, out, next_to, rules, overwrite=overwrite, drop_doubtful=drop_doubtful)
                report_beside(done)
                failures += done.failures
        if failures:
            raise typer.Exit(EXIT_SOME_SOURCES_FAILED)


def describe_written(paths: Sequence[Path], out: Path, unchanged: Collection[Path] = ()) -> str:
    """Describe in one line which files an export has written, such as "wrote 200 .vtt files below out/vtt".

    Args:
        paths: The files.
        out: The folder to which it has written.
        unchanged: Those of them that were there with the same content.
    """
    places: dict[Path, list[Path]] = {}
    for path in (path for path in paths if path not in unchanged):
        inside = path.relative_to(out)
        places.setdefault(out / inside.parts[0], []).append(path)
    described = [
        str(paths[0]) if len(paths) == 1 else f"{_count_by_suffix(paths)} below {place}"
        for place, paths in places.items()
    ]
    found = f", and found {len(unchanged):,} unchanged" if unchanged else ""
    return f"wrote {', '.join(described) or 'nothing'}{found}"


def _count_by_suffix(paths: Sequence[Path]) -> str:
    suffixes = Counter(path.suffix for path in paths)
    return " and ".join(count(number, f"{suffix} file") for suffix, number in suffixes.items())


def report_beside(done: export_beside.Beside, *, quiet: bool = False) -> None:
    """Print what has become of the files beside sources.

    Args:
        done: What has become of them.
        quiet: Whether to print errors only.
    """
    lines = [f"wrote {count(done.written, 'file')} beside the sources, and found {done.unchanged:,} unchanged"]
    if done.kept:
        lines.append(
            f"kept {count(len(done.kept), 'file')} beside the sources that others have made or changed, such as"
            f" {done.kept[0]}; --overwrite replaces them"
        )
    if done.unwritable:
        sources = count(done.unwritable, "source")
        lines.append(f"wrote nothing beside {sources} on web servers or in archives, which take no files")
    for line in [] if quiet else [*lines, *done.unused_names]:
        typer.echo(printable(line))
    for line in done.failures:
        typer.echo(f"reelscribe: {printable(line)}", err=True)


def forget(
    out: Annotated[Path, typer.Argument(help="Folder of a run.")],
    sources: Annotated[
        list[str] | None,
        typer.Argument(help="Files, folders or globs, also of files that are gone from the disk."),
    ] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Forget all sources that were gone when the last run ended.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be forgotten, and change nothing.")
    ] = False,
) -> None:
    """Delete the results of sources from the ledger and from annotations.jsonl.

    Without this command nothing disappears: the records of sources that a later run does not name, or that are gone
    from the disk, stay.
    """
    with errors_as_one_line():
        from reelscribe.results.forget import forget as forget_sources

        if not sources and not missing:
            raise UsageError("forget: expected SOURCES or --missing, got neither")
        forgotten = asyncio.run(forget_sources(out, sources or [], missing=missing, dry_run=dry_run))
        for source in forgotten:
            typer.echo(printable(source.name))
        typer.echo(f"{'would forget' if dry_run else 'forgot'} {count(len(forgotten), 'source')}", err=True)


def status(
    out: Annotated[Path, typer.Argument(help="Folder of a run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the progress of the run that writes to a folder, or how the last one ended.

    Exit status: 0 while the run lasts, and if all sources of the folder succeeded; 3 if some of them failed; 130 if it
    was interrupted; 1 if it ended early or was killed, or the folder cannot be read; 2 if there was no run.
    """
    with errors_as_one_line():
        from rich.console import Console

        from reelscribe._files import writer_of
        from reelscribe.reporting.status import RunStatus
        from reelscribe.results.ledger_reader import earlier_run_state
        from reelscribe.results.schema import NAME as LEDGER
        from reelscribe.results.schema import row_errors

        saved = earlier_run_state(out)
        if saved is None:
            raise UsageError(
                f"{out}: expected the folder of a run, but no run there has saved anything; one with --watch saves"
                " nothing before its first source"
            )
        with row_errors(out / LEDGER):
            run = RunStatus.from_run_state(saved, locked=writer_of(out) == "run")
            table = run.table(out)
        if as_json:
            for name in ("speeds", "costs"):  # those of ledgers of earlier versions
                saved.pop(name, None)
            typer.echo(json.dumps({**saved, "state": run.state, "reason": run.reason, "exit_status": run.exit_status}))
        else:
            Console(highlight=False).print(table)
        raise typer.Exit(run.exit_status)
