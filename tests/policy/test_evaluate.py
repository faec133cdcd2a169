"""Judging: statuses, the grade behind a verdict, the evidence that decided it, what was missing."""

from __future__ import annotations

from pdguard.facts.interface import Collected, Fact, FactSet, Grade, PairSubject, Subject, Value
from pdguard.policy.evaluate import evaluate
from pdguard.policy.model import Check, Examples, Finding, Severity, Status


def check(fail_if: str, *, when: str = "true", for_each: str = "engine", message: str = "bad") -> Check:
    return Check(
        id="PDG999",
        title="Something is wrong",
        gate="pool",
        severity=Severity.HIGH,
        for_each=for_each,
        when=when,
        fail_if=fail_if,
        message=message,
        explain="…",
        fix=("set --context-length {engine.pool}",),
        refs=(),
        examples=Examples(),
    )


def engine(name: str = "p0", **facts: Value | tuple[Value, Grade]) -> Subject:
    subject = Subject("engine", name)
    for key, given in facts.items():
        grade = given[1] if isinstance(given, tuple) and isinstance(given[-1], Grade) else Grade.CONFIGURED
        value = given[0] if isinstance(given, tuple) and isinstance(given[-1], Grade) else given
        assert not isinstance(value, Grade)
        subject.facts.add(key, value, grade, "http", key)  # type: ignore[arg-type]
    return subject


def judged(one: Check, *engines: Subject, **more: list[PairSubject]) -> list[Finding]:
    collected = Collected(Subject("cluster", "prod"), list(engines), pairs=more.get("pairs", []))
    return evaluate([one], collected)


def test_fail_pass_unknown_skipped() -> None:
    rule = check("engine.pool < engine.context_length", when="engine.metrics_on")
    states = [
        engine("a", metrics_on=True, pool=1, context_length=2),
        engine("b", metrics_on=True, pool=2, context_length=2),
        engine("c", metrics_on=True, pool=2),
        engine("d", metrics_on=False, pool=1, context_length=2),
        engine("e", pool=1, context_length=2),
        engine("f", pool=2, context_length=2),
    ]
    found = [f.status for f in judged(rule, *states)]
    # e: whether the check applies is not known and it would fail; f: it could not fail anyway.
    assert found == [
        Status.FAIL,
        Status.PASS,
        Status.UNKNOWN,
        Status.SKIPPED,
        Status.UNKNOWN,
        Status.PASS,
    ]


def test_a_finding_is_as_strong_as_the_weakest_fact_that_decided_it() -> None:
    rule = check("engine.pool < 3 && engine.hold == 'off'")
    (finding,) = judged(rule, engine(pool=(1, Grade.OBSERVED), hold=("off", Grade.CLAIMED)))
    assert finding.grade is Grade.CLAIMED
    assert {e.ref for e in finding.evidence} == {"pool", "hold"}


def test_a_fact_that_decided_nothing_lends_no_grade() -> None:
    rule = check("engine.pool < 3 && engine.hold == 'off'")
    (finding,) = judged(rule, engine(pool=(9, Grade.OBSERVED), hold=("off", Grade.CLAIMED)))
    assert (finding.status, finding.grade) == (Status.PASS, Grade.OBSERVED)
    assert [e.ref for e in finding.evidence] == ["pool"]


def test_of_several_proofs_the_strongest_counts() -> None:
    rule = check("engine.pool < 3 || engine.hold == 'off'")
    (finding,) = judged(rule, engine(pool=(1, Grade.CLAIMED), hold=("off", Grade.OBSERVED)))
    assert (finding.status, finding.grade) == (Status.FAIL, Grade.OBSERVED)


def test_unknown_says_what_was_missing_why_and_how_to_get_it() -> None:
    subject = engine(pool=1)
    subject.facts.miss("context_length", "HTTP 500", "restart it")
    (finding,) = judged(check("engine.pool < engine.context_length"), subject)
    assert finding.missing == ("engine.context_length: HTTP 500; restart it",)
    assert finding.grade is None
    assert not finding.evidence


def test_a_fact_nobody_spoke_of_is_explained_by_the_catalogue() -> None:
    (finding,) = judged(check("engine.t_hold < 1.0"), engine())
    assert finding.missing[0].startswith("engine.t_hold: T_hold in seconds")
    assert "node" in finding.missing[0]


def test_message_and_fix_are_filled_for_the_target() -> None:
    rule = check("engine.pool < 9", message="pool {engine.pool:,} of {engine.context_length:,}")
    (finding,) = judged(rule, engine(pool=1))
    assert finding.message == "pool 1 of ?"
    assert finding.fix == ("set --context-length 1",)


def test_a_broken_expression_costs_its_own_verdict_only() -> None:
    (finding,) = judged(check("engine.pool / 0 > 1"), engine(pool=1))
    assert finding.status is Status.UNKNOWN
    assert "gave no truth value" in finding.missing[0]


def test_roles_follow_the_engine_and_fall_back_on_the_cluster_file() -> None:
    switched = engine("a", declared_role="prefill", role="decode", pool=1)
    silent = engine("b", declared_role="prefill", pool=1)
    assert [f.target for f in judged(check("engine.pool < 9", for_each="prefill"), switched, silent)] == ["b"]
    assert [f.target for f in judged(check("engine.pool < 9", for_each="decode"), switched, silent)] == ["a"]


def test_pairs_that_are_alike_are_counted() -> None:
    facts = FactSet({"over_read_lengths": Fact(3, Grade.CONFIGURED, ())})
    pair = PairSubject(
        "pair", "p→d", facts, engine("p"), engine("d"), (("p",), tuple(f"d{i}" for i in range(1000)))
    )
    rule = check("pair.over_read_lengths > 0", for_each="pair")
    (finding,) = judged(rule, pairs=[pair])
    assert finding.message == "bad (and 999 pairs alike)"
    assert finding.engines[:2] == ("p", "d0")
    assert len(finding.engines) == 1001


def test_whether_a_check_applies_is_part_of_its_grade() -> None:
    rule = check("engine.pool < 3", when="engine.hold == 'on'")
    (finding,) = judged(rule, engine(pool=(1, Grade.OBSERVED), hold=("on", Grade.CLAIMED)))
    assert (finding.status, finding.grade) == (Status.FAIL, Grade.CLAIMED)


def test_a_fact_that_proves_nothing_alone_lends_no_grade() -> None:
    """Two proofs of three facts each share a strong one; neither is stronger than its weak one."""
    rule = check("engine.hold == 'on' || (engine.tp_size > 1 && engine.backend == 'mori')")
    facts = engine(hold=("on", Grade.CLAIMED), tp_size=(2, Grade.OBSERVED), backend=("mori", Grade.CLAIMED))
    (finding,) = judged(rule, facts)
    assert (finding.status, finding.grade) == (Status.FAIL, Grade.CLAIMED)
