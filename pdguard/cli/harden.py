"""`pdguard harden`: the fix set on engines that cannot be upgraded; a plan unless told to apply."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pdguard.harden.job import Job
    from pdguard.harden.results import Outcome


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("harden")(harden)


def harden(
    cluster: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CLUSTER]", help="Cluster file; cluster.yaml if neither it nor --target is given."
        ),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(
            "--target", metavar="PATH", help="An sglang package on this machine, or the folder it is in."
        ),
    ] = None,
    backport: Annotated[
        str | None,
        typer.Option(
            "--backport", metavar="VERSION", help="The release that you believe is installed, as v0.5.20."
        ),
    ] = None,
    auto: Annotated[
        bool, typer.Option("--auto", help="Take the base of what is installed, whatever --backport says.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="FIX", help="Only these fixes, and what they need.")
    ] = None,
    excluded: Annotated[
        list[str] | None, typer.Option("--except", metavar="FIX", help="Not these fixes.")
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Do it; without this nothing is changed.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Consent to --apply or --rollback without being asked.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Tell what was hardened, and what runs it.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Read every file again, fingerprint, exercise, compare processes."),
    ] = False,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Put every file back as it was before the first change.")
    ] = False,
    emit: Annotated[
        str | None,
        typer.Option(
            "--emit", metavar="diff|dockerfile", help="Print the change for an image; change nothing here."
        ),
    ] = None,
    python: Annotated[
        Path | None,
        typer.Option("--python", metavar="PATH", help="The engine's interpreter, for import and exercise."),
    ] = None,
    no_exercise: Annotated[
        bool, typer.Option("--no-exercise", help="Skip the exercise; compile and import remain.")
    ] = False,
    nodes: Annotated[
        list[str] | None, typer.Option("--node", metavar="NAME", help="Only these nodes of the cluster file.")
    ] = None,
    parallel: Annotated[
        int, typer.Option("--parallel", min=1, max=64, help="Nodes at a time; each group must succeed.")
    ] = 1,
    timeout: Annotated[
        float, typer.Option("--timeout", min=10, max=7200, help="Seconds for one step on one node.")
    ] = 600,
    output_format: Annotated[
        str, typer.Option("--format", "-f", metavar="table|json", help="How to print the result.")
    ] = "table",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the result to FILE.")
    ] = None,
    no_diff: Annotated[bool, typer.Option("--no-diff", help="Leave the diff out of the plan.")] = False,
) -> None:
    """Put the fix set on installed engines without an upgrade: plan first, reversible, proven at once."""
    import os
    import re

    from pdguard.cli.run import note, write_result
    from pdguard.errors import InputError
    from pdguard.harden.document import as_json
    from pdguard.harden.job import Job
    from pdguard.harden.operate import Wanted
    from pdguard.harden.present import as_text
    from pdguard.harden.results import exit_code

    if output_format not in ("table", "json"):
        raise InputError("no such format", expected="table or json", found=repr(output_format))
    if emit not in (None, "diff", "dockerfile"):
        raise InputError("no such thing to emit", expected="diff or dockerfile", found=repr(emit))
    words = [w for w, on in (("--apply", apply), ("--status", status), ("--verify", verify)) if on]
    words += [w for w, on in (("--rollback", rollback), ("--emit", emit is not None)) if on]
    if len(words) > 1:
        raise InputError("one thing at a time", expected="one of these options", found=" ".join(words))
    word = words[0] if words else "plan"
    if backport is None and not auto and word in ("plan", "--apply", "--emit"):
        raise InputError(
            "no base is named",
            expected="--backport v0.5.20 or another release, or --auto",
            todo="See `pdguard harden --help`.",
        )
    if target is not None and cluster is not None:
        raise InputError("two targets", expected="a cluster file or --target, not both")
    base = (backport or "").removeprefix("v")
    if backport is not None and not re.fullmatch(r"\d+\.\d+\.\d+", base):
        raise InputError("this is no release", expected="one such as v0.5.20", found=repr(backport)[:40])
    wanted = Wanted(base, auto, _names(only), _names(excluded), not no_exercise, timeout)
    job = Job(wanted, None if python is None else str(python.absolute()), parallel, note)
    if output is not None and not os.access(output.parent, os.W_OK):
        raise InputError(f"{output} cannot be written", expected="a folder that may be written to")
    if target is not None:
        job.open_target(target)
    else:
        job.open_cluster(cluster or Path("cluster.yaml"), tuple(nodes or ()))
    if word == "--emit":
        write_result(job.emit(str(emit)), output)
        raise typer.Exit(0)
    outcomes = _run(job, word, yes)
    step = job.next_step(word, outcomes)
    if output_format == "json":
        text = as_json(word.removeprefix("--"), base, outcomes, job.settings, step)
    else:
        text = as_text(outcomes, job.settings, step, with_diff=word == "plan" and not no_diff)
    write_result(text, output)
    raise typer.Exit(exit_code(outcomes, verified=word == "--verify"))


def _names(given: list[str] | None) -> tuple[str, ...]:
    """Each name, also of a list with commas."""
    return tuple(name for text in given or () for name in text.replace(",", " ").split())


def _run(job: Job, word: str, yes: bool) -> list[Outcome]:
    import sys

    if word == "--status":
        return job.status()
    if word == "--verify":
        return job.verify()
    if word == "--rollback":
        _consent(job, "put back every file that pdguard changed", yes)
        return job.rollback()
    planned = job.plan()
    if word == "--apply" and any(o.status == "interrupted" for o in planned):
        _consent(job, "take back what an interrupted run left", yes)
        job.recover(planned)
        planned = job.plan()
    job.propose_settings(planned)
    if word == "plan" or any(o.bad for o in planned):
        return planned
    if any(o.plan is not None and o.plan.pending for o in planned):
        if not yes:
            from pdguard.harden.present import as_text

            sys.stderr.write(as_text(planned, job.settings, "", with_diff=False))
        _consent(job, _what(planned), yes)
    return job.apply(planned)


def _what(planned: list[Outcome]) -> str:
    files = sum(len(o.plan.pending) for o in planned if o.plan is not None)
    return f"change {files} files in {len(planned)} packages"


def _consent(job: Job, what: str, yes: bool) -> None:
    """Ask on the terminal; raises InputError where nobody can answer, and Exit where the answer is no."""
    import sys

    from pdguard.cli.run import note
    from pdguard.errors import InputError

    for site in job.sites:
        note(f"target {site.name()}")
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise InputError(
            "this needs a word of consent", expected="--yes, or a terminal to ask on", found="neither"
        )
    sys.stderr.write(f"pdguard: {what}? Type yes: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() != "yes":
        note("nothing has been changed")
        raise typer.Exit(30)
