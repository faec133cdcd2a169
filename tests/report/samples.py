"""Audit results to render: a small exposed cluster, a large one, and arbitrary ones."""

from __future__ import annotations

from hypothesis import strategies as st

from pdguard.facts.interface import Evidence, FactSet, Grade, Scalar, Subject, Value
from pdguard.policy.model import GATES, AuditResult, Finding, Severity, Status

WHEN = "2025-06-01T12:00:00Z"


def engine(name: str, role: str | None = None, version: str | None = None, **facts: Value) -> Subject:
    known = FactSet()
    for fact, value in {"role": role, "version": version, **facts}.items():
        if value is not None:
            known.add(fact, value, Grade.CONFIGURED, "http", f"/server_info {fact}")
    return Subject("engine", name, known)


def finding(
    check: str = "PDG101",
    status: Status = Status.FAIL,
    severity: Severity = Severity.CRITICAL,
    target: str = "p0",
    engines: tuple[str, ...] | None = None,
    **more: object,
) -> Finding:
    values: dict[str, object] = {
        "title": "Prefill admits fewer tokens than the context it declares",
        "gate": GATES[int(check[3]) - 1],
        "grade": None if status is Status.UNKNOWN else Grade.CONFIGURED,
        "message": "pool admits 681274 tokens, context promises 1048576",
        **more,
    }
    mine = (target,) if engines is None else engines
    return Finding(check, severity=severity, status=status, target=target, engines=mine, **values)  # type: ignore[arg-type]


def small() -> AuditResult:
    """Two prefills, two decodes, a router; every status and every part of the report occurs."""
    d1 = engine("d1", None, None, declared_role="decode")
    d1.facts.miss(
        "t_hold", "node gpu-03: connection refused", "start sshd on gpu-03, or give the node a transport"
    )
    read = Evidence("http", "/server_info max_req_input_len", 681274)
    fix = ("setting:context-length", "raise --mem-fraction-static")
    return AuditResult(
        "prod",
        WHEN,
        (
            finding(evidence=(read,), fix=fix, refs=("sglang#30233",)),
            finding(target="p1", message="pool admits 681300 tokens, context promises 1048576", fix=fix),
            finding("PDG201", title="Rejected prompts walk on", target="p0 with d0", engines=("p0", "d0"),
                    message="p0 passes rejected prompts to d0", grade=Grade.FINGERPRINTED,
                    fix=("remediation:door",)),
            finding("PDG301", Status.PASS, Severity.LOW, "d0", message="holds"),
            finding("PDG401", Status.UNKNOWN, Severity.HIGH, "d1", message="cannot tell",
                    missing=("engine.t_hold", "engine.hold")),
            finding("PDG402", Status.UNKNOWN, Severity.MEDIUM, "d1", missing=("engine.t_hold",)),
            finding("PDG402", Status.WAIVED, Severity.MEDIUM, "d0", waiver="ticket OPS-12, until 2025-09-01"),
            finding("PDG501", Status.FAIL, Severity.MEDIUM, "r0", (), title="Halves end alone",
                    fix=("use smg 1.12",), message="a refusal leaves the other half waiting"),
            finding("PDG601", Status.PASS, Severity.LOW, "p0"),
            finding("PDG602", Status.SKIPPED, Severity.LOW, "p1", grade=None, message="does not apply"),
        ),
        (
            engine("p0", "prefill", "0.5.20", admission_limit=681274, t_hold=float("inf"), pools=(1, 2)),
            engine("p1", "prefill", "0.5.20"),
            engine("d0", "decode", "0.5.20"),
            d1,
        ),
        ("waiver for PDG603 on p1 expired on 2025-05-01",),
    )  # fmt: skip


def hostile() -> AuditResult:
    """Names and messages that carry markup, escapes, direction marks, wide letters and great length."""
    names = (
        "[red]x[/]",
        "a\x1b[31mb\x9b0m",
        "x" * 90,
        "\u202eevil\u2066",
        "引擎" * 9,
        "bad\udcff",
        "two\nlines",
    )
    fails = [finding(target=n, message=f"{n}: [bold]no[/bold]\x07 {n}", fix=(n,)) for n in names]
    unknown = [finding("PDG401", Status.UNKNOWN, target=n, missing=("engine.t_hold", n)) for n in names]
    waived = [finding("PDG301", Status.WAIVED, target=n, waiver=n) for n in names]
    return AuditResult(
        "c\x1b]0;t\x07", WHEN, (*fails, *unknown, *waived), tuple(engine(n, n, n) for n in names), names
    )


def large(engines: int, checks: int) -> AuditResult:
    """Every check on every engine, in a mix of all statuses."""
    statuses = (Status.PASS, Status.FAIL, Status.PASS, Status.UNKNOWN, Status.SKIPPED, Status.WAIVED)
    subjects = [
        engine(f"p{n}", "prefill", "0.5.20", pool=681280, context_length=1048576) for n in range(engines)
    ]
    findings = [
        finding(
            f"PDG{c % 6 + 1}{c:02}",
            statuses[c % 6],
            Severity(c % 4 + 1),
            s.name,
            message=f"pool of {s.name} admits {n} tokens, context promises 1048576",
            evidence=(Evidence("http", "/server_info a", n), Evidence("http", "/server_info b", 1.5)),
            missing=("engine.t_hold",) if statuses[c % 6] is Status.UNKNOWN else (),
            fix=("setting:context-length",),
            refs=("sglang#30233",),
        )
        for n, s in enumerate(subjects)
        for c in range(checks)
    ]
    return AuditResult("big", WHEN, tuple(findings), tuple(subjects))


TEXT = st.text(max_size=60) | st.sampled_from(
    ["p0", "[red]x[/]", "\x1b[31m", "x" * 150, "ｗｉｄｅ" * 9, "👩‍👩‍👧❤️"]
)
SCALAR: st.SearchStrategy[Scalar] = TEXT | st.integers() | st.floats() | st.booleans()
VALUE: st.SearchStrategy[Value] = SCALAR | st.lists(SCALAR, max_size=3).map(tuple)
NAMES = st.sampled_from(["p0", "p1", "d0"]) | TEXT
TEXTS = st.lists(TEXT | st.sampled_from(["engine.pool", "pair.exposed: because"]), max_size=3).map(tuple)
FINDINGS = st.builds(
    Finding,
    check=st.sampled_from(["PDG101", "PDG402", "OWN1"]) | TEXT,
    title=TEXT,
    gate=st.sampled_from(GATES),
    severity=st.sampled_from(Severity),
    status=st.sampled_from(Status),
    grade=st.none() | st.sampled_from(Grade),
    target=NAMES,
    message=TEXT,
    missing=TEXTS,
    evidence=st.lists(st.builds(Evidence, TEXT, TEXT, st.none() | VALUE), max_size=3).map(tuple),
    fix=TEXTS,
    refs=TEXTS,
    engines=st.lists(NAMES, max_size=2).map(tuple),
    waiver=TEXT,
)
ENGINES = st.lists(
    st.builds(engine, NAMES, st.none() | TEXT, st.none() | TEXT, pool=VALUE, t_hold=VALUE),
    max_size=4,
    unique_by=lambda s: s.name,
).map(tuple)
RESULTS = st.builds(
    AuditResult, TEXT, st.just(WHEN), st.lists(FINDINGS, max_size=8).map(tuple), ENGINES, notes=TEXTS
)
