from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from pdguard.errors import SelectionError
from pdguard.exercise import CONTRACTS, ExerciseReport, run_exercise, run_pair, select
from pdguard.exercise.process import environment
from tests.exercise import fakes

DOOR = ["door.prefill.rejected"]


def run(path: str, contracts: list[str] | None = None, timeout: float = 30) -> ExerciseReport:
    return run_exercise(fakes.PYTHON, path, contracts or DOOR, timeout)


def only(report: ExerciseReport) -> tuple[str, str]:
    (result,) = report.results
    return result.outcome, result.state


@pytest.mark.parametrize(
    ("guard", "expected"),
    [
        (fakes.VULNERABLE, ("vulnerable", "fail")),
        (fakes.FIXED, ("fixed", "pass")),
        (fakes.SILENT, ("silent", "fail")),
    ],
)
def test_a_door_is_judged_by_what_it_does(tmp_path: Path, guard: str, expected: tuple[str, str]) -> None:
    report = run(fakes.engine(tmp_path, guard))
    assert only(report) == expected
    assert report.engine.version == "0.0.0+fake"
    assert report.engine.root == str(tmp_path / "sglang")


def test_a_door_that_drops_too_much_fails_the_other_way(tmp_path: Path) -> None:
    report = run(fakes.engine(tmp_path, fakes.SILENT), ["door.prefill"])
    outcomes = {result.id.rpartition(".")[2]: result.outcome for result in report.results}
    assert outcomes["valid"] == "queued"
    assert outcomes["metadata-held"] == outcomes["kv-held"] == outcomes["preempted"] == "retired"


def test_a_contract_that_hangs_is_ended_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pdguard.exercise.runner.LIMIT", 1.0)
    guard = "while req.rid == 'rejected': pass"
    report = run(fakes.engine(tmp_path, guard), ["door.prefill.rejected", "door.prefill.valid"])
    assert [(result.outcome, result.state) for result in report.results] == [
        ("limit", "not-run"),
        ("queued", "pass"),
    ]


@pytest.mark.parametrize(
    ("guard", "outcome", "word"),
    [
        ("import os; os._exit(3)", "crash", "exit 3"),
        ("import os; os.kill(os.getpid(), 11)", "crash", "signal 11"),
        ("raise SystemExit('no')", "broke", "SystemExit"),
        ("raise KeyError('x')", "broke", "KeyError"),
    ],
)
def test_what_kills_a_contract_is_its_reason(tmp_path: Path, guard: str, outcome: str, word: str) -> None:
    (result,) = run(fakes.engine(tmp_path, guard)).results
    assert (result.outcome, result.state) == (outcome, "not-run")
    assert word in result.why


def test_what_the_engine_prints_does_not_mix_with_the_results(tmp_path: Path) -> None:
    guard = "import os; print('{\"result\": 1}'); os.write(1, b'noise' * 100000)"
    assert only(run(fakes.engine(tmp_path, guard))) == ("vulnerable", "fail")


def test_an_engine_that_cannot_be_imported_leaves_everything_not_run(tmp_path: Path) -> None:
    broken = fakes.engine(
        tmp_path, sglang__srt__disaggregation__prefill="raise ImportError('no such kernel')"
    )
    (result,) = run(broken).results
    assert (result.outcome, result.state) == ("unavailable", "not-run")
    assert "no such kernel" in result.why


def test_an_engine_that_refuses_the_cpu_switch_is_imported_without_it(tmp_path: Path) -> None:
    scheduler = """
        import os
        if os.environ.get("SGLANG_USE_CPU_ENGINE"):
            raise ImportError("these kernels are for the GPU")
        class Scheduler:
            pass
        """
    report = run(fakes.engine(tmp_path, sglang__srt__managers__scheduler=scheduler))
    assert "scheduler" not in report.engine.missing
    assert only(report) == ("vulnerable", "fail")


def test_without_an_engine_every_contract_says_why(tmp_path: Path) -> None:
    report = run_exercise(fakes.PYTHON, str(tmp_path), None, 60)
    assert {result.state for result in report.results} == {"not-run"}
    assert all(result.why for result in report.results)
    assert len(report.results) == len(CONTRACTS)


@pytest.mark.parametrize("python", ["/nowhere/python3", "/dev/null"])
def test_a_missing_interpreter_is_not_an_exception(python: str) -> None:
    (result,) = run_exercise(python, None, DOOR, 5).results
    assert result.state == "not-run"
    assert "could not be started" in result.why


