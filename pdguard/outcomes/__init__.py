"""Release outcomes: how holds end, from Prometheus or each /metrics, and what T_hold follows from them."""
