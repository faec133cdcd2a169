"""Serve the incident's cluster until SIGTERM or Ctrl-C; its cluster file goes to standard output."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys

from pdguard.simulator import incident_cluster, running
from pdguard.simulator.spec import ClusterSpec


async def _serve(spec: ClusterSpec) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    async with running(spec) as live:
        sys.stdout.write(live.cluster_yaml())
        sys.stdout.write("# ready\n")
        sys.stdout.flush()
        await stop.wait()


def main() -> None:
    """Parse the arguments and serve."""
    parser = argparse.ArgumentParser(prog="python -m pdguard.simulator", description=__doc__)
    parser.add_argument("--engines", type=int, default=6, help="how many engines (default: 6)")
    parser.add_argument(
        "--waiting-timeout",
        type=float,
        default=300.0,
        help="seconds a half waits for the other (default: 300)",
    )
    options = parser.parse_args()
    asyncio.run(_serve(incident_cluster(options.engines, waiting_timeout=options.waiting_timeout)))


if __name__ == "__main__":
    main()