def test_an_interpreter_that_is_none_makes_no_sense(tmp_path: Path) -> None:
    for name, body, word in (
        ("says", "echo hello; sleep 60", "makes no sense"),
        ("ends", "exit 7", "exit 7"),
    ):
        script = tmp_path / name
        script.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        script.chmod(0o755)
        (result,) = run_exercise(str(script), None, DOOR, 5).results
        assert word in result.why


def test_the_whole_time_is_kept_and_what_was_done_stays(tmp_path: Path) -> None:
    begun = time.monotonic()
    guard = "import time; time.sleep(0 if req.rid == 'valid' else 600)"
    report = run(
        fakes.engine(tmp_path, guard),
        ["door.prefill.valid", "door.prefill.rejected", "door.decode"],
        timeout=3,
    )
    assert time.monotonic() - begun < 12
    states = {result.id: result.state for result in report.results}
    assert len(states) == 2 + 8
    assert states["door.prefill.rejected"] == "not-run"


def test_an_import_that_never_ends_is_ended(tmp_path: Path) -> None:
    engine = fakes.engine(tmp_path, sglang__srt__managers__scheduler="import time\ntime.sleep(600)")
    begun = time.monotonic()
    (result,) = run(engine, timeout=2).results
    assert time.monotonic() - begun < 10
    assert "did not answer" in result.why


@pytest.mark.parametrize(
    "deed",
    [
        "open(__file__ + '.new', 'w')",
        "import os; os.rename(__file__, __file__ + '.new')",
        "import os; os.mkdir(os.path.dirname(__file__) + '/new')",
        "import pathlib; pathlib.Path(__file__).unlink()",
        "import socket; socket.create_connection(('127.0.0.1', 9), 1)",
        "import socket; socket.socket().bind(('127.0.0.1', 0))",
        "import socket; socket.getaddrinfo('example.org', 80)",
    ],
)
def test_the_engine_s_folder_and_the_network_are_out_of_reach(tmp_path: Path, deed: str) -> None:
    engine = fakes.engine(tmp_path, deed)
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    (result,) = run(engine).results
    assert (result.outcome, result.state) == ("broke", "not-run")
    assert "an exercise" in result.why
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before  # also: no __pycache__


def test_nothing_that_was_started_is_left(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    guard = (
        f"import os, time; f = open({str(pid)!r}, 'w'); f.write(str(os.getpid())); f.close(); time.sleep(600)"
    )
    run(fakes.engine(tmp_path / "engine", guard), timeout=2)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_the_environment_is_scrubbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDGUARD_API_KEY", "secret")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    made = environment(tmp_path)
    assert "PDGUARD_API_KEY" not in made
    assert "PYTHONPATH" not in made
    assert made["HOME"] == made["TMPDIR"] == str(tmp_path)


def test_the_document_is_json_with_a_schema(tmp_path: Path) -> None:
    document = json.loads(json.dumps(run(fakes.engine(tmp_path)).document()))
    assert document["schema"] == "pdguard.exercise/1"
    assert document["summary"] == {"pass": 0, "fail": 1, "not-run": 0}
    (contract,) = document["contracts"]
    assert contract["fixes"] == ["38935"]
    assert contract["saw"] == {"queued": True, "created": 1, "answered": False}


def test_contracts_are_chosen_by_id_or_family() -> None:
    assert [contract.id for contract in select(["door.prefill.valid"])] == ["door.prefill.valid"]
    assert {contract.id.partition(".")[0] for contract in select(["hold", "hicache"])} == {"hold", "hicache"}
    assert select(None) == CONTRACTS
    assert len({contract.id for contract in CONTRACTS}) == len(CONTRACTS)
    with pytest.raises(SelectionError, match="nonsense"):
        select(["door", "nonsense"])


def test_a_pair_without_engines_says_why_in_every_cell(tmp_path: Path) -> None:
    empty = str(tmp_path)
    report = run_pair(fakes.PYTHON, empty, "/nowhere/python3", empty, "mooncake", timeout=20)
    assert {result.state for result in report.results} == {"not-run"}
    report = run_pair(fakes.PYTHON, empty, fakes.PYTHON, empty, "nixl", timeout=20)
    assert len(report.results) == 7
    assert {result.state for result in report.results} == {"not-run"}
    assert all("cannot be imported" in result.why for result in report.results)
    assert report.document()["schema"] == "pdguard.exercise-pair/1"
