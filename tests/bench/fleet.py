"""A simulated fleet in a process of its own, and measurements in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BARE = """
import asyncio, json, resource, sys, time
import httpx
urls = json.load(open(sys.argv[1]))
async def main():
    limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
    gate = asyncio.Semaphore(64)
    async with httpx.AsyncClient(limits=limits, timeout=30, trust_env=False) as client:
        async def one(group):
            async with gate:
                for url in group:
                    await client.get(url)
        await asyncio.gather(*(one(g) for g in urls))
start, cpu = time.perf_counter(), time.process_time()
asyncio.run(main())
print(json.dumps({"wall": time.perf_counter() - start, "cpu": time.process_time() - cpu,
                  "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""

AUDIT = """
import datetime, json, os, resource, sys, time
from pathlib import Path
start, cpu = time.perf_counter(), time.process_time()
from pdguard._bundle import bundled
from pdguard.audit import run_audit
from pdguard.cluster.loader import load_cluster
from pdguard.policy.loader import load_checks
from pdguard.report.interface import create
cluster = load_cluster(Path(sys.argv[1]))
result = run_audit(cluster, load_checks(bundled("checks")), os.environ, datetime.datetime.now(datetime.UTC))
text = create(sys.argv[2]).render(result)
print(json.dumps({"wall": time.perf_counter() - start, "cpu": time.process_time() - cpu,
                  "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                  "findings": len(result.findings), "engines": len(result.engines),
                  "reachable": sum(bool(e.facts.flag("reachable")) for e in result.engines)}))
"""

Figures = dict[str, float]


@contextmanager
def fleet(engines: int, folder: Path) -> Iterator[Path]:
    """The cluster file of a running fleet."""
    command = [sys.executable, "-m", "pdguard.simulator", "--engines", str(engines)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                if line.startswith("# ready"):
                    break
                lines.append(line)
            file = folder / "fleet.yaml"
            file.write_text("".join(lines), "utf-8")
            yield file
        finally:
            process.terminate()
            process.wait(30)


def measure(code: str, *arguments: str) -> Figures:
    """What the script prints about itself."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures
