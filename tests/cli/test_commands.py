"""The commands as a user calls them: exit codes, stdout for the result alone, messages for people."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from pdguard import __version__
from pdguard.report.schema import report_schema
from pdguard.simulator import ClusterSpec, EngineSpec, incident_cluster, start_in_thread


def pdguard(
    *arguments: str, cwd: Path | None = None, stdin: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pdguard", *arguments],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **env},
    )


@pytest.fixture(scope="module")
def incident() -> Iterator[str]:
    with start_in_thread(incident_cluster(6)) as live:
        yield live.cluster_yaml()


def test_version_and_help() -> None:
    assert pdguard("--version").stdout == f"pdguard {__version__}\n"
    assert "Exit codes" in pdguard("--help").stdout
    assert pdguard("audit", "--help").returncode == 0
    assert pdguard("nosuch").returncode == 2


def test_audit_reads_cluster_yaml_of_the_folder(incident: str, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(incident)
    done = pdguard("audit", cwd=tmp_path)
    assert done.returncode == 13
    assert done.stdout.startswith("EXPOSED  incident")
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "\x1b" not in done.stdout
    assert "Traceback" not in done.stderr


def test_audit_json_meets_its_schema_and_has_stdout_to_itself(incident: str) -> None:
    done = pdguard("audit", "-", "--format", "json", stdin=incident)
    report = json.loads(done.stdout)
    jsonschema.validate(report, report_schema())
    assert report["schema"] == "pdguard.report/1"
    assert done.stderr.startswith("pdguard: reading 6 engines, 1 router")


def test_output_goes_to_a_file(incident: str, tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    done = pdguard("audit", "-", "-f", "json", "-o", str(target), stdin=incident)
    assert (done.returncode, done.stdout) == (13, "")
    assert json.loads(target.read_text())["cluster"] == "incident"
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]
    assert pdguard("audit", "-", "-o", str(tmp_path / "no" / "file"), stdin=incident).returncode == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--select", "PDG101"], 13),
        (["--select", "PDG303"], 10),
        (["--select", "PDG303", "--fail-on", "high"], 0),
        (["--select", "PDG107"], 0),
        (["--select", "PDG406", "--skip", "PDG1"], 0),
        (["--select", "PDG406", "--strict"], 12),
        (["--select", "PDG406", "--strict", "--fail-on", "critical"], 0),
        (["--fail-on", "grave"], 2),
        (["--select", "PDG9"], 2),
        (["--format", "yaml"], 2),
        (["--checks", "/nonexistent"], 2),
        (["--width", "3"], 2),
    ],
)
def test_exit_codes(incident: str, arguments: list[str], code: int) -> None:
    done = pdguard("audit", "-", *arguments, stdin=incident)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_bad_file_is_told_with_place_and_exit_2(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("cluster: x\nengines:\n  - {name: p0, rol: prefill, url: 'http://a:1'}\n")
    done = pdguard("audit", str(file))
    assert done.returncode == 2
    assert f"{file}:3:" in done.stderr
    assert "role" in done.stderr
    assert pdguard("audit", str(tmp_path / "none.yaml")).returncode == 2


def test_nothing_collected_is_exit_3() -> None:
    done = pdguard(
        "audit", "-", stdin="cluster: x\nengines: [{name: p0, role: prefill, url: 'http://127.0.0.1:9'}]\n"
    )
    assert done.returncode == 3
    assert "nothing could be collected" in done.stderr


def test_a_missing_key_is_named_never_shown() -> None:
    text = "cluster: x\nauth: {api_key_env: NO_SUCH_KEY}\nengines: [{name: p0, role: prefill, url: 'http://127.0.0.1:9'}]\n"
    done = pdguard("audit", "-", stdin=text)
    assert done.returncode == 2
    assert "NO_SUCH_KEY" in done.stderr


def test_a_key_opens_what_it_should() -> None:
    spec = ClusterSpec(
        "keyed", (EngineSpec("p0", "prefill", api_key="right"), EngineSpec("d0", "decode", api_key="right"))
    )
    with start_in_thread(spec) as live:
        text = live.cluster_yaml() + "auth: {api_key_env: PD_KEY}\n"
        good = pdguard("audit", "-", "-f", "json", stdin=text, PD_KEY="right")
        bad = pdguard("audit", "-", "-f", "json", stdin=text, PD_KEY="wrong-key")
    assert {e["version"] for e in json.loads(good.stdout)["engines"]} == {"0.5.23"}
    assert bad.returncode == 3
    assert "401" in bad.stderr
    assert "wrong-key" not in bad.stdout + bad.stderr


def test_checks_and_explain() -> None:
    listed = pdguard("checks").stdout
    assert "PDG101  critical  pool" in listed
    rows = json.loads(pdguard("checks", "--format", "json", "--select", "router").stdout)
    assert rows
    assert {r["gate"] for r in rows} == {"router"}
    told = pdguard("explain", "pdg101")
    assert told.returncode == 0
    assert "What to do" in told.stdout
    assert "engine.admission_limit" in told.stdout
    assert pdguard("explain", "PDG999").returncode == 2


def test_schema() -> None:
    assert json.loads(pdguard("schema", "cluster").stdout)["$id"] == "pdguard.cluster/1"
    assert json.loads(pdguard("schema", "report").stdout)["$id"] == "pdguard.report/1"
    assert pdguard("schema", "weather").returncode == 2


def test_demo_runs_the_main_job() -> None:
    done = pdguard("demo", "--engines", "4")
    assert done.returncode == 0
    assert done.stdout.startswith("EXPOSED")
    assert "simulated" in done.stderr


def test_own_checks_are_added(incident: str, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "checks" / "PDG101.yaml").read_text()
    (tmp_path / "OWN101.yaml").write_text(text.replace("PDG101", "OWN101"))
    done = pdguard(
        "audit", "-", "--checks", str(tmp_path), "--select", "OWN101", "-f", "json", stdin=incident
    )
    assert {f["check"] for f in json.loads(done.stdout)["findings"]} == {"OWN101"}
    (tmp_path / "OWN102.yaml").write_text("id: OWN102\nfail_if: engine.pol < 1\n")
    broken = pdguard("audit", "-", "--checks", str(tmp_path), stdin=incident)
    assert broken.returncode == 2
    assert "OWN102.yaml:" in broken.stderr
    assert "title is missing" in broken.stderr


def test_a_reader_that_goes_away_is_no_traceback(incident: str) -> None:
    command = f"{sys.executable} -m pdguard audit - | head -c 10 >/dev/null"
    done = subprocess.run(
        ["bash", "-c", command], input=incident, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr


def test_an_unexpected_fault_shows_its_kind_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pdguard.cli import app

    def boom() -> None:
        raise RuntimeError("sk-secret")

    monkeypatch.setattr(app, "app", boom)
    monkeypatch.delenv("PDGUARD_DEBUG", raising=False)
    with pytest.raises(SystemExit) as end:
        app.main()
    assert end.value.code == 1
    told = capsys.readouterr().err
    assert "RuntimeError" in told
    assert "sk-secret" not in told


def test_output_never_replaces_what_is_no_plain_file(incident: str, tmp_path: Path) -> None:
    target = tmp_path / "report.txt"
    target.write_text("old")
    target.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(target)
    done = pdguard("audit", "-", "-o", str(link), stdin=incident)
    assert done.returncode == 13
    assert link.is_symlink()
    assert target.read_text().startswith("EXPOSED")
    assert target.stat().st_mode & 0o777 == 0o600
    assert "written to" in done.stderr
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = subprocess.Popen(["head", "-c", "7", str(fifo)], stdout=subprocess.PIPE, text=True)
    assert pdguard("audit", "-", "-o", str(fifo), stdin=incident).returncode in (2, 13)
    assert reader.communicate(timeout=20)[0] == "EXPOSED"
    assert fifo.is_fifo()
    assert pdguard("audit", "-", "-o", str(tmp_path), stdin=incident).returncode == 2


def test_the_exit_code_survives_a_reader_that_goes_away(incident: str) -> None:
    command = f"{sys.executable} -m pdguard audit - -f json | head -c 10 >/dev/null; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], input=incident, capture_output=True, text=True, check=False
    )
    assert done.returncode == 13


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_closed_streams_are_told(tmp_path: Path, incident: str, closed: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(incident)
    name = "-" if closed == "<&-" else str(file)
    command = f"{sys.executable} -m pdguard audit {name} {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is closed" in done.stderr


def test_a_large_fleet_shows_every_engine_s_findings() -> None:
    done = pdguard("demo", "--engines", "60", "-f", "json")
    report = json.loads(done.stdout)
    small = json.loads(pdguard("demo", "--engines", "12", "-f", "json").stdout)
    failing = {f["check"] for f in report["findings"] if f["status"] == "fail"}
    assert failing == {f["check"] for f in small["findings"] if f["status"] == "fail"}
    table = pdguard("demo", "--engines", "60").stdout
    row = next(line for line in table.splitlines() if line.startswith("d0 "))
    assert "CRIT" in row
    assert "… d27 (10)" in row
