"""`pdguard schema`: JSON Schemas of the files that pdguard reads and writes."""

from __future__ import annotations

import enum
from typing import Annotated

import typer


class Kind(enum.StrEnum):
    """What there is a schema of."""

    CLUSTER = "cluster"
    REPORT = "report"
    PROBE = "probe"
    METRICS = "metrics"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("schema")(schema)


def schema(
    kind: Annotated[Kind, typer.Argument(help="cluster.yaml, or the JSON of audit, probe or metrics.")],
) -> None:
    """Print a JSON Schema, for editors and for readers of reports."""
    import json

    from pdguard.cli.run import write_result

    if kind is Kind.CLUSTER:
        from pdguard.cluster.schema import cluster_schema

        found = cluster_schema()
    elif kind is Kind.PROBE:
        from pdguard.probe.document import probe_schema

        found = probe_schema()
    elif kind is Kind.METRICS:
        from pdguard.outcomes.document import metrics_schema

        found = metrics_schema()
    else:
        from pdguard.report.schema import report_schema

        found = report_schema()
    write_result(json.dumps(found, indent=2, ensure_ascii=False) + "\n", None)
