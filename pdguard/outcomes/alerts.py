"""The one table of alerts, which read the figures beside it; docs/metrics.md has a section for each."""

from __future__ import annotations

from dataclasses import dataclass

from pdguard.outcomes.definitions import DECODE, DECODE_FRONT, RELEASES, front_events


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. `shown` is how its value is put in the summary (a template function of Prometheus)."""

    name: str
    severity: str
    wait: str
    summary: str
    description: str
    shown: str
    figures: tuple[str, ...]
    expression: str


ALERTS: tuple[Alert, ...] = (
    Alert(
        "PdguardHoldTimeoutRatio",
        "critical",
        "5m",
        "{{ $labels.instance }}: {{ $shown }} of the holds ended without proof",
        "More than $timeout_ratio of at least $min_holds holds ended by the clock or by an error. Pages"
        " were reused"
        " with no word from prefill that its writes were over.",
        "humanizePercentage",
        ("timeout_ratio", "holds"),
        "@timeout_ratio@ > $timeout_ratio and on (instance) sum by (instance) (@holds@) >= $min_holds",
    ),
    Alert(
        "PdguardHoldReleaseErrors",
        "critical",
        "0m",
        "{{ $labels.instance }}: {{ $shown }} holds ended in an error",
        "Decode failed to release held pages in an orderly way. Read its log.",
        'printf "%.0f"',
        ("holds",),
        '(@holds@ and on (outcome) label_replace(vector(1), "outcome", "error", "", "")) > 0',
    ),
    Alert(
        "PdguardHoldsGrow",
        "warning",
        "10m",
        "{{ $labels.instance }} has held {{ $shown }} requests or about as many for 10 minutes",
        "At least $held_now requests have been held at any time. Acknowledgements do not come, or"
        " clients leave faster"
        " than holds end.",
        'printf "%.0f"',
        ("held_now",),
        "@held_now@ >= $held_now",
    ),
    Alert(
        "PdguardHeldCapacity",
        "warning",
        "5m",
        "{{ $labels.instance }}: holds may take {{ $shown }} of the pool",
        "If every hold lasts T_hold ($t_hold s), held pages take more than $held_share of decode's pool.",
        "humanizePercentage",
        ("held_share",),
        "@held_share@ > $held_share",
    ),
    Alert(
        "PdguardTransferFailures",
        "warning",
        "5m",
        "{{ $labels.instance }}: {{ $shown }} transfers failed in 15 minutes",
        "At least $failures KV transfers failed, more than $failure_share of the requests.",
        'printf "%.0f"',
        ("failed_transfers", "requests"),
        "@failed_transfers@ >= $failures unless on (instance)"
        " (@failed_transfers@ <= on (instance) group_left () $failure_share * sum by (instance)"
        " (@requests@))",
    ),
    Alert(
        "PdguardBootstrapFailures",
        "warning",
        "5m",
        "{{ $labels.instance }}: {{ $shown }} bootstraps failed in 15 minutes",
        "In at least $failures requests, more than $failure_share of all, the two halves did not find"
        " each other.",
        'printf "%.0f"',
        ("failed_bootstraps", "requests"),
        "@failed_bootstraps@ >= $failures unless on (instance)"
        " (@failed_bootstraps@ <= on (instance) group_left () $failure_share * sum by (instance)"
        " (@requests@))",
    ),
    Alert(
        "PdguardAbortsSpike",
        "warning",
        "2m",
        "{{ $labels.instance }}: {{ $shown }} aborts per second",
        "Aborts are above $aborts per second and more than $spike times as many as in the hour before."
        " Each abort in"
        " mid-transfer becomes a hold.",
        'printf "%.2f"',
        ("aborts", "aborts_before"),
        "@aborts@ > $aborts unless on (instance, engine_type)"
        " (@aborts@ <= on (instance, engine_type) $spike * @aborts_before@)",
    ),
    Alert(
        "PdguardDecodeTransferQueueStuck",
        "critical",
        "10m",
        "{{ $labels.instance }}: {{ $shown }} requests wait for KV and none is answered",
        "Decode's transfer queue has not been empty for 10 minutes, and no request has been answered"
        " meanwhile.",
        'printf "%.0f"',
        ("decode_transfer",),
        "@decode_transfer@ > 0 unless on (instance)"
        f" ({front_events('sglang:num_requests_total', DECODE_FRONT, '10m', 'instance')}) > 0",
    ),
    Alert(
        "PdguardPoolBelowContext",
        "warning",
        "5m",
        "{{ $labels.instance }}: the context exceeds the pool by {{ $shown }} tokens",
        "A prompt inside the context can be rejected by the pool. This is a configuration, also of engines"
        " that hold the admission fixes; whether it exposes anything, `pdguard audit` and `pdguard probe`"
        " tell.",
        'printf "%.0f"',
        ("pool_shortfall",),
        "@pool_shortfall@ > 0",
    ),
    Alert(
        "PdguardHoldCounterMissing",
        "info",
        "15m",
        "{{ $labels.instance }}: {{ $shown }} aborts in an hour, and not one hold was counted",
        "Decode serves and at least $unheld_aborts requests were aborted, but it has no series of"
        " release outcomes:"
        " it is older than 0.5.22, does not hold, or no abort fell into a transfer.",
        'printf "%.0f"',
        ("aborts", "requests"),
        f"({front_events('sglang:num_aborted_requests_total', DECODE_FRONT, '1h', 'instance')}) >="
        f" $unheld_aborts"
        " and on (instance) @requests@ > 0"
        f" unless on (instance) count_over_time({RELEASES}{{{DECODE}}}[1h])",
    ),
)
"""Every alert, the holds first."""
