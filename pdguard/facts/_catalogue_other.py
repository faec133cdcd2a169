"""Facts about pairs, routers, nodes, the cluster and policy: (name, type, how to get it, meaning)."""

# fmt: off
PAIR_ROWS: tuple[tuple[str, str, str, str], ...] = (
    ("over_read_from", "int", "both", "shortest prompt that prefill rejects and decode admits, in tokens"),
    ("over_read_to", "int", "both", "longest such prompt"),
    ("over_read_lengths", "int", "both", "how many prompt lengths prefill rejects and decode admits"),
    ("mirror_from", "int", "both", "shortest prompt that decode rejects and prefill admits, in tokens"),
    ("mirror_to", "int", "both", "longest such prompt"),
    ("mirror_lengths", "int", "both", "how many prompt lengths decode rejects and prefill admits"),
    ("never_admitted_from", "int", "both", "shortest prompt that both accept and decode can never place"),
    ("never_admitted_lengths", "int", "both", "how many prompt lengths both accept and decode can never place"),
    ("safe_context", "int", "both", "the one context length for both roles that fits the smaller pool"),
    ("exposed_lengths", "int", "both", "how many of them also pass prefill's tokenizer, so that they walk on"),
    ("held_seconds", "float", "both", "how long the half that accepted waits, in seconds (300 by default)"),
    ("refusal_releases", "bool", "both", "a refusal at the door of one half releases the other one at once"),
    ("retries", "int", "router", "how often a router in front tries a failed pair"),
    ("answer_refused", "bool", "both", "decode refuses prefill's bootstrap answer, which has fields it does not know"),
    ("cut_differs", "bool", "both", "one half truncates where the other rejects, or both cut to other lengths"),
    ("unwritten_tokens", "int", "both", "tokens at the most that decode reads and a truncating prefill has not written"),
    ("hold_margin", "float", "both", "decode's T_hold less the bound of one transfer call of prefill, in seconds"),
    ("handshake", "text", "both", "how an abort in mid-transfer ends: drained, timeout, no hold, early ack, partial"),
    ("handshake_cleared", "text", "both", "the same where prefill's scheduler cleared the request first"),
    ("handshake_failed_send", "text", "both", "the same after a failed send"),
    ("handshake_ranks", "text", "both", "the same where several decode ranks wait"),
    ("formats", "text", "both", "acknowledgement formats of the two halves: same or different"),
    ("differs", "list", "both", "settings that must be equal on both halves and are not"),
    ("layout_differs", "list", "both", "parallel sizes that are not the same on both halves"),
    ("speculative_differs", "bool", "both", "speculative settings are not the same"),
    ("timeouts_differ", "list", "both", "timeouts that are not the same on both halves"),
    ("versions_differ", "bool", "both", "the two halves run different versions"),
    ("checksum", "text", "both", "integrity check: off, both, one side, not supported, layouts differ"),
    ("hold_one_side", "bool", "both", "the hold is set on one half only"),
    ("longest_prompt", "int", "both", "longest prompt that both halves admit, in tokens"),
    # observed by a probe that was given with --with
    ("probes", "list", "probe", "kinds of probe that saw this pair, and whose result was given: over-pool, abort …"),
    ("probe_over_pool", "text", "probe", "what prompts over a limit came to, the worst: exposed, rejected at the door …"),
    ("probe_exposed", "bool", "probe", "a prompt was answered from pages that its prefill had not written"),
    ("probe_depends", "bool", "probe", "the answer to the same prompt over the limit changed with what ran before it"),
    ("probe_held", "text", "probe", "halves that waited, or were still held, for a refused prompt: none, both …"),
    ("abort_told", "text", "probe", "halves that learnt of an abort in mid-transfer: both, decode only, neither …"),
    ("abort_outcome", "text", "probe", "how the hold of that abort ended: drained, timeout, error, no hold"),
    ("canary_drift", "bool", "probe", "answers that are known before were others while or after probing"),
)

