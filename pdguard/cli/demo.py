"""`pdguard demo`: a simulated cluster on loopback, shaped like the incident, audited over real HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("demo")(demo)


def demo(
    engines: Annotated[int, typer.Option("--engines", min=2, max=2000, help="How many engines.")] = 6,
    serve: Annotated[bool, typer.Option("--serve", help="Leave the cluster running until Ctrl-C.")] = False,
    cluster_file: Annotated[
        Path,
        typer.Option("--cluster-file", metavar="FILE", help="With --serve: where to write its cluster file."),
    ] = Path("demo-cluster.yaml"),
    output_format: Annotated[
        str, typer.Option("--format", "-f", metavar="table|json", help="How to print the report.")
    ] = "table",
    width: Annotated[
        int | None, typer.Option("--width", min=60, max=400, help="Columns of the table.")
    ] = None,
) -> None:
    """Start a simulated cluster shaped like the incident and audit it. The exit code is 0."""
    import datetime
    import os

    from pdguard.audit import run_audit
    from pdguard.cli.run import catalogue, note, rendering, write_result
    from pdguard.cluster.loader import parse_cluster
    from pdguard.errors import InputError
    from pdguard.simulator.cluster import start_in_thread
    from pdguard.simulator.incident import incident_cluster

    renderer = rendering(output_format, width, None)
    if serve and cluster_file.exists():
        raise InputError(f"{cluster_file} exists", todo="Name another with --cluster-file, or remove it.")
    with start_in_thread(incident_cluster(engines)) as live:
        text = live.cluster_yaml()
        note(f"{engines} simulated engines on loopback; no real engine is involved")
        cluster = parse_cluster(text, "demo")
        result = run_audit(cluster, catalogue(None), os.environ, datetime.datetime.now(datetime.UTC), note)
        write_result(renderer.render(result), None)
        if serve:
            _serve(text, cluster_file)


def _serve(text: str, cluster_file: Path) -> None:
    import signal
    import threading

    from pdguard.cli.run import note, write_result

    write_result(text, cluster_file)
    note(f"still serving. Try `pdguard audit {cluster_file}` in another shell; Ctrl-C stops.")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        stop.wait()
    except KeyboardInterrupt:
        note("stopped")
