"""`pdguard probe`: what the service does with requests that it must refuse, or whose client leaves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pdguard.cluster.model import Cluster
    from pdguard.probe.interface import Api, Plan, ProbeResult
    from pdguard.probe.wanted import Wanted
    from pdguard.report.interface import RenderOptions

_APIS = "generate|completions|chat"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("probe")(probe)


def probe(
    cluster: Annotated[
        Path, typer.Argument(metavar="[CLUSTER]", help="Cluster file.", show_default=True)
    ] = Path("cluster.yaml"),
    over_pool: Annotated[
        bool, typer.Option("--over-pool", help="Prompts on each side of every limit: who refuses, and when.")
    ] = False,
    abort: Annotated[
        bool, typer.Option("--abort", help="A client that leaves in mid-transfer: are both halves told?")
    ] = False,
    pairing: Annotated[
        bool, typer.Option("--pairing", help="Prefill refuses: does the router let decode go at once?")
    ] = False,
    canary: Annotated[
        bool, typer.Option("--canary", help="Known answers before, during and after: do they drift?")
    ] = False,
    staging: Annotated[
        bool,
        typer.Option("--staging", help="The strong proof: does an answer depend on what ran before it?"),
    ] = False,
    plan_only: Annotated[bool, typer.Option("--plan", help="Print the plan and send nothing.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Consent to the plan; without this nothing is sent.")
    ] = False,
    accept_exposure: Annotated[
        bool,
        typer.Option(
            "--accept-exposure",
            help="Consent to steps that may draw another request's text (it is dropped unseen).",
        ),
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FILE", help="Also write the result as JSON, for audit --with."),
    ] = None,
    direct: Annotated[
        bool, typer.Option("--direct", help="Also straight to both halves of each pair, past the router.")
    ] = False,
    routers: Annotated[
        list[str] | None, typer.Option("--router", metavar="NAME", help="Only through these routers.")
    ] = None,
    pairs: Annotated[
        list[str] | None,
        typer.Option(
            "--pair",
            metavar="P/D",
            help="Only these pairs, as p0/d0, directly; no router unless --router.",
        ),
    ] = None,
    apis: Annotated[
        list[str] | None,
        typer.Option("--api", metavar=_APIS, help="Paths that --over-pool takes; /generate unless given."),
    ] = None,
    stream: Annotated[
        str, typer.Option("--stream", metavar="yes|no|both", help="Ask for streamed answers.")
    ] = "both",
    max_requests: Annotated[
        int, typer.Option("--max-requests", help="Requests in all, a router's retries included.")
    ] = 300,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Prompt tokens in all.")] = 16_000_000,
    max_seconds: Annotated[float, typer.Option("--max-seconds", help="Seconds in all.")] = 1800.0,
    wait: Annotated[
        float,
        typer.Option("--wait", help="Seconds to wait for a refusal; admitted prompts get 120 at least."),
    ] = 20.0,
    output_format: Annotated[
        str, typer.Option("--format", "-f", metavar="table|json", help="How to print the result.")
    ] = "table",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the result to FILE (- is stdout)."),
    ] = None,
    width: Annotated[
        int | None, typer.Option("--width", min=60, max=400, help="Columns of the table.")
    ] = None,
) -> None:
    """Send prompts that must be refused, and see what happens.

    Without --yes only the plan is printed.

    Exit codes: 20 an exposure was observed, 12 a half was left waiting, held, or not told, 11 answers drifted
    or prompts were cut, 3 something was not probed or told nothing, 0 otherwise, 130 interrupted,
    2 no consent.
    """
    import sys

    from pdguard.cli.run import note, read_cluster, write_result
    from pdguard.errors import InputError
    from pdguard.probe.interface import Budget
    from pdguard.probe.outcome import EXPOSED, exit_code
    from pdguard.probe.wanted import Wanted
    from pdguard.report.interface import RenderOptions, options_for

    if output_format not in ("table", "json"):
        raise InputError("no such format", expected="table or json", found=repr(output_format)[:40])
    output = None if output is not None and str(output) == "-" else output
    _check_files(output, save)
    if output is None and sys.stdout is None:
        raise InputError("stdout is closed", expected="a place for the result", todo="Use --output FILE.")
    wanted = Wanted(
        over_pool=over_pool,
        abort=abort,
        pairing=pairing,
        canary=canary,
        staging=staging,
        direct=direct,
        accept_exposure=accept_exposure,
        apis=_apis(apis),
        streams=_streams(stream),
        routers=tuple(routers or ()),
        pairs=tuple(_pair(text) for text in pairs or ()),
        budget=Budget(max_requests, max_tokens, max_seconds, wait),
    )
    described = read_cluster(cluster)
    plan = _plan(described, wanted)
    options = options_for(sys.stdout, width=width) if output is None else RenderOptions(width or 100)
    if plan_only or not yes:
        write_result(_plan_text(plan, described.cluster, output_format, options), output)
        if plan_only:
            raise typer.Exit(0)
        from pdguard.probe.present import NOTHING_SENT

        note(NOTHING_SENT)
        raise typer.Exit(2)
    from pdguard.probe.present import plan_text

    sys.stderr.write(plan_text(plan, described.cluster, options_for(sys.stderr, width=width)))
    sys.stderr.flush()
    result = _run(plan, described.cluster)
    saved = save or (output if output_format == "json" else None)
    code = exit_code(result)
    texts = [(_result_text(result, output_format, options, str(cluster), saved), output)]
    if save is not None:
        texts.insert(0, (_result_text(result, "json", options), save))
    for text, where in texts:
        try:
            write_result(text, where)
        except InputError as error:
            # What was seen counts for more than where it could not be written.
            note(str(error))
            code = code if code == EXPOSED else error.exit_code
    if output is not None:
        from pdguard.probe.outcome import said

        verdict = said(result)
        note(f"{verdict.word.label} {verdict.text}; written to {output}")
    if saved is not None:
        note(f"next: pdguard audit {cluster} --with {saved}")
    raise typer.Exit(code)


def _check_files(output: Path | None, save: Path | None) -> None:
    """Raise InputError for a file that cannot be written, before anything is sent."""
    import os

    from pdguard.errors import InputError

    if save is not None and str(save) == "-":
        raise InputError("--save wants a file", expected="a name, or --format json for stdout")
    for file in (output, save):
        if file is not None and (file.is_dir() or not os.access(file.parent, os.W_OK)):
            raise InputError(f"{file} cannot be written", expected="a file where one may be written")
    if output is not None and save is not None and output.resolve() == save.resolve():
        raise InputError("--output and --save name the same file", expected="two files, or one option")


def _apis(given: list[str] | None) -> tuple[Api, ...]:
    from pdguard.errors import InputError
    from pdguard.probe.interface import Api

    known = {"generate": Api.GENERATE, "completions": Api.COMPLETIONS, "chat": Api.CHAT}
    words = [word for text in given or ["generate"] for word in text.replace(",", " ").split()]
    for word in words:
        if word not in known:
            raise InputError("no such path", expected=" | ".join(known), found=repr(word)[:40])
    return tuple(dict.fromkeys(known[word] for word in words))


def _streams(given: str) -> tuple[bool, ...]:
    from pdguard.errors import InputError

    known = {"yes": (True,), "no": (False,), "both": (False, True)}
    if given not in known:
        raise InputError("no such word for --stream", expected=" | ".join(known), found=repr(given)[:40])
    return known[given]


def _pair(text: str) -> str:
    """`p0/d0` as pairs are named; `p0→d0` and `p0->d0` are taken as well."""
    return text.replace("/", "->", 1)


def _plan(cluster: Cluster, wanted: Wanted) -> Plan:
    """Collect facts first (the fingerprints among them), then plan; NothingCollected where there are none."""
    import os

    from pdguard.cli.run import note
    from pdguard.facts.access import keys_of, tls_of
    from pdguard.facts.collect import collect
    from pdguard.probe.plan import make_plan

    collected = collect(cluster, os.environ, note)
    keys, tls = keys_of(cluster, cluster.servers, os.environ), tls_of(cluster, cluster.servers)
    return make_plan(cluster, collected, wanted, keys, tls)


def _run(plan: Plan, cluster: str) -> ProbeResult:
    import asyncio
    import signal

    from pdguard.cli.run import note
    from pdguard.probe.runner import run_probe

    async def main() -> ProbeResult:
        task = asyncio.current_task()
        if task is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await run_probe(plan, cluster, note)

    return asyncio.run(main())


def _plan_text(plan: Plan, cluster: str, output_format: str, options: RenderOptions) -> str:
    if output_format == "json":
        from pdguard.probe.document import as_json
        from pdguard.probe.runner import nothing_sent

        return as_json(nothing_sent(plan, cluster))
    from pdguard.probe.present import plan_text

    return plan_text(plan, cluster, options)


def _result_text(
    result: ProbeResult,
    output_format: str,
    options: RenderOptions,
    cluster: str = "",
    saved: Path | None = None,
) -> str:
    if output_format == "json":
        from pdguard.probe.document import as_json

        return as_json(result)
    from pdguard.probe.present import result_text

    return result_text(result, options, cluster, "" if saved is None else str(saved))