ROUTER_ROWS: tuple[tuple[str, str, str, str], ...] = (
    ("kind", "text", "cluster", "sglang-router, smg, sgl-router, mini-lb, other"),
    ("reachable", "bool", "router", "the router answered"),
    ("version", "text", "package", "version of the router's package"),
    ("built", "text", "package", "build date of the router, YYYY-MM-DD"),
    ("workers", "int", "router", "workers that the router lists"),
    ("workers_unknown", "int", "router", "workers that the router lists and cluster.yaml does not"),
    ("engines_unlisted", "list", "router", "engines that cluster.yaml puts behind the router and it does not list"),
    ("workers_unhealthy", "int", "router", "workers that the router holds for unhealthy"),
    ("role_conflicts", "list", "router", "engines whose role differs between the router and the engine"),
    ("pairs_refusals", "text", "package", "a prefill refusal ends the decode half at once: yes or no"),
    ("refusals_released", "bool", "both", "every engine behind it is known to tell its other half of a refusal"),
    ("pairs_disconnects", "text", "package", "a client that leaves in mid-transfer ends both halves: yes, no, not streamed"),
    ("retries", "int", "package", "tries of a request that failed, the first included"),
    # observed by a probe that was given with --with
    ("probes", "list", "probe", "kinds of probe that went through this router, and whose result was given"),
    ("probe_over_pool", "text", "probe", "what prompts over a limit came to, the worst: exposed, rejected at the door …"),
    ("probe_exposed", "bool", "probe", "a prompt was answered from pages that its prefill had not written"),
    ("probe_depends", "bool", "probe", "the answer to the same prompt over the limit changed with what ran before it"),
    ("canary_drift", "bool", "probe", "answers that are known before were others while or after probing"),
)

NODE_ROWS: tuple[tuple[str, str, str, str], ...] = (
    ("reachable", "bool", "process", "the node script ran there"),
    ("transport", "text", "cluster", "local, ssh, kubectl or docker"),
    ("engines", "int", "process", "engines of cluster.yaml found on the node"),
    ("engines_lost", "list", "process", "engines that cluster.yaml puts there and no process was found for"),
)

CLUSTER_ROWS: tuple[tuple[str, str, str, str], ...] = (
    ("prefills", "int", "cluster", "prefill engines"),
    ("decodes", "int", "cluster", "decode engines"),
    ("routers", "int", "cluster", "routers"),
    ("pairs", "int", "cluster", "pairs that may serve a request together"),
    ("prefill_limits", "list", "http", "distinct admission limits of the prefills, in tokens"),
    ("decode_limits", "list", "http", "distinct admission limits of the decodes, in tokens"),
    ("prefill_versions", "list", "http", "distinct versions of the prefills"),
    ("decode_versions", "list", "http", "distinct versions of the decodes"),
    ("safe_context", "int", "http", "the one context length for every engine that fits the smallest pool"),
    ("prefill_contents", "int", "process", "distinct contents of the watched source files among the prefills"),
    ("decode_contents", "int", "process", "distinct contents of the watched source files among the decodes"),
    ("prometheus", "bool", "cluster", "a Prometheus is named in cluster.yaml"),
    ("watched", "bool", "window", "a result of pdguard metrics was given with --with"),
)

POLICY_ROWS: tuple[tuple[str, str, str, str], ...] = (
    ("t_hold_min", "float", "cluster", "smallest advised T_hold in seconds (60)"),
    ("t_hold_max", "float", "cluster", "largest advised T_hold in seconds (120)"),
    ("extreme_context", "int", "cluster", "prompt length from which a batch cap is advised, in tokens (131072)"),
    ("timeout_ratio", "float", "cluster", "share of holds that may end by timeout (0.05)"),
    ("min_holds", "int", "cluster", "holds needed before their ratio is judged (20)"),
)
