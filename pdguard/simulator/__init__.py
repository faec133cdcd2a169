"""An embedded simulated cluster: real HTTP on loopback, answering as each engine version does.

async with running(incident_cluster()) as live: ...
with start_in_thread(ClusterSpec(engines=(EngineSpec("p0", role="prefill"),))) as live: ...
python -m pdguard.simulator --engines 6

Where it differs from a real engine:

- Tokens are synthetic, each one printable sign; a text prompt counts one token a byte, so do a chat's
  messages with their template. There is no radix cache (`cached_tokens` is 0), no scheduling and no
  batching; a pool never fills up.
- A client that leaves is noticed at once; an engine looks only every few seconds while it does not stream.
- The race for reused pages is not played out: holds are counted, answers after one are always right.
- When prefill's own client leaves, decode waits out its timeout; that was not measured.
- /health is passive here. Calls that would change an engine answer 200, change nothing and are counted.
- 0.4.10 to 0.5.18 are put together from source tables; 0.4.10 is taken to refuse at the door.
- /metrics has every gauge of a recorded scrape but, of counters and histograms, only those of requests,
  aborts, failures, calls and holds. /route names one rank only. Help texts are ours.
- A router goes round-robin over its engines; it has no health checks, circuit breaker or metrics port.
"""

from pdguard.simulator.cluster import Live, running, start_in_thread
from pdguard.simulator.incident import incident_cluster
from pdguard.simulator.spec import ClusterSpec, EngineSpec, Lie, RouterSpec

__all__ = [
    "ClusterSpec",
    "EngineSpec",
    "Lie",
    "Live",
    "RouterSpec",
    "incident_cluster",
    "running",
    "start_in_thread",
]
