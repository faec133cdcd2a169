"""`pdguard exercise`: contract tests of installed engine code, in its own interpreter, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pdguard.exercise.model import ContractResult, ExerciseReport


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("exercise")(exercise)


def exercise(
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PATH", help="The engine's interpreter (this one, if not given)."),
    ] = None,
    package: Annotated[
        str | None,
        typer.Option("--path", metavar="DIR", help="Folder that holds `sglang`, put first on its sys.path."),
    ] = None,
    pid: Annotated[
        int | None, typer.Option("--pid", help="Take interpreter and package from a running engine.")
    ] = None,
    contracts: Annotated[
        list[str] | None,
        typer.Option(
            "--contract", metavar="NAME", help="Only these: an id or its beginning (door, handshake.nixl)."
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=5, max=3600, help="Seconds for all of it.")
    ] = 300,
    output_format: Annotated[
        str, typer.Option("--format", "-f", metavar="table|json", help="How to print the result.")
    ] = "table",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the result to FILE.")
    ] = None,
) -> None:
    """Run the installed engine's own classes by themselves and see whether they behave as fixed."""
    import json
    import sys

    from pdguard.cli.run import note, write_result
    from pdguard.errors import InputError, NothingCollected
    from pdguard.exercise.catalogue import select
    from pdguard.exercise.local import interpreter_of
    from pdguard.exercise.runner import run_exercise

    if output_format not in ("table", "json"):
        raise InputError("no such format", expected="table or json", found=repr(output_format))
    select(contracts or None)
    if package is not None:
        folder = Path(package).resolve()  # the interpreter is started in a folder of its own
        package = str(folder.parent if (folder / "srt").is_dir() else folder)
    if pid is not None:
        python, package = interpreter_of(pid)
    note("running the engine's own code in a process of its own (nothing is changed)")
    report = run_exercise(python or sys.executable, package, contracts or None, timeout)
    ran = [r for r in report.results if r.state != "not-run"]
    if not ran:
        why = report.results[0].why if report.results else "no contract"
        raise NothingCollected(
            f"no exercise could be run in {python or sys.executable}",
            found=why,
            todo="Name the engine's interpreter with --python, and the folder that holds sglang with --path.",
        )
    text = json.dumps(report.document(), indent=1) + "\n" if output_format == "json" else _table(report)
    write_result(text, output)
    raise typer.Exit(_code([r for r in ran if r.state == "fail"]))


def _code(failed: list[ContractResult]) -> int:
    """The exit code of an audit: the worst severity of the fixes that the failed contracts are about."""
    from pdguard._bundle import bundled
    from pdguard.fingerprint.loader import load_fixes
    from pdguard.policy.model import Severity

    severities = {f.id: Severity[f.severity.upper()] for f in load_fixes(bundled("remediations"))}
    worst = max((severities.get(f, Severity.MEDIUM) for r in failed for f in r.fixes[:1]), default=None)
    return 0 if worst is None else worst.exit_code


def _table(report: ExerciseReport) -> str:
    from pdguard.facts.exercised import DOUBLED

    counts = {s: sum(r.state == s for r in report.results) for s in ("pass", "fail", "not-run")}
    word = "FAILS" if counts["fail"] else "UNKNOWN" if counts["not-run"] or not counts["pass"] else "PASSES"
    lines = [
        f"{word}  sglang {report.engine.version}: {counts['pass']} contracts pass, {counts['fail']} fail, "
        f"{counts['not-run']} not run",
        "",
    ]
    for r in report.results:
        mark = {"pass": "ok", "fail": "FAIL", "not-run": "?"}[r.state]
        lines.append(f"  {mark:4} {r.id:44} {r.outcome:12} {r.why}"[:140].rstrip())
    if report.engine.stand_ins:
        lines += ["", "stood in for, since absent here: " + ", ".join(report.engine.stand_ins)]
    doubled = [b for b in DOUBLED if any(r.backend == b and r.state != "not-run" for r in report.results)]
    if doubled:
        of = " and ".join(doubled)
        lines += [
            "",
            f"run against a double of the library, and never graded above fingerprinted: {of}",
        ]
    return "\n".join(lines) + "\n"
